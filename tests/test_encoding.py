"""Sound files written while they are spoken: decoded again, whole and however they were cut."""

import io
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.asr.formats import decode_file
from antiphon.tts.encoding import MEDIA_TYPES, RATE, UNKNOWN_SIZE, Encoder, Format

FORMATS: tuple[Format, ...] = tuple(MEDIA_TYPES)
MAGIC = {"mp3": b"ID3", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF"}
EXACT = ("flac", "wav", "pcm")
FRAME = {"mp3": 576, "opus": 480, "aac": 1024}
"""Samples at 24 kHz of one frame: what the last one may pad. MP3 and AAC also delay by up to two."""


def sweep(seconds: float, rate: int = RATE) -> np.ndarray:
    """A tone that never repeats, so a shifted or missing stretch is found."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.4 * np.sin(2 * np.pi * (150 + 400 * time) * time)).astype(np.float32)


def encoded(format: Format, samples: np.ndarray, cuts: list[int], rate: int = RATE) -> bytes:
    encoder = Encoder(format, rate)
    pieces = np.split(samples, sorted(cuts))
    return b"".join([*(encoder.push(piece) for piece in pieces), encoder.finish()])


def decoded(format: Format, data: bytes) -> np.ndarray:
    if format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    return decode_file(io.BytesIO(data), RATE)


def likeness(sent: np.ndarray, got: np.ndarray, most: int) -> tuple[float, int]:
    """(signal to noise in dB, delay in samples) at the best delay from 0 to `most`."""
    padded = np.pad(got, (0, len(sent) + most))
    noise = [np.sum((padded[delay : delay + len(sent)] - sent) ** 2) for delay in range(most + 1)]
    best = int(np.argmin(noise))
    return 10 * np.log10(np.sum(sent**2) / max(noise[best], 1e-12)), best


@pytest.mark.parametrize("format", FORMATS)
def test_what_was_pushed_can_be_played(format: Format) -> None:
    sent = sweep(1.3)
    data = encoded(format, sent, [1, 2400, 2400, 9000])
    assert data.startswith(MAGIC.get(format, b""))
    got = decoded(format, data)
    if format in EXACT:
        assert np.array_equal(got, np.rint(sent * 32768) / 32768)
    else:
        frame = FRAME[format]
        assert 0 <= len(got) - len(sent) <= 3 * frame
        snr, delay = likeness(sent, got, 2 * frame + 100)
        assert snr > 20
        assert delay <= 2 * frame + 100


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, 4800), max_size=12))
def test_how_the_samples_are_cut_changes_nothing(format: Format, cuts: list[int]) -> None:
    sent = sweep(0.2)
    whole, pieces = encoded(format, sent, []), encoded(format, sent, cuts)
    if format == "opus":  # every Ogg stream has a serial number of its own
        whole, pieces = decoded(format, whole).tobytes(), decoded(format, pieces).tobytes()
    assert pieces == whole


@pytest.mark.parametrize("format", FORMATS)
def test_bytes_come_while_samples_are_pushed(format: Format) -> None:
    encoder = Encoder(format, RATE)
    sizes = [len(encoder.push(piece)) for piece in np.split(sweep(2.0), 10)]
    rest = encoder.finish()
    # Of every 0.4 s something has left by the end of the next.
    assert all(sum(sizes[at : at + 3]) > 0 for at in range(8)), sizes
    assert len(rest) < sum(sizes) / 2


@pytest.mark.parametrize("format", FORMATS)
def test_a_cut_off_file_plays_to_the_cut(format: Format) -> None:
    encoder = Encoder(format, RATE)
    data = b"".join(encoder.push(piece) for piece in np.split(sweep(2.0), 20))
    assert len(decoded(format, data[: len(data) // 2 * 2])) > 1.5 * RATE


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("samples", [100, RATE // 5])
def test_short_and_silent_sounds_are_whole_files(format: Format, samples: int) -> None:
    got = decoded(format, encoded(format, np.zeros(samples, np.float32), []))
    assert samples <= len(got) <= samples + 3 * FRAME.get(format, 0)
    assert np.max(np.abs(got)) < 1e-3


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rate", [16_000, 22_050, 44_100])
def test_voices_of_other_rates_come_out_at_24_khz(format: Format, rate: int) -> None:
    got = decoded(format, encoded(format, sweep(1.0, rate), [rate // 3], rate))
    assert RATE <= len(got) <= RATE + 3 * FRAME.get(format, 0)
    assert likeness(sweep(1.0), got, 3 * 1024)[0] > 20


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_too_loud_or_no_number_is_heard_as_something(format: Format) -> None:
    wild = np.array([2.0, -2.0, np.nan, np.inf, -np.inf] * 1000, np.float32)
    got = decoded(format, encoded(format, wild, [7]))
    assert np.all(np.isfinite(got))


def test_a_streamed_wav_has_no_length() -> None:
    data = encoded("wav", sweep(0.1), [])
    assert struct.unpack_from("<I", data, 4) == struct.unpack_from("<I", data, 40) == (UNKNOWN_SIZE,)
    kind, channels, rate, bytes_per_second, width, bits = struct.unpack_from("<HHIIHH", data, 20)
    assert (kind, channels, rate, bytes_per_second, width, bits) == (1, 1, RATE, 2 * RATE, 2, 16)
    assert len(data) == 44 + 2 * 2400


def test_rates_and_channels_are_what_they_should_be() -> None:
    for format in ("mp3", "opus", "aac", "flac", "wav"):
        with av.open(io.BytesIO(encoded(format, sweep(0.5), []))) as file:
            stream = file.streams.audio[0]
            assert stream.channels == 1
            assert stream.rate == (48_000 if format == "opus" else RATE)  # Opus always decodes at 48 kHz


def test_an_encoder_may_be_dropped_in_the_middle() -> None:
    for format in FORMATS:
        encoder = Encoder(format, RATE)
        encoder.push(sweep(0.3))
        del encoder
