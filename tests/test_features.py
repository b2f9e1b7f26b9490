"""Log-mel: against the peer's extractor, and the properties that the recogniser builds on."""

import numpy as np
import pytest

from antiphon.asr.features import HOP, LogMel, mel_filters


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.1, round(seconds * 16_000)).astype(np.float32)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_agrees_with_faster_whisper(n_mels: int) -> None:
    peer = pytest.importorskip("faster_whisper.feature_extractor").FeatureExtractor(feature_size=n_mels)
    time = np.arange(48_000) / 16_000
    chirp = (0.3 * np.sin(2 * np.pi * (200 + 900 * time) * time)).astype(np.float32)
    for samples in (noise(2.0), chirp, chirp + noise(3.0)):
        np.testing.assert_allclose(LogMel(n_mels)(samples), peer(samples, padding=0), atol=1e-4)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filters_are_triangles_of_equal_area_in_rising_order(n_mels: int) -> None:
    filters = mel_filters(n_mels)
    assert filters.shape == (n_mels, 201)
    assert (filters >= 0).all()
    assert (filters.max(axis=1) > 0).all()
    assert (np.diff(filters.argmax(axis=1)) >= 0).all()
    wide = filters[n_mels // 2 :].sum(axis=1) * 40  # bins are 40 Hz apart
    np.testing.assert_allclose(wide, 1.0, atol=0.15)


def test_a_tone_lights_the_band_it_is_in() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(16_000) / 16_000).astype(np.float32)
    loudest = LogMel()(tone)[:, 50].argmax()
    assert mel_filters(80)[loudest, 25] > 0  # bin 25 is 1000 Hz


@pytest.mark.parametrize("length", [0, 1, 159, 160, 400, 401, 16_000, 16_159])
def test_a_frame_every_hop_whatever_the_length(length: int) -> None:
    mel = LogMel()(np.zeros(length, np.float32))
    assert mel.dtype == np.float32
    assert mel.shape[0] == 80
    assert mel.shape[1] == length // HOP or length <= 400
    assert np.isfinite(mel).all()


def test_the_range_is_eight_decades() -> None:
    mel = LogMel()(np.concatenate([noise(0.5), np.zeros(8_000, np.float32)]))
    assert mel.max() - mel.min() == pytest.approx(2.0, abs=1e-5)
