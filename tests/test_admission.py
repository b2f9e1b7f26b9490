"""What admission learns, and whom it lets in."""

import random
from itertools import pairwise

import pytest

from antiphon.pipeline.admission import (
    FULLEST,
    LONGEST_RETRY,
    SEEDS,
    WINDOW,
    Admission,
    Admitted,
    Busy,
    Fading,
    Model,
    Refused,
    Seed,
    Service,
)


def load(
    admission: Admission,
    sessions: int,
    *,
    took: float,
    cpu: float = 0.0,
    v2v: float = 0.6,
    seconds: int = 120,
) -> float:
    """So many sessions, each with `took` seconds of urgent recognition every second; the moment after."""
    admission.sessions(sessions, 0.0)
    for second in range(1, seconds + 1):
        for _ in range(sessions):
            admission.served(Service("asr", 0.0, took, 1, True), second)
        admission.sampled(cpu * sessions, second)
        if second % 5 == 0:
            admission.answered(v2v, second)
    return float(seconds)


def test_samples_fade_towards_the_seed():
    fading = Fading(1.0, 0.5, tau=10)
    assert (fading.mean(0), fading.variance(0)) == (1.0, pytest.approx(0.25))
    for _ in range(100):
        fading.add(3.0, 0.0)
    assert fading.mean(0) == pytest.approx(3, abs=0.05)
    assert fading.mean(40) < 2.5
    assert fading.mean(400) == pytest.approx(1.0)
    assert fading.variance(400) == pytest.approx(0.25)


def test_mean_and_variance_are_those_of_the_samples():
    fading = Fading(0, 0, weight=1e-9)
    seeded = random.Random(1)
    values = [seeded.gauss(5, 2) for _ in range(500)]
    for value in values:
        fading.add(value, 0)
    mean = sum(values) / len(values)
    assert fading.mean(0) == pytest.approx(mean)
    assert fading.variance(0) == pytest.approx(sum((v - mean) ** 2 for v in values) / len(values))


def test_the_busy_fraction_is_over_a_sliding_window():
    busy = Busy()
    for second in range(WINDOW):
        busy.add(0.5, second + 0.75)
    assert busy.fraction(WINDOW - 0.1) == pytest.approx(0.5)
    assert busy.fraction(1.5 * WINDOW) == pytest.approx(0.25, abs=0.03)
    assert busy.fraction(3 * WINDOW) == 0


def test_long_work_is_spread_over_the_seconds_in_which_it_ran():
    busy = Busy()
    busy.add(10.0, 12.5)
    assert busy.fraction(12.5) == pytest.approx(10 / WINDOW)
    assert busy.fraction(WINDOW + 7.5) == pytest.approx(5 / WINDOW, abs=0.5 / WINDOW)
    busy.add(1000.0, 60.0)
    assert busy.fraction(60.0) == pytest.approx(1, abs=1 / WINDOW)


def test_waiting_grows_with_sessions_and_stays_finite():
    model = Model(Seed(0.2, 0.1, urgent=0.05, other=0.1))
    waits = [model.waiting(n, 0) for n in range(0, 40)]
    assert waits[0] == 0
    assert all(before <= after for before, after in pairwise(waits))
    assert waits[-1] < 0.2 / (1 - FULLEST) + 0.1


def test_more_servers_wait_less():
    one, four = (Model(Seed(0.2, 0.1, urgent=0.2, servers=count)) for count in (1, 4))
    assert four.waiting(3, 0) < one.waiting(3, 0) / 4


def test_the_first_session_is_always_admitted_even_where_every_turn_is_late():
    admission = Admission(0.001)
    assert isinstance(admission.decide(0), Admitted)
    load(admission, 1, took=0.9, v2v=9.0)
    admission.sessions(0, 120.0)
    assert isinstance(admission.decide(120.0), Admitted)


def test_a_light_load_admits_and_a_heavy_one_refuses_with_a_hint():
    light, heavy = Admission(2.0, cores=8), Admission(2.0, cores=8)
    now = load(light, 4, took=0.01)
    assert isinstance(light.decide(now), Admitted)
    load(heavy, 4, took=0.25, v2v=1.9)
    refused = heavy.decide(now)
    assert isinstance(refused, Refused)
    assert refused.predicted > 2.0
    assert 1 <= refused.retry_after <= LONGEST_RETRY


def test_a_shared_processor_refuses_where_no_queue_would():
    admission = Admission(2.0, cores=2)
    now = load(admission, 3, took=0.0, cpu=0.5, v2v=1.5)
    assert isinstance(admission.decide(now), Refused)


def test_the_prediction_for_the_sessions_that_are_here_follows_real_turns():
    slow, quick = Admission(2.0, cores=8), Admission(2.0, cores=8)
    now = load(slow, 3, took=0.05, v2v=1.8)
    load(quick, 3, took=0.05, v2v=0.4)
    assert slow.predict(3, now) > slow.actual() == 1.8
    assert quick.predict(3, now) < 0.9
    assert quick.predict(1, now) < quick.predict(3, now) < quick.predict(8, now)


def test_a_load_that_has_gone_is_forgotten():
    admission = Admission(2.0, cores=8)
    now = load(admission, 4, took=0.25, v2v=1.9)
    admission.sessions(1, now)
    for second in range(600):
        admission.sampled(0.01, now + second)
    assert isinstance(admission.decide(now + 600), Admitted)


def test_work_of_no_session_is_not_put_down_to_sessions():
    admission = Admission(2.0)
    before = admission.models["asr"].urgent.mean(0)
    for second in range(100):
        admission.served(Service("asr", 0.0, 1.0, 1, True), second)
        admission.sampled(1.0, second)
    assert admission.models["asr"].urgent.mean(100) == before
    assert admission.models["asr"].busy.fraction(100) > 0.9


def test_a_model_without_a_seed_is_learned_and_dropped_work_only_waited():
    admission = Admission(2.0, seeds={"asr": SEEDS["asr"]})
    admission.served(Service("other", 0.5, 0.0, 0, False), 1.0)
    assert admission.models["other"].waited.mean(1.0) > 0
    assert admission.models["other"].busy.fraction(1.0) == 0
    assert admission.actual() is None


def test_the_seeds_let_a_small_machine_take_some_sessions_and_not_any_number():
    predicted = [Admission(6.0, cores=2).predict(n, 0) for n in range(1, 12)]
    assert predicted[0] < 1.5
    assert all(before <= after for before, after in pairwise(predicted))
    assert predicted[3] < 6.0 < predicted[-1]
