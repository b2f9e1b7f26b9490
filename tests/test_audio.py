"""Wire encodings, resampling, framing, levels."""

import io
import itertools
import math
import warnings
import wave
from pathlib import Path
from types import ModuleType
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.pipeline.audio import (
    EMPTY,
    WIRE_FORMATS,
    Encoding,
    Framer,
    InputDecoder,
    OutputEncoder,
    Resampler,
    alaw_to_samples,
    first_above,
    last_above,
    mulaw_to_samples,
    pcm16_to_samples,
    samples_to_alaw,
    samples_to_mulaw,
    samples_to_pcm16,
    speech_end,
    trim_leading_silence,
    write_wav,
)
from antiphon.pipeline.errors import BadRequest

DATA = Path(__file__).parent / "data"
ALL_INT16 = np.arange(-32768, 32768).astype("<i2")
ALL_CODES = bytes(range(256))
RATES = [
    (24_000, 16_000),
    (16_000, 24_000),
    (8_000, 16_000),
    (16_000, 8_000),
    (24_000, 8_000),
    (8_000, 24_000),
    (48_000, 16_000),
    (44_100, 16_000),
    (22_050, 24_000),
]
quick = settings(max_examples=40, deadline=None, database=None)


def sine(hz: float, sample_rate: int, seconds: float = 1.0, amplitude: float = 0.5) -> np.ndarray:
    return (
        amplitude * np.sin(2 * np.pi * hz * np.arange(round(seconds * sample_rate)) / sample_rate)
    ).astype(np.float32)


def noise(n: int, seed: int = 0) -> np.ndarray:
    return (0.3 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def chunked(samples, sizes):
    """`samples` cut at `sizes` again and again; sizes may be 0."""
    at = 0
    for size in itertools.cycle([*sizes, 1]):
        if at >= len(samples):
            return
        yield samples[at : at + size]
        at += size


def stream(source_hz: int, target_hz: int, samples, sizes=(480,)) -> np.ndarray:
    resampler = Resampler(source_hz, target_hz)
    parts = [resampler.process(chunk) for chunk in chunked(samples, sizes)]
    return np.concatenate([*parts, resampler.flush()])


def db(power_ratio: float) -> float:
    return 10 * math.log10(power_ratio + 1e-20)


def snr(wanted, got) -> float:
    """In dB, over what is 100 samples and more away from both ends."""
    inner = slice(100, -100)
    return db(float(np.mean(wanted[inner] ** 2) / (np.mean((got - wanted)[inner] ** 2) + 1e-20)))


# --- 16-bit PCM and G.711 ---


def test_pcm16_round_trips_every_value():
    data = ALL_INT16.tobytes()
    samples = pcm16_to_samples(data)
    assert samples.dtype == np.float32
    assert samples.min() == -1.0
    assert samples.max() < 1.0
    assert samples_to_pcm16(samples) == data


def test_pcm16_is_little_endian():
    assert pcm16_to_samples(b"\x00\x40").tolist() == [0.5]
    assert samples_to_pcm16(np.array([0.5], np.float32)) == b"\x00\x40"


def test_too_loud_clips_and_nan_is_silence():
    samples = np.array([1.0, 2.0, np.inf, -1.0, -2.0, -np.inf, np.nan], np.float32)
    expected = [32767, 32767, 32767, -32768, -32768, -32768, 0]
    assert np.frombuffer(samples_to_pcm16(samples), "<i2").tolist() == expected
    assert samples_to_mulaw(samples) == b"\x80\x80\x80\x00\x00\x00\xff"
    assert samples_to_alaw(samples) == b"\xaa\xaa\xaa\x2a\x2a\x2a\xd5"


def test_an_encoder_does_not_change_its_input():
    samples = np.array([2.0, np.nan], np.float32)
    samples_to_pcm16(samples)
    assert samples[0] == 2.0
    assert np.isnan(samples[1])


def test_odd_byte_count_is_refused():
    with pytest.raises(BadRequest, match="even number of bytes, not 3"):
        pcm16_to_samples(b"\x00\x00\x00")


@pytest.fixture(scope="module")
def audioop() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytest.importorskip("audioop", reason="Python 3.13 has no audioop")


@pytest.mark.parametrize(
    ("decode", "encode", "law"),
    [(mulaw_to_samples, samples_to_mulaw, "ulaw"), (alaw_to_samples, samples_to_alaw, "alaw")],
)
def test_g711_agrees_with_audioop(audioop, decode, encode, law):
    encoded = encode(pcm16_to_samples(ALL_INT16.tobytes()))
    assert encoded == getattr(audioop, f"lin2{law}")(ALL_INT16.tobytes(), 2)
    assert samples_to_pcm16(decode(ALL_CODES)) == getattr(audioop, f"{law}2lin")(ALL_CODES, 2)


def test_g711_codes_survive_decoding():
    assert samples_to_alaw(alaw_to_samples(ALL_CODES)) == ALL_CODES
    # mu-law has two zeros, 0xFF and 0x7F; the negative one comes back as the positive.
    assert mulaw_to_samples(b"\x7f\xff").tolist() == [0.0, 0.0]
    assert samples_to_mulaw(mulaw_to_samples(ALL_CODES)) == ALL_CODES.replace(b"\x7f", b"\xff")


# --- sample rates ---


@quick
@given(
    rates=st.sampled_from([*RATES, (16_000, 16_000), (7, 3), (3, 7), (1000, 10)]),
    n=st.integers(0, 3000),
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=6),
)
def test_chunks_change_nothing_and_the_count_is_exact(rates, n, sizes):
    source_hz, target_hz = rates
    samples = noise(n)
    whole = stream(source_hz, target_hz, samples, [max(n, 1)])
    assert len(whole) == math.ceil(n * target_hz / source_hz)
    np.testing.assert_allclose(stream(source_hz, target_hz, samples, sizes), whole, atol=1e-6)


