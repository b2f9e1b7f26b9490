"""Transcription over HTTP, below any server: formats, fields, refusals, and clients that leave."""

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from fakes import FakeChat, FakeVoice, hear
from openai.types import audio as sdk
from recordings import WORD, Listener, Upload, spoken, texts, wav

from antiphon.asr.base import SAMPLE_RATE, Transcription, Window
from antiphon.pipeline.engines import Engines, VadInput, VadOutput
from antiphon.pipeline.errors import BadRequest, EngineFailed, NotFound, RateLimited
from antiphon.pipeline.metrics import Metrics
from antiphon.pipeline.settings import AsrSettings, HttpSettings, Settings
from antiphon.pipeline.worker import Worker
from antiphon.transport.http import CLIENT, ClientGone, Endpoint, Services
from antiphon.transport.models import Models, Served
from antiphon.transport.transcriptions import MEDIA_TYPES, endpoints

STARTS = [0.5 + 1.2 * n for n in range(78)]
SHORT = wav(spoken([0.5, 1.7], 3.2))
LONG = wav(spoken(STARTS, 95.25))
SILENCE = wav(np.zeros(3 * SAMPLE_RATE, np.float32))
EMPTY = wav(np.zeros(0, np.float32))
FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
HERE, THERE = "/v1/audio/transcriptions", "/v1/audio/translations"


@asynccontextmanager
async def served(
    listener: Listener, other: Listener | None = None, http: HttpSettings | None = None
) -> AsyncIterator[dict[str, Endpoint]]:
    """other: the recogniser of all languages."""
    settings = Settings(
        asr=AsrSettings(model="ears.en", multilingual_model="ears"), http=http or HttpSettings()
    )
    asr: Worker[Window, Transcription] = Worker("asr", listener.transcribe)
    more: Worker[Window, Transcription] = Worker("asr", (other or listener).transcribe)
    vad: Worker[VadInput, VadOutput] = Worker("vad", hear)

    async def multilingual() -> Worker[Window, Transcription]:
        return more

    models = Models(
        (Served("talker", "chat"), Served("ears", "transcription"), Served("ears.en", "transcription"))
    )
    engines = Engines(asr, multilingual, lambda window: 0, vad, FakeChat(), FakeVoice())
    services = Services(settings, engines, Metrics(), models, lambda prefix: f"{prefix}_1", lambda: 0.0)
    try:
        yield {endpoint.path: endpoint for endpoint in endpoints(services)}
    finally:
        for worker in (asr, more, vad):
            await worker.aclose()


async def said(
    file: bytes | None = SHORT,
    *fields: tuple[str, str],
    listener: Listener | None = None,
    path: str = HERE,
    http: HttpSettings | None = None,
    **named: str,
) -> Upload:
    form = [*{"model": "whisper-1", **named}.items(), *fields]
    async with served(listener or Listener(), http=http) as paths:
        return await Upload(paths[path], [(n, v) for n, v in form if v != "-"], file).run()


async def refused(file: bytes | None = SHORT, *fields: tuple[str, str], **named: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await said(file, *fields, **named)
    return caught.value


def cues(text: str) -> list[tuple[int, int]]:
    times = re.findall(r"(\d\d):(\d\d):(\d\d)[.,](\d{3})", text)
    ms = [((int(h) * 60 + int(m)) * 60 + int(s)) * 1000 + int(f) for h, m, s, f in times]
    return list(zip(ms[::2], ms[1::2], strict=True))


def events(body: bytes) -> list[dict[str, Any]]:
    frames = body.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


# --- formats --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("file", "words", "seconds"), [(SHORT, 2, 3.2), (LONG, 78, 95.25), (SILENCE, 0, 3.0)]
)
async def test_a20_each_format_of_each_length(format: str, file: bytes, words: int, seconds: float) -> None:
    call = await said(file, response_format=format)
    text = texts(range(words))
    assert call.status == 200
    if format in MEDIA_TYPES:
        assert call.headers["content-type"] == MEDIA_TYPES[format]
        body = call.body.decode()
        if format == "text":
            assert body == text + "\n"
            return
        assert body.startswith("WEBVTT\n\n") == (format == "vtt")
        found = cues(body)
        flat = [ms for cue in found for ms in cue]
        assert len(found) == words
        assert flat == sorted(flat)
        assert all(start < end for start, end in found)
        assert all(end <= seconds * 1000 for _, end in found)
        return
    assert call.headers["content-type"] == "application/json"
    answer = json.loads(call.body)
    model = sdk.TranscriptionVerbose if format == "verbose_json" else sdk.Transcription
    assert model.model_validate(answer, strict=True).text == text


