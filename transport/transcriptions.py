"""Speech to text over HTTP: POST /v1/audio/transcriptions and POST /v1/audio/translations.

    form ──▶ Asked ──▶ passages, as they are read ──▶ json, text, srt, verbose_json, vtt, or a stream of events

All formats, and the stream, are made of the same passages, so their texts are the same. What a client asks for
and this server does not do is refused by name before anything is read: speakers, and combinations that have no
meaning. A recording is known by its content; its name and its media type are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.requests import Request
from starlette.responses import Response

from ..asr.base import Reading, Token
from ..asr.languages import NAMES, code_of
from ..asr.reading import Recording, Task, read
from ..asr.recording import Passage
from ..asr.subtitles import Cue, srt, vtt
from ..asr.words import joint
from ..pipeline.errors import BadRequest, RateLimited
from .http import Endpoint, Services, Stream, answer, connected, spend_audio, sse, sse_error, validated
from .uploads import Form, members, uploaded

TOKENS_PER_SECOND = 10
"""Of sound that is heard, in `usage`: a token for 100 ms, as OpenAI counts."""

Text = Annotated[str, Field(max_length=65_536)]
Granularity = Literal["word", "segment"]
MEDIA_TYPES = {
    "text": "text/plain; charset=utf-8",
    "srt": "application/x-subrip; charset=utf-8",
    "vtt": "text/vtt; charset=utf-8",
}

LISTS = (
    *("languages", "keywords", "include", "timestamp_granularities"),
    *("known_speaker_names", "known_speaker_references"),
)
OBJECTS = ("chunking_strategy",)
SPEAKERS = ("known_speaker_names", "known_speaker_references")


# --- the wire -------------------------------------------------------------------------------------------


class ServerVad(BaseModel):
    """How speech is told from silence, to cut a recording into windows."""

    type: Literal["server_vad"]
    threshold: Annotated[float, Field(ge=0.05, le=0.95)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5000)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=10_000)] = 200


class _Upload(BaseModel):
    """What both endpoints take. file: any container of sound, or a video with a sound track."""

    model_config = ConfigDict(json_schema_extra={"description": "A form; lists as `name[]` or `name`."})

    file: Annotated[Any, Field(json_schema_extra={"type": "string", "format": "binary"})]
    model: str
    prompt: Text = ""
    temperature: Annotated[float, Field(ge=0, le=1)] = 0.0


class TranscriptionForm(_Upload):
    """OpenAI's, with its ranges. language: "en", "en-US" or "english"; without it, it is detected."""

    language: str | None = None
    languages: list[str] = []
    keywords: list[Text] = []
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"
    timestamp_granularities: list[Granularity] = []
    include: list[Literal["logprobs"]] = []
    stream: bool = False
    chunking_strategy: Literal["auto"] | ServerVad = "auto"

    @field_validator("language")
    @classmethod
    def _language(cls, said: str | None) -> str | None:
        return said if said is None else _code(said)

    @field_validator("languages")
    @classmethod
    def _languages(cls, said: list[str]) -> list[str]:
        return [_code(name) for name in said]


class TranslationForm(_Upload):
    """OpenAI's: whatever is spoken, the text is English."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"


def _code(said: str) -> str:
    code = code_of(said)
    if code is None:
        raise ValueError(f'{said[:40]!r} is no known language; give its ISO 639-1 code, such as "en"')
    return code


# --- what was asked -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, ready to be done."""

    model: str
    task: Task
    format: str
    words: bool = False
    segments: bool = True
    logprobs: bool = False
    stream: bool = False


