"""Text to speech over HTTP: POST /v1/audio/speech and GET /v1/audio/voices.

    text ──Clauses──▶ clause ──voice──▶ samples ──Encoder──▶ bytes, each sent before the next clause is begun

It is the voice path's own reading of a text: cut into clauses by `Clauses`, spoken one after the other, so the
first bytes leave while the last sentence is not yet made. The chain is pulled by the client: nothing runs
ahead of what it took, so a slow reader costs one sentence of memory, and one that leaves frees the voice.
A conversation's clause goes before one of these (`PATIENCE`).

Text without a letter or digit ("…", an emoji) is a moment of silence, for clients send sentence by sentence.
Text with words of which the voice can say none is a BadRequest.
"""

from __future__ import annotations

import asyncio
import base64
import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from ..pipeline.engines import Engines
from ..pipeline.errors import BadRequest, RateLimited
from ..pipeline.events import Samples
from ..tts.base import Synthesizer, Voice
from ..tts.encoding import MEDIA_TYPES, Encoder, Format
from ..tts.text import Clause, Clauses
from .http import EVENT_STREAM, Endpoint, Services, Stream, answer, read_json, spend_audio, sse, sse_error
from .session_object import OPENAI_VOICES

PATIENCE = 10.0
"""Seconds after which a clause is wanted. A conversation's are wanted within about one, so they go first; and
what has waited this long here goes before them, so that nobody waits for ever."""

PIECE = 0.5
"""Seconds of sound that are encoded, and sent, at a time: a few milliseconds of a thread's work."""

SILENCE = 0.2
"""Seconds of sound of a text that says nothing: a file that every player can open."""

TOKENS_PER_SECOND = 20
CHARACTERS_PER_TOKEN = 4
"""The units of `usage`: OpenAI's for audio (a token per 50 ms), and its rule of thumb for English text."""

MOST_CHARACTERS = 4096
READ = 256
"""Characters cut into clauses at a time."""


# --- speaking -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spoken:
    """The next piece of speech.

    text: what of the text begins to be heard with it, "" within a clause; all of them, joined, are the text.
    audio: the next bytes of the file, perhaps none; all of them, joined, are the file.
    seconds: of sound in this piece, before encoding.
    """

    text: str
    audio: bytes
    seconds: float


def speak(
    engines: Engines, text: str | AsyncIterator[str], voice: Voice, format: Format, *, owner: str
) -> AbstractAsyncContextManager[AsyncIterator[Spoken]]:
    """Speak a text, or one that is being written (a model's deltas), as one file of `format`.

        async with speak(services.engines, deltas, Voice("heart"), "mp3", owner=id) as pieces:
            async for piece in pieces: ...

    voice: of this server's own names, see `voice_named`. owner: names the request to the voice's queue.
    Nothing is done ahead of what is taken. An iterator given as `text` stays its owner's to close. Leaving the
    context, or being cancelled in it, frees the voice. Text that says nothing is SILENCE.

    Raises, while iterated, Overloaded, EngineFailed, and what `text` raises.
    """
    return aclosing(_encoded(_sounds(engines.voice, text, voice, owner), format, engines.voice.sample_rate))


@dataclass(frozen=True, slots=True)
class _Sound:
    """A chunk of the voice, or a clause without sound; `text` stands with the first chunk of its clause."""

    text: str
    samples: Samples | None


async def _sounds(
    synthesizer: Synthesizer, text: str | AsyncIterator[str], voice: Voice, owner: str
) -> AsyncGenerator[_Sound, None]:
    now = asyncio.get_running_loop().time
    async with aclosing(_clauses(text)) as clauses:
        async for clause in clauses:
            words = clause.text
            if clause.speech:
                async with synthesizer.synthesize(
                    clause.speech, voice, owner=owner, deadline=now() + PATIENCE
                ) as chunks:
                    async for samples in chunks:
                        yield _Sound(words, samples)
                        words = ""
            if words:
                yield _Sound(words, None)


async def _clauses(text: str | AsyncIterator[str]) -> AsyncGenerator[Clause, None]:
    clauses = Clauses()
    if isinstance(text, str):
        for at in range(0, len(text), READ):
            for clause in clauses.push(text[at : at + READ]):
                yield clause
    else:
        async for delta in text:
            for clause in clauses.push(delta):
                yield clause
    for clause in clauses.flush():
        yield clause


async def _encoded(
    sounds: AsyncGenerator[_Sound, None], format: Format, rate: int
) -> AsyncGenerator[Spoken, None]:
    encoder = Encoder(format, rate)
    size = round(PIECE * rate)
    heard = False
    async with aclosing(sounds):
        async for sound in sounds:
            samples = sound.samples
            if samples is None or not len(samples):
                yield Spoken(sound.text, b"", 0.0)
                continue
            heard, text = True, sound.text
            for at in range(0, len(samples), size):
                piece = samples[at : at + size]
                yield Spoken(text, await _push(encoder, piece), len(piece) / rate)
                text = ""
    if not heard:
        silence = np.zeros(round(SILENCE * rate), np.float32)
        yield Spoken("", await _push(encoder, silence), SILENCE)
    yield Spoken("", await asyncio.to_thread(encoder.finish), 0.0)


async def _push(encoder: Encoder, samples: Samples) -> bytes:
    """Cancelled, the thread still ends its piece, and the encoder goes with it."""
    if encoder.costly:
        return await asyncio.to_thread(encoder.push, samples)
    return encoder.push(samples)


