"""What every voice is: speakable text in, PCM out as it is made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from ..pipeline.events import Samples


@dataclass(frozen=True, slots=True)
class Voice:
    """name as the backend knows it; speed 1.0 is its own pace, 0.25 to 4.0."""

    name: str
    speed: float = 1.0


class Synthesizer(Protocol):
    sample_rate: int
    """Hz of the samples it gives."""

    voices: tuple[str, ...]
    """Names it knows, the default first."""

    def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AbstractAsyncContextManager[AsyncIterator[Samples]]:
        """Speak one clause: chunks of float32 mono at `sample_rate`, in order, at least one sample in all
        unless the text holds nothing to say.

        deadline: on the event loop's clock, when the first chunk is wanted; earlier deadlines go first.
        Leaving the context drops what was not begun; a chunk that the model is computing is thrown away.
        """
        ...