def transcription(form: Form, services: Services, owner: str) -> Asked:
    """Raises BadRequest that names the field, NotFound for an unknown model."""
    if speakers := [name for name in SPEAKERS if any(given.startswith(name) for given in form.names)]:
        raise _no_speakers(speakers[0])
    asked = validated(_members(form), TranscriptionForm)
    model = services.models.resolve(asked.model, "transcription")
    if asked.response_format == "diarized_json":
        raise _no_speakers("response_format")
    if asked.timestamp_granularities and asked.response_format != "verbose_json":
        raise BadRequest(
            "`response_format` must be `verbose_json` if `timestamp_granularities[]` is provided",
            param="timestamp_granularities",
            code="invalid_value",
        )
    if asked.include and asked.response_format != "json":
        raise BadRequest(
            "`response_format` must be `json` if `include[]` has `logprobs`.",
            param="include",
            code="invalid_value",
        )
    if asked.stream and asked.response_format not in ("json", "text"):
        raise BadRequest(
            f"A stream is of text, and cannot be {asked.response_format}: `response_format` must be `json` or "
            "`text`, or `stream` false.",
            param="stream",
            code="invalid_value",
        )
    words = "word" in asked.timestamp_granularities
    languages = tuple(dict.fromkeys(asked.languages))
    vad = asked.chunking_strategy
    vad = ServerVad(type="server_vad") if vad == "auto" else vad
    return Asked(
        model,
        Task(
            owner,
            Reading(
                prompt=" ".join(filter(None, [asked.prompt.strip(), ", ".join(asked.keywords).strip(", ")])),
                languages=languages,
                temperature=asked.temperature,
                align=words or bool(asked.include),
            ),
            asked.language or (languages[0] if len(languages) == 1 else None),
            threshold=vad.threshold,
            padding=vad.prefix_padding_ms / 1000,
            silence=vad.silence_duration_ms / 1000,
            max_seconds=services.settings.http.max_audio_seconds,
        ),
        asked.response_format,
        words=words,
        segments=not words or "segment" in asked.timestamp_granularities,
        logprobs=bool(asked.include),
        stream=asked.stream,
    )


def translation(form: Form, services: Services, owner: str) -> Asked:
    """As `transcription`."""
    asked = validated(_members(form), TranslationForm)
    model = services.models.resolve(asked.model, "transcription")
    reading = Reading(asked.prompt, "translate", temperature=asked.temperature)
    task = Task(owner, reading, max_seconds=services.settings.http.max_audio_seconds)
    return Asked(model, task, asked.response_format)


def _members(form: Form) -> dict[str, Any]:
    given = members(form.fields, lists=LISTS, objects=OBJECTS)
    if form.file is not None:
        given["file"] = ""
    return given


def _no_speakers(param: str) -> BadRequest:
    return BadRequest(
        "This server has no model that tells speakers apart; ask for `verbose_json` without speakers.",
        param=param,
        code="unsupported_value",
    )


# --- what was said --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Said:
    """A whole recording's text. seconds: of sound."""

    passages: Sequence[Passage]
    language: str | None
    seconds: float

    @property
    def text(self) -> str:
        return "".join(passage.lead + passage.text for passage in self.passages)


def body(asked: Asked, said: Said) -> Mapping[str, Any] | str:
    """The answer in the format that was asked for: JSON, or the text of a file."""
    match asked.format:
        case "text":
            return said.text + "\n"
        case "srt" | "vtt":
            cues = [Cue(passage.start, passage.end, passage.text) for passage in said.passages]
            return (srt if asked.format == "srt" else vtt)(cues)
        case "verbose_json":
            return _verbose(asked, said)
        case _:
            return {
                "text": said.text,
                **({"logprobs": _logprobs(said.passages)} if asked.logprobs else {}),
                **({} if _translates(asked) else {"usage": _duration(said)}),
            }


def _verbose(asked: Asked, said: Said) -> dict[str, Any]:
    language = "en" if _translates(asked) else said.language or "en"
    verbose: dict[str, Any] = {
        "task": asked.task.reading.task,
        "language": NAMES.get(language, language),
        "duration": round(said.seconds, 3),
        "text": said.text,
    }
    if asked.segments:
        verbose["segments"] = [_segment(passage) for passage in said.passages]
    if asked.words:
        verbose["words"] = [
            {"word": word.text, "start": round(word.start, 3), "end": round(word.end, 3)}
            for passage in said.passages
            for word in passage.words
        ]
    if not _translates(asked):
        verbose["usage"] = _duration(said)
    return verbose


def _segment(passage: Passage) -> dict[str, Any]:
    lead = (
        passage.lead if passage.number else joint("a", passage.text)
    )  # Whisper's own texts begin with a space
    return {
        "id": passage.number,
        "seek": passage.seek // 160,  # in frames of 10 ms
        "start": round(passage.start, 3),
        "end": round(passage.end, 3),
        "text": lead + passage.text,
        "tokens": list(passage.ids),
        "temperature": passage.temperature,
        "avg_logprob": passage.avg_logprob,
        "compression_ratio": passage.compression_ratio,
        "no_speech_prob": passage.no_speech_prob,
    }


def _translates(asked: Asked) -> bool:
    return asked.task.reading.task == "translate"


def _duration(said: Said) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(said.seconds)}


