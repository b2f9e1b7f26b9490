"""One completion on its way through the engine: what is asked, and what comes back across the threads.

    engine's thread: run --> Engine.complete --> push --call_soon_threadsafe--> queue --> event loop: iterates

Which slot it has, and how long it waits for that, is decided in llamacpp.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from ..pipeline.errors import AntiphonError, EngineFailed
from . import thinking, tools
from .base import Delta, Limits, Sampling
from .chunks import Chunk, Chunks, Finished
from .engine import Engine
from .grammars import Guard
from .reading import Reading

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine is to do, and how its answer is read. param: what the prompt came from.

    background: nobody waits for it.
    """

    prompt: str | Sequence[int]
    limits: Limits
    sampling: Sampling
    reading: Reading
    grammar: str | None = None
    guard: Guard | None = None
    param: str = "messages"
    background: bool = False

    def body(self, slot: int, context: int) -> dict[str, Any]:
        limits, sampling = self.limits, self.sampling
        body: dict[str, Any] = {
            "prompt": self.prompt,
            "max_tokens": -1 if limits.max_tokens is None else limits.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repeat_penalty": sampling.repetition_penalty,
            "repeat_last_n": context,  # all of it: a penalty looks at 64 tokens otherwise
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            # Chunks of progress call back, and so let a cancel in, after each batch of the prefill.
            "return_progress": True,
            # Marks that are control tokens of a model would have no text otherwise.
            "preserved_tokens": [thinking.OPEN, thinking.CLOSE, tools.OPEN, tools.CLOSE],
            # Where the engine may be stopped here, only this tells how much it did.
            "timings_per_token": self.reading.may_end,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if sampling.logit_bias:
            body["logit_bias"] = [[token, bias] for token, bias in sampling.logit_bias.items()]
        if limits.logprobs is not None:
            body["n_probs"] = max(1, limits.logprobs)
        if self.grammar is not None:
            body["grammar"] = self.grammar
        return body


class Call(AsyncIterator[Delta]):
    """One completion, between the engine's thread, which pushes, and the event loop, which iterates.

    The queue between them never makes the engine's thread wait, so a slow reader cannot hold a slot: it is
    bounded by the context, a delta a token. None in it is the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, job: Job) -> None:
        self._loop = loop
        self._job = job
        self._chunks = Chunks(top=job.limits.logprobs or 0, param=job.param)
        self._deltas: asyncio.Queue[Delta | AntiphonError | None] = asyncio.Queue()
        self._whole = False
        self._ended = False
        self.cancelled = False

    @property
    def finished(self) -> bool:
        """The engine came to the end by itself; it lets go of the slot before it says so."""
        return self._chunks.finished

    # On the engine's thread.

    def push(self, chunks: Chunk | Sequence[Chunk]) -> bool:
        """The engine's callback; True cancels. The engine swallows what it raises, so it raises nothing."""
        try:
            for chunk in [chunks] if isinstance(chunks, Mapping) else chunks:
                if not self._whole:
                    self._read(chunk)
        except AntiphonError as error:
            self._fail(error)
            return True
        except Exception as error:
            log.error("llama.cpp sent a chunk that cannot be read: %s", type(error).__name__)
            self._fail(EngineFailed("the language model sent what cannot be read"))
            return True
        return self.cancelled or (self._whole and not self.finished)

    def _read(self, chunk: Chunk) -> None:
        reading, guard = self._job.reading, self._job.guard
        match self._chunks.push(chunk):
            case None:
                return
            case Finished(reason, usage):
                if guard is not None and reason == "stop":
                    guard.finish()
                delta = reading.finish(reason, usage)
                self._whole = True
            case sampled:
                if guard is not None:
                    guard.push(sampled.text)
                delta = reading.push(sampled.text, sampled.logprobs)
                if reading.over:
                    if delta is not None:
                        self._hand_over(delta)
                    delta = reading.finish("stop", self._chunks.usage)
                    self._whole = True
        if delta is not None and self._job.limits.max_tokens != 0:
            self._hand_over(delta)

    def run(self, engine: Engine, body: dict[str, Any]) -> None:
        """Blocks until the engine is done with the request, or was told to drop it. Raises nothing."""
        try:
            if not self.cancelled:
                engine.complete(body, self.push)
        except Exception as error:
            log.error("llama.cpp raised %s", type(error).__name__)
        if not self._whole:
            self._fail(EngineFailed("the language model stopped before its end"))
        self._hand_over(None)

    def _fail(self, error: AntiphonError) -> None:
        self._whole = True
        self._hand_over(error)

    def _hand_over(self, item: Delta | AntiphonError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, item)
        except RuntimeError:  # the loop is closed, nobody reads
            self.cancelled = True

    # On the event loop.

    def cancel(self, error: AntiphonError | None = None) -> None:
        """Drop the request when the engine looks next. A reader gets what came before, then error or end."""
        self.cancelled = True
        self._deltas.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """Cancelling is safe: no delta is lost."""
        item = None if self._ended else await self._deltas.get()
        if isinstance(item, Delta):
            return item
        self._ended = True
        raise item or StopAsyncIteration
