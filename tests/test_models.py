"""Which model a name means."""

import pytest

from antiphon.pipeline.errors import BadRequest, NotFound
from antiphon.pipeline.settings import Settings, load
from antiphon.transport.models import ALIASES, Models, Served


def test_the_settings_name_the_models() -> None:
    settings = load(environ={}, overrides=["llm.aliases=gpt-4o, local/chat:1 ,", "embeddings.model=minilm"])
    models = Models.of(settings)
    assert models.listed() == [
        *("qwen2.5-coder-0.5b-instruct", "whisper-base", "whisper-tiny.en", "hibari", "minilm"),
        *("gpt-4o", "local/chat:1"),
    ]
    assert models.resolve("local/chat:1", "chat") == "qwen2.5-coder-0.5b-instruct"
    assert models.resolve("text-embedding-3-small", "embedding") == "minilm"


def test_openais_names_mean_the_recogniser_for_files_and_the_voice() -> None:
    models = Models.of(Settings())
    assert models.resolve("whisper-1", "transcription") == "whisper-base"
    assert models.resolve("whisper-tiny.en", "transcription") == "whisper-tiny.en"
    assert models.resolve("tts-1", "speech") == "hibari"
    with pytest.raises(NotFound):
        models.resolve("text-embedding-3-small", "embedding")  # none is configured


def test_one_recogniser_for_both_is_listed_once() -> None:
    models = Models.of(load(environ={}, overrides=["asr.model=whisper-base"]))
    assert models.listed().count("whisper-base") == 1


def test_no_alias_is_a_chat_model_unless_the_settings_say_so() -> None:
    assert "chat" not in ALIASES.values()
    with pytest.raises(NotFound):
        Models.of(Settings()).resolve("gpt-4o", "chat")


def test_refusals() -> None:
    models = Models((Served("a", "chat"), Served("b", "speech")))
    with pytest.raises(NotFound, match="there are: a, b") as unknown:
        models.resolve("c", "chat")
    assert (unknown.value.status, unknown.value.code, unknown.value.param) == (
        404,
        "model_not_found",
        "model",
    )
    with pytest.raises(BadRequest, match="does speech, not chat") as other:
        models.resolve("b", "chat")
    assert (other.value.status, other.value.param) == (400, "model")