def _tokens(said: Said) -> dict[str, Any]:
    heard = math.ceil(said.seconds * TOKENS_PER_SECOND)
    written = sum(len(passage.ids) for passage in said.passages)
    return {
        "type": "tokens",
        "input_tokens": heard,
        "input_token_details": {"text_tokens": 0, "audio_tokens": heard},
        "output_tokens": written,
        "total_tokens": heard + written,
    }


def _logprobs(passages: Iterable[Passage]) -> list[dict[str, Any]]:
    return [_logprob(token) for passage in passages for token in passage.tokens]


def _logprob(token: Token) -> dict[str, Any]:
    """The bytes of a part of a character are written out, for they are no text."""
    text = token.data.decode(errors="backslashreplace")
    return {"token": text, "logprob": token.logprob, "bytes": list(token.data)}


# --- the endpoints --------------------------------------------------------------------------------------


def endpoints(services: Services) -> Iterable[Endpoint]:
    async def transcriptions(request: Request) -> Response:
        return await _answered(services, request, "transcribe")

    async def translations(request: Request) -> Response:
        return await _answered(services, request, "translate")

    media = ("application/json", *(kind.partition(";")[0] for kind in MEDIA_TYPES.values()))
    yield Endpoint(
        "POST",
        "/v1/audio/transcriptions",
        transcriptions,
        "The text of a recording",
        form=TranscriptionForm,
        answer=(*media, "text/event-stream"),
    )
    yield Endpoint(
        "POST",
        "/v1/audio/translations",
        translations,
        "The text of a recording, in English",
        form=TranslationForm,
        answer=media,
    )


async def _answered(
    services: Services, request: Request, task: Literal["transcribe", "translate"]
) -> Response:
    keep = TranscriptionForm.model_fields if task == "transcribe" else TranslationForm.model_fields
    limit = services.settings.http.max_upload_bytes
    async with AsyncExitStack() as stack:
        form = await stack.enter_async_context(uploaded(request, keep=keep, limit=limit))
        understood = transcription if task == "transcribe" else translation
        asked = understood(form, services, services.new_id("audio"))
        assert form.file is not None  # the form's model wants it
        spend_audio(request, 0)  # a key in debt has to wait
        if asked.stream:
            opened = _streamed(services, request, asked, form.file, stack.pop_all())
            return Stream(opened, failed=sse_error, send_timeout=services.settings.server.send_timeout)
        said = await connected(request, _read(services, request, asked, form.file))
    found = body(asked, said)
    if isinstance(found, str):
        return Response(found, media_type=MEDIA_TYPES[asked.format])
    return answer(found)


async def _read(services: Services, request: Request, asked: Asked, file: BinaryIO) -> Said:
    async with (
        _recording(services, request, asked, file) as recording,
        aclosing(recording.passages()) as passages,
    ):
        found = [passage async for passage in passages]
        return Said(found, recording.language, recording.seconds)


@asynccontextmanager
async def _recording(
    services: Services, request: Request, asked: Asked, file: BinaryIO
) -> AsyncGenerator[Recording, None]:
    """The file being read by the model that was asked for; its length counts against the client's allowance."""
    settings = services.settings.asr
    if asked.model == settings.model and asked.model != settings.multilingual_model:
        recognizer = services.engines.english
    else:
        recognizer = await services.engines.multilingual()
    async with read(services.engines, recognizer, file, asked.task) as recording:
        try:
            yield recording
        finally:
            with suppress(RateLimited):  # what began is finished; what comes next has to wait
                spend_audio(request, recording.seconds)


@asynccontextmanager
async def _streamed(
    services: Services, request: Request, asked: Asked, file: BinaryIO, stack: AsyncExitStack
) -> AsyncGenerator[AsyncIterator[bytes], None]:
    """The events, as long as the context lasts; the upload is freed with it."""
    async with (
        stack,
        _recording(services, request, asked, file) as recording,
        aclosing(recording.passages()) as passages,
        aclosing(_events(asked, recording, passages)) as events,
    ):
        yield events


async def _events(
    asked: Asked, recording: Recording, passages: AsyncIterator[Passage]
) -> AsyncGenerator[bytes, None]:
    found: list[Passage] = []
    async for passage in passages:
        found.append(passage)
        delta = {"type": "transcript.text.delta", "delta": passage.lead + passage.text}
        yield sse({**delta, **({"logprobs": _logprobs([passage])} if asked.logprobs else {})})
    said = Said(found, recording.language, recording.seconds)
    done = {"type": "transcript.text.done", "text": said.text}
    yield sse({**done, **({"logprobs": _logprobs(found)} if asked.logprobs else {}), "usage": _tokens(said)})
