"""Sound files to samples: what a stranger uploads, through FFmpeg's libraries (PyAV).

Nothing a file says about itself is believed but what its decoder yields. The container is known by its
content, never by its name; only containers of sound are tried (no playlists, no images, no headerless
media, whose rate would be a guess); durations in headers are ignored and decoded samples are counted. A
damaged file gives what can be decoded of it: a recording that was cut off is still a recording. A file that
gives nothing is the sender's mistake, a `BadRequest` that says what is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from os import PathLike
from typing import BinaryIO

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.container import InputContainer
from av.error import FFmpegError

from ..pipeline.audio import Framer
from ..pipeline.errors import BadRequest, TooLarge
from ..pipeline.events import Samples
from .base import SAMPLE_RATE

Source = str | PathLike[str] | BinaryIO

_CONTAINERS = (
    "aac,ac3,aiff,amr,asf,au,avi,caf,eac3,flac,flv,matroska,mov,mp3,mpeg,mpegts,nistsphere,ogg,w64,wav,wv"
)
_KINDS = "WAV, FLAC, MP3, Ogg, M4A, WebM, AIFF and other containers of sound"
_SOURCE_RATES = range(1_000, 768_001)


def decode_file(
    source: Source, sample_rate: int = SAMPLE_RATE, *, max_seconds: float | None = None
) -> Samples:
    """The whole of a sound file: mono at `sample_rate`, shape (n,), n > 0. As `iter_decode` in all else."""
    return np.concatenate(list(iter_decode(source, sample_rate, max_seconds=max_seconds)))


def iter_decode(
    source: Source,
    sample_rate: int = SAMPLE_RATE,
    *,
    chunk_seconds: float = 30.0,
    max_seconds: float | None = None,
) -> Iterator[Samples]:
    """A sound file as chunks of `chunk_seconds`, the last one shorter; mono at `sample_rate`, in [-1, 1].

    source: a path (never a URL), or a binary file open for reading, which stays open; it need not seek,
        though some containers (M4A with its index at the end) cannot be read without.
    max_seconds: of decoded sound; None for no limit.

    Channels are averaged. Memory is bounded by a chunk, however long the file. Blocking: for a worker's
    thread. Closing the iterator early closes what it opened.

    Raises, while iterated, BadRequest when the file is missing, is no sound file, has no audio stream, or
    holds no sound; TooLarge as soon as more than max_seconds are decoded.
    """
    framer = Framer(max(1, round(chunk_seconds * sample_rate)))
    limit = None if max_seconds is None else round(max_seconds * sample_rate)
    count = 0
    with ExitStack() as stack:
        for samples in _decode(_open(source, stack), sample_rate):
            count += len(samples)
            if limit is not None and count > limit:
                raise TooLarge(f"The sound is longer than the limit of {max_seconds:g} s.", param="file")
            yield from framer.push(samples)
    rest = framer.rest()
    if len(rest):
        yield rest
    if not count:
        raise BadRequest("The file holds no sound: it is empty or cut off too early.", param="file")


def _open(source: Source, stack: ExitStack) -> InputContainer:
    if isinstance(source, str | PathLike):
        try:
            file = stack.enter_context(open(source, "rb"))  # noqa: SIM115
        except OSError as error:
            raise BadRequest(f"Cannot open {source}: {error.strerror}.", param="file") from error
    else:
        file = source
    if file.seekable():
        magic = file.read(4)
        file.seek(0)
        if magic == b"RIFX":  # FFmpeg takes its samples for little-endian: noise
            raise BadRequest("The file is a big-endian WAV (RIFX), which is not supported.", param="file")
    try:
        # FFmpeg is given the file, not its name: a name could be a URL, or overrule the content.
        options = {"format_whitelist": _CONTAINERS}
        return stack.enter_context(av.open(file, "r", options=options, metadata_errors="ignore"))
    except FFmpegError as error:
        if file.seekable() and not file.seek(0, os.SEEK_END):
            raise BadRequest("The file is empty.", param="file") from error
        message = f"The file is of no known kind ({_KINDS}), or its header is damaged."
        raise BadRequest(message, param="file") from error


def _decode(container: InputContainer, sample_rate: int) -> Iterator[Samples]:
    """Mono samples, a frame at a time. Bad packets are skipped; a broken container ends the sound."""
    if not container.streams.audio:
        raise BadRequest("The file has no audio stream.", param="file")
    mono = _Mono(sample_rate)
    packets = container.demux(container.streams.audio[0])
    damage: FFmpegError | None = None
    silent = True
    while True:
        try:
            packet = next(packets)
        except StopIteration:
            break
        except FFmpegError as error:
            damage = error
            break
        try:
            frames = packet.decode()
        except FFmpegError as error:
            damage = error
            continue
        for frame in frames:
            silent = False
            yield from mono.convert(frame)
    yield from mono.flush()
    if damage is not None and silent:
        raise BadRequest(f"The file's sound cannot be decoded: {_reason(damage)}", param="file") from damage


class _Mono:
    """Decoded frames to mono samples at one rate; frames may change their rate and channels on the way."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._kind: tuple[str, str, int] | None = None
        self._resampler: AudioResampler | None = None

    def convert(self, frame: AudioFrame) -> Iterator[Samples]:
        kind = (frame.format.name, frame.layout.name, frame.sample_rate)
        if kind != self._kind:
            yield from self.flush()
            if frame.sample_rate not in _SOURCE_RATES:
                raise BadRequest(f"A sample rate of {frame.sample_rate} Hz is not supported.", param="file")
            # Only the rate and format are left to FFmpeg: its own mix to mono is 3 dB too loud in float.
            # Interleaved, because PyAV crashes on reading planar frames of more than 8 channels.
            self._resampler = AudioResampler("flt", frame.layout, self._sample_rate)
            self._kind = kind
        frame.pts = None  # the samples are the clock, not the container's timestamps
        yield from self._resample(frame)

    def flush(self) -> Iterator[Samples]:
        """What the resampler holds back. A new one serves what comes next."""
        if self._resampler is not None:
            yield from self._resample(None)
        self._kind = self._resampler = None

    def _resample(self, frame: AudioFrame | None) -> Iterator[Samples]:
        assert self._resampler is not None
        try:
            resampled = self._resampler.resample(frame)
        except FFmpegError as error:
            raise BadRequest(f"The sound cannot be converted: {_reason(error)}", param="file") from error
        for part in resampled:
            channels = np.asarray(part.to_ndarray(), np.float32).reshape(-1, part.layout.nb_channels)
            yield np.clip(np.nan_to_num(channels.mean(axis=1), copy=False), -1.0, 1.0)


def _reason(error: FFmpegError) -> str:
    return (error.strerror or type(error).__name__).rstrip(":. ").lower() + "."