@pytest.mark.parametrize(("source_hz", "target_hz"), RATES)
def test_output_falls_on_the_input_and_lags_by_two_milliseconds(source_hz, target_hz):
    hz = 440.0
    samples = sine(hz, source_hz)
    assert snr(sine(hz, target_hz), stream(source_hz, target_hz, samples)) > 70

    resampler, given_in, given_out = Resampler(source_hz, target_hz), 0, 0
    for chunk in chunked(samples, [source_hz // 50]):
        given_in += len(chunk)
        given_out += len(resampler.process(chunk))
        assert given_in / source_hz - given_out / target_hz <= 0.002 + 1 / target_hz


def test_resampler_is_as_new_after_flush():
    resampler = Resampler(24_000, 16_000)
    first = np.concatenate([resampler.process(noise(1001)), resampler.flush()])
    second = np.concatenate([resampler.process(noise(1001)), resampler.flush()])
    assert first.tolist() == second.tolist()


def test_resampler_gives_nothing_for_nothing():
    resampler = Resampler(24_000, 16_000)
    assert len(resampler.process(EMPTY)) == len(resampler.flush()) == 0


def test_equal_rates_pass_through_at_once():
    samples = noise(10)
    resampler = Resampler(24_000, 24_000)
    assert resampler.process(samples).tolist() == samples.tolist()
    assert len(resampler.flush()) == 0


def test_a_long_chunk_is_like_many():
    samples = noise(30_000)
    np.testing.assert_allclose(
        stream(24_000, 16_000, samples, [30_000]), stream(24_000, 16_000, samples), atol=1e-6
    )


@pytest.mark.parametrize(
    ("low", "high", "hz"),
    [
        (16_000, 24_000, 300),
        (16_000, 24_000, 3_000),
        (16_000, 24_000, 7_000),
        (8_000, 16_000, 300),
        (8_000, 16_000, 3_300),
        (8_000, 24_000, 3_300),
    ],
)
def test_there_and_back_again(low, high, hz):
    samples = sine(hz, low)
    back = stream(high, low, stream(low, high, samples, [160, 7]), [241])
    assert len(back) == len(samples)
    assert snr(samples, back) > 60


@pytest.mark.parametrize(("source_hz", "target_hz"), RATES)
def test_pass_band_is_flat_and_stop_band_is_silent(source_hz, target_hz):
    """Beyond a transition of 0.6 kHz on either side of the lower rate's half."""
    edge = min(source_hz, target_hz) / 2
    for hz in np.linspace(100, source_hz / 2 - 100, 40):
        inner = stream(source_hz, target_hz, sine(hz, source_hz, 0.25, 1.0))[
            target_hz // 50 : -target_hz // 50
        ]
        seconds = np.arange(len(inner)) / target_hz
        waves = np.stack([np.sin(2 * np.pi * hz * seconds), np.cos(2 * np.pi * hz * seconds)], axis=1)
        if hz < edge - 600:
            amplitudes = np.linalg.lstsq(waves, inner, rcond=None)[0]
            assert abs(20 * np.log10(np.hypot(*amplitudes))) < 0.01
            assert db(2 * np.mean((inner - waves @ amplitudes) ** 2)) < -70  # images
        elif hz > edge + 600:
            assert db(2 * np.mean(inner**2)) < -70  # aliases


def test_no_clicks_where_chunks_meet():
    """The steepest bend of a sine is known; a sample lost or doubled at a seam would exceed it."""
    hz, source_hz, target_hz = 440.0, 24_000, 16_000
    out = stream(source_hz, target_hz, sine(hz, source_hz), [480, 1, 33])[50:-50]
    assert np.abs(np.diff(out, 2)).max() < 0.5 * (2 * np.pi * hz / target_hz) ** 2 * 1.01


def test_rates_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        Resampler(0, 16_000)


# --- the wire ---


@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_wire_there_and_back(encoding):
    """16 kHz speech band out to the wire and in again: the same tone, the same length."""
    samples = sine(1_020, 16_000)
    encoder, decoder = OutputEncoder(encoding, 16_000), InputDecoder(encoding)
    data = b"".join(encoder.encode(chunk) for chunk in chunked(samples, [320])) + encoder.flush()
    assert encoder.duration(len(data)) == decoder.duration(len(data)) == 1.0
    step = 320 * WIRE_FORMATS[encoding].sample_width
    parts = [decoder.decode(data[at : at + step]) for at in range(0, len(data), step)]
    back = np.concatenate([*parts, decoder.flush()])
    assert len(back) == len(samples)
    assert snr(samples, back) > (70 if encoding == "pcm" else 34)  # G.711 itself has some 37 dB


def test_a_24_khz_voice_reaches_the_wire_untouched():
    encoder = OutputEncoder("pcm", 24_000)
    assert encoder.encode(sine(440, 24_000)) == samples_to_pcm16(sine(440, 24_000))
    assert encoder.flush() == b""


def test_decoder_takes_nothing_of_a_chunk_it_refuses():
    data = samples_to_pcm16(sine(440, 24_000, 0.1))
    decoder, undisturbed = InputDecoder("pcm"), InputDecoder("pcm")
    with pytest.raises(BadRequest):
        decoder.decode(data[:-1])
    assert decoder.decode(data).tolist() == undisturbed.decode(data).tolist()


@pytest.mark.parametrize("encoding", get_args(Encoding))
def test_wire_takes_empty_chunks(encoding):
    decoder, encoder = InputDecoder(encoding), OutputEncoder(encoding, 22_050)
    assert len(decoder.decode(b"")) == len(decoder.flush()) == 0
    assert encoder.encode(EMPTY) == encoder.flush() == b""


# --- frames ---


@quick
@given(size=st.integers(1, 60), sizes=st.lists(st.integers(0, 200), max_size=8))
def test_framer_loses_nothing(size, sizes):
    framer = Framer(size)
    samples = noise(sum(sizes))
    cuts = np.split(samples, np.cumsum(sizes)[:-1]) if sizes else []
    frames = [frame for cut in cuts for frame in framer.push(cut)]
    assert all(len(frame) == size for frame in frames)
    rest = framer.rest()
    assert len(rest) < size
    assert np.concatenate([*frames, rest]).tolist() == samples.tolist()
    assert len(framer.rest()) == 0


def test_frames_do_not_share_memory():
    framer = Framer(2)
    (first,) = framer.push(np.array([1, 2, 3], np.float32))
    framer.push(np.array([4, 5], np.float32))
    assert first.tolist() == [1, 2]


# --- levels ---


def test_first_and_last_above():
    samples = np.array([0, 0.05, -0.1, 0.3, -0.1, 0.02], np.float32)
    assert first_above(samples, -20.01) == 2
    assert last_above(samples, -20.01) == 4
    assert first_above(samples, 0) is None
    assert last_above(EMPTY, -50) is None


def test_leading_silence_is_trimmed_to_what_is_kept():
    quiet, loud = np.full(8000, 0.001, np.float32), np.full(100, 0.5, np.float32)
    samples = np.concatenate([quiet, loud])
    assert len(trim_leading_silence(samples, 16_000)) == 320 + 100
    assert len(trim_leading_silence(samples, 16_000, keep=0)) == 100
    assert trim_leading_silence(loud, 16_000).tolist() == loud.tolist()
    assert len(trim_leading_silence(quiet, 16_000)) == 0


@pytest.mark.parametrize("floor", [0.0, 1e-4, 5e-3])
def test_speech_end_is_found_above_the_noise(floor):
    rate = 16_000
    samples = floor * noise(3 * rate) / 0.3
    samples[rate : 2 * rate] += sine(300, rate)
    assert speech_end(samples, rate) == pytest.approx(2.0, abs=0.011)


@pytest.mark.parametrize("samples", [EMPTY, np.zeros(16_000, np.float32), noise(16_000)])
def test_speech_end_where_nothing_stands_out(samples):
    assert speech_end(samples, 16_000) is None


def test_speech_end_of_the_question():
    """A forced alignment puts the end of its last word at 4.69 s."""
    with wave.open(str(DATA / "question.wav")) as file:
        samples, rate = pcm16_to_samples(file.readframes(file.getnframes())), file.getframerate()
    assert speech_end(samples, rate) == pytest.approx(4.69, abs=0.1)


def test_wav_files(tmp_path):
    samples = sine(440, 22_050, 0.1)
    write_wav(tmp_path / "a.wav", samples, 22_050)
    buffer = io.BytesIO()
    write_wav(buffer, samples, 22_050)
    assert (tmp_path / "a.wav").read_bytes() == buffer.getvalue()
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 22_050)
        assert file.readframes(file.getnframes()) == samples_to_pcm16(samples)
