"""The built-in voice: what it gives, that it gives the same again, that a dropped caller costs nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.pipeline.errors import BadRequest, EngineFailed, SettingsError, WeightsError
from antiphon.pipeline.events import Samples
from antiphon.tts.base import Synthesizer, Voice
from antiphon.tts.hibari import (
    HEAD,
    LONGEST,
    LONGEST_TEXT,
    MODEL,
    PAUSES,
    RUN_ON,
    SAMPLE_RATE,
    Hibari,
    cut,
    load,
    readable,
    shaped,
)

HEART = Voice("heart")
QUIET = 10 ** (-50 / 20)


@pytest.fixture(scope="module")
def voice() -> Iterator[Hibari]:
    voice = Hibari()
    yield voice
    asyncio.run(voice.aclose())


@pytest.fixture
def own_voice() -> Iterator[Hibari]:
    """One whose model a test may tamper with."""
    voice = Hibari()
    yield voice
    asyncio.run(voice.aclose())


async def say(tts: Synthesizer, text: str, voice: Voice = HEART) -> list[Samples]:
    async with tts.synthesize(text, voice, owner="test", deadline=0.0) as chunks:
        return [samples async for samples in chunks]


def silences(samples: Samples) -> tuple[float, float]:
    """Seconds before the first and after the last sample above -50 dBFS."""
    loud = np.flatnonzero(np.abs(samples) > QUIET)
    return loud[0] / SAMPLE_RATE, (len(samples) - 1 - loud[-1]) / SAMPLE_RATE


def test_shaped_cuts_silence_and_fades() -> None:
    tone = np.full(2400, 1.5, np.float32)
    raw = np.concatenate([np.zeros(9000, np.float32), tone, np.zeros(9000, np.float32)])
    out = shaped(raw, 0.1)
    assert out.dtype == np.float32
    assert len(out) == round(HEAD * SAMPLE_RATE) + len(tone) + 2400
    assert out.max() == 1.0
    assert raw.max() == 1.5
    loud = shaped(tone, 0.1)
    assert loud[0] == 0.0
    assert loud[-1] == 0.0
    assert loud[1200] == 1.0
    assert len(shaped(np.zeros(100, np.float32), 0.1)) == 0


def test_a_changed_model_is_refused(tmp_path: Path) -> None:
    changed = bytearray(MODEL.read_bytes())
    changed[len(changed) // 2] ^= 1
    path = tmp_path / "voice.onnx"
    path.write_bytes(changed)
    with pytest.raises(WeightsError, match="sha256"):
        Hibari(path)
    with pytest.raises(WeightsError, match="cannot be read"):
        Hibari(tmp_path / "missing.onnx")


def test_load_names_the_voices_it_has() -> None:
    settings: Any = SimpleNamespace(tts=SimpleNamespace(voice="emma"))
    with pytest.raises(SettingsError, match=r"tts\.voice.*heart"):
        load(settings, None)


@pytest.mark.model
@pytest.mark.parametrize(
    ("text", "pause"),
    [
        ("The capital of France is Paris.", PAUSES["."]),
        ("Sure, I can help with that,", PAUSES[","]),
        ("The capital of France is", RUN_ON),
        ("Hello there!", PAUSES["!"]),
        ("Yes", RUN_ON),
    ],
)
async def test_speech_begins_and_ends_without_dead_air(voice: Hibari, text: str, pause: float) -> None:
    [samples] = await say(voice, text)
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert np.abs(samples).max() <= 1.0
    assert np.sqrt(np.mean(samples**2)) > 0.01
    head, tail = silences(samples)
    assert head < 0.04
    assert tail <= pause + 0.006


@pytest.mark.model
async def test_same_words_same_samples(voice: Hibari) -> None:
    first = await say(voice, "Good morning. How are you?")
    await say(voice, "Something else.")
    again = await say(voice, "Good morning. How are you?")
    assert [s.tobytes() for s in first] == [s.tobytes() for s in again]


@pytest.mark.model
async def test_a_chunk_a_sentence(voice: Hibari) -> None:
    assert len(await say(voice, "One is here. Two is there! Is three?")) == 3


@pytest.mark.model
async def test_speed_changes_the_length(voice: Hibari) -> None:
    [slow], [fast] = [await say(voice, "The capital of France.", Voice("heart", s)) for s in (0.5, 2.0)]
    assert len(slow) > 2 * len(fast)


@pytest.mark.model
async def test_beyond_what_the_model_can_do_the_length_is_still_right(voice: Hibari) -> None:
    text = "The quick brown fox jumps over the lazy dog, and then it went home to sleep for a while."
    [usual] = await say(voice, text)
    for speed in (1.5, 2.0, 3.0, 4.0):
        [quick] = await say(voice, text, Voice("heart", speed))
        assert abs(len(quick) * speed / len(usual) - 1) < 0.08, speed


@pytest.mark.model
@pytest.mark.parametrize("text", ["", "  \n", "...", "😀", "你好。", "\ud800"])
async def test_nothing_to_say_gives_nothing(voice: Hibari, text: str) -> None:
    assert await say(voice, text) == []


@pytest.mark.model
async def test_no_at_the_end_is_not_number(voice: Hibari) -> None:
    [said], [number] = await say(voice, "She said no."), await say(voice, "She said number.")
    [asked] = await say(voice, "She said know.")
    assert said.tobytes() == asked.tobytes() != number.tobytes()


@pytest.mark.model
async def test_unknown_voice_and_speed_are_refused(voice: Hibari) -> None:
    with pytest.raises(BadRequest, match="heart"):
        await say(voice, "Hello.", Voice("emma"))
    with pytest.raises(BadRequest, match="speed"):
        await say(voice, "Hello.", Voice("heart", 5.0))


class Watched:
    """The model, noting what it was asked to read; `hold` keeps it in its first reading."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.read: list[str] = []
        self.began, self.hold = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def phonemize(self, text: str) -> list[str]:
        self.read.append(text)
        self.began.set()
        assert self.hold.wait(10)
        return self._model.phonemize(text)


