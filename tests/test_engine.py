"""Starting llama.cpp: its threads sleep, what is missing is said."""

from __future__ import annotations

import os

import pytest

from antiphon.llm import engine as engine_module
from antiphon.llm.engine import read_metrics
from antiphon.pipeline.errors import SetupError


def test_metrics_are_read_by_name() -> None:
    text = "# HELP llamacpp:n_decode_total Calls\nllamacpp:n_decode_total 12\nllamacpp:tokens_seconds 6.25\n"
    assert read_metrics(text) == {"n_decode_total": 12.0, "tokens_seconds": 6.25}


@pytest.mark.parametrize(
    ("before", "after", "warned"), [(None, "passive", False), ("active", "active", True)]
)
def test_openmp_is_told_to_sleep_before_it_is_loaded(
    before: str | None,
    after: str,
    warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "300")
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY") if before is None else monkeypatch.setenv("OMP_WAIT_POLICY", before)
    monkeypatch.setattr(engine_module, "_mapped", lambda library: False)
    monkeypatch.setattr(engine_module.importlib, "import_module", lambda name: os.environ["OMP_WAIT_POLICY"])
    assert engine_module.import_engine() == after
    assert bool(caplog.records) is warned


def test_an_openmp_that_is_there_already_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(engine_module, "_mapped", lambda library: True)
    monkeypatch.setattr(engine_module.importlib, "import_module", lambda name: None)
    engine_module.import_engine()
    assert "OMP_WAIT_POLICY=passive" in caplog.text


def test_a_missing_system_library_is_the_operators_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    monkeypatch.setattr(engine_module.importlib, "import_module", missing)
    with pytest.raises(SetupError, match="package libgomp1"):
        engine_module.import_engine()
