"""What the engine pushes while it completes a text, read. Pure.

Its chunks have the form of OpenAI's legacy completions, and are pushed in order: of the prefill's progress,
of one token each (none for a token that ends within a character; the next one's has it all), one with the
reason to finish and the counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed
from ..pipeline.events import Usage
from .base import TokenLogprob

Chunk = Mapping[str, Any]

LEAST = -9999.0
"""A log probability that stands for all below it."""


@dataclass(frozen=True, slots=True)
class Sampled:
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    reason: Literal["stop", "length"]
    usage: Usage


class Chunks:
    """One completion's. top: how many alternatives to a token are told. Raises the error that a chunk reports."""

    def __init__(self, *, top: int = 0, param: str = "messages") -> None:
        self._top = top
        self._param = param
        self.usage = Usage()
        """So far, where the chunks tell (`timings_per_token`)."""
        self.finished = False

    def push(self, chunk: Chunk) -> Sampled | Finished | None:
        if (error := chunk.get("error")) is not None:
            raise failure(error, self._param)
        if (timings := chunk.get("timings")) is not None:
            cached = timings["cache_n"]
            self.usage = Usage(cached + timings["prompt_n"], cached, timings["predicted_n"])
        for choice in chunk["choices"]:
            if (reason := choice["finish_reason"]) is not None:
                self.finished = True
                usage = chunk["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                counts = Usage(usage["prompt_tokens"], cached, usage["completion_tokens"])
                return Finished("length" if reason == "length" else "stop", counts)
            told: Sequence[Chunk] = choice["logprobs"]["content"] if choice.get("logprobs") else ()
            logprobs = tuple(self._logprob(token) for token in told)
            if choice["text"] or logprobs:
                return Sampled(choice["text"], logprobs)
        return None

    def _logprob(self, token: Mapping[str, Any]) -> TokenLogprob:
        top = tuple(
            (other["token"], _floor(other["logprob"]), bytes(other["bytes"]))
            for other in token["top_logprobs"][: self._top]
        )
        return TokenLogprob(token["token"], _floor(token["logprob"]), bytes(token["bytes"]), top)


def _floor(logprob: float | None) -> float:
    return LEAST if logprob is None else max(LEAST, min(0.0, logprob))


def failure(error: Mapping[str, Any], param: str = "messages") -> AntiphonError:
    """The engine's error object as ours. param: where the prompt came from."""
    if error.get("type") == "exceed_context_size_error":
        return BadRequest(
            f"the {param} have {error['n_prompt_tokens']} tokens; "
            f"the language model's context (llm.context) holds {error['n_ctx']}",
            code="context_length_exceeded",
            param=param,
        )
    return EngineFailed(f"the language model failed: {error.get('type', 'no reason given')}")
