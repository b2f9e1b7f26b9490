"""What every language model is: a request in, a stream of text out, a slot freed on leaving."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..pipeline.events import Usage
from ..pipeline.tools import Tool as Tool
from ..pipeline.tools import ToolUse

JsonSchema = Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class ToolCall:
    """arguments: a JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. tool_calls: an assistant's; tool_call_id: which one a tool answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is drawn.

    temperature 0 is greedy, at most 2. top_p 0 to 1; top_k 0 for all; min_p 0 to 1. penalties -2 to 2, 0 for
    none; repetition 1 for none. logit_bias: added to a token's logit, -100 (never) to 100.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a completion ends and what is told of it.

    max_tokens: None is the backend's limit; 0 only brings the prompt into the prefix cache (prefill) and
        streams nothing. stop: strings before which the text ends; none of them, nor the beginning of one
        that is completed later, is ever streamed.
    schema: the text is JSON that validates against it ({} or True: any JSON object); None for free text.
    logprobs: None for none; else each token's own and so many alternatives, 0 to 20.
    """

    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: JsonSchema | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One answer to messages. owner names the conversation, for cancelling and prefix reuse.

    template: further variables of the model's chat template (`enable_thinking`, ...). background: nobody waits
    for it; it comes after what somebody waits for.
    """

    messages: Sequence[Message]
    owner: str
    limits: Limits = Limits()
    sampling: Sampling = Sampling()
    tools: ToolUse = field(default_factory=ToolUse)
    template: Mapping[str, Any] = field(default_factory=dict[str, Any])
    background: bool = False


@dataclass(frozen=True, slots=True)
class TextRequest:
    """One continuation of a prompt: text, or token ids. background: as in ChatRequest."""

    prompt: str | Sequence[int]
    owner: str
    limits: Limits = Limits()
    sampling: Sampling = Sampling()
    background: bool = False


FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its natural log probability, at least -9999. data: its bytes, perhaps half a character."""

    token: str
    logprob: float
    data: bytes
    top: tuple[tuple[str, float, bytes], ...] = ()
    """Alternatives, likeliest first."""


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call. index counts a reply's calls from 0; id and name come once, whole, first.

    arguments: the next piece of the JSON text.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of a reply: whole characters only, never half of one. The last has a finish_reason.

    reasoning: of what a thinking model thinks, kept out of `text`.
    logprobs: of the tokens sampled since the last delta, calls and reasoning included.
    """

    text: str
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    calls: tuple[CallDelta, ...] = ()
    reasoning: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class ChatModel(Protocol):
    def stream(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Stream one answer.

        Leaving the context, or being cancelled in it, frees the engine's slot before it returns.
        Raises BadRequest when the messages do not fit the model or a schema cannot be enforced, Overloaded
        when no slot can be had, EngineFailed otherwise.
        """
        ...


class TextModel(Protocol):
    """What a backend may offer besides: the model below the chat."""

    vocabulary: int
    """Token ids are below it."""

    context: int
    """Tokens of prompt and reply together."""

    def complete(self, request: TextRequest) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """As ChatModel.stream, for a prompt as it stands."""
        ...

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """special: read the names of special tokens, `<|im_end|>`, as these. Raises BadRequest (param "prompt")
        for a text that is far too long for the model."""
        ...

    async def pieces(self, text: str) -> list[tuple[int, str]]:
        """As tokenize, each token with its text, half a character as U+FFFD."""
        ...

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Raises BadRequest for an id that the model does not have."""
        ...

    async def render(self, request: ChatRequest) -> str:
        """The prompt that the model's chat template makes of the messages."""
        ...


class Embedder(Protocol):
    name: str
    dimensions: int

    async def embed(self, texts: Sequence[str | Sequence[int]], *, owner: str) -> Sequence[Embedding]:
        """One embedding a text, in order. A text is itself, or ids of the model's own tokens.

        Raises BadRequest (param "input") for one that is too long, and for ids that there are not.
        """
        ...


@dataclass(frozen=True, slots=True)
class Embedding:
    """vector: of length 1, shape (dimensions,). tokens: how many were read."""

    vector: NDArray[np.float32]
    tokens: int
