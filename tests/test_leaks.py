"""Many sessions come and go, politely or not, and leave nothing behind."""

import asyncio
import base64
import gc
import json
from typing import Any

import numpy as np
import psutil
import pytest
from fakes import FakeChat, FakeRecognizer, fake_engines, tone
from websockets.asyncio.client import connect

from antiphon.pipeline.audio import samples_to_pcm16
from antiphon.pipeline.session import Session
from antiphon.pipeline.settings import load
from antiphon.transport.server import running

pytestmark = [pytest.mark.server, pytest.mark.slow]

RATE = 24_000
SESSIONS = 300
TOGETHER = 10
SPOKEN = np.concatenate([tone(0.6, RATE), np.zeros(RATE, np.float32)])
APPEND = json.dumps(
    {
        "type": "input_audio_buffer.append",
        "audio": base64.b64encode(samples_to_pcm16(SPOKEN)).decode(),
    }
)
SLOPE = 32 * 1024
"""Bytes a session that memory may grow by: far less than one session holds."""


async def visit(url: str, number: int) -> None:
    """A third leave when answered, a third in the middle of the answer, a third are cut off in it."""
    async with connect(f"{url}/v1/realtime", compression=None, max_size=None) as socket:

        async def until(kind: str) -> None:
            async with asyncio.timeout(30):
                event: dict[str, Any] = {}
                while event.get("type") != kind:
                    event = json.loads(await socket.recv())

        await until("session.created")
        await socket.send(APPEND)
        await until("response.created" if number % 3 else "response.done")
        if number % 3 == 2:
            socket.transport.abort()


async def test_sessions_that_end_in_every_way_leave_no_task_no_session_and_no_memory():
    process, sizes = psutil.Process(), []
    chat, recognizer = FakeChat("It is noon. Time for lunch."), FakeRecognizer()
    settings = load(
        overrides=[
            "turn.endpointing=silence",
            "turn.silence=0.3",
            "server.max_sessions=50",
            "slo.voice_to_voice_ms=600000",
        ],
        environ={},
    )
    async with running(settings, engines=fake_engines(recognizer, chat)) as url:
        await visit(url, 0)
        await asyncio.sleep(0.5)
        before = len(asyncio.all_tasks())
        for first in range(0, SESSIONS, TOGETHER):
            async with asyncio.TaskGroup() as group:
                for number in range(first, first + TOGETHER):
                    group.create_task(visit(url, number))
            recognizer.windows.clear()  # the fakes remember everything
            chat.requests.clear()
            gc.collect()
            sizes.append(process.memory_info().rss)
        async with asyncio.timeout(30):
            while len(asyncio.all_tasks()) > before or chat.active:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        gc.collect()
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Session)]
    third = len(sizes) // 3
    slope = (min(sizes[-third:]) - min(sizes[third : 2 * third])) / (third * TOGETHER)
    assert slope < SLOPE, f"{slope:.0f} bytes a session"
