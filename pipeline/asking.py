"""What a response is to be, and what the language model is asked for it. Pure.

What a client says of one response goes before what the session says of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..llm.base import ChatRequest, Limits, Message, Sampling
from .conversation import Conversation, messages
from .events import CreateResponse, Response, SessionConfig
from .settings import LlmSettings


def response_for(asked: CreateResponse, config: SessionConfig, new_id: Callable[[str], str]) -> Response:
    return Response(
        new_id("resp"),
        asked.modality or config.modality,
        metadata=asked.metadata,
        voice=asked.voice or config.voice,
        max_output_tokens=asked.max_output_tokens or config.max_output_tokens,
        in_conversation=asked.in_conversation,
    )


def prompt_for(asked: CreateResponse, config: SessionConfig, conversation: Conversation) -> list[Message]:
    instructions = config.instructions if asked.instructions is None else asked.instructions
    if asked.input is not None:
        head = [Message("system", instructions)] if instructions else []
        return [*head, *messages(asked.input)]
    return conversation.messages(instructions)


def request_for(
    asked: CreateResponse,
    response: Response,
    prompt: Sequence[Message],
    config: SessionConfig,
    llm: LlmSettings,
    owner: str,
) -> ChatRequest:
    """owner: who computes it, for the model's cache."""
    limits = Limits(max_tokens=min(response.max_output_tokens or llm.max_tokens, llm.max_tokens))
    tools = config.tools if asked.tools is None else asked.tools
    return ChatRequest(prompt, owner, limits, Sampling(llm.temperature), tools)
