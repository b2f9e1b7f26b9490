"""Token buckets: what a key may use a minute, and what it is told of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.pipeline.errors import RateLimited
from antiphon.transport.limits import Allowance, Bucket, Meter, Meters


def test_a_bucket_begins_full_and_fills_evenly() -> None:
    bucket = Bucket(60, now=0)
    assert bucket.level(0) == 60
    bucket.spend(60, 0)
    assert bucket.wait(1, 0) == 1
    assert bucket.level(30) == 30
    assert bucket.reset(30) == 30
    assert bucket.level(1000) == 60


def test_a_bucket_may_be_in_debt_and_a_clock_that_goes_back_costs_nothing() -> None:
    bucket = Bucket(60, now=10)
    bucket.spend(90, 10)
    assert bucket.level(5) == -30
    assert bucket.wait(0, 10) == 30
    assert bucket.level(40) == 0


@given(
    st.integers(1, 1000),
    st.lists(st.floats(0, 5), min_size=1, max_size=200),
)
def test_no_more_is_let_through_than_a_minute_and_its_refill(per_minute: int, gaps: list[float]) -> None:
    meter, now, passed = Meter(Allowance(requests=per_minute), 0), 0.0, 0
    for gap in gaps:
        now += gap
        try:
            meter.request(now)
            passed += 1
        except RateLimited:
            pass
    assert passed <= per_minute + now * per_minute / 60 + 1e-6


def refused(meter: Meter, now: float) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        meter.request(now)
    return caught.value


def test_requests() -> None:
    meter = Meter(Allowance(requests=2), 0)
    meter.request(0)
    assert meter.headers(0) == {
        "x-ratelimit-limit-requests": "2",
        "x-ratelimit-remaining-requests": "1",
        "x-ratelimit-reset-requests": "30s",
    }
    meter.request(0)
    error = refused(meter, 0)
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert error.headers() == {"Retry-After": "30"}
    assert meter.headers(0)["x-ratelimit-reset-requests"] == "1m0s"
    assert refused(meter, 29.5).headers() == {"Retry-After": "1"}
    assert refused(meter, 29.99).headers() == {"Retry-After": "1"}
    meter.request(30)
    assert meter.headers(30)["x-ratelimit-remaining-requests"] == "0"


def test_waiting_as_long_as_told_is_enough() -> None:
    meter, now = Meter(Allowance(requests=7), 0), 0.0
    for _ in range(50):
        try:
            meter.request(now)
        except RateLimited as error:
            now += error.retry_after
            meter.request(now)


def test_without_limits_nothing_is_refused_and_nothing_told() -> None:
    meter = Meter(Allowance(), 0)
    for _ in range(1000):
        meter.request(0)
        meter.audio(1000, 0)
        meter.open_session()
    assert meter.headers(0) == {}


def test_audio_is_paid_afterwards() -> None:
    meter = Meter(Allowance(audio_seconds=60), 0)
    meter.audio(90, 0)  # nobody knew before how long it would be
    with pytest.raises(RateLimited) as caught:
        meter.audio(0, 0)
    assert caught.value.retry_after == 30
    meter.audio(1, 30)


def test_sessions_at_a_time() -> None:
    meter = Meter(Allowance(sessions=1), 0)
    meter.open_session()
    with pytest.raises(RateLimited):
        meter.open_session()
    meter.close_session()
    meter.open_session()


def test_a_key_keeps_its_meter_until_its_allowance_changes() -> None:
    meters = Meters()
    first = meters.of("a", Allowance(requests=1, sessions=1), 0)
    first.request(0)
    first.open_session()
    again = meters.of("a", Allowance(requests=1, sessions=1), 0)
    refused(again, 0)
    meters.of("b", Allowance(requests=1), 0).request(0)
    changed = meters.of("a", Allowance(requests=2, sessions=2), 0)
    changed.request(0)
    assert changed.sessions == 1
    first.close_session()  # of a conversation that was open meanwhile
    assert changed.sessions == 0
