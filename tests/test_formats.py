"""Sound files of every kind, whole, cut, damaged and false."""

import io
import json
import tracemalloc
from pathlib import Path

import av
import numpy as np
import pytest

from antiphon.asr.formats import decode_file, iter_decode
from antiphon.pipeline.audio import write_wav
from antiphon.pipeline.errors import BadRequest, TooLarge

DATA = Path(__file__).parent / "data"
SHARED = Path(__file__).parents[2] / "shared" / "speech" / "formats"
RATE = 16_000


def tone(seconds: float = 1.0, rate: int = RATE, hz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def encoded(container: str, codec: str, sample_format: str, rate: int, channels: list[np.ndarray]) -> bytes:
    """The channels, given as float32 at `rate`, as a file."""
    buffer = io.BytesIO()
    layout = "mono" if len(channels) == 1 else "stereo"
    with av.open(buffer, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout=layout, format=sample_format)
        frame = av.AudioFrame.from_ndarray(np.stack(channels), "fltp", layout)
        frame.sample_rate = rate
        fitted = av.AudioResampler(sample_format, layout, rate, stream.frame_size or None)
        for part in [*fitted.resample(frame), *fitted.resample(None)]:
            output.mux(stream.encode(part))
        output.mux(stream.encode(None))
    return buffer.getvalue()


KINDS = {
    "wav": ("wav", "pcm_s16le", "s16", 16_000),
    "wav-8k-mulaw": ("wav", "pcm_mulaw", "s16", 8_000),
    "flac": ("flac", "flac", "s16", 44_100),
    "mp3": ("mp3", "libmp3lame", "fltp", 44_100),
    "ogg-opus": ("ogg", "libopus", "flt", 48_000),
    "m4a": ("ipod", "aac", "fltp", 44_100),
    "webm": ("webm", "libopus", "flt", 48_000),
}


def file_of(kind: str, seconds: float = 1.0) -> bytes:
    container, codec, sample_format, rate = KINDS[kind]
    return encoded(container, codec, sample_format, rate, [tone(seconds, rate)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_tone_comes_back(kind):
    samples = decode_file(io.BytesIO(file_of(kind)))
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert len(samples) / RATE == pytest.approx(1.0, abs=0.06)  # lossy codecs pad to their frames
    middle = samples[RATE // 4 : RATE * 3 // 4]
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle))))
    assert spectrum.argmax() * RATE / len(middle) == pytest.approx(440, abs=2)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2), rel=0.05)


def test_wav_is_exact(tmp_path):
    samples = tone()
    write_wav(tmp_path / "a.wav", samples, RATE)
    for source in (
        tmp_path / "a.wav",
        str(tmp_path / "a.wav"),
        io.BytesIO((tmp_path / "a.wav").read_bytes()),
    ):
        np.testing.assert_allclose(decode_file(source), samples, atol=1 / 32768)


@pytest.mark.parametrize(("rate", "count"), [(8_000, 16_000), (48_000, 16_000), (44_100, 16_000)])
def test_another_rate_keeps_the_length(rate, count):
    samples = decode_file(io.BytesIO(encoded("wav", "pcm_s16le", "s16", rate, [tone(1.0, rate)])))
    assert len(samples) == count


def test_channels_are_averaged():
    left, right = tone(hz=440), np.full(RATE, 0.25, np.float32)
    samples = decode_file(io.BytesIO(encoded("wav", "pcm_s16le", "s16", RATE, [left, right])))
    np.testing.assert_allclose(samples, (left + right) / 2, atol=1e-4)
    both = decode_file(io.BytesIO(encoded("wav", "pcm_f32le", "flt", RATE, [left, left])))
    np.testing.assert_allclose(both, left, atol=1e-6)


def test_more_channels_than_ffmpeg_names():
    data = bytearray(encoded("wav", "pcm_s16le", "s16", RATE, [tone()]))
    data[22:24] = (14).to_bytes(2, "little")
    data[32:34] = (28).to_bytes(2, "little")
    assert len(decode_file(io.BytesIO(data))) == RATE // 14


def test_wild_floats_are_tamed():
    wild = np.tile(np.array([np.nan, np.inf, -np.inf, 7.0, -7.0, 0.5, -0.5, 0.0], np.float32), 100)
    samples = decode_file(io.BytesIO(encoded("wav", "pcm_f32le", "flt", RATE, [wild])))
    assert samples[:8].tolist() == [0.0, 1.0, -1.0, 1.0, -1.0, 0.5, -0.5, 0.0]


def test_a_rate_that_changes_on_the_way():
    slow = encoded("mp3", "libmp3lame", "fltp", 22_050, [tone(2.0, 22_050)])
    samples = decode_file(io.BytesIO(file_of("mp3", 1.0) + slow))
    assert len(samples) / RATE == pytest.approx(3.0, abs=0.2)


def test_a_title_that_is_not_utf8():
    data = file_of("wav")
    title = (
        b"LIST" + (16).to_bytes(4, "little") + b"INFOINAM" + (4).to_bytes(4, "little") + b"\xff\xfe\xe9\x00"
    )
    assert len(decode_file(io.BytesIO(data[:12] + title + data[12:]))) == RATE


