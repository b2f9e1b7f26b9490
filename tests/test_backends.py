"""Backends: names to factories, and errors that say what is there and how to get the rest."""

from importlib.metadata import EntryPoint

import pytest

from antiphon.pipeline import backends
from antiphon.pipeline.errors import UnknownBackend


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch):
    def declare(*points: tuple[str, str]) -> None:
        found = [EntryPoint(name, value, "antiphon.asr") for name, value in points]
        monkeypatch.setattr(
            backends, "entry_points", lambda *, group: found if group == "antiphon.asr" else []
        )

    return declare


def test_our_own_are_declared() -> None:
    assert "ctranslate2" in backends.installed("asr")
    assert "llamacpp" in backends.installed("llm")
    assert "hibari" in backends.installed("tts")


def test_loads_what_the_entry_point_names(declare) -> None:
    declare(("dumps", "json:dumps"))
    assert backends.load("asr", "dumps")([1]) == "[1]"


def test_an_unknown_name_lists_the_installed_ones(declare) -> None:
    declare(("ctranslate2", "json:dumps"), ("parakeet", "json:loads [gpu]"))
    with pytest.raises(UnknownBackend) as caught:
        backends.load("asr", "ctranslate")
    assert 'asr.backend = "ctranslate"' in caught.value.message
    assert "ctranslate2, parakeet (extra gpu)" in caught.value.message
    assert 'did you mean "ctranslate2"?' in caught.value.message


def test_no_backend_at_all(declare) -> None:
    declare()
    with pytest.raises(UnknownBackend, match="installed are none"):
        backends.load("asr", "x")


def test_a_missing_module_names_the_extra_that_brings_it(declare) -> None:
    declare(("parakeet", "no_such_module_of_ours:load [gpu]"), ("other", "no_such_module_of_ours:load"))
    with pytest.raises(UnknownBackend, match=r"no_such_module_of_ours: pip install 'antiphon\[gpu\]'"):
        backends.load("asr", "parakeet")
    with pytest.raises(UnknownBackend, match="install no_such_module_of_ours"):
        backends.load("asr", "other")


def test_a_missing_factory_is_named(declare) -> None:
    declare(("bad", "json:nothing_here"))
    with pytest.raises(UnknownBackend, match="nothing_here"):
        backends.load("asr", "bad")
