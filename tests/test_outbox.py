"""The outbox: control events always fit, audio waits for room and can be flushed."""

import asyncio

import numpy as np
import pytest

from antiphon.pipeline.events import AudioCleared, ItemDeleted, Output, OutputAudio
from antiphon.pipeline.outbox import NotReading, Outbox


def audio(response: str, start: float = 0.0) -> OutputAudio:
    return OutputAudio(response, "item", np.zeros(2400, np.float32), 24_000, start)


async def collect(outbox: Outbox) -> list[Output]:
    return [output async for output in outbox.read()]


async def test_everything_in_order_until_close():
    outbox = Outbox()
    reading = asyncio.create_task(collect(outbox))
    await asyncio.sleep(0)
    first, second = ItemDeleted("a"), audio("r")
    outbox.put(first)
    await outbox.put_audio(second)
    outbox.close()
    outbox.put(AudioCleared())
    assert await reading == [first, second]


async def test_audio_waits_for_room_and_control_does_not():
    outbox = Outbox(max_audio=1)
    await outbox.put_audio(audio("r"))
    waiting = asyncio.create_task(outbox.put_audio(audio("r", 0.1)))
    await asyncio.sleep(0)
    assert not waiting.done()
    outbox.put(AudioCleared())
    reader = outbox.read()
    assert isinstance(await anext(reader), OutputAudio)
    await waiting
    assert isinstance(await anext(reader), AudioCleared)
    assert isinstance(await anext(reader), OutputAudio)
    await reader.aclose()


async def test_flush_drops_one_responses_audio_and_lets_the_next_in():
    outbox = Outbox(max_audio=2)
    await outbox.put_audio(audio("old"))
    await outbox.put_audio(audio("old", 0.1))
    waiting = asyncio.create_task(outbox.put_audio(audio("new")))
    await asyncio.sleep(0)
    outbox.put(AudioCleared())
    assert outbox.flush("old") == pytest.approx(0.2)
    await waiting
    outbox.close()
    assert [type(o).__name__ for o in await collect(outbox)] == ["AudioCleared", "OutputAudio"]


async def test_a_client_that_does_not_read_is_found():
    outbox = Outbox(max_events=2)
    outbox.put(AudioCleared())
    outbox.put(AudioCleared())
    with pytest.raises(NotReading):
        outbox.put(AudioCleared())


async def test_close_frees_those_who_wait():
    outbox = Outbox(max_audio=1)
    await outbox.put_audio(audio("r"))
    waiting = asyncio.create_task(outbox.put_audio(audio("r")))
    await asyncio.sleep(0)
    outbox.close()
    await waiting


async def test_audio_of_a_flushed_response_that_waited_for_room_does_not_come_after():
    outbox = Outbox(max_audio=1)
    await outbox.put_audio(audio("r"))
    waiting = asyncio.create_task(outbox.put_audio(audio("r", 0.1)))
    await asyncio.sleep(0)
    outbox.flush("r")
    await waiting
    outbox.close()
    assert await collect(outbox) == []
