"""Subtitles: times to the millisecond, apart from each other, and texts that no player takes for marks."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.asr.subtitles import Cue, milliseconds, srt, stamp, vtt

HOURS_100 = 100 * 3600.0


def read(stamped: str) -> int:
    hours, minutes, seconds, ms = map(
        int, re.fullmatch(r"(\d{2,}):([0-5]\d):([0-5]\d)[,.](\d{3})", stamped).groups()
    )  # type: ignore[union-attr]
    return ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms


@given(st.floats(0, HOURS_100), st.sampled_from(",."))
def test_a26_a_time_is_the_same_when_it_is_read_again(seconds: float, point: str) -> None:
    assert read(stamp(milliseconds(seconds), point)) == milliseconds(seconds)
    assert abs(milliseconds(seconds) - seconds * 1000) <= 0.5 + 1e-6


@pytest.mark.parametrize(
    ("seconds", "stamped"),
    [
        (3.32, "00:00:03,320"),
        (2.3, "00:00:02,300"),
        (59.9996, "00:01:00,000"),
        (3599.9999, "01:00:00,000"),
        (0.0, "00:00:00,000"),
        (HOURS_100, "100:00:00,000"),
    ],
)
def test_a26_times_that_others_get_wrong(seconds: float, stamped: str) -> None:
    assert stamp(milliseconds(seconds), ",") == stamped


@given(st.lists(st.tuples(st.floats(0, HOURS_100), st.floats(0, HOURS_100))))
def test_cues_never_overlap(times: list[tuple[float, float]]) -> None:
    cues = [Cue(start, end, "text") for start, end in sorted(times)]
    for text in (srt(cues), vtt(cues)):
        found = [read(t) for line in text.splitlines() if "-->" in line for t in line.split(" --> ")]
        assert found == sorted(found)
        assert len(found) == 2 * len(cues)


def test_srt() -> None:
    text = srt([Cue(0.0, 3.32, "One & two."), Cue(3.32, 59.9996, "Two\nlines\n\n3")])
    assert text == (
        "1\n00:00:00,000 --> 00:00:03,320\nOne & two.\n\n2\n00:00:03,320 --> 00:01:00,000\nTwo lines 3\n\n"
    )
    assert srt([]) == ""


def test_vtt() -> None:
    text = vtt([Cue(0.0, 1.5, "a < b & c --> d"), Cue(1.4, 1.45, "late"), Cue(2.0, 3.0, " ")])
    assert text == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\na &lt; b &amp; c --&gt; d\n\n"
        "00:00:01.500 --> 00:00:01.501\nlate\n\n"
    )
    assert vtt([]) == "WEBVTT\n\n"
