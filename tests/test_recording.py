"""Long recordings: no word lost or doubled at a cut, no drift, and what was left unread is found."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import WORD, Listener, spoken, texts

from antiphon.asr.base import SAMPLE_RATE, Segment, Transcription, Window, Word
from antiphon.asr.reading import DEPTH
from antiphon.asr.recording import (
    LONGEST,
    Chunk,
    Part,
    Passage,
    Planner,
    Stitcher,
    arranged,
    halves,
    unread,
)
from antiphon.asr.vad import FRAME, FRAME_SECONDS
from antiphon.pipeline.events import Samples


def heard(samples: Samples) -> np.ndarray:
    """Sound is speech."""
    frames = samples.reshape(-1, FRAME)
    return (np.sqrt(np.mean(np.square(frames), axis=1)) > 0.01).astype(np.float32)


def planned(samples: Samples, block: int = 17, planner: Planner | None = None) -> list[Chunk]:
    planner = planner or Planner()
    whole = np.pad(samples, (0, -len(samples) % FRAME))
    chunks: list[Chunk] = []
    for at in range(0, len(whole), block * FRAME):
        some = whole[at : at + block * FRAME]
        chunks += planner.push(some, heard(some))
    return chunks + planner.finish()


def read(chunks: Sequence[Chunk], listener: Listener) -> list[Passage]:
    """As the shell does it, without waiting."""

    def parts(chunk: Chunk, depth: int) -> list[Part]:
        [found] = listener.transcribe([Window(chunk.samples)])
        kept, again = unread(chunk, found)
        left = depth - (1 if kept.segments else 2)
        more = [part for piece in again for part in parts(piece, left)] if left >= 0 else []
        return arranged((chunk, kept), more)

    stitcher = Stitcher()
    return [p for chunk in chunks for part in parts(chunk, DEPTH) for p in stitcher.add(*part)]


# --- cutting --------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(0.1, 6.0), min_size=1, max_size=60),
    st.floats(0.0, 5.0),
    st.integers(1, 400),
)
def test_no_word_is_lost_or_doubled(gaps: list[float], lead: float, block: int) -> None:
    starts = lead + np.cumsum([0.0, *(gap + WORD for gap in gaps)])
    chunks = planned(spoken(list(starts), float(starts[-1]) + 2.0), block)
    assert all(len(chunk.samples) <= 30 * SAMPLE_RATE for chunk in chunks)
    for before, after in pairwise(chunks):
        assert before.start + len(before.samples) <= after.start
    passages = read(chunks, Listener())
    assert " ".join(p.text for p in passages) == texts(range(len(starts)))
    for passage, start in zip(passages, starts, strict=True):
        assert abs(passage.start - start) <= FRAME_SECONDS


def test_a22_times_do_not_drift_in_five_minutes() -> None:
    starts = [10.0 * n + 0.3 for n in range(30)]
    passages = read(planned(spoken(starts, 300.0)), Listener())
    assert [p.text for p in passages] == [f"w{n}" for n in range(30)]
    assert max(abs(p.start - s) for p, s in zip(passages, starts, strict=True)) <= FRAME_SECONDS
    assert max(abs(p.end - s - WORD) for p, s in zip(passages, starts, strict=True)) <= FRAME_SECONDS


def test_speech_without_a_pause_is_cut_at_its_quietest_spot() -> None:
    rng = np.random.default_rng(1)
    sound = rng.normal(0, 0.2, 50 * SAMPLE_RATE).astype(np.float32)
    quiet = slice(24 * SAMPLE_RATE, round(24.1 * SAMPLE_RATE))
    sound[quiet] *= 0.2  # still speech to the detector
    first, second = planned(sound)
    assert abs(first.end - 24.05) < 0.06
    assert second.begin == first.end
    assert len(first.samples) + len(second.samples) >= len(sound)


def test_silence_and_clicks_are_in_no_chunk() -> None:
    assert planned(np.zeros(60 * SAMPLE_RATE, np.float32)) == []
    clicks = np.zeros(60 * SAMPLE_RATE, np.float32)
    clicks[:: 5 * SAMPLE_RATE] = 0.9
    clicks[1 :: 5 * SAMPLE_RATE] = -0.9
    assert planned(clicks) == []
    assert planned(np.zeros(0, np.float32)) == []


def test_a_faint_sound_that_never_rises_is_speech_only_when_it_lasts() -> None:
    def faint(frames: int) -> list[Chunk]:
        planner = Planner()
        probabilities = np.array([0.0] * 40 + [0.6] * frames + [0.0] * 60, np.float32)
        sound = np.full(len(probabilities) * FRAME, 0.1, np.float32)
        return planner.push(sound, probabilities) + planner.finish()

    assert faint(20) == []
    [chunk] = faint(60)
    assert chunk.spans[0][0] == pytest.approx(40 * FRAME_SECONDS)


def test_what_is_held_is_bounded() -> None:
    planner = Planner()
    held = 0
    for _ in range(40):
        planner.push(np.full(10 * FRAME * 31, 0.1, np.float32), np.full(310, 0.6, np.float32))
        held = max(held, len(planner._frames))
        planner.push(np.zeros(10 * FRAME * 31, np.float32), np.zeros(310, np.float32))
        assert len(planner._frames) < 100
    assert held <= LONGEST


def test_the_thresholds_are_the_clients() -> None:
    sound = spoken([1.0, 1.8], 4.0)
    probabilities = heard(sound) * np.float32(0.7)
    strict = Planner(threshold=0.9)
    assert strict.push(sound, probabilities) + strict.finish() == []
    loose = Planner(threshold=0.3, padding=0.0, silence=1.0)
    [chunk] = loose.push(sound, probabilities) + loose.finish()
    assert len(chunk.spans) == 1
    assert chunk.begin == pytest.approx(1.0, abs=FRAME_SECONDS)
    [usual] = planned(sound)
    assert len(usual.spans) == 2


# --- what was not read ----------------------------------------------------------------------------------


def test_a22_what_the_decoder_leaves_unread_is_read_again() -> None:
    starts = [0.5 + 1.2 * n for n in range(20)]
    for deaf_after in (6.0, 12.0):
        listener = Listener(deaf_after)
        passages = read(planned(spoken(starts, 26.0)), listener)
        assert [p.text for p in passages] == [f"w{n}" for n in range(20)]
        assert len(listener.windows) > 1


def chunk_of(*spans: tuple[float, float], start: float = 100.0, seconds: float = 20.0) -> Chunk:
    samples = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    return Chunk(round(start * SAMPLE_RATE), samples, tuple((start + a, start + b) for a, b in spans))


def said(
    *segments: tuple[float, float, str], unfinished: bool = False, logprob: float = -0.2
) -> Transcription:
    return Transcription(
        "x", tuple(Segment(*s) for s in segments), avg_logprob=logprob, unfinished=unfinished
    )


def edges(chunks: list[Chunk]) -> list[tuple[float, float]]:
    return [(round(c.begin, 2), round(c.end, 2)) for c in chunks]


def test_gaps_before_between_and_after_segments() -> None:
    chunk = chunk_of((1.0, 4.0), (5.0, 9.0), (10.0, 19.0))
    kept, again = unread(chunk, said((5.0, 9.0, "b"), (13.0, 16.0, "c")))
    assert len(kept.segments) == 2
    assert edges(again) == [(100.7, 104.3), (109.7, 113.0), (116.0, 119.3)]
    assert again[0].spans == ((101.0, 104.0),)


def test_small_gaps_are_a_matter_of_timing() -> None:
    chunk = chunk_of((1.0, 4.0), (5.0, 9.0))
    assert unread(chunk, said((1.2, 3.7, "a"), (5.4, 8.5, "b")))[1] == []


def test_a_text_that_ran_out_of_tokens_stands_up_to_its_last_whole_segment() -> None:
    chunk = chunk_of((0.0, 20.0))
    kept, again = unread(chunk, said((0.0, 8.0, "a"), (8.0, 20.0, "b"), unfinished=True))
    assert [s.text for s in kept.segments] == ["a"]
    assert edges(again) == [(108.0, 120.0)]
    kept, again = unread(chunk, said((0.0, 20.0, "a"), unfinished=True))
    assert kept.segments == ()
    assert edges(again) == [(100.0, 110.0), (110.0, 120.0)]


def test_nothing_understood_is_read_in_halves_where_there_is_a_pause() -> None:
    chunk = chunk_of((1.0, 4.0), (12.0, 16.0))
    assert edges(unread(chunk, said())[1]) == [(100.0, 108.0), (108.0, 120.0)]
    assert unread(chunk_of((1.0, 4.0)), said())[1] == []
    assert halves(chunk_of((0.1, 0.4), (0.5, 0.8), seconds=0.9)) == []


def test_a_second_reading_counts_where_it_is_believable_and_no_echo() -> None:
    first = chunk_of((0.0, 20.0)), said((0.0, 5.0, "Alpha."), (10.0, 20.0, "Gamma delta."))

    def again(text: str, logprob: float = -0.2) -> list[str]:
        part = chunk_of((0.0, 5.0), start=105.0, seconds=5.0), said((0.0, 4.0, text), logprob=logprob)
        return [found.segments[0].text for _, found in arranged(first, [part])]

    assert again("Beta.") == ["Alpha.", "Beta.", "Gamma delta."]
    assert again("Beta.", -1.3) == ["Alpha.", "Gamma delta."]
    assert again("alpha") == again("Gamma!") == again("...") == ["Alpha.", "Gamma delta."]


# --- one text -------------------------------------------------------------------------------------------


def test_times_that_fall_into_silence_move_to_the_speech() -> None:
    chunk = chunk_of((1.0, 4.0), (6.0, 9.0))
    words = (Word(0.2, 1.5, "one"), Word(3.0, 5.0, "two"))
    found = Transcription("x", (Segment(0.0, 5.0, "one two", (), words), Segment(5.0, 9.9, "three")))
    one, three = Stitcher().add(chunk, found)
    assert (one.start, one.end) == (101.0, 104.0)
    assert [(w.start, w.end) for w in one.words] == [(101.0, 101.5), (103.0, 104.0)]
    assert (three.start, three.end) == (106.0, 109.0)
    assert one.seek == 100 * SAMPLE_RATE


@given(st.lists(st.tuples(st.floats(0, 20), st.floats(0, 20), st.floats(0, 20)), max_size=8))
def test_times_never_decrease_and_stay_inside(times: list[tuple[float, float, float]]) -> None:
    chunk = chunk_of((1.0, 4.0), (6.0, 9.0))
    segments = tuple(Segment(a, b, "x", (), (Word(a, c, "x"), Word(c, b, "y"))) for a, b, c in times)
    passages = Stitcher().add(chunk, Transcription("x", segments))
    flat = [t for p in passages for t in (p.start, p.end)]
    assert flat == sorted(flat)
    assert all(100.0 <= t <= 120.0 for t in flat)
    for p in passages:
        inner = [t for w in p.words for t in (w.start, w.end)]
        assert inner == sorted(inner)
        assert all(p.start <= t <= p.end for t in inner)


def test_pieces_are_joined_as_their_script_wants() -> None:
    stitcher = Stitcher()
    leads: list[str] = []
    for text in ("One.", "Two", "你好。", "再见", "end"):
        leads += [p.lead for p in stitcher.add(chunk_of((0, 1)), said((0.0, 1.0, text)))]
    assert leads == ["", " ", " ", "", " "]
