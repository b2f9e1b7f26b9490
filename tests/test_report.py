from __future__ import annotations

import json

import numpy as np
import pytest

from antiphon.benchmarks import report


@pytest.mark.parametrize("count", [1, 2, 5, 20])
@pytest.mark.parametrize("q", [0, 5, 50, 95, 100])
def test_percentiles_are_numpys(count: int, q: float) -> None:
    values = np.random.default_rng(count).normal(size=count).tolist()
    assert report.percentile(values, q) == pytest.approx(np.percentile(values, q))


def test_no_values_have_no_percentile_and_no_summary() -> None:
    with pytest.raises(ValueError, match="no values"):
        report.percentile([], 50)
    assert report.summary([]) is None


def test_a_summary_is_rounded_to_a_tenth() -> None:
    assert report.summary([30, 10, 20.06]) == {"p50": 20.1, "p95": 29.0, "mean": 20.0, "min": 10, "max": 30}


def test_a_ratio_needs_both_sides() -> None:
    assert report.ratio(400, 1600) == 0.25
    assert report.ratio(None, 1600) is None
    assert report.ratio(400, None) is None
    assert report.ratio(400, 0) is None


def test_a_table_is_aligned() -> None:
    assert report.table(["stage", "ms"], [["gate", 500], ["token", "-"]]).splitlines() == [
        "stage   ms",
        "-----  ---",
        "gate   500",
        "token    -",
    ]


def test_the_last_line_is_one_line_of_json() -> None:
    line = report.last_line({"reply": "one\ntwo — “three”", "v2v_ms": 1.5, "peer": None})
    assert "\n" not in line
    assert json.loads(line)["reply"] == "one\ntwo — “three”"
    with pytest.raises(ValueError, match="JSON"):
        report.last_line({"v2v_ms": float("nan")})


def test_the_machine_is_described() -> None:
    described = report.machine()
    assert described["cores"] >= 1
    assert described["versions"]["antiphon"]
    json.dumps(described)
