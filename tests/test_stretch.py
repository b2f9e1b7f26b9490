"""Faster speech: shorter by the factor, of the same pitch and loudness."""

import numpy as np
import pytest
from fakes import loudness, tone

from antiphon.tts.stretch import faster

RATE = 24_000


@pytest.mark.parametrize("factor", [1.1, 1.5, 2.0, 8 / 3])
def test_a_tone_is_shorter_and_sounds_the_same(factor: float) -> None:
    sent = tone(2.0, RATE, hz=200.0)
    got = faster(sent, RATE, factor)
    assert got.dtype == np.float32
    assert abs(len(got) * factor / len(sent) - 1) < 0.05
    spectrum = np.abs(np.fft.rfft(got * np.hanning(len(got))))
    assert abs(np.argmax(spectrum) * RATE / len(got) - 200.0) < 2
    assert loudness(got) == pytest.approx(loudness(sent), rel=0.1)


def test_what_is_too_short_or_asked_for_as_it_is_stays() -> None:
    for samples, factor in ((tone(2.0, RATE), 1.0), (tone(0.05, RATE), 2.0), (tone(0.0, RATE), 2.0)):
        assert faster(samples, RATE, factor) is samples


@pytest.mark.parametrize("size", [2400, 2401, 3000, 5000, 24_001])
def test_any_length_gives_something(size: int) -> None:
    assert 0 < len(faster(tone(2.0, RATE)[:size], RATE, 8 / 3)) < size