@pytest.mark.parametrize("format", FORMATS)
async def test_a20_a_file_without_sound_is_the_clients_fault(format: str) -> None:
    error = await refused(EMPTY, response_format=format)
    assert (error.status, error.param) == (400, "file")


async def test_a22_every_word_is_in_its_place_in_a_long_file() -> None:
    answer = json.loads((await said(LONG, response_format="verbose_json")).body)
    assert answer["text"] == json.loads((await said(LONG)).body)["text"] == texts(range(78))
    assert "".join(segment["text"] for segment in answer["segments"]).strip() == answer["text"]
    for segment, start in zip(answer["segments"], STARTS, strict=True):
        assert abs(segment["start"] - start) < 0.05
        assert abs(segment["end"] - start - WORD) < 0.05


async def test_every_member_of_a_segment_is_what_was_read() -> None:
    answer = json.loads((await said(LONG, response_format="verbose_json", temperature="0.3")).body)
    last = answer["segments"][-1]
    assert list(last) == [
        *("id", "seek", "start", "end", "text", "tokens", "temperature"),
        *("avg_logprob", "compression_ratio", "no_speech_prob"),
    ]
    assert (last["id"], last["tokens"]) == (77, [50364, 7, 50400])
    assert (last["avg_logprob"], last["compression_ratio"], last["no_speech_prob"]) == (-0.25, 1.25, 0.02)
    assert 0 < last["seek"] <= last["start"] * 100
    assert answer["segments"][0]["text"] == " w0"


async def test_a27_language_duration_and_usage() -> None:
    answer = json.loads((await said(LONG, response_format="verbose_json")).body)
    assert (answer["task"], answer["language"], answer["duration"]) == ("transcribe", "german", 95.25)
    assert answer["usage"] == {"type": "duration", "seconds": 96}
    answer = json.loads((await said(response_format="verbose_json", language="en-US")).body)
    assert answer["language"] == "english"
    assert json.loads((await said()).body)["usage"] == {"type": "duration", "seconds": 4}


# --- granularities and logprobs -------------------------------------------------------------------------

NAME = "timestamp_granularities"


@pytest.mark.parametrize(
    ("fields", "members"),
    [
        ([], {"segments"}),
        ([(f"{NAME}[]", "segment")], {"segments"}),
        ([(f"{NAME}[]", "word")], {"words"}),
        ([(NAME, "word")], {"words"}),
        ([(f"{NAME}[]", "word"), (f"{NAME}[]", "segment")], {"words", "segments"}),
        ([(NAME, "word"), (NAME, "segment")], {"words", "segments"}),
        ([(NAME, '["word", "segment"]')], {"words", "segments"}),
        ([(NAME, "")], {"segments"}),
    ],
)
async def test_a23_granularities(fields: list[tuple[str, str]], members: set[str]) -> None:
    answer = json.loads((await said(SHORT, *fields, response_format="verbose_json")).body)
    assert {"words", "segments"} & set(answer) == members
    if "words" in members:
        assert [word["word"] for word in answer["words"]] == ["w0", "w1"]
        assert sdk.TranscriptionVerbose.model_validate(answer, strict=True).words
        assert all(0 <= word["start"] < word["end"] <= 3.2 for word in answer["words"])


@pytest.mark.parametrize("format", ["json", "text", "srt", "vtt"])
async def test_a23_granularities_of_other_formats_are_refused(format: str) -> None:
    error = await refused(SHORT, (f"{NAME}[]", "word"), response_format=format)
    assert (error.status, error.param) == (400, NAME)
    assert error.message == (
        "`response_format` must be `verbose_json` if `timestamp_granularities[]` is provided"
    )


async def test_a23_unknown_granularities_are_refused() -> None:
    error = await refused(SHORT, (f"{NAME}[]", "letter"), response_format="verbose_json")
    assert error.status == 400
    assert (error.param or "").startswith(NAME)


@pytest.mark.parametrize("name", ["include[]", "include"])
async def test_logprobs(name: str) -> None:
    answer = json.loads((await said(SHORT, (name, "logprobs"))).body)
    assert answer["logprobs"][0] == {"token": " w0", "logprob": -0.25, "bytes": list(b" w0")}
    assert sdk.Transcription.model_validate(answer, strict=True).logprobs
    assert "logprobs" not in json.loads((await said()).body)
    for format in ("text", "verbose_json", "srt", "vtt"):
        assert (await refused(SHORT, (name, "logprobs"), response_format=format)).param == "include"


