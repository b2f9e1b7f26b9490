"""The models of one server, as its sessions see them: workers and protocols, no weights and no threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..asr.base import Transcription, Window
from ..asr.vad import VadState
from ..llm.base import ChatModel, Embedder, TextModel
from ..tts.base import Synthesizer
from .worker import Worker


@dataclass(frozen=True, slots=True)
class VadInput:
    """frames: shape (k, FRAME), 16 kHz, the next of one session; state: that session's."""

    frames: NDArray[np.float32]
    state: VadState


@dataclass(frozen=True, slots=True)
class VadOutput:
    """probabilities: shape (k,), of speech in each frame."""

    probabilities: NDArray[np.float32]
    state: VadState


@dataclass(frozen=True, slots=True)
class Engines:
    """The models of a server, shared by its sessions.

    english, multilingual: recognisers; the second may load on first use. bucket: a window's batch bucket.
    text: the model below the chat, where the backend offers it. embedder: where one is configured.
    """

    english: Worker[Window, Transcription]
    multilingual: Callable[[], Awaitable[Worker[Window, Transcription]]]
    bucket: Callable[[Window], int]
    vad: Worker[VadInput, VadOutput]
    chat: ChatModel
    voice: Synthesizer
    text: TextModel | None = None
    embedder: Embedder | None = None
