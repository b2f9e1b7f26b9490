"""The chain everyone starts with, as the measure of what Antiphon's order of work is worth.

    microphone -> voice detector -> wait for the silence -> faster-whisper on the whole utterance
               -> language model until its first sentence is complete -> its speech -> loudspeaker

One step begins when the one before it is done. What runs in it is what runs in the service: the same
detector and turn machine with the same settings and the same silence, the same weights of Whisper, of the
language model (the very same object, its prefix cache included) and of the voice, as many threads. The
recogniser is faster-whisper with its own defaults, the voice hibari as it comes, with its silence before
every sentence.

Where it matters little, the chain is favoured: audio reaches it without a socket or resampling, sound is
heard the moment it exists, and once it has heard the end of a turn it no longer listens.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..asr.base import SAMPLE_RATE
from ..asr.vad import FRAME, SpeechDetector, VadState
from ..llm.base import ChatRequest, Limits, Message, Sampling
from ..pipeline.audio import Framer, speech_end
from ..pipeline.engines import Engines, VadInput
from ..pipeline.errors import SetupError
from ..pipeline.events import CommitTurn, Samples, StartTurn, Tick, TurnPolicy
from ..pipeline.metrics import STAGES
from ..pipeline.settings import Settings
from ..pipeline.turn import TurnMachine
from .client import Loudspeaker, Microphone
from .exchange import BREATH, LEAD_IN, Exchange, earlier

SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)")
"""The end of a sentence, known when white space follows."""


@dataclass(frozen=True, slots=True)
class Utterance:
    """What the detector and the silence cut out.

    ended: event loop time at which the silence was over. end: where speech ended, in seconds of the microphone.
    """

    samples: Samples
    ended: float
    end: float


def load(settings: Settings, engines: Engines, whisper: Path) -> SerialChain:
    """The chain with faster-whisper and hibari as they come, warmed up. Blocking, some seconds.

    whisper: a CTranslate2 folder. Raises SetupError when faster-whisper is not installed.
    """
    try:
        from faster_whisper import WhisperModel  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise SetupError("--serial needs faster-whisper: pip install 'antiphon[bench]'") from None
    from hibari.tts import Hibari  # pyright: ignore[reportMissingTypeStubs]

    from ..tts.hibari import MODEL

    logging.getLogger("faster_whisper").setLevel(logging.WARNING)
    recognizer: Any = WhisperModel(
        str(whisper), device="cpu", compute_type="int8", cpu_threads=settings.asr.threads
    )
    voice: Any = Hibari(model=str(MODEL), threads=1)

    def transcribe(samples: Samples) -> str:
        segments, _ = recognizer.transcribe(samples)
        return "".join(segment.text for segment in segments)

    def speak(text: str) -> Samples:
        return voice(text, seed=0)

    transcribe(speak("The serial chain is ready."))
    return SerialChain(settings, engines, transcribe=transcribe, speak=speak)


class SerialChain:
    """Answers one utterance at a time.

    engines: of the service; only the detector and the language model are used. transcribe: 16 kHz samples to
    text. speak: text to samples at 24 kHz. Both block, and run on a thread.
    """

    def __init__(
        self,
        settings: Settings,
        engines: Engines,
        *,
        transcribe: Callable[[Samples], str],
        speak: Callable[[str], Samples],
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._transcribe = transcribe
        self._speak = speak
        self._turns = 0

    async def answer(self, samples: Samples, *, limit: float, end: float | None = None) -> Exchange:
        """Hear an utterance (16 kHz) at the pace of speech and answer it; stages as in `Exchange`.

        limit: seconds after the utterance within which a step may begin. end: as in `exchange`. Cancelling stops
        the listening and the language model; a recogniser or voice at work ends by itself, unheard.
        """
        last = speech_end(samples, SAMPLE_RATE) if end is None else end
        if last is None:
            return Exchange(problem="the recording holds no speech")
        now = asyncio.get_running_loop().time
        microphone = Microphone(now(), SAMPLE_RATE)
        microphone.play(np.zeros(round(LEAD_IN * SAMPLE_RATE), np.float32))
        clip = microphone.play(samples)
        spoken = clip.moment(last)
        stages: dict[str, float | None] = dict.fromkeys(STAGES)

        def stamp(stage: str) -> None:
            stages[stage] = round((now() - spoken) * 1000, 1)

        early, utterance = await self._listen(microphone, spoken, clip.end + limit)
        if utterance is None:
            return Exchange(false_ends=len(early), problem="no end of speech was found in time")
        if end is None:
            spoken = clip.moment(earlier(last, utterance.end - LEAD_IN))
        stages["gate_open"] = round((utterance.ended - spoken) * 1000, 1)
        text = (await asyncio.to_thread(self._transcribe, utterance.samples)).strip()
        stamp("transcript_final")
        sound = Loudspeaker()
        sentence = ""
        if text:
            try:
                async with asyncio.timeout_at(clip.end + limit):
                    sentence = await self._sentence(text, stamp)
            except TimeoutError:
                return Exchange(text, stages_ms=stages, problem="no first sentence in time")
            stamp("first_clause")
            sound.add(await asyncio.to_thread(self._speak, sentence), now())
            stamp("first_audio")
            stamp("first_audio_sent")
        before = [(await asyncio.to_thread(self._transcribe, u.samples)).strip() for u in early]
        return Exchange(
            transcript=" ".join([*before, text]).strip(),
            reply=sentence,
            sound=sound.samples,
            v2v_ms=None if sound.heard is None else (sound.heard - spoken) * 1000,
            stages_ms=stages,
            false_ends=len(early),
            problem=None if sound.heard is not None else "no reply" if text else "no words were recognised",
        )

    # --- the steps --------------------------------------------------------------------------------------

    async def _listen(
        self, microphone: Microphone, spoken: float, deadline: float
    ) -> tuple[list[Utterance], Utterance | None]:
        """(turns that ended before the last word was spoken, the one that ended with it).

        A microphone's frame is waited for until it has been spoken; then it goes to the detector.
        """
        now = asyncio.get_running_loop().time
        settings = self._settings
        framer, state = Framer(FRAME), VadState()
        detector = SpeechDetector(
            threshold=settings.vad.threshold,
            min_speech=settings.vad.min_speech,
            prefix_padding=settings.vad.prefix_padding,
        )
        machine = TurnMachine(
            TurnPolicy(silence=settings.turn.silence, speculate=False, create_response=False)
        )
        turns: list[Utterance] = []
        heard: list[Samples] = []
        start = 0.0
        while microphone.due < deadline:
            await asyncio.sleep(max(0.0, microphone.due - now()))
            for frame in framer.push(microphone.frame()):
                heard.append(frame)
                frames = VadInput(frame[np.newaxis], state)
                out = await self._engines.vad.submit(frames, owner="serial", deadline=now())
                state = out.state
                tick = Tick(len(heard) * FRAME / SAMPLE_RATE)
                for event in (*detector.push(float(out.probabilities[0])), tick):
                    for action in machine.handle(event):
                        if isinstance(action, StartTurn):
                            start = action.start
                        elif isinstance(action, CommitTurn):
                            samples = np.concatenate(heard)[round(start * SAMPLE_RATE) :]
                            turns.append(Utterance(samples, now(), action.end))
                if turns and turns[-1].ended > spoken - BREATH:
                    return turns[:-1], turns[-1]
        return turns, None

    async def _sentence(self, text: str, stamp: Callable[[str], None]) -> str:
        """The first sentence of the reply, or all of it when it has only one."""
        self._turns += 1
        llm = self._settings.llm
        messages: Sequence[Message] = (Message("system", llm.instructions), Message("user", text))
        limits, sampling = Limits(llm.max_tokens), Sampling(llm.temperature)
        request = ChatRequest(messages, f"serial-{self._turns}", limits, sampling)
        reply = ""
        async with self._engines.chat.stream(request) as deltas:
            async for delta in deltas:
                if delta.text and not reply:
                    stamp("first_token")
                reply += delta.text
                if end := SENTENCE.search(reply):
                    return reply[: end.end()].strip()
        return reply.strip()