# --- streaming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "text"])
async def test_a21_a_stream_is_the_text(format: str) -> None:
    call = await said(LONG, stream="true", response_format=format)
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    *deltas, done = events(call.body)
    assert deltas
    assert {delta["type"] for delta in deltas} == {"transcript.text.delta"}
    assert done["type"] == "transcript.text.done"
    whole = json.loads((await said(LONG)).body)["text"]
    assert "".join(delta["delta"] for delta in deltas) == done["text"] == whole
    for delta in deltas:
        sdk.TranscriptionTextDeltaEvent.model_validate(delta, strict=True)
    usage = sdk.TranscriptionTextDoneEvent.model_validate(done, strict=True).usage
    assert usage is not None
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 900


async def test_a21_a_stream_of_nothing_is_done() -> None:
    assert [event["type"] for event in events((await said(SILENCE, stream="true")).body)] == [
        "transcript.text.done"
    ]


async def test_a_stream_has_logprobs_where_they_are_wanted() -> None:
    *deltas, done = events((await said(SHORT, ("include[]", "logprobs"), stream="true")).body)
    assert [len(delta["logprobs"]) for delta in deltas] == [1, 1]
    assert done["logprobs"] == [entry for delta in deltas for entry in delta["logprobs"]]


@pytest.mark.parametrize("format", ["srt", "vtt", "verbose_json"])
async def test_what_cannot_be_streamed(format: str) -> None:
    assert (await refused(response_format=format, stream="true")).param == "stream"
    assert (await said(response_format=format, stream="false")).status == 200


async def test_a_file_that_cannot_be_decoded_is_a_status_in_a_stream_too() -> None:
    assert (await refused(b"nonsense", stream="true")).param == "file"


async def test_a17_a_failure_after_the_first_words_is_an_event() -> None:
    class Breaks(Listener):
        def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
            if self.windows:
                raise ValueError("private")
            return super().transcribe(windows)

    *_, last = events((await said(LONG, stream="true", listener=Breaks())).body)
    assert last["error"]["type"] == "server_error"
    assert "private" not in json.dumps(last)
    with pytest.raises(EngineFailed):
        await said(LONG, listener=Breaks())


# --- what the recogniser is asked -----------------------------------------------------------------------


async def test_prompt_keywords_temperature_and_language() -> None:
    listener = Listener()
    await said(
        SHORT,
        ("keywords[]", "Antiphon"),
        ("keywords[]", "Hibari"),
        listener=listener,
        prompt="A talk.",
        temperature="0.4",
        language="English",
    )
    [window] = listener.windows
    assert window.reading is not None
    assert window.reading.prompt == "A talk. Antiphon, Hibari"
    assert (window.reading.temperature, window.language) == (0.4, "en")
    assert (window.reading.task, window.reading.align) == ("transcribe", False)


async def test_languages_that_may_be_detected() -> None:
    listener = Listener()
    await said(SHORT, ("languages[]", "de"), ("languages[]", "en"), listener=listener)
    await said(SHORT, ("languages[]", "de"), listener=listener)
    assert [window.language for window in listener.windows] == [None, "de"]
    assert [w.reading.languages for w in listener.windows if w.reading] == [("de", "en"), ("de",)]


async def test_the_model_that_is_named_reads() -> None:
    for name, expected in (("ears.en", 0), ("ears", 1), ("whisper-1", 1), ("gpt-4o-transcribe", 1)):
        listeners = Listener(), Listener()
        async with served(*listeners) as paths:
            await Upload(paths[HERE], [("model", name)], SHORT).run()
        assert [bool(listener.windows) for listener in listeners] == [expected == 0, expected == 1]


@pytest.mark.parametrize(
    "fields",
    [
        [("chunking_strategy", "auto")],
        [("chunking_strategy", '{"type": "server_vad", "silence_duration_ms": 2000}')],
        [("chunking_strategy[type]", "server_vad"), ("chunking_strategy[threshold]", "0.4")],
        [("chunking_strategy", "")],
    ],
)
async def test_chunking_strategies(fields: list[tuple[str, str]]) -> None:
    assert json.loads((await said(SHORT, *fields)).body)["text"] == "w0 w1"


async def test_unknown_fields_are_ignored() -> None:
    assert (await said(SHORT, ("user", "me"), ("x[]", "y"), ("frobnicate[a][b]", "z"))).status == 200


