"""Settings: who wins, what is refused and how it says so, and that every leaf is described."""

import json
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from antiphon.pipeline.errors import SettingsError
from antiphon.pipeline.settings import LEAVES, LlmSettings, Settings, describe, load, resolve, to_toml


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refusal(config: Path | None = None, environ: dict[str, str] | None = None, *overrides: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(config, environ or {}, overrides)
    return caught.value.message


def toml(text: str, name: str = "given.toml") -> Path:
    path = Path(name)
    path.write_text(text)
    return path


def test_each_source_wins_over_the_one_before() -> None:
    config = toml("[server]\nport = 1\nmax_sessions = 1\n[turn]\nsilence = 1\n")
    environ = {"ANTIPHON_SERVER_PORT": "2", "ANTIPHON_SERVER_MAX_SESSIONS": "2", "PATH": "/bin"}
    settings, origins = resolve(config, environ, ["server.port=3"])
    assert (settings.server.port, origins["server.port"]) == (3, "command line")
    assert settings.server.max_sessions == 2
    assert origins["server.max_sessions"] == "environment ANTIPHON_SERVER_MAX_SESSIONS"
    assert (settings.turn.silence, origins["turn.silence"]) == (1.0, "given.toml")
    assert (settings.server.host, origins["server.host"]) == ("127.0.0.1", "default")


def test_the_later_override_wins() -> None:
    assert load(environ={}, overrides=["server.port=1", "server.port=2"]).server.port == 2


def test_the_file_of_this_folder_is_read_unless_another_is_named() -> None:
    toml("[server]\nport = 1\n", "antiphon.toml")
    assert load(environ={}).server.port == 1
    assert load(toml("[turn]\nsilence = 0.7\n"), {}).server.port == 8080


def test_text_is_read_as_what_the_setting_is() -> None:
    settings = load(
        environ={"ANTIPHON_LLM_PREFILL": "off"}, overrides=["vad.threshold=0.25", "weights.cache="]
    )
    assert settings.llm.prefill is False
    assert settings.vad.threshold == 0.25
    assert settings.weights.cache == ""
    assert load(environ={}, overrides=["llm.instructions=a=b"]).llm.instructions == "a=b"


@pytest.mark.parametrize("value", ['"8080"', "true", "80.5", "[1]", "{ a = 1 }"])
def test_toml_types_must_fit(value: str) -> None:
    message = refusal(toml(f"[server]\nport = {value}\n"))
    assert message.startswith("server.port = ")
    assert "(given.toml) must be an integer from 0 to 65535" in message


def test_an_integer_will_do_for_a_number() -> None:
    assert load(toml("[turn]\nsilence = 1\n"), {}).turn.silence == 1.0


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("server.port=99999", "must be an integer from 0 to 65535; the nearest is 65535"),
        ("server.port=-1", "the nearest is 0"),
        ("server.port=x", "must be an integer from 0 to 65535"),
        ("turn.silence=nan", "must be a number from 0.1 to 5"),
        ("turn.silence=inf", "the nearest is 5"),
        ("vad.prefix_padding=0.1", "must be a number from 0.3 to 3; the nearest is 0.3"),
        ("log.level=warn", 'must be "debug" or "info" or "warning" or "error"; the nearest is "warning"'),
        ("llm.prefill=maybe", "must be true or false"),
        ("asr.language=English", 'must be text like "en"'),
        ("tts.voice=", "must be text, not empty"),
    ],
)
def test_a_wrong_value_names_the_key_the_source_and_the_nearest(override: str, says: str) -> None:
    message = refusal(None, {}, override)
    assert message.startswith(override.partition("=")[0] + " = ")
    assert "(command line)" in message
    assert says in message


@pytest.mark.parametrize("key", ["server.prot", "sever.port", "port", "server.Port", "llm.port"])
def test_a_wrong_key_names_the_nearest(key: str) -> None:
    message = refusal(None, {}, f"{key}=1")
    assert f'"{key}" (command line)' in message
    assert "server.port" in message


def test_a_wrong_variable_names_itself_and_the_nearest() -> None:
    message = refusal(None, {"ANTIPHON_SERVER_MAX_SESION": "1"})
    assert "environment ANTIPHON_SERVER_MAX_SESION" in message
    assert "ANTIPHON_SERVER_MAX_SESSIONS" in message


@pytest.mark.parametrize("text", ["port = 1\n", "[sever]\n", "[server.port]\nx = 1\n", "server = 3\n", "]"])
def test_nothing_in_a_file_is_ignored(text: str) -> None:
    assert "given.toml" in refusal(toml(text))


def test_a_named_file_must_be_there() -> None:
    assert "absent.toml" in refusal(Path("absent.toml"))


def test_an_override_needs_a_value() -> None:
    assert "section.name=value" in refusal(None, {}, "server.port")


def test_settings_that_contradict_each_other_are_refused_with_their_sources() -> None:
    message = refusal(None, {"ANTIPHON_LLM_MAX_TOKENS": "4096"})
    assert "llm.max_tokens = 4096 must be less than llm.context = 2048" in message
    assert "llm.max_tokens from environment ANTIPHON_LLM_MAX_TOKENS" in message
    assert "server.max_message_bytes" in refusal(None, {}, "session.max_append_bytes=30000000")


def test_settings_are_frozen_and_strict() -> None:
    with pytest.raises(ValidationError):
        Settings().server.port = 1  # type: ignore[misc]
    with pytest.raises(ValidationError):
        LlmSettings(context="2048")  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Settings(nonsense=1)  # type: ignore[call-arg]


def test_what_config_prints_sets_the_same_again() -> None:
    overrides = ["turn.silence=0.7", 'llm.instructions=Say "ja" – gern 🙂\n\\o/', "log.transcripts=true"]
    settings, origins = resolve(environ={}, overrides=overrides)
    text = to_toml(settings, origins)
    assert load(toml(text), {}) == settings
    assert tomllib.loads(text) == settings.model_dump()
    assert "# command line" in text


def test_every_setting_is_described_and_bounded() -> None:
    table = describe()
    for key, leaf in LEAVES.items():
        assert "_" not in leaf.section  # a variable's section ends at its first underscore
        assert leaf.description.endswith("."), key
        assert f"| `{key}` | `{json.dumps(leaf.default, ensure_ascii=False)}` |" in table
        assert leaf.range or leaf.field.annotation not in (int, float), f"{key} has no range"
        assert leaf.parse(leaf.default, text=False) == leaf.default, f"{key} has a default it would refuse"
    assert len(table.splitlines()) == len(LEAVES) + 2


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert Settings().weights.root == Path("/home/x/.cache/antiphon")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert Settings().weights.root == Path("/var/cache/antiphon")
    assert load(environ={}, overrides=["weights.cache=~/models"]).weights.root == Path("/home/x/models")
