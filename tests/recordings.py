"""Recordings whose words are tones, a recogniser that reads them exactly, and forms to send them in.

Word number n is a tone of its own frequency. The recogniser says every tone that it finds in a window, with its
times; a tone that was cut in two is said twice, and one that no window holds is missing. So whatever happens to
words at cuts shows in the text.
"""

import asyncio
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from fakes import QUIET
from starlette.requests import Request

from antiphon.asr.base import SAMPLE_RATE, Segment, Token, Transcription, Window, Word
from antiphon.pipeline.audio import write_wav
from antiphon.pipeline.events import Samples
from antiphon.transport.http import Endpoint

WORD = 0.48
"""Seconds of a word: whole frames of the detector."""
LOWEST, STEP = 200, 20
HOP = 160


def spoken(starts: Sequence[float], seconds: float) -> Samples:
    """Word n at starts[n], in silence."""
    sound = np.zeros(round(seconds * SAMPLE_RATE), np.float32)
    time = np.arange(round(WORD * SAMPLE_RATE)) / SAMPLE_RATE
    for number, start in enumerate(starts):
        at = round(start * SAMPLE_RATE)
        sound[at : at + len(time)] = 0.3 * np.sin(2 * np.pi * (LOWEST + STEP * number) * time)
    return sound


def texts(numbers: Iterable[int]) -> str:
    return " ".join(f"w{number}" for number in numbers)


def wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    write_wav(file, samples, SAMPLE_RATE)
    return file.getvalue()


class Listener:
    """Reads the words of windows. windows: all it was given. deaf_after: it reads no further in a window."""

    def __init__(self, deaf_after: float = 60.0) -> None:
        self.windows: list[Window] = []
        self.deaf_after = deaf_after

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        self.windows += windows
        return [self._read(window) for window in windows]

    def _read(self, window: Window) -> Transcription:
        segments = [s for s in self._heard(window) if s.start < self.deaf_after]
        return Transcription(
            " ".join(segment.text for segment in segments),
            tuple(segments),
            window.language or "de",
            avg_logprob=-0.25,
            no_speech_prob=0.02,
            compression_ratio=1.25,
        )

    def _heard(self, window: Window) -> Iterable[Segment]:
        whole = window.samples[: len(window.samples) // HOP * HOP].reshape(-1, HOP)
        loud = np.sqrt(np.mean(np.square(whole), axis=1)) > QUIET
        edges = np.diff(np.concatenate([[0], loud.astype(np.int8), [0]]))
        for first, last in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True):
            tone = window.samples[first * HOP : last * HOP]
            peak = np.abs(np.fft.rfft(tone * np.hanning(len(tone)), n=SAMPLE_RATE)).argmax()
            text = f"w{round((int(peak) - LOWEST) / STEP)}"
            start, end = first * HOP / SAMPLE_RATE, last * HOP / SAMPLE_RATE
            aligned = window.reading is not None and window.reading.align
            yield Segment(
                start,
                end,
                text,
                (50364, 7, 50400),
                (Word(start, end, text),) if aligned else (),
                (Token(b" " + text.encode(), -0.25),) if aligned else (),
            )


class Upload:
    """One form sent to a handler, below any server. leave: set, the client goes, before its form
    has ended or after."""

    def __init__(
        self,
        endpoint: Endpoint,
        fields: Iterable[tuple[str, str]] = (),
        file: bytes | None = b"",
        *,
        filename: str = "upload",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        piece: int = 65_536,
    ) -> None:
        self._endpoint = endpoint
        self._whole = form(fields, file, filename=filename) if body is None else body
        self._at, self._piece = 0, piece
        kind = {"content-type": "multipart/form-data; boundary=edge", **(headers or {})}
        self._headers = [(name.encode(), value.encode()) for name, value in kind.items()]
        self.sent: list[bytes] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.progress = asyncio.Event()
        self.leave = asyncio.Event()

    async def run(self) -> "Upload":
        response = await self._endpoint.handler(self.request)
        await response(self.request.scope, self.receive, self._send)
        return self

    @property
    def request(self) -> Request:
        path = self._endpoint.path
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": self._headers,
            "query_string": b"",
        }
        return Request(scope, self.receive)

    async def receive(self) -> dict[str, Any]:
        if self._at < max(1, len(self._whole)):
            piece = self._whole[self._at : self._at + self._piece]
            self._at += self._piece
            more = self._at < len(self._whole) or self.leave.is_set()
            return {"type": "http.request", "body": piece, "more_body": more}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        self.sent.append(message["body"])
        self.progress.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.sent)

    @property
    def unread(self) -> int:
        return max(0, len(self._whole) - self._at)


def form(fields: Iterable[tuple[str, str]], file: bytes | None, *, filename: str = "upload") -> bytes:
    """A form with the boundary "edge"; file: None for none."""
    parts = [
        f'--edge\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields
    ]
    if file is not None:
        head = f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
        parts.append(head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + file + b"\r\n")
    return b"".join([*parts, b"--edge--\r\n"])
