"""Transcription by the real models behind the real server: words, times, formats and languages."""

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest
from conftest import DATA
from fakes import FakeChat, FakeVoice
from openai import OpenAI
from recordings import wav

from antiphon.asr.base import SAMPLE_RATE, Transcription, Window
from antiphon.asr.ctranslate2 import Whisper
from antiphon.asr.formats import decode_file
from antiphon.benchmarks.accuracy import Scorer
from antiphon.pipeline.engines import Engines
from antiphon.pipeline.events import Samples
from antiphon.pipeline.settings import Settings, load
from antiphon.pipeline.weights import WeightStore
from antiphon.pipeline.worker import Worker
from antiphon.transport import engines as loading
from antiphon.transport.server import running

pytestmark = [
    *(pytest.mark.server, pytest.mark.model, pytest.mark.slow),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # the SDK, of translations
]

SETTINGS: Settings = load(overrides=["server.port=0", "http.max_audio_seconds=900", "auth.keys=none"])
TINY, BASE = SETTINGS.asr.model, SETTINGS.asr.multilingual_model
QUESTION = "Do you feel as though you could go through with something rather unusual?"
SETUP = {"api_key": "unused", "max_retries": 0, "timeout": 120.0, "_strict_response_validation": True}


@dataclass
class Server:
    url: str = ""
    windows: list[Window] = field(default_factory=list)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The recognisers and the detector are real; there is nobody to talk to."""
    server, ready, stop = Server(), Future[str](), list[Callable[[], None]]()
    store = WeightStore(SETTINGS.weights.root, offline=SETTINGS.weights.offline)

    def recognizer(name: str) -> Worker[Window, Transcription]:
        whisper = Whisper(store.fetch(name), threads=2)

        def transcribe(windows: Sequence[Window]) -> Sequence[Transcription]:
            server.windows += windows
            return whisper.transcribe(windows)

        return Worker("asr", transcribe)

    @asynccontextmanager
    async def engines() -> AsyncIterator[Engines]:
        english, other = [await asyncio.to_thread(recognizer, name) for name in (TINY, BASE)]
        vad = Worker("vad", await asyncio.to_thread(loading._detector, SETTINGS, store), max_batch=8)

        async def multilingual() -> Worker[Window, Transcription]:
            return other

        try:
            yield Engines(english, multilingual, lambda window: 0, vad, FakeChat(), FakeVoice())
        finally:
            for worker in (english, other, vad):
                await worker.aclose()

    async def serve() -> None:
        async with running(SETTINGS, engines=engines()) as url:
            stopped, loop = asyncio.Event(), asyncio.get_running_loop()
            stop.append(lambda: loop.call_soon_threadsafe(stopped.set))
            ready.set_result(url.replace("ws:", "http:") + "/v1")
            await stopped.wait()

    def main() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=main, name="server")
    thread.start()
    server.url = ready.result(120)
    yield server
    stop[0]()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.url, **SETUP) as client:
        yield client


@pytest.fixture(scope="module")
def score() -> Scorer:
    pytest.importorskip("jiwer")
    return Scorer()


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def encoded(
    samples: Samples, container: str, codec: str, rate: int, options: dict[str, str] | None = None
) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="mono", options=options or {})
        frame = av.AudioFrame.from_ndarray((samples[None] * 32767).astype(np.int16), "s16", "mono")
        frame.sample_rate = SAMPLE_RATE
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            output.mux(packet)
    return file.getvalue()


# --- the stock SDK, strict ------------------------------------------------------------------------------


def test_a20_every_format_by_the_sdk(client: OpenAI) -> None:
    def ask(format: str, **more: Any) -> Any:
        with (DATA / "question.wav").open("rb") as file:
            return client.audio.transcriptions.create(
                model="whisper-1", file=file, response_format=format, **more
            )

    text = ask("json").text
    assert text == QUESTION
    assert ask("text") == text + "\n"
    assert text in ask("srt")
    assert ask("vtt").startswith("WEBVTT")
    verbose = ask("verbose_json", timestamp_granularities=["word", "segment"])
    assert (verbose.language, verbose.text) == ("english", text)
    assert " ".join(word.word for word in verbose.words) == text
    assert [s.id for s in verbose.segments] == list(range(len(verbose.segments)))
    for segment in verbose.segments:
        assert segment.tokens
        assert -1 < segment.avg_logprob < 0
        assert 0 <= segment.no_speech_prob < 0.5
        assert 0.5 < segment.compression_ratio < 2.4
        assert 0 <= segment.start < segment.end <= verbose.duration
    flat = [t for word in verbose.words for t in (word.start, word.end)]
    assert flat == sorted(flat)
    assert verbose.duration - 1.0 < flat[-1] <= verbose.duration
    logprobs = ask("json", include=["logprobs"]).logprobs
    assert b"".join(bytes(map(int, entry.bytes)) for entry in logprobs).decode().strip() == text
    assert all(entry.logprob <= 0 for entry in logprobs)


def test_a21_a_stream_by_the_sdk(client: OpenAI) -> None:
    events = list(
        client.audio.transcriptions.create(
            model="whisper-1", file=("blob", (DATA / "question.wav").read_bytes()), stream=True
        )
    )
    assert [event.type for event in events][-1] == "transcript.text.done"
    assert (
        "".join(e.delta for e in events if e.type == "transcript.text.delta") == events[-1].text == QUESTION
    )


def test_prompts_spell_names(client: OpenAI) -> None:
    file = (DATA / "question.wav").read_bytes()
    plain, told = [
        client.audio.transcriptions.create(model=TINY, file=file, prompt=prompt, language="en").text
        for prompt in ("", "an unusual talk without any capital letter or full stop " * 60)
    ]
    assert plain == QUESTION
    assert told.lower().strip(" .?") == plain.lower().strip(" .?")


def test_a_model_of_english_knows_no_other_language(client: OpenAI) -> None:
    file = (DATA / "question.wav").read_bytes()
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=TINY, file=file, language="de")
    assert caught.value.param == "language"
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.translations.create(model=TINY, file=file)
    assert caught.value.param == "model"


# --- files ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blob", "sound", "wrong.txt", "wrong.mp3"])
def test_a24_the_same_sound_in_any_container_under_any_name(client: OpenAI, name: str) -> None:
    samples = decode_file(DATA / "question.wav")
    files = [
        wav(samples),
        encoded(samples, "mp3", "libmp3lame", 16_000, {"b": "64000"}),
        encoded(samples, "mp4", "aac", 44_100),
        encoded(samples, "webm", "libopus", 48_000),
        encoded(samples, "ogg", "libopus", 48_000),
        encoded(samples, "flac", "flac", 16_000),
        encoded(samples, "adts", "aac", 44_100),
    ]
    texts = {
        client.audio.transcriptions.create(model=TINY, file=(name, file), language="en").text
        for file in files
    }
    assert texts == {QUESTION}


def test_a25_ten_hours_of_silence_stop_at_the_limit(server: Server, client: OpenAI) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as output:
        stream = output.add_stream("flac", rate=8_000, layout="mono", options={"compression_level": "0"})
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 65_536), np.int16), "s16", "mono")
        frame.sample_rate = 8_000
        for _ in range(10 * 3600 * 8_000 // 65_536):
            frame.pts = None
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    before = len(server.windows)
    with pytest.raises(openai.BadRequestError) as caught:
        client.audio.transcriptions.create(model=TINY, file=file.getvalue())
    assert (caught.value.code, caught.value.param) == ("audio_too_long", "file")
    assert len(server.windows) == before


BORDERLINE = ("gen/wav_two_data_chunks.wav", "guitar_16k.wav")
"""Known fault: how sure the recogniser is of these lies on a threshold, and what ran before in the process
(threads of the matrix products) tips it to either side."""
CLEAN_ERRORS = ("error", "declared format")


def test_every_file_that_people_upload(client: OpenAI, score: Scorer, shared_speech: Path) -> None:
    """The text, or a 400 that names the file; never a 500, and never nothing for a file with speech."""
    folder = shared_speech / "formats"
    wrong: list[str] = []
    for row in rows(folder):
        reference, expect = row.get("text") or "", row["expect"]
        try:
            text = client.audio.transcriptions.create(
                model=TINY, file=("upload", (folder / row["path"]).read_bytes()), language="en"
            ).text
        except openai.BadRequestError as error:
            may = any(word in expect for word in CLEAN_ERRORS) or not reference
            if error.param != "file" or not may:
                wrong.append(f"{row['path']}: {error.message}")
            continue
        if not reference or "first chunk" in expect or "per channel" in expect or "chained" in row["path"]:
            if reference and not text and row["path"] not in BORDERLINE:
                wrong.append(f"{row['path']}: nothing")
        elif score.errors(row, text)[0] > (4 if "part" in expect else 2):
            wrong.append(f"{row['path']}: {text!r}, not {reference!r}")
    assert not wrong, "\n".join(wrong)


# --- long recordings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clip:
    """text: what the endpoint makes of the recording alone."""

    row: dict[str, Any]
    samples: Samples
    text: str


@pytest.fixture(scope="module")
def clips(client: OpenAI, shared_speech: Path) -> list[Clip]:
    folder = shared_speech / "speech-en"
    found: list[Clip] = []
    for row in [row for row in rows(folder) if row.get("core")][:45]:
        samples = decode_file(folder / row["path"])
        answer = client.audio.transcriptions.create(model=TINY, file=wav(samples), language="en")
        found.append(Clip(row, samples, answer.text))
    return found


def errors(score: Scorer, clips: list[Clip]) -> int:
    return sum(score.errors(clip.row, clip.text)[0] for clip in clips)


def onset(samples: Samples) -> float:
    """The first frame of 10 ms above a tenth of the loudest, in seconds."""
    frames = samples[: len(samples) // 160 * 160].reshape(-1, 160)
    level = np.sqrt(np.mean(np.square(frames), axis=1))
    return float(np.flatnonzero(level > level.max() / 10)[0]) / 100


def test_a22_five_minutes_with_a_sentence_every_ten_seconds(
    client: OpenAI, score: Scorer, clips: list[Clip]
) -> None:
    used = [clip for clip in clips if 3.0 < len(clip.samples) / SAMPLE_RATE < 9.0][:30]
    sound = np.random.default_rng(0).normal(0, 1e-4, 300 * SAMPLE_RATE).astype(np.float32)
    for number, clip in enumerate(used):
        sound[number * 10 * SAMPLE_RATE :][: len(clip.samples)] += clip.samples
    verbose, plain = [
        client.audio.transcriptions.create(
            model=TINY, file=("long.wav", wav(sound)), language="en", response_format=format
        )
        for format in ("verbose_json", "json")
    ]
    assert verbose.text == plain.text == "".join(s.text for s in verbose.segments).strip()
    assert "  " not in plain.text
    wrong, words = score.errors({"text": " ".join(clip.row["text"] for clip in used)}, plain.text)
    assert wrong <= errors(score, used) + 0.02 * words
    late: list[float] = []
    for number, clip in enumerate(used):
        here = [s for s in verbose.segments if 10 * number - 0.5 <= s.start < 10 * number + 9.5]
        assert here, f"sentence {number} is missing"
        late.append(here[0].start - 10 * number - onset(clip.samples))
    assert np.abs(late[-5:]).max() < 0.2
    assert np.median(np.abs(late)) < 0.1


def test_a22_speech_without_long_pauses_loses_nothing_at_the_cuts(
    client: OpenAI, score: Scorer, clips: list[Clip]
) -> None:
    sound = np.concatenate([clip.samples for clip in clips])
    text = client.audio.transcriptions.create(model=TINY, file=("long.wav", wav(sound)), language="en").text
    wrong, words = score.errors({"text": " ".join(clip.row["text"] for clip in clips)}, text)
    assert wrong <= errors(score, clips) + 0.02 * words


def test_words_are_as_right_as_faster_whispers(score: Scorer, clips: list[Clip]) -> None:
    whisper = pytest.importorskip("faster_whisper")
    store = WeightStore(SETTINGS.weights.root, offline=SETTINGS.weights.offline)
    peer = whisper.WhisperModel(str(store.fetch(TINY)), device="cpu", compute_type="int8", cpu_threads=2)
    theirs = [
        replace(clip, text=" ".join(segment.text.strip() for segment in peer.transcribe(clip.samples)[0]))
        for clip in clips
    ]
    assert errors(score, clips) <= errors(score, theirs)


def test_a16_a_client_that_leaves_is_not_read_for(server: Server, client: OpenAI, clips: list[Clip]) -> None:
    sound = np.concatenate([clip.samples for clip in clips] * 2)
    server.windows.clear()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            server.url + "/audio/transcriptions",
            files={"file": wav(sound)},
            data={"model": TINY, "language": "en"},
            timeout=httpx.Timeout(20, read=3.0),
        )
    # The next one is answered, by a recogniser that has dropped the first.
    assert client.audio.transcriptions.create(model=TINY, file=(DATA / "question.wav").read_bytes()).text
    assert 1 < len(server.windows) < len(sound) / SAMPLE_RATE / 30


# --- other languages and sounds -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "name"),
    [("de", "german"), ("fr", "french"), ("es", "spanish"), ("pt", "portuguese"), ("ru", "russian")],
)
def test_other_languages_are_detected_and_written(
    client: OpenAI, score: Scorer, shared_speech: Path, code: str, name: str
) -> None:
    folder = shared_speech / "speech-multi"
    row = [row for row in rows(folder) if row["lang"][:2] == code][1]
    verbose = client.audio.transcriptions.create(
        model="whisper-1", file=(folder / row["path"]).read_bytes(), response_format="verbose_json"
    )
    wrong, words = score.errors(row, verbose.text)
    assert verbose.language == name
    assert wrong < 0.5 * words


def test_translation_gives_english(client: OpenAI, shared_speech: Path) -> None:
    file = (shared_speech / "speech-multi" / "fleurs-es" / "fleurs-es-003.ogg").read_bytes()
    verbose = client.audio.translations.create(model="whisper-1", file=file, response_format="verbose_json")
    assert verbose.language == "english"
    assert "earth" in verbose.text.lower()


def test_noise_and_music_say_nothing(client: OpenAI, shared_speech: Path) -> None:
    for folder in ("background", "music", "silence"):
        for path in sorted((shared_speech / "noise" / folder).iterdir()):
            answer = client.audio.transcriptions.create(model="whisper-1", file=path.read_bytes())
            assert answer.text == "" or path.name in BORDERLINE, path.name