# --- translation ----------------------------------------------------------------------------------------


async def test_translations() -> None:
    listener = Listener()
    answer = json.loads((await said(path=THERE, listener=listener)).body)
    assert answer == {"text": "w0 w1"}
    assert sdk.Translation.model_validate(answer, strict=True)
    assert listener.windows[0].reading is not None
    assert listener.windows[0].reading.task == "translate"
    verbose = json.loads((await said(path=THERE, response_format="verbose_json")).body)
    assert (verbose["task"], verbose["language"]) == ("translate", "english")
    assert len(sdk.TranslationVerbose.model_validate(verbose, strict=True).segments or []) == 2
    assert (await said(path=THERE, response_format="srt")).body.startswith(b"1\n00:00:00,4")
    assert (await refused(path=THERE, response_format="diarized_json")).param == "response_format"


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("response_format", "xml"),
        ("response_format", "diarized_json"),
        ("temperature", "1.1"),
        ("temperature", "-0.1"),
        ("temperature", "nan"),
        ("temperature", "warm"),
        ("language", "xx"),
        ("languages[]", "xx"),
        ("include[]", "everything"),
        ("stream", "perhaps"),
        ("chunking_strategy", "manual"),
        ("chunking_strategy[type]", "magic"),
        ("chunking_strategy[threshold]", "7"),
        ("known_speaker_names[]", "Ann"),
        ("known_speaker_references[]", "data:audio/wav;base64," + "A" * 200_000),
        ("model", "talker"),
    ],
)
async def test_what_cannot_be_done_names_its_field(name: str, value: str) -> None:
    error = await refused(SHORT, (name, value))
    assert error.status == 400
    assert re.split(r"[.\[]", error.param or "")[0] == name.partition("[")[0]
    assert len(error.message) < 500


@pytest.mark.parametrize("path", [HERE, THERE])
async def test_what_is_missing_is_named(path: str) -> None:
    assert (await refused(SHORT, path=path, model="-")).param == "model"
    assert (await refused(None, path=path)).param == "file"
    assert isinstance(await refused(SHORT, path=path, model="nothing"), NotFound)


async def test_a24_what_is_no_recording() -> None:
    for file in (b"", b"\0" * 5000, b"<html></html>", b"\x89PNG\r\n\x1a\n" + b"\0" * 100):
        error = await refused(file)
        assert (error.status, error.param) == (400, "file")


async def test_a25_limits() -> None:
    listener = Listener()
    error = await refused(LONG, listener=listener, http=HttpSettings(max_upload_bytes=10_000))
    assert (error.status, error.param) == (413, "file")
    error = await refused(LONG, listener=listener, http=HttpSettings(max_audio_seconds=1.0))
    assert (error.status, error.code) == (400, "audio_too_long")
    assert listener.windows == []


async def test_a_key_in_debt_has_to_wait_and_sound_is_counted() -> None:
    class Client:
        def __init__(self, debt: bool) -> None:
            self.debt = debt
            self.spent = 0.0

        def spend_audio(self, seconds: float) -> None:
            if self.debt:
                raise RateLimited("wait")
            self.spent += seconds

    async with served(Listener()) as paths:
        for debt in (False, True):
            client = Client(debt)
            call = Upload(paths[HERE], [("model", "whisper-1")], SHORT)
            request = call.request
            request.scope[CLIENT] = client
            if debt:
                with pytest.raises(RateLimited):
                    await paths[HERE].handler(request)
            else:
                await paths[HERE].handler(request)
                assert client.spent == 3.2


# --- clients that leave ---------------------------------------------------------------------------------


class Held(Listener):
    def __init__(self, after: int = 0) -> None:
        super().__init__()
        self.after = after
        self.go, self.asked = threading.Event(), threading.Event()

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        if len(self.windows) >= self.after:
            self.asked.set()
            self.go.wait(20)
        return super().transcribe(windows)


@pytest.mark.parametrize("stream", ["true", "false"])
async def test_a16_a_client_that_leaves_ends_its_transcription(stream: str) -> None:
    listener = Held(after=1)
    async with served(listener) as paths:
        call = Upload(paths[HERE], [("model", "whisper-1"), ("stream", stream)], LONG)
        task = asyncio.create_task(call.run())
        await asyncio.to_thread(listener.asked.wait, 20)
        call.leave.set()
        if stream == "true":
            await task
        else:
            with pytest.raises(ClientGone):
                await task
        listener.go.set()
    assert len(listener.windows) == 2  # the rest of four was never asked for
