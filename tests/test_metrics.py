"""Traces and counters: what is written down, and what is not."""

import json
import logging
import math

import pytest

from antiphon.pipeline.metrics import KEPT, STAGES, Metrics, TurnTrace


def trace(session: str = "sess_1", **fields: object) -> TurnTrace:
    return TurnTrace(session, turn=1, revision=2, **fields)  # type: ignore[arg-type]


SAID = trace(
    transcript_final=-12.345,
    first_audio_sent=380.04,
    launched=2,
    used=1,
    discarded=1,
    wasted_ms=250.0,
    transcript="a secret",
    reply="an answer",
    status="cancelled",
)


@pytest.mark.parametrize("texts", [False, True])
def test_the_log_line_is_one_json_object(caplog: pytest.LogCaptureFixture, texts: bool):
    caplog.set_level(logging.INFO)
    Metrics(texts=texts).record(SAID)
    (line,) = caplog.messages
    written = json.loads(line.removeprefix("turn "))
    assert (written["session"], written["turn"], written["revision"]) == ("sess_1", 1, 2)
    assert list(written["stages_ms"]) == list(STAGES)
    assert written["stages_ms"]["transcript_final"] == -12.3
    assert written["stages_ms"]["first_token"] is None
    assert written["speculation"] == {"launched": 2, "used": 1, "discarded": 1, "wasted_ms": 250.0}
    assert ("a secret" in line, "an answer" in line) == (texts, texts)


def test_counters_add_up():
    metrics = Metrics()
    metrics.record(SAID)
    metrics.record(trace(first_audio_sent=120.0, launched=1, used=1))
    metrics.watch_model("asr", lambda: 7, lambda: 0.25)
    metrics.watch_load(predicted=lambda: 0.5, actual=lambda: math.nan, lag=lambda: 0.001)
    lines = metrics.exposition().decode().splitlines()
    for line in (
        "antiphon_turns_total 2.0",
        'antiphon_speculations_total{fate="launched"} 3.0',
        'antiphon_speculations_total{fate="used"} 2.0',
        'antiphon_speculations_total{fate="discarded"} 1.0',
        "antiphon_speculation_wasted_seconds_total 0.25",
        'antiphon_stage_seconds_count{stage="first_audio_sent"} 2.0',
        'antiphon_stage_seconds_bucket{le="0.15",stage="first_audio_sent"} 1.0',
        'antiphon_queue_depth{model="asr"} 7.0',
        'antiphon_model_busy_ratio{model="asr"} 0.25',
        "antiphon_predicted_voice_to_voice_seconds 0.5",
        "antiphon_actual_voice_to_voice_seconds NaN",
        "antiphon_event_loop_lag_seconds 0.001",
    ):
        assert line in lines
    assert not any('stage="first_token"' in line for line in lines)


def test_the_latest_traces_are_kept_without_what_was_said():
    metrics = Metrics(texts=True)
    for number in range(KEPT + 5):
        metrics.record(trace(f"sess_{number}", transcript="a secret"))
    assert len(metrics.traces()) == KEPT
    assert metrics.traces("sess_4") == []
    (kept,) = metrics.traces("sess_5")
    assert kept["session"] == "sess_5"
    assert "secret" not in json.dumps(kept)
