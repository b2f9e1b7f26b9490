"""Sound in a chat: what a client sends is heard and becomes text in its place, what the model says is spoken.

    input_audio --recogniser--> text of the message
    deltas --Clauses, voice, encoder--> Said, each sent before the next clause is begun

The model itself neither hears nor speaks. A recording is known by its content, whatever `format` says.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import io
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace

from starlette.requests import Request

from ..asr.reading import Task, read
from ..llm.base import Delta
from ..pipeline.engines import Engines
from ..pipeline.errors import BadRequest, RateLimited
from ..tts.base import Voice
from ..tts.encoding import Format
from .chat_encoder import Said
from .chat_request import Sound
from .chat_schema import Audio
from .http import Services, spend_audio
from .speech import speak, voice_named

MOST_KEPT = 1024
EXPIRES = 3600
"""Seconds for which what a spoken answer said is known by its id."""


async def hear(
    services: Services, request: Request, sounds: Sequence[Sound], owner: str
) -> Mapping[str, str]:
    """What each recording says, by its param; the language is detected.

    Raises BadRequest that names the recording, RateLimited, Overloaded, EngineFailed. Cancelling takes what
    waits out of the recogniser's queue.
    """
    spend_audio(request, 0)  # a key in debt has to wait
    recognizer = await services.engines.multilingual()
    heard: dict[str, str] = {}
    for sound in sounds:
        param = f"{sound.param}.input_audio.data"
        file = io.BytesIO(await asyncio.to_thread(_decoded, sound.data, param))
        task = Task(owner, max_seconds=services.settings.http.max_audio_seconds)
        try:
            async with (
                read(services.engines, recognizer, file, task) as recording,
                aclosing(recording.passages()) as passages,
            ):
                try:
                    heard[sound.param] = "".join([p.lead + p.text async for p in passages]).strip()
                finally:
                    with suppress(RateLimited):  # what began is finished; what comes next has to wait
                        spend_audio(request, recording.seconds)
        except BadRequest as error:
            error.param = param
            raise
    return heard


def _decoded(data: str, param: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequest("The audio is not base64.", param=param, code="invalid_value") from error


@dataclass(frozen=True, slots=True)
class Speech:
    """How an answer is spoken."""

    voice: Voice
    format: Format


def speech(asked: Audio, services: Services) -> Speech:
    """Raises BadRequest for an unknown voice."""
    name = asked.voice if isinstance(asked.voice, str) else asked.voice.id
    own = voice_named(name, services.engines.voice, services.settings.tts.voice, "audio.voice")
    return Speech(Voice(own), "pcm" if asked.format == "pcm16" else asked.format)


@asynccontextmanager
async def spoken(
    engines: Engines, deltas: AsyncIterator[Delta], speech: Speech, owner: str
) -> AsyncGenerator[AsyncIterator[Delta | Said]]:
    """An answer with its text spoken; what else it has, its end too, comes when all is said.

    The voice asks for text when it needs more, so the model's deltas wait in the engine's queue until then.
    Leaving the context frees the voice; the deltas stay their owner's.
    """
    others: list[Delta] = []
    anything = False

    async def texts() -> AsyncGenerator[str]:
        nonlocal anything
        async for delta in deltas:
            if delta.calls or delta.reasoning or delta.logprobs or delta.finish_reason or delta.usage:
                others.append(replace(delta, text=""))
            if delta.text:
                anything = True
                yield delta.text

    async def pieces() -> AsyncGenerator[Delta | Said]:
        async with (
            aclosing(texts()) as text,
            speak(engines, text, speech.voice, speech.format, owner=owner) as sound,
        ):
            async for piece in sound:
                if anything:  # a call of a tool alone is not spoken, not even as silence
                    yield Said(piece.text, piece.audio, piece.seconds)
        for delta in others:
            yield delta

    async with aclosing(pieces()) as stream:
        yield stream


class Transcripts:
    """What spoken answers said, by their ids, for as long as a client may refer to them. Oldest out first."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[str, float]] = {}

    def keep(self, id: str, text: str, expires_at: float) -> None:
        """expires_at: Unix seconds."""
        while len(self._kept) >= MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[id] = text, expires_at

    def get(self, id: str, now: float) -> str | None:
        text, expires_at = self._kept.get(id, ("", 0.0))
        return text if now < expires_at else None