@pytest.mark.model
async def test_cancelled_while_waiting_never_reaches_the_model(own_voice: Hibari) -> None:
    model: Any = Watched(own_voice._model)
    own_voice._model = model
    first = asyncio.create_task(say(own_voice, "First one. First two."))
    await asyncio.to_thread(model.began.wait, 10)
    waiting = asyncio.create_task(say(own_voice, "Never said."))
    await asyncio.sleep(0)
    assert len(own_voice._worker) == 1
    waiting.cancel()
    first.cancel()
    await asyncio.gather(first, waiting, return_exceptions=True)
    assert waiting.cancelled()
    model.hold.set()
    assert len(await say(own_voice, "Last.")) == 1
    assert model.read == ["First one.", "Last."]


@pytest.mark.model
async def test_leaving_the_stream_drops_later_sentences(own_voice: Hibari) -> None:
    model: Any = Watched(own_voice._model)
    model.hold.set()
    own_voice._model = model
    async with own_voice.synthesize("One. Two. Three.", HEART, owner="a", deadline=0.0) as chunks:
        async for _ in chunks:
            break
    await say(own_voice, "Next.")
    assert model.read == ["One.", "Next."]


@pytest.mark.model
async def test_a_failing_model_is_an_engine_failure(own_voice: Hibari) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    model: Any = Watched(own_voice._model)
    model.phonemize = fail
    own_voice._model = model
    with pytest.raises(EngineFailed, match="out of memory"):
        await say(own_voice, "Hello.")


@pytest.mark.model
async def test_aclose_is_idempotent() -> None:
    voice = Hibari()
    await voice.aclose()
    await voice.aclose()


@given(st.text(alphabet="ab ", max_size=200), st.integers(1, 40))
def test_a_cut_text_is_whole_and_its_pieces_are_short(text: str, longest: int) -> None:
    pieces = list(cut(text, longest))
    assert "".join(pieces) == text
    assert all(len(piece) <= longest for piece in pieces)


def test_words_are_cut_between() -> None:
    assert list(cut("one two three four", 10)) == ["one two ", "three four"]


@pytest.mark.model
@pytest.mark.parametrize("text", ["nine " * 600, "one, " * 600, "ABCD" * 500])
async def test_a_sentence_without_end_is_spoken_piece_by_piece(voice: Hibari, text: str, monkeypatch) -> None:
    sizes: list[int] = []
    from_ids = voice._model.from_ids
    monkeypatch.setattr(
        voice._model, "from_ids", lambda ids, *more: sizes.append(len(ids)) or from_ids(ids, *more)
    )
    chunks = 0
    async with voice.synthesize(text, Voice("heart"), owner="a", deadline=0.0) as stream:
        async for samples in stream:
            chunks += 1
            assert len(samples)
            if chunks == 4:
                break
    assert chunks == 4
    assert max(sizes) <= 2 * LONGEST


@pytest.mark.parametrize(
    "text", ["a-" * 2000, "9" * 4096, "1," * 2000, "x" + "1," * 2000, "ABCD" * 1000, "word " * 800]
)
def test_what_is_read_at_once_is_short_and_in_order(text: str) -> None:
    parts = list(readable(text))
    assert "".join("".join(parts).split()) == text.replace(" ", "")
    assert max(map(len, parts)) <= LONGEST_TEXT
    words = [word for part in parts for word in part.split()]
    assert max(map(len, words)) <= 61
    assert all(sum(map(str.isdigit, word)) <= 27 for word in words)
    assert not any(word.startswith(",") for word in words)


@pytest.mark.parametrize(
    "text", ["Hello there.", f"She paid $1,234,567.89 at {'a' * 58}.", "It is 3.14159265358979, or so."]
)
def test_a_usual_sentence_is_read_whole(text: str) -> None:
    assert list(readable(text)) == [text]


@pytest.mark.model
@pytest.mark.parametrize("text", ["0123456789" * 410, "1," * 2000, "ABCD" * 1000, "a-" * 500])
async def test_all_of_an_endless_sentence_is_said_in_order(
    own_voice: Hibari, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network is asked for its first pieces only, to be quick; a tone stands for the rest."""
    model = own_voice._model
    asked: list[list[int]] = []
    runs: list[int] = []
    from_ids, run = model.from_ids, own_voice._worker._run

    def said(ids: list[int], *more: Any) -> Samples:
        asked.append(ids)
        return from_ids(ids, *more) if len(asked) < 3 else np.full(2400, 0.1, np.float32)

    def counted(batch: Any) -> Any:
        runs.append(len(batch))
        return run(batch)

    monkeypatch.setattr(model, "from_ids", said)
    monkeypatch.setattr(own_voice._worker, "_run", counted)
    chunks = await say(own_voice, text)
    assert all(np.abs(samples).max() > 0.01 for samples in chunks)
    assert len(chunks) == len(asked) == sum(runs) == len(runs)
    assert max(map(len, asked)) <= LONGEST + 2
    whole = [model.ids(p)[1:-1] for part in readable(text) for p in model.phonemize(part)]
    assert [i for ids in asked for i in ids[1:-1]] == [i for ids in whole for i in ids]
