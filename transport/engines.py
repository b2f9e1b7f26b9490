"""The models of a server: fetched, loaded and warmed, in the order in which a turn meets them.

A model is warm when it has computed once: the first call of a process pays for memory and kernels that later
ones find ready, and no caller shall wait for that. The recogniser of other languages is the exception; it is
loaded when somebody first speaks one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import numpy as np

from ..asr.base import SAMPLE_RATE, Recognizer, Transcription, Window
from ..asr.vad import FRAME, SileroVad, VadState
from ..llm import minilm
from ..llm.base import ChatModel, ChatRequest, Embedder, Limits, Message
from ..pipeline import backends
from ..pipeline.engines import Engines, VadInput, VadOutput
from ..pipeline.settings import Settings
from ..pipeline.weights import WeightStore
from ..pipeline.worker import Worker
from ..tts.base import Synthesizer, Voice

VAD_BATCH = 8
"""Sessions whose frames the detector takes in one call."""

Model = TypeVar("Model")

log = logging.getLogger("antiphon.server")


@asynccontextmanager
async def load_engines(settings: Settings) -> AsyncGenerator[Engines, None]:
    """The engines that the settings name; leaving it stops their threads.

    Raises SetupError for a backend or a model that cannot be had.
    """
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    _known(settings, store)
    async with AsyncExitStack() as stack:
        # The voice first: it loads at once, and a wrong tts.voice is known before anything is fetched.
        voice: Synthesizer = await _load(
            settings.tts.backend, lambda: backends.load("tts", settings.tts.backend)(settings, store)
        )
        _close_with(stack, voice)

        async def recognizer(name: str) -> tuple[Worker[Window, Transcription], Recognizer]:
            named = settings.model_copy(update={"asr": settings.asr.model_copy(update={"model": name})})
            model: Recognizer = await _load(name, lambda: _recognizer(named, store))
            worker: Worker[Window, Transcription] = Worker("asr", model.transcribe)
            stack.push_async_callback(worker.aclose)
            return worker, model

        vad = await _load(settings.vad.model, lambda: _detector(settings, store))
        detector: Worker[VadInput, VadOutput] = Worker(
            "vad", vad, max_batch=VAD_BATCH, capacity=max(256, 2 * settings.server.max_sessions)
        )
        stack.push_async_callback(detector.aclose)
        english, model = await recognizer(settings.asr.model)
        chat: ChatModel = await _load(
            settings.llm.model, lambda: backends.load("llm", settings.llm.backend)(settings, store)
        )
        _close_with(stack, chat)
        await _warm(chat, voice, settings)

        async def other() -> Worker[Window, Transcription]:
            if settings.asr.multilingual_model == settings.asr.model:
                return english
            worker, _ = await recognizer(settings.asr.multilingual_model)
            worker.watch(english.tell)  # one figure for both: they share the processors
            return worker

        loading: list[asyncio.Task[Worker[Window, Transcription]]] = []

        async def multilingual() -> Worker[Window, Transcription]:
            # One task for all who ask: a caller that is cancelled leaves it loading for the next.
            if not loading:
                loading.append(asyncio.create_task(other(), name="load-multilingual"))
            task = loading[0]
            try:
                return await asyncio.shield(task)
            except Exception:
                if task in loading:
                    loading.remove(task)
                raise

        async def settle() -> None:
            for task in loading:
                await asyncio.wait([task])  # a thread that loads cannot be stopped

        stack.push_async_callback(settle)

        text: Any = chat if hasattr(chat, "tokenize") else None
        embedder: Embedder | None = None
        if name := settings.embeddings.model:
            embedder = await _load(name, lambda: minilm.load(settings, store))
            _close_with(stack, embedder)
        bucket = getattr(model, "bucket", _one_bucket)
        yield Engines(english, multilingual, bucket, detector, chat, voice, text=text, embedder=embedder)


def _known(settings: Settings, store: WeightStore) -> None:
    """Raises WeightsError for a model of our own backends that does not exist, before any is fetched."""
    store.require(settings.vad.model, "vad.model")
    if settings.asr.backend == "ctranslate2":
        store.require(settings.asr.model, "asr.model")
        store.require(settings.asr.multilingual_model, "asr.multilingual_model")
    if settings.llm.backend == "llamacpp":
        store.require(settings.llm.model, "llm.model")
    if settings.embeddings.model:
        store.require(settings.embeddings.model, "embeddings.model")


async def _load(name: str, load: Callable[[], Model]) -> Model:
    """Load on a thread, and say how long it took."""
    log.info("loading %s", name)
    began = time.monotonic()
    model = await asyncio.to_thread(load)
    log.info("loading %s ... %.1f s", name, time.monotonic() - began)
    return model


def _recognizer(settings: Settings, store: WeightStore) -> Recognizer:
    model: Recognizer = backends.load("asr", settings.asr.backend)(settings, store)
    noise = np.random.default_rng(0).normal(0, 0.01, SAMPLE_RATE).astype(np.float32)
    model.transcribe([Window(noise, language="en", final=False)])
    return model


def _detector(settings: Settings, store: WeightStore) -> Callable[[Sequence[VadInput]], list[VadOutput]]:
    model = SileroVad(_onnx(store, settings.vad.model))

    def run(batch: Sequence[VadInput]) -> list[VadOutput]:
        """Frame by frame, as each needs the state after the last; all sessions that have one at once."""
        states = [work.state for work in batch]
        found = [np.zeros(len(work.frames), np.float32) for work in batch]
        for at in range(max(len(work.frames) for work in batch)):
            rows = [row for row, work in enumerate(batch) if at < len(work.frames)]
            frames = np.stack([batch[row].frames[at] for row in rows])
            probabilities, after = model.probabilities(frames, [states[row] for row in rows])
            for row, probability, state in zip(rows, probabilities, after, strict=True):
                found[row][at], states[row] = probability, state
        return [VadOutput(p, state) for p, state in zip(found, states, strict=True)]

    run([VadInput(np.zeros((1, FRAME), np.float32), VadState())])
    return run


async def _warm(chat: ChatModel, voice: Synthesizer, settings: Settings) -> None:
    """One token and one word, by way of the interfaces that sessions use."""
    prompt = [Message("system", settings.llm.instructions), Message("user", "Hello.")]
    async with chat.stream(ChatRequest(prompt, "warm-up", Limits(max_tokens=1))) as deltas:
        async for _ in deltas:
            pass
    now = asyncio.get_running_loop().time()
    async with voice.synthesize("Ready.", Voice(settings.tts.voice), owner="warm-up", deadline=now) as chunks:
        async for _ in chunks:
            pass


def _close_with(stack: AsyncExitStack, model: Any) -> None:
    """A backend that holds a thread or a process has an `aclose`; one that does not needs none."""
    if hasattr(model, "aclose"):
        stack.push_async_callback(model.aclose)


def _one_bucket(window: Window) -> int:
    return 0


def _onnx(store: WeightStore, name: str) -> Any:
    """The one .onnx file of the detector's model."""
    path = store.fetch(name)
    return path if path.is_file() else next(iter(sorted(path.glob("*.onnx"))))
