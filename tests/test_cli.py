"""The command line: where each command goes, what it prints, and with which status it ends."""

import argparse
import functools
import hashlib
import json
import logging
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from antiphon.pipeline import cli, logs
from antiphon.pipeline.catalog import LocalFile, Model, ModelFile
from antiphon.pipeline.errors import BadRequest
from antiphon.pipeline.settings import LogSettings, Settings


@pytest.fixture(autouse=True)
def _apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Away from this machine's settings and caches; the root logger is given back as it was."""
    monkeypatch.chdir(tmp_path)
    for variable in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch):
    """Put a function in the place of a command's body."""

    def put(module: str, name: str, function: object) -> None:
        made = ModuleType(f"antiphon.{module}")
        setattr(made, name, function)
        monkeypatch.setitem(sys.modules, f"antiphon.{module}", made)

    return put


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("antiphon 0.")


@pytest.mark.parametrize(
    "command",
    [
        *("serve", "talk", "bench", "bench latency", "bench asr", "config", "models"),
        *("keys", "keys add", "keys list", "keys revoke"),
    ],
)
def test_every_help_has_examples_that_parse(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([*command.split(), "--help"])
    assert ended.value.code == 0
    examples = capsys.readouterr().out.partition("examples:\n")[2].splitlines()
    assert examples
    for example in examples:
        words = example.partition("antiphon ")[2].split("#")[0].split("|")[0].split(">")[0].split()
        assert cli._parser().parse_args(words).command == command.split()[0]


@pytest.mark.parametrize("arguments", [[], ["sing"], ["serve", "--nonsense"], ["bench"], ["models"]])
def test_a_wrong_command_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


def test_config_prints_values_and_sources(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_TURN_SILENCE", "0.7")
    Path("antiphon.toml").write_text("[server]\nport = 1\n")
    assert cli.main(["config", "--set", "llm.slots=2"]) == 0
    printed = capsys.readouterr().out
    values = tomllib.loads(printed)
    assert (values["turn"]["silence"], values["server"]["port"], values["llm"]["slots"]) == (0.7, 1, 2)
    (line,) = [line for line in printed.splitlines() if line.startswith("silence")]
    assert line.endswith("# environment ANTIPHON_TURN_SILENCE")
    assert cli.main(["config", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["values"]["server"]["port"] == 1
    assert found["sources"]["server.port"] == "antiphon.toml"
    assert cli.main(["config", "--describe"]) == 0
    assert "| `turn.silence` | `0.5` |" in capsys.readouterr().out


def test_wrong_settings_end_with_2_and_one_line(capsys) -> None:
    assert cli.main(["serve", "--port", "99999"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('antiphon: server.port = "99999" (command line) must be an integer')


def test_serve_gets_the_settings(stand_in) -> None:
    served: list[Settings] = []
    stand_in("transport.server", "serve", lambda settings: served.append(settings) or 0)
    assert cli.main(["serve", "--host", "::1", "--port", "0", "--set", "server.max_sessions=2"]) == 0
    assert served[0].server.host == "::1"
    assert (served[0].server.port, served[0].server.max_sessions) == (0, 2)


def test_talk_gets_its_arguments(stand_in) -> None:
    got: list[argparse.Namespace] = []
    stand_in("benchmarks.talk", "main", lambda settings, args: got.append(args) or 1)
    assert cli.main(["talk", "q.wav", "--json", "--save", "r.wav", "--server", "ws://x"]) == 1
    assert (got[0].file, got[0].save, got[0].json, got[0].server) == (
        Path("q.wav"),
        Path("r.wav"),
        True,
        "ws://x",
    )
    cli.main(["talk", "q.wav"])
    assert (got[1].save, got[1].json, got[1].server) == (None, False, None)


def test_bench_gets_its_arguments(stand_in) -> None:
    got: list[argparse.Namespace] = []
    settings: list[Settings] = []
    stand_in("benchmarks.latency", "main", lambda s, args: settings.append(s) or got.append(args) or 0)
    stand_in("benchmarks.accuracy", "main", lambda s, args: got.append(args) or 0)
    words = "bench latency --audio d --turns 3 --serial --json --set turn.silence=0.7"
    assert cli.main(words.split()) == 0
    assert (got[0].audio, got[0].turns, got[0].serial, got[0].json) == (Path("d"), 3, True, True)
    assert settings[0].turn.silence == 0.7
    assert cli.main(["bench", "asr", "--limit", "5"]) == 0
    assert (got[1].audio, got[1].limit, got[1].json) == (Path("tests/data"), 5, False)


@pytest.mark.parametrize(("error", "status"), [(BadRequest("no sound"), 1), (KeyboardInterrupt(), 130)])
def test_a_failure_ends_with_its_status_and_no_traceback(stand_in, capsys, error, status: int) -> None:
    def fail(*_: object) -> int:
        raise error

    stand_in("benchmarks.talk", "main", fail)
    assert cli.main(["talk", "x.wav"]) == status
    assert capsys.readouterr().err == ("antiphon: no sound\n" if status == 1 else "")


def test_models(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source.bin"
    source.write_bytes(b"weights")
    file = ModelFile("model.bin", 7, hashlib.sha256(b"weights").hexdigest(), (LocalFile(str(source)),))
    catalog = {"m": Model("a test", "MIT", (file,))}
    monkeypatch.setattr(cli, "WeightStore", functools.partial(cli.WeightStore, catalog=catalog))

    def run(*words: str) -> tuple[int, str]:
        status = cli.main(["models", *words])
        return status, capsys.readouterr().out

    assert "absent" in run("list")[1]
    assert run("verify") == (0, "")
    assert run("verify", "m")[0] == 1
    assert run("fetch", "m") == (0, f"{tmp_path}/antiphon/m\n")
    assert "ready" in run("list")[1]
    assert run("verify") == (0, "m: every file is right\n")
    (tmp_path / "antiphon/m/model.bin").write_bytes(b"weighty")
    status, said = run("verify")
    assert status == 1
    assert "model.bin: sha256 is" in said
    source.unlink()
    assert run("fetch", "m")[0] == 2
    assert run("fetch", "nobody")[0] == 2


def test_fetch_without_names_takes_what_the_settings_name(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cli.WeightStore, "fetch", lambda store, name: asked.append(name) or name)
    assert cli.main(["models", "fetch", "--set", "asr.multilingual_model=whisper-tiny.en"]) == 0
    assert asked == ["whisper-tiny.en", "silero-vad", "qwen2.5-coder-0.5b-instruct"]


def test_a_reader_that_leaves_is_no_traceback() -> None:
    code = "import sys; from antiphon.pipeline.cli import main; sys.exit(main(['config', '--describe']))"
    command = f'{sys.executable} -c "{code}" | true'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment)
    assert ended.stderr == ""


def test_no_model_library_is_loaded_before_it_is_needed_and_its_threads_will_not_spin() -> None:
    code = (
        "import os, sys; from antiphon.pipeline.cli import main; main(['config', '--json']);"
        "print(sorted({'ctranslate2', 'xllamacpp', 'onnxruntime', 'numpy', 'starlette'} & set(sys.modules)));"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    )
    environment = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert ended.stdout.splitlines()[1:] == ["[]", "passive 300"], ended.stderr


def test_log_lines(capsys) -> None:
    logs.configure(LogSettings(format="json", level="warning"))
    log = logging.getLogger("antiphon.test")
    log.info("not this")
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("said %s", "ä\n")
    (line,) = capsys.readouterr().err.splitlines()
    record = json.loads(line)
    assert (record["level"], record["logger"], record["message"]) == ("error", "antiphon.test", "said ä\n")
    assert "ValueError: why" in record["exception"]
    logs.configure(LogSettings(level="debug"))
    log.debug("for people")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("DEBUG   antiphon.test: for people")


# --- keys -----------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path / "antiphon" / "keys.json"


def test_a_key_is_made_shown_once_listed_and_revoked(
    key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["keys", "add", "laptop", "--sessions", "2"]) == 0
    said = capsys.readouterr()
    secret = said.out.strip()
    assert secret.startswith("ak_")
    assert "laptop" in said.err
    assert secret not in said.err + key_file.read_text()
    assert key_file.stat().st_mode & 0o777 == 0o600

    assert cli.main(["keys", "list"]) == 0
    said = capsys.readouterr()
    assert "laptop" in said.out
    assert "sessions=2" in said.out
    assert secret not in said.out

    assert cli.main(["keys", "revoke", "laptop"]) == 0
    capsys.readouterr()
    assert cli.main(["keys", "list", "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)["keys"]
    assert (key["name"], key["sessions"], key["requests_per_minute"]) == ("laptop", 2, None)
    assert isinstance(key["revoked"], int)


def test_a_key_in_json(key_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["keys", "add", "ci", "--requests-per-minute", "60", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["requests_per_minute"] == 60
    assert made["secret"].startswith("ak_")
    assert cli.main(["keys", "revoke", made["id"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == made["id"]


def test_the_file_of_keys_is_a_setting(
    key_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "mine.json"
    assert cli.main(["keys", "add", "me", "--set", f"auth.keys={other}"]) == 0
    assert other.exists()
    assert not key_file.exists()


def test_a_key_that_is_not_there_cannot_be_revoked(
    key_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["keys", "revoke", "nobody"]) == 2
    assert "keys list" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["add"], ["add", ""], ["add", "a\nb"], ["add", "me", "--sessions", "-1"], ["revoke"], []]
)
def test_what_makes_no_key(words: list[str], key_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["keys", *words])
    assert ended.value.code == 2
    assert not key_file.exists()
