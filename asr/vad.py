"""Where speech is: a model's probability per frame, and a pure detector that makes events of it.

`SileroVad` turns frames of 32 ms into probabilities, many sessions at once. `SpeechDetector` turns one
session's probabilities into `SpeechStarted` and `SpeechStopped`, with hysteresis: speech is entered at
`threshold` and left below `threshold - HYSTERESIS`. It decides no turns: a stop is only a candidate end, told
as early as possible because work starts on it, and speech may resume after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from ..pipeline.events import Samples, SpeechStarted, SpeechStopped
from .base import SAMPLE_RATE

FRAME = 512
"""Samples of a frame: 32 ms."""
CONTEXT = 64
"""Samples before a frame that the model wants to see with it."""
FRAME_SECONDS = FRAME / SAMPLE_RATE
HYSTERESIS = 0.15
RESUME_WITHIN = 1.0
"""Seconds after a stop during which speech is the same utterance going on."""
CANDIDATE = 3 * FRAME_SECONDS
"""Seconds of speech frames after which something may be speech."""
RESUME_SPEECH = 2 * FRAME_SECONDS
"""Seconds of speech that are enough then: the short last word after a gap is not a click."""


@dataclass(slots=True)
class VadState:
    """What the model remembers of one session: recurrent state (2, 128) and the last CONTEXT samples."""

    recurrent: NDArray[np.float32] = field(default_factory=lambda: np.zeros((2, 128), np.float32))
    context: Samples = field(default_factory=lambda: np.zeros(CONTEXT, np.float32))


class SileroVad:
    """Silero VAD through onnxruntime. Holds weights only; every session brings its `VadState`."""

    def __init__(self, path: Path | str) -> None:
        runtime: Any = onnxruntime
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        self._session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._rate = np.array(SAMPLE_RATE, np.int64)

    def probabilities(
        self, frames: Samples, states: Sequence[VadState]
    ) -> tuple[NDArray[np.float32], list[VadState]]:
        """Probability of speech in each session's next frame, and each session's next state.

        frames: (b, FRAME) float32 at 16 kHz, one row a session; states: b of them, left unchanged.
        Raises ValueError on any other shape or type. Blocking, about 0.2 ms a frame on one core.
        """
        if frames.dtype != np.float32 or frames.shape != (len(states), FRAME):
            raise ValueError(
                f"frames must be float32 of shape ({len(states)}, {FRAME}), not {frames.dtype} {frames.shape}"
            )
        padded = np.concatenate([np.stack([s.context for s in states]), frames], axis=1)
        recurrent = np.stack([s.recurrent for s in states], axis=1)
        outputs: Any = self._session.run(None, {"input": padded, "state": recurrent, "sr": self._rate})
        probability, after = outputs
        return probability[:, 0], [
            VadState(after[:, i].copy(), padded[i, -CONTEXT:].copy()) for i in range(len(states))
        ]


class SpeechDetector:
    """One session's probabilities to events, one frame at a time. Pure; its clock is the frames it was fed.

    threshold: probability from which a frame is speech, in (0, 1).
    min_speech: seconds of speech frames before `SpeechStarted`; what is shorter was a click. Soon after a
        stop RESUME_SPEECH is enough.
    min_silence: seconds of silent frames before `SpeechStopped`.
    prefix_padding: seconds of audio before the onset that belong to the speech.
    min_peak: a probability that the first start must have reached; animals and engines stay below it.
    resume_within: seconds after a stop in which speech that goes on is not held to be something new.
    """

    def __init__(
        self,
        threshold: float = 0.5,
        min_speech: float = 0.2,
        min_silence: float = FRAME_SECONDS,
        prefix_padding: float = 0.3,
        min_peak: float = 0.8,
        resume_within: float = RESUME_WITHIN,
    ) -> None:
        self.configure(threshold=threshold, prefix_padding=prefix_padding, resume_within=resume_within)
        self.min_speech = min_speech
        self.min_silence = min_silence
        self.min_peak = min_peak
        self.speaking = False
        self._frames = 0
        self._onset: int | None = None
        self._voiced = 0
        self._silent = 0
        self._peak = 0.0
        self._last_end = 0.0
        self._stopped_at = -float("inf")

    def configure(
        self, *, threshold: float, prefix_padding: float, resume_within: float = RESUME_WITHIN
    ) -> None:
        """Change what a session may change, from the next frame on. Raises ValueError out of range."""
        if not 0.0 < threshold < 1.0:
            raise ValueError(f"threshold must be between 0 and 1, not {threshold}")
        if prefix_padding < 0.0:
            raise ValueError(f"prefix_padding must not be negative, not {prefix_padding}")
        self.threshold = threshold
        self.prefix_padding = prefix_padding
        self.resume_within = resume_within

    def reset(self) -> None:
        """Forget what is going on, keep the clock: what comes next is the start of something new."""
        self.speaking, self._onset, self._silent = False, None, 0
        self._last_end = self.seconds
        self._stopped_at = -float("inf")

    def settle(self) -> None:
        """What stopped is over: the next speech, also one that is `pending`, is the start of something new."""
        self._stopped_at = -float("inf")

    @property
    def pending(self) -> bool:
        """Sound that may turn out to be speech: nobody should take the floor in the next frames."""
        return self._onset is not None

    @property
    def candidate(self) -> bool:
        """Sound that has lasted long enough to make room for it, and may yet be a click or a cough."""
        return self._onset is not None and self._voiced * FRAME_SECONDS >= CANDIDATE

    @property
    def seconds(self) -> float:
        """Audio heard so far."""
        return self._frames * FRAME_SECONDS

    def push(self, probability: float) -> list[SpeechStarted | SpeechStopped]:
        """What the next frame changed: nothing, or one event."""
        self._frames += 1
        leave = max(self.threshold - HYSTERESIS, 0.01)
        if self.speaking:
            return self._while_speaking(probability < leave)
        if probability >= (self.threshold if self._onset is None else leave):
            if self._onset is None:
                self._onset, self._voiced, self._peak = self._frames - 1, 0, 0.0
            self._voiced, self._silent = self._voiced + 1, 0
            self._peak = max(self._peak, probability)
        elif self._onset is not None:
            # One weak frame inside a short word ("yes") does not make it two clicks.
            self._silent += 1
            if self._silent > 1:
                self._onset = None
        resumed = self.seconds - self._stopped_at < self.resume_within
        needed = min(RESUME_SPEECH, self.min_speech) if resumed else self.min_speech
        if (
            self._onset is not None
            and self._voiced * FRAME_SECONDS >= needed - 1e-9
            and (resumed or self._peak >= max(self.min_peak, self.threshold))
        ):
            start = max(self._onset * FRAME_SECONDS - self.prefix_padding, self._last_end, 0.0)
            self.speaking, self._onset, self._silent = True, None, 0
            return [SpeechStarted(at=self.seconds, start=start)]
        return []

    def _while_speaking(self, silent: bool) -> list[SpeechStarted | SpeechStopped]:
        self._silent = self._silent + 1 if silent else 0
        if self._silent == 0 or self._silent * FRAME_SECONDS < self.min_silence - 1e-9:
            return []
        self._last_end = (self._frames - self._silent) * FRAME_SECONDS
        self.speaking, self._silent, self._stopped_at = False, 0, self.seconds
        return [SpeechStopped(at=self.seconds, end=self._last_end)]
