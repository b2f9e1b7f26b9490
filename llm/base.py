"""What every language model is: a request in, a stream of text out, a slot freed on leaving."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from ..pipeline.events import Usage


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One completion. owner names the conversation, for cancelling and prefix reuse.

    max_tokens: None is the backend's limit; 0 only brings the messages into the prefix cache (prefill) and
        streams nothing. temperature 0 is greedy.
    """

    messages: Sequence[Message]
    owner: str
    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """The next piece of text: whole characters only, never half of one. The last has a finish_reason."""

    text: str
    finish_reason: Literal["stop", "length"] | None = None
    usage: Usage | None = None


class ChatModel(Protocol):
    def stream(self, request: ChatRequest) -> AbstractAsyncContextManager[AsyncIterator[Delta]]:
        """Stream one completion.

        Leaving the context, or being cancelled in it, frees the engine's slot before it returns.
        Raises BadRequest when the messages do not fit the model, Overloaded when no slot can be had,
        EngineFailed otherwise.
        """
        ...
