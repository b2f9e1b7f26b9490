"""Many cheap clients at once, for `bench load --fake`: tones in, tones out, a thousand of them in one process.

It runs in a process of its own, so that its cost is not the server's. A client's microphone is open while it
speaks and mute while it thinks; frames leave by an absolute schedule, as in `client.py`. Every reply is checked
for the client's own number, in words and in sound (`simulated.py`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from dataclasses import dataclass, field

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from ..pipeline.audio import pcm16_to_samples, samples_to_pcm16
from .client import SAMPLE_RATE, Loudspeaker
from .simulated import canary, heard, numbers

FRAME = 0.1
"""Seconds of one message of audio."""

SPEECH, TAIL = 1.2, 1.5
"""Seconds of tone in a turn, and of open microphone after it."""

ARRIVALS = 50.0
"""Clients a second that connect."""

LIMIT = 20.0
"""Seconds after a turn in which its reply must be whole."""


@dataclass
class Visit:
    """What one client met. v2v: seconds, of each turn. frames: messages of audio that it sent.

    lost: turns without a whole reply. strange: replies with another's number. reply_seconds: sound heard.
    """

    admitted: bool = False
    refused: bool = False
    v2v: list[float] = field(default_factory=list[float])
    frames: int = 0
    lost: int = 0
    strange: int = 0
    underruns: int = 0
    reply_seconds: float = 0.0


def crowd(url: str, sessions: int, seconds: float, think: float, seed: int) -> list[Visit]:
    """Blocking: all of them, each for `seconds` from its connection on. think: mean seconds between turns."""
    return asyncio.run(_crowd(url, sessions, seconds, think, seed))


async def _crowd(url: str, sessions: int, seconds: float, think: float, seed: int) -> list[Visit]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                _visit(url, number, number / ARRIVALS, seconds, think, random.Random(seed + number))
            )
            for number in range(sessions)
        ]
    return [task.result() for task in tasks]


async def _visit(
    url: str, number: int, after: float, seconds: float, think: float, chance: random.Random
) -> Visit:
    visit = Visit()
    await asyncio.sleep(after)
    try:
        async with connect(
            f"{url}/v1/realtime", open_timeout=60, compression=None, max_size=None, ping_interval=None
        ) as socket:
            first = json.loads(await socket.recv())
            if first["type"] == "error":
                visit.refused = True
                return visit
            visit.admitted = True
            end = asyncio.get_running_loop().time() + seconds
            frames = _messages(number)
            # The first turn at any moment of the pause, so that they do not all speak at once.
            await asyncio.sleep(chance.random() * think)
            while asyncio.get_running_loop().time() < end:
                await _turn(socket, number, frames, visit)
                rest = end - asyncio.get_running_loop().time()
                await asyncio.sleep(max(0.0, min(rest, chance.expovariate(1 / think))))
    except (OSError, TimeoutError, WebSocketException):
        visit.lost += visit.admitted
    return visit


def _messages(number: int) -> list[str]:
    sound = np.concatenate(
        [canary(number, SPEECH, SAMPLE_RATE), np.zeros(round(TAIL * SAMPLE_RATE), np.float32)]
    )
    size = round(FRAME * SAMPLE_RATE)
    return [
        json.dumps(
            {
                "type": "input_audio_buffer.append",
                "audio": base64.b64encode(samples_to_pcm16(sound[at : at + size])).decode(),
            }
        )
        for at in range(0, len(sound), size)
    ]


async def _turn(socket: ClientConnection, number: int, frames: list[str], visit: Visit) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def speak() -> None:
        for count, frame in enumerate(frames, 1):
            await asyncio.sleep(max(0.0, began + count * FRAME - loop.time()))
            await socket.send(frame)
            visit.frames += 1

    speaking = asyncio.create_task(speak())
    sound, text = Loudspeaker(), ""
    try:
        async with asyncio.timeout(SPEECH + TAIL + LIMIT):
            while True:
                event = json.loads(await socket.recv())
                if event["type"] == "response.output_audio.delta":
                    sound.add(pcm16_to_samples(base64.b64decode(event["delta"])), loop.time())
                elif event["type"] == "response.output_audio_transcript.delta":
                    text += event["delta"]
                elif event["type"] == "response.done":
                    break
            await speaking
    except TimeoutError:
        visit.lost += 1
        return
    except ConnectionClosed:
        speaking.cancel()
        raise
    finally:
        speaking.cancel()
        await asyncio.wait([speaking])
    if sound.heard is None:
        visit.lost += 1
        return
    visit.v2v.append(sound.heard - (began + SPEECH))
    visit.underruns += sound.underruns
    visit.reply_seconds += len(sound.samples) / SAMPLE_RATE
    loudest = sound.samples[: round(0.5 * SAMPLE_RATE)]
    visit.strange += numbers(text) != {number} or heard(loudest, SAMPLE_RATE) != number
