"""A voice's samples as a sound file that is written while it is spoken.

    format  file                                        bytes come
    mp3     MPEG audio layer III, 96 kbit/s             a frame (24 ms) at a time, about 50 ms behind
    opus    Ogg, 64 kbit/s                              a page of at most 200 ms at a time
    aac     ADTS, 96 kbit/s                             a frame (43 ms) at a time, about 90 ms behind
    flac    FLAC, 16 bits; exact                        a block (105 ms) at a time
    wav     RIFF, 16 bits; both sizes 0xFFFFFFFF        at once
    pcm     signed 16 bits, little endian, no header    at once

All are mono at 24 kHz. Nothing is ever written twice, for the bytes are gone when they are made: so no header
holds a length, and every one of these can be played, or read to its end, without.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol

import av
import numpy as np
from av.audio.frame import AudioFrame

from ..pipeline.audio import Resampler, samples_to_pcm16
from ..pipeline.events import Samples

Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]

RATE = 24_000
"""Hz, of every format."""

MEDIA_TYPES: Mapping[Format, str] = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}

UNKNOWN_SIZE = 0xFFFFFFFF
WAV_HEADER = struct.pack(
    "<4sI4s4sIHHIIHH4sI",
    *(b"RIFF", UNKNOWN_SIZE, b"WAVE", b"fmt ", 16, 1, 1, RATE, RATE * 2, 2, 16, b"data", UNKNOWN_SIZE),
)


class Encoder:
    """One file. Every `push` gives the bytes that are settled by then; all of them, joined, are the file.

    How the samples are cut into pushes changes nothing of the sound. One that is dropped unfinished frees
    what it holds. Not for two threads at a time; with mp3, opus and aac a push costs milliseconds for each
    second of sound (`costly`), so it is for a thread.
    """

    def __init__(self, format: Format, sample_rate: int) -> None:
        """sample_rate: of the samples that will be pushed, in Hz."""
        self.costly = format in _CODECS
        self._resampler = Resampler(sample_rate, RATE)
        self._file = _Coded(_CODECS[format]) if format in _CODECS else _Plain(wav=format == "wav")

    def push(self, samples: Samples) -> bytes:
        """The next samples, float32 of shape (n,), n >= 0; what is beyond [-1, 1] clips."""
        return self._file.write(self._resampler.process(samples))

    def finish(self) -> bytes:
        """The rest of the file. The encoder is used up."""
        return self._file.write(self._resampler.flush()) + self._file.close()


class _File(Protocol):
    def write(self, samples: Samples) -> bytes: ...
    def close(self) -> bytes: ...


class _Plain(_File):
    def __init__(self, *, wav: bool) -> None:
        self._header = WAV_HEADER if wav else b""

    def write(self, samples: Samples) -> bytes:
        header, self._header = self._header, b""
        return header + samples_to_pcm16(samples)

    def close(self) -> bytes:
        return self._header


@dataclass(frozen=True, slots=True)
class _Codec:
    """All in FFmpeg's names. bit_rate: bit/s, 0 where there is none. tuning: the encoder's options."""

    container: str
    encoder: str
    sample_format: Literal["s16", "flt", "fltp"]
    bit_rate: int = 0
    muxing: Mapping[str, str] = field(default_factory=dict[str, str])
    tuning: Mapping[str, str] = field(default_factory=dict[str, str])


_CODECS: Mapping[str, _Codec] = {
    "mp3": _Codec("mp3", "libmp3lame", "fltp", 96_000),
    # Pages default to a second, and nothing of a page is sent before it is full.
    "opus": _Codec("ogg", "libopus", "flt", 64_000, muxing={"page_duration": "200000"}),
    # The default search takes twice the time for the same likeness, measured on speech.
    "aac": _Codec("adts", "aac", "fltp", 96_000, tuning={"aac_coder": "fast"}),
    # The padding is room for tags that a later program may write: 8 KB before the first sound.
    "flac": _Codec("flac", "flac", "s16", muxing={"metadata_header_padding": "0"}),
}


class _Pipe:
    """A file that cannot seek, of which FFmpeg learns that nothing is to be corrected later."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def take(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class _Coded(_File):
    def __init__(self, codec: _Codec) -> None:
        self._codec = codec
        self._pipe = _Pipe()
        self._position = 0
        # Any: PyAV's own types are incomplete here.
        options = {"flush_packets": "1", **codec.muxing}
        self._container: Any = av.open(self._pipe, "w", format=codec.container, options=options)
        self._stream: Any = self._container.add_stream(
            codec.encoder,
            rate=RATE,
            options=dict(codec.tuning),
            layout="mono",
            format=codec.sample_format,
            bit_rate=codec.bit_rate,
        )

    def write(self, samples: Samples) -> bytes:
        if len(samples):
            if self._codec.sample_format == "s16":
                sound = np.frombuffer(samples_to_pcm16(samples), np.int16)
            else:
                sound = np.nan_to_num(np.clip(samples, -1.0, 1.0)).astype(np.float32)
            frame = AudioFrame.from_ndarray(sound[np.newaxis], self._codec.sample_format, "mono")
            frame.sample_rate = RATE
            frame.time_base = Fraction(1, RATE)
            frame.pts = self._position
            self._position += len(samples)
            self._container.mux(self._stream.encode(frame))
        return self._pipe.take()

    def close(self) -> bytes:
        self._container.start_encoding()
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._pipe.take()
