"""What is played, and the shape of what comes out. How fast anything is, no test says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.benchmarks import latency, talk
from antiphon.benchmarks.exchange import Exchange, earlier
from antiphon.pipeline.errors import BadRequest
from antiphon.pipeline.metrics import STAGES


def entry(path: str, speaker: str, seconds: float = 3.0, text: str = "hello") -> dict[str, Any]:
    return {"path": path, "speaker": speaker, "duration_s": seconds, "text": text}


def test_utterances_are_taken_from_speaker_after_speaker() -> None:
    entries = [
        entry("a1", "a"),
        entry("a2", "a"),
        entry("a3", "a", text=""),
        entry("b1", "b", seconds=1.4),
        entry("b2", "b", seconds=8.0),
        entry("c1", "c", seconds=8.1),
        entry("a4", "a"),
        entry("d1", "d"),
    ]
    assert [e["path"] for e in latency.spread(entries)] == ["a1", "b2", "d1", "a2", "a4"]


def test_audio_is_a_recording_a_folder_or_a_manifest(tmp_path: Path) -> None:
    for name in ("b.wav", "a.flac", "notes.txt"):
        (tmp_path / name).touch()
    one = latency.find(tmp_path / "b.wav", 3)
    assert [u.path.name for u in one] == ["b.wav"] * 3
    assert [u.path.name for u in latency.find(tmp_path, 5)] == ["a.flac", "b.wav"]
    (tmp_path / "manifest.jsonl").write_text(json.dumps(entry("a.flac", "a", text="hi")) + "\n")
    assert latency.find(tmp_path, 5) == [latency.Utterance(tmp_path / "a.flac", "hi")]
    with pytest.raises(BadRequest, match="there is no"):
        latency.find(tmp_path / "nowhere", 1)
    (tmp_path / "manifest.jsonl").write_text("")
    with pytest.raises(BadRequest, match="holds no recording"):
        latency.find(tmp_path, 1)


def answered(v2v_ms: float, transcript: str, **stages: float) -> Exchange:
    return Exchange(
        transcript,
        "Yes.",
        v2v_ms=v2v_ms,
        stages_ms=dict.fromkeys(STAGES) | stages,
        speculation={"launched": 2, "used": 1, "discarded": 1, "wasted_ms": 40.5},
        underruns=1,
        lateness_ms=v2v_ms / 100,
    )


def test_a_lost_utterance_leaves_the_times_alone_but_not_the_word_error_rate() -> None:
    results = [
        answered(400, "Hello, World!", gate_open=500, first_token=-30),
        answered(600, "good day", gate_open=520),
        Exchange(problem="no reply", false_ends=1),
    ]
    side = latency.summarise(results, ["hello world", None, "red blue"])
    assert (side["turns"], side["lost"], side["false_ends"], side["underruns"]) == (3, 1, 1, 2)
    assert side["v2v_ms"] == {"p50": 500, "p95": 590, "mean": 500, "min": 400, "max": 600}
    assert side["stages_ms"]["gate_open"] == {"p50": 510, "p95": 519}
    assert side["stages_ms"]["first_token"] == {"p50": -30, "p95": -30}
    assert side["stages_ms"]["first_clause"] is None
    assert side["wer"] == 0.5
    assert side["speculation"] == {"launched": 4, "used": 2, "discarded": 2, "wasted_ms": 81}
    assert side["client_lateness_ms"] == 6


def test_without_texts_there_is_no_word_error_rate() -> None:
    assert latency.word_error_rate(["hello", "hello"], [None, "--"]) is None


def test_the_last_line_has_both_sides_and_their_ratio() -> None:
    ours = latency.summarise([answered(400, "a")], ["a"])
    peer = latency.summarise([answered(1600, "a")], ["a"])
    figures = json.loads(json.dumps(latency.figures(ours, peer)))
    assert list(figures) == ["bench", "machine", "ours", "peer", "ratio"]
    assert figures["bench"] == "latency"
    assert figures["peer"]["name"] == "serial"
    assert set(figures["ours"]["stages_ms"]) == set(figures["peer"]["stages_ms"]) == set(STAGES)
    assert figures["ratio"] == {"v2v_p50": 0.25, "v2v_p95": 0.25}
    assert "heard (voice-to-voice)" in latency.text(figures)


def test_a_run_in_which_nothing_was_answered_still_reports() -> None:
    nothing = [Exchange(problem="no reply")]
    alone = latency.figures(latency.summarise(nothing, ["a"]), None)
    assert alone["ours"]["v2v_ms"] is None
    assert alone["ours"]["wer"] == 1.0
    assert "ratio" not in alone
    both = latency.figures(latency.summarise(nothing, ["a"]), latency.summarise(nothing, ["a"]))
    assert both["ratio"] == {"v2v_p50": None, "v2v_p95": None}
    assert latency.text(alone)
    assert latency.text(both)


def test_talk_reports_the_steps_in_the_order_in_which_they_happened() -> None:
    said = answered(560, "where", transcript_final=80, gate_open=500, first_audio=350)
    lines = talk.report(said, Path("reply.wav")).splitlines()
    assert lines[0].split() == ["heard", "where"]
    steps = [line.split()[-2:] for line in lines if line.split()[-1:] and line.split()[-1][0] == "+"]
    assert steps == [["80", "+80"], ["350", "+270"], ["500", "+150"], ["560", "+60"]]
    assert talk.figures(said, Path("reply.wav")) == {
        "transcript": "where",
        "reply": "Yes.",
        "reply_wav": "reply.wav",
        "v2v_ms": 560,
        "stages_ms": said.stages_ms,
        "speculation": said.speculation,
    }
    lost = Exchange(problem="the service heard no speech")
    assert talk.figures(lost, None)["problem"] == "the service heard no speech"
    assert talk.report(lost, None)


def test_a_breath_after_the_last_word_is_not_speech():
    assert earlier(3.0, 2.7) == 2.7
    assert earlier(3.0, 3.2) == 3.0
    assert earlier(3.0, 1.0) == 3.0, "words were missed there"
