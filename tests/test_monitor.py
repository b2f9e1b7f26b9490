"""The shell of admission: what it samples, and which turns count."""

import asyncio

import numpy as np
import pytest
from fakes import fake_engines

from antiphon.asr.vad import VadState
from antiphon.pipeline.admission import Admitted
from antiphon.pipeline.engines import VadInput
from antiphon.pipeline.metrics import Metrics, TurnTrace
from antiphon.pipeline.monitor import LoopLag, Monitor
from antiphon.pipeline.settings import Settings


async def test_a_blocked_loop_shows_as_lag():
    lag = LoopLag(interval=0.01)
    assert (lag.worst(), lag.percentile(99)) == (0.0, 0.0)
    await lag.sample()
    calm = lag.worst()
    asyncio.get_running_loop().call_later(0.005, lambda: sum(range(3_000_000)))
    await lag.sample()
    assert lag.worst() >= calm
    assert lag.percentile(100) == lag.worst(10) > 0
    assert lag.percentile(1) == calm


async def test_only_turns_that_somebody_spoke_and_heard_count():
    async with fake_engines() as engines:
        monitor = Monitor(Settings(), engines, Metrics())
        monitor.answered(TurnTrace("sess", 1, 1, words=3))
        monitor.answered(TurnTrace("sess", 1, 1, first_audio_sent=500.0))
        assert monitor.admission.actual() is None
        monitor.answered(TurnTrace("sess", 1, 1, words=3, first_audio_sent=500.0))
        assert monitor.admission.actual() == 0.5
        assert isinstance(monitor.decide(), Admitted)


async def test_it_hears_the_models():
    async with fake_engines() as engines:
        monitor = Monitor(Settings(), engines, Metrics())
        took = monitor.admission.models["vad"].took
        seeded = took.mean(0)
        await engines.vad.submit(
            VadInput(np.zeros((1, 512), np.float32), VadState()), owner="sess", deadline=0.0
        )
        assert took.mean(0) != seeded


async def test_it_samples_until_it_is_cancelled():
    async with fake_engines() as engines:
        monitor = Monitor(Settings(), engines, Metrics())
        sampling = asyncio.create_task(monitor.run())
        await asyncio.sleep(0.3)
        sampling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sampling
