"""The load bench: canaries, the figures of a level, the simulated models, and a short run of all of it."""

import asyncio
import json

import numpy as np
import pytest

from antiphon.benchmarks.crowd import Visit
from antiphon.benchmarks.load import fake, gain, level
from antiphon.benchmarks.simulated import Measured, Times, canary, heard, name, numbers, simulated
from antiphon.pipeline import cli
from antiphon.pipeline.metrics import TurnTrace
from antiphon.pipeline.scheduler import Work
from antiphon.pipeline.settings import Settings
from antiphon.tts.text import Clauses


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_a_canary_is_told_from_its_neighbours_by_its_sound(rate: int):
    for number in (0, 1, 17, 18, 999):
        padded = np.concatenate([np.zeros(rate // 3, np.float32), canary(number, 0.5, rate)])
        assert heard(padded, rate) == number
    assert heard(np.zeros(rate, np.float32), rate) is None
    assert heard(np.zeros(0, np.float32), rate) is None


def test_a_canary_survives_the_voice_in_words():
    clauses = Clauses()
    spoken = clauses.push(f"You are {name(17)}. Good bye, {name(120)}.") + clauses.flush()
    assert numbers(" ".join(clause.speech for clause in spoken)) == {17, 120}
    assert numbers("You are nobody.") == set()


def test_a_plain_queue_takes_what_came_first_and_drops_nothing():
    for fifo, order, dropped in ((False, ["late"], ["partial"]), (True, ["partial"], [])):
        scheduler: Measured[str] = Measured(fifo=fifo)
        scheduler.add(Work("partial", "a", 1.0, droppable=True))
        scheduler.add(Work("late", "b", 0.5))
        batch, stale = scheduler.next_batch(2.0)
        assert [work.payload for work in batch] == order
        assert [work.payload for work in stale] == dropped
        assert scheduler.spent > 0


def test_the_figures_of_a_level():
    visits = [
        Visit(admitted=True, v2v=[0.2, 0.4], underruns=1, reply_seconds=30.0),
        Visit(admitted=True, v2v=[0.3], reply_seconds=30.0),
        Visit(refused=True),
    ]
    row = level(3, visits, [TurnTrace("sess", 1, 1, wasted_ms=12.5)] * 2)
    assert row == {
        "sessions": 3,
        "admitted": 2,
        "refused": 1,
        "v2v_ms": {"p50": 300.0, "p95": 390.0},
        "underruns_per_min": 1.0,
        "wasted_ms": 25.0,
    }
    nobody = level(1, [Visit(refused=True)], [])
    assert nobody["v2v_ms"] is None
    assert gain(row, {**row, "v2v_ms": {"p50": 600.0, "p95": 390.0}}) == {"v2v_p50": 2.0, "v2v_p95": 1.0}
    assert gain(row, nobody) == {"v2v_p50": None, "v2v_p95": None}


@pytest.mark.parametrize(
    "arguments", [["--sessions", "0"], ["--sessions", "1,x"], ["--sessions", "2000"], ["--policy", "fifo"]]
)
def test_levels_that_cannot_be_run_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    assert cli.main(["bench", "load", *arguments]) == 1
    assert capsys.readouterr().err.startswith("antiphon: --")


async def test_simulated_engines_end_with_their_context():
    async with simulated(Times()) as (engines, schedulers):
        assert len(engines.english) == len(engines.vad) == 0
        assert len(schedulers) == 3


@pytest.mark.server
@pytest.mark.slow
def test_a_short_run_answers_everybody_and_nobody_else():
    figures = asyncio.run(fake(Settings(), [6], 5.0, 2.0, compare=True))
    (row,), (service,) = figures["levels"], figures["service"]
    assert (row["admitted"], row["refused"]) == (6, 0)
    assert (service["lost"], service["crosstalk"]) == (0, 0)
    assert service["turns"] >= 6
    assert service["scheduler_us"] > 0
    assert set(figures["gain"][0]) == {"sessions", "v2v_p50", "v2v_p95"}
    json.dumps(figures, allow_nan=False)
