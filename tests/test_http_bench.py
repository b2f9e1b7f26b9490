"""The figures of `bench http`, and its client against a server of fakes."""

import json

import pytest
from fakes import FakeChat, fake_engines

from antiphon.benchmarks.http import Pair, Reply, Run, _check, ask, summarized
from antiphon.pipeline.errors import EngineFailed
from antiphon.pipeline.settings import Settings
from antiphon.transport.server import running


def test_a_run_is_its_conversations_together() -> None:
    run = Run.of([Reply(10.0, 10.1, 12.0, 50, 30), Reply(10.5, 10.8, 14.0, 50, 30)])
    assert run.tokens_per_s == 60 / 4
    assert run.ttft_ms == pytest.approx(200)


def test_figures_are_medians_of_runs_and_of_differences() -> None:
    pairs = [
        Pair(direct=Run(40.0, 100.0), http=Run(38.0, 104.0)),
        Pair(direct=Run(20.0, 900.0), http=Run(40.0, 102.0)),
        Pair(direct=Run(40.0, 100.0), http=Run(39.0, 108.0)),
    ]
    found = summarized(pairs)
    assert found["peer"] == {"tokens_per_s": 40.0, "ttft_ms": 100.0}
    assert found["ours"]["tokens_per_s"] == 39.0
    assert found["ours"]["added_ttft_ms"] == 4.0
    assert found["ratio"]["tokens_per_s"] == 0.975
    json.dumps(found, allow_nan=False)


def test_replies_that_cannot_be_compared_are_no_figures() -> None:
    _check([Reply(0, 1, 2, 50, 32), Reply(0, 1, 2, 50, 32)], 32)
    for replies in ([Reply(0, 1, 2, 50, 31)], [Reply(0, 1, 2, 50, 32), Reply(0, 1, 2, 51, 32)]):
        with pytest.raises(EngineFailed):
            _check(replies, 32)


@pytest.mark.server
async def test_the_client_times_a_stream() -> None:
    settings = Settings()
    chat = FakeChat("Once upon a time")
    async with running(settings, engines=fake_engines(chat=chat)) as url:
        reply = await ask(url, settings.llm.model, 4)
        with pytest.raises(EngineFailed):
            await ask(url, "nobody", 4)
    assert reply.asked < reply.first < reply.ended
    assert (reply.prompt_tokens, reply.tokens) == (10, 4)
    assert chat.requests[0].limits.max_tokens == 4
    assert chat.requests[0].sampling.temperature == 0
