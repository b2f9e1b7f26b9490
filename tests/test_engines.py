"""The models of a server, with small ones in their place."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from fakes import FakeChat, FakeRecognizer, FakeVoice, hear

from antiphon.pipeline.errors import WeightsError
from antiphon.pipeline.settings import load
from antiphon.transport import engines


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the recognisers loaded. Everything else is a fake."""
    names: list[str] = []

    def recognizer(settings: Any, store: Any) -> FakeRecognizer:
        names.append(settings.asr.model)
        return FakeRecognizer()

    monkeypatch.setattr(engines, "_recognizer", recognizer)
    monkeypatch.setattr(engines, "_detector", lambda settings, store: hear)
    parts = {"llm": FakeChat, "tts": FakeVoice}
    monkeypatch.setattr(engines.backends, "load", lambda kind, name: lambda settings, store: parts[kind]())
    return names


async def test_the_other_recogniser_is_loaded_once_whoever_gives_up_waiting(
    loaded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    quick = engines._recognizer

    def slow(settings: Any, store: Any) -> Any:
        if settings.asr.model == "whisper-base":
            go.wait(10)
        return quick(settings, store)

    monkeypatch.setattr(engines, "_recognizer", slow)
    async with engines.load_engines(load(overrides=[], environ={})) as served:
        waiting: Sequence[asyncio.Task[Any]] = [asyncio.create_task(served.multilingual()) for _ in range(3)]
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        go.set()
        assert await served.multilingual() is await served.multilingual()
    assert loaded == ["whisper-tiny.en", "whisper-base"]


async def test_a_wrong_name_is_known_before_anything_is_loaded(loaded: list[str]) -> None:
    with pytest.raises(
        WeightsError, match=r'asr\.multilingual_model = "whisper-bas": no such model; the nea'
    ):
        async with engines.load_engines(load(overrides=["asr.multilingual_model=whisper-bas"], environ={})):
            pass
    assert loaded == []