def test_chunks_are_the_whole_cut_up():
    data = file_of("flac", 2.3)
    chunks = list(iter_decode(io.BytesIO(data), chunk_seconds=0.5))
    assert [len(chunk) for chunk in chunks[:-1]] == [RATE // 2] * (len(chunks) - 1)
    assert 0 < len(chunks[-1]) <= RATE // 2
    assert np.concatenate(chunks).tolist() == decode_file(io.BytesIO(data)).tolist()


def test_memory_does_not_grow_with_the_file():
    data = encoded("flac", "flac", "s16", RATE, [np.zeros(300 * RATE, np.float32)])
    tracemalloc.start()
    try:
        count = sum(len(chunk) for chunk in iter_decode(io.BytesIO(data), chunk_seconds=1.0))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 300 * RATE
    assert peak < 2e6  # all of it would be 19 MB


def test_stopping_early_closes_the_file(tmp_path):
    path = tmp_path / "a.wav"
    write_wav(path, tone(2.0), RATE)
    chunks = iter_decode(path, chunk_seconds=0.1)
    assert len(next(chunks)) == RATE // 10
    chunks.close()  # an open file would be a ResourceWarning, which is an error here
    path.unlink()


def test_a_given_file_stays_open():
    source = io.BytesIO(file_of("wav"))
    decode_file(source)
    assert not source.closed


def test_a_stream_that_cannot_seek():
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def seek(self, *_):
            raise io.UnsupportedOperation

    assert len(decode_file(Pipe(file_of("wav")))) == RATE


def test_a_limit_is_on_decoded_sound_not_on_the_header():
    data = bytearray(file_of("wav", 2.0))
    size = data.index(b"data") + 4
    data[size : size + 4] = b"\xff\xff\xff\xff"  # as written to a pipe: 37 hours, it says
    assert len(decode_file(io.BytesIO(data), max_seconds=2.0)) == 2 * RATE
    with pytest.raises(TooLarge, match=r"longer than the limit of 1\.5 s"):
        decode_file(io.BytesIO(data), max_seconds=1.5)


@pytest.mark.parametrize("kind", ["wav", "flac", "mp3", "ogg-opus", "webm"])
def test_a_file_cut_off_gives_what_is_there(kind):
    data = file_of(kind, 4.0)
    samples = decode_file(io.BytesIO(data[: len(data) // 2 + 1]))
    assert 1.0 < len(samples) / RATE < 3.0


def test_a_damaged_frame_does_not_end_the_sound():
    data = bytearray(file_of("mp3", 4.0))
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    assert len(decode_file(io.BytesIO(data))) / RATE == pytest.approx(4.0, abs=0.4)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"Dear sir, please find attached my voice.\n" * 20, "no known kind"),
        (np.random.default_rng(0).bytes(20_000), "no known kind"),
        (b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n", "no known kind"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "no known kind"),
        (file_of("m4a")[:600], "no known kind"),  # cut before its index
        (file_of("wav").partition(b"data")[0] + b"data" + bytes(4), "no sound"),
    ],
    ids=["empty", "text", "random", "playlist", "concat", "m4a-without-index", "header-only"],
)
def test_what_is_no_sound_is_refused(data, reason):
    with pytest.raises(BadRequest, match=reason):
        decode_file(io.BytesIO(data))


def test_a_film_without_sound_is_refused():
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 32
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8))))
        output.mux(stream.encode(None))
    with pytest.raises(BadRequest, match="no audio stream"):
        decode_file(io.BytesIO(buffer.getvalue()))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadRequest, match=r"nowhere\.wav: No such file"):
        decode_file(tmp_path / "nowhere.wav")


def test_a_name_decides_nothing(tmp_path):
    """FFmpeg would take any bytes called .ul for mu-law at 44.1 kHz, and a name with a colon for a URL."""
    (tmp_path / "speech.ul").write_bytes(bytes(8000))
    with pytest.raises(BadRequest, match="no known kind"):
        decode_file(tmp_path / "speech.ul")
    (tmp_path / "mp3.wav").write_bytes(file_of("mp3"))
    assert len(decode_file(tmp_path / "mp3.wav")) > 0
    with pytest.raises(BadRequest, match="No such file"):
        decode_file("data:audio/wav;base64,UklGRg==")


def test_every_clip_in_data_has_its_length():
    clips = [json.loads(line) for line in (DATA / "manifest.jsonl").read_text().splitlines()]
    notice = (DATA / "NOTICE").read_text()
    assert {clip["path"] for clip in clips} == {
        p.name for p in DATA.iterdir() if p.suffix in {".wav", ".flac"}
    }
    for clip in clips:
        assert len(decode_file(DATA / clip["path"])) / RATE == pytest.approx(clip["duration_s"], abs=0.001)
        assert clip["path"] in notice
        assert clip["text"] in notice


def shared_files() -> list[dict]:
    if not (SHARED / "manifest.jsonl").exists():
        return []
    return [json.loads(line) for line in (SHARED / "manifest.jsonl").read_text().splitlines()]


@pytest.mark.skipif(not shared_files(), reason="needs ../shared/speech/formats")
@pytest.mark.parametrize("file", shared_files(), ids=lambda file: file["path"])
def test_hostile_and_odd_files(file):
    """Decodes to the length that libav was found to give, or is refused: no other error, no hang."""
    length = file["libav"].get("dec_s")
    try:
        samples = decode_file(SHARED / file["path"], max_seconds=60)
    except BadRequest:
        must = file["expect"].startswith("ok") and "error" not in file["expect"] and length is not None
        headerless = "only with declared format" in file["expect"]
        assert headerless or not must
    else:
        assert np.isfinite(samples).all()
        if length is not None:
            assert len(samples) / RATE == pytest.approx(length, abs=0.02)


def test_a_big_endian_wav_is_refused_for_it_would_be_noise():
    with pytest.raises(BadRequest, match="RIFX"):
        decode_file(io.BytesIO(b"RIFX" + bytes(100)))