def voice_named(name: str, synthesizer: Synthesizer, default: str, param: str = "voice") -> str:
    """Our name of a voice that a client names. Raises BadRequest that lists the known ones."""
    if name in synthesizer.voices:
        return name
    if name in OPENAI_VOICES:
        return default
    known = ", ".join([*synthesizer.voices, *OPENAI_VOICES])
    raise BadRequest(f"Unknown voice {name!r:.80}; there are: {known}.", param=param, code="invalid_value")


# --- the wire -------------------------------------------------------------------------------------------


class VoiceId(BaseModel):
    model_config = ConfigDict(strict=True)

    id: str


class SpeechRequest(BaseModel):
    """OpenAI's, with its ranges. `instructions` are taken and have no effect: the voice has one manner."""

    model_config = ConfigDict(strict=True)

    input: Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]
    model: str
    voice: str | VoiceId
    instructions: Annotated[str, Field(max_length=MOST_CHARACTERS)] | None = None
    response_format: Format | None = None
    speed: Annotated[float, Field(ge=0.25, le=4.0)] | None = None
    stream_format: Literal["audio", "sse"] | None = None


class VoiceEntry(BaseModel):
    """voice: the server's own voice that this name means."""

    id: str
    name: str
    voice: str


class VoiceList(BaseModel):
    object: Literal["list"] = "list"
    voices: list[VoiceEntry]


def endpoints(services: Services) -> list[Endpoint]:
    speech = Speech(services)
    audio = tuple(dict.fromkeys([*MEDIA_TYPES.values(), EVENT_STREAM]))
    return [
        Endpoint("POST", "/v1/audio/speech", speech.create, "Speak a text", body=SpeechRequest, answer=audio),
        Endpoint("GET", "/v1/audio/voices", speech.voices, "List the voices", answer=VoiceList),
    ]


class Speech:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def create(self, request: Request) -> Response:
        services = self._services
        asked = await read_json(request, SpeechRequest, limit=services.settings.http.max_body_bytes)
        services.models.resolve(asked.model, "speech")
        if not asked.input.strip():
            raise BadRequest("Nothing to say: the input is empty.", param="input", code="invalid_value")
        name = asked.voice if isinstance(asked.voice, str) else asked.voice.id
        own = voice_named(name, services.engines.voice, services.settings.tts.voice)
        voice = Voice(own, 1.0 if asked.speed is None else asked.speed)
        format = asked.response_format or "mp3"
        events = asked.stream_format == "sse"
        spend_audio(request, 0)  # a key in debt has to wait
        body = _Body(services.engines.voice, asked.input, voice, format, services.new_id("speech"), request)
        return Stream(
            body.events() if events else body.audio(),
            media_type=EVENT_STREAM if events else MEDIA_TYPES[format],
            failed=sse_error if events else None,
            send_timeout=services.settings.server.send_timeout,
        )

    async def voices(self, request: Request) -> Response:
        own, default = self._services.engines.voice.voices, self._services.settings.tts.voice
        entries = [VoiceEntry(id=name, name=name.capitalize(), voice=name) for name in own]
        entries += [
            VoiceEntry(id=name, name=name.capitalize(), voice=default)
            for name in OPENAI_VOICES
            if name not in own
        ]
        return answer(VoiceList(object="list", voices=entries))


class _Body:
    """The two ways to send one answer."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        text: str,
        voice: Voice,
        format: Format,
        owner: str,
        request: Request,
    ) -> None:
        self._text = text
        sounds = _spoken_at_all(_sounds(synthesizer, text, voice, owner), text, voice)
        self._pieces = _counted(_encoded(sounds, format, synthesizer.sample_rate), request)

    @asynccontextmanager
    async def audio(self) -> AsyncGenerator[AsyncIterator[bytes], None]:
        async def pieces() -> AsyncGenerator[bytes, None]:
            async for piece in self._pieces:
                if piece.audio:
                    yield piece.audio

        async with aclosing(self._pieces), aclosing(pieces()) as audio:
            yield audio

    @asynccontextmanager
    async def events(self) -> AsyncGenerator[AsyncIterator[bytes], None]:
        async def pieces() -> AsyncGenerator[bytes, None]:
            seconds = 0.0
            async for piece in self._pieces:
                seconds += piece.seconds
                if piece.audio:
                    audio = base64.b64encode(piece.audio).decode()
                    yield sse({"type": "speech.audio.delta", "audio": audio})
            yield sse({"type": "speech.audio.done", "usage": usage(self._text, seconds)})

        async with aclosing(self._pieces), aclosing(pieces()) as events:
            yield events


async def _spoken_at_all(
    sounds: AsyncGenerator[_Sound, None], text: str, voice: Voice
) -> AsyncGenerator[_Sound, None]:
    heard = False
    async with aclosing(sounds):
        async for sound in sounds:
            heard = heard or (sound.samples is not None and len(sound.samples) > 0)
            yield sound
    if not heard and any(char.isalnum() for char in text):
        raise BadRequest(
            f"The voice {voice.name!r} can say nothing of this input.", param="input", code="invalid_value"
        )


async def _counted(pieces: AsyncGenerator[Spoken, None], request: Request) -> AsyncGenerator[Spoken, None]:
    """The pieces; their sound is counted against the client's key, however they end."""
    seconds = 0.0
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                seconds += piece.seconds
                yield piece
    finally:
        with suppress(RateLimited):  # what began is finished; what comes next has to wait
            spend_audio(request, seconds)


def usage(text: str, seconds: float) -> Mapping[str, Any]:
    """OpenAI's usage object of `seconds` of speech."""
    read = math.ceil(len(text) / CHARACTERS_PER_TOKEN)
    spoken = round(seconds * TOKENS_PER_SECOND)
    return {"input_tokens": read, "output_tokens": spoken, "total_tokens": read + spoken}
