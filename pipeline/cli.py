"""The command `antiphon`: reads the settings, then hands over to the part of the program that was asked for.

Each part is imported when its command runs, so `antiphon config` loads no model library. Exit status: 0 done;
1 it failed, or `models verify` found a wrong file; 2 the setup or the command is wrong; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from . import logs
from .errors import AntiphonError, SetupError
from .settings import Settings, describe, resolve, to_toml
from .threads import calm_openmp
from .weights import WeightStore


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status. argv: without the program's name, None for sys.argv's."""
    calm_openmp()
    args = _parser().parse_args(argv)
    try:
        settings, origins = resolve(args.config, overrides=args.overrides)
        logs.configure(settings.log)
        status = _run(args, settings, origins)
        sys.stdout.flush()
        return status
    except AntiphonError as error:
        print(f"antiphon: {error}", file=sys.stderr)
        return 2 if isinstance(error, SetupError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left; Python flushes once more when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


BENCHES = {
    "latency": "latency",
    "asr": "accuracy",
    "turns": "turns",
    "cancel": "cancel",
    "http": "http",
    "load": "load",
}
"""From what is measured to the module that measures it."""


def _run(args: argparse.Namespace, settings: Settings, origins: dict[str, str]) -> int:
    match args.command:
        case "serve":
            from ..transport.server import serve

            return serve(settings)
        case "talk":
            from ..benchmarks.talk import main as talk

            return talk(settings, args)
        case "bench":
            return import_module(f"..benchmarks.{BENCHES[args.bench]}", __package__).main(settings, args)
        case "models":
            return _models(args, settings)
        case "keys":
            return _keys(args, settings)
        case _:
            return _config(args, settings, origins)


def _config(args: argparse.Namespace, settings: Settings, origins: dict[str, str]) -> int:
    if args.describe:
        print(describe(), end="")
    elif args.json:
        print(json.dumps({"values": settings.model_dump(), "sources": origins}, ensure_ascii=False))
    else:
        print(to_toml(settings, origins), end="")
    return 0


def _models(args: argparse.Namespace, settings: Settings) -> int:
    bar = True if args.progress else None
    store = WeightStore(settings.weights.root, offline=settings.weights.offline, bar=bar)
    known = store.list()
    status = 0
    match args.action:
        case "list":
            for row in known:
                size = f"{row.model.size / 1e6:.0f} MB"
                print(f"{row.name:<28} {row.state:<10} {size:>7}  {row.model.license:<11} {row.model.about}")
            print(f"in {store.root}")
        case "fetch":
            meant = (settings.asr.model, settings.asr.multilingual_model, settings.vad.model)
            meant = (*meant, settings.llm.model, settings.embeddings.model)
            wanted = args.names or dict.fromkeys(filter(None, meant))
            for name in wanted:
                print(store.fetch(name))
        case _:
            for name in args.names or [row.name for row in known if row.state != "absent"]:
                wrong = store.verify(name)
                print(*(wrong or [f"{name}: every file is right"]), sep="\n")
                status = 1 if wrong else status
    return status


def _keys(args: argparse.Namespace, settings: Settings) -> int:
    from ..transport.keys import change, new_key, read

    path = settings.auth.path
    match args.action:
        case "add":
            key, secret = new_key(
                args.name,
                int(time.time()),
                requests_per_minute=args.requests_per_minute,
                audio_seconds_per_minute=args.audio_seconds_per_minute,
                sessions=args.sessions,
            )
            change(path, lambda ring: (ring.added(key), None))
            if args.json:
                print(json.dumps({**key.public(), "secret": secret}, ensure_ascii=False))
            else:
                print(secret)
                print(f"{key.id} of {key.name}; the secret is shown this once", file=sys.stderr)
        case "revoke":
            now = int(time.time())
            key = change(path, lambda ring: ring.revoked(args.id, now))
            if args.json:
                print(json.dumps(key.public(), ensure_ascii=False))
            else:
                print(f"{key.id} of {key.name} is revoked")
        case _:
            keys = read(path).keys
            if args.json:
                print(json.dumps({"keys": [key.public() for key in keys]}, ensure_ascii=False))
                return 0
            for key in keys:
                state = "good" if key.revoked is None else "revoked"
                created = datetime.fromtimestamp(key.created, UTC).date().isoformat()
                limits = " ".join(
                    f"{name}={value}"
                    for name in ("requests_per_minute", "audio_seconds_per_minute", "sessions")
                    if (value := getattr(key, name)) is not None
                )
                print(f"{key.id}  {state:<8} {created}  {key.name:<24} {limits}".rstrip())
            print(f"in {path}")
    return 0


# --- the grammar ----------------------------------------------------------------------------------------


_AUDIO_HELP = "a folder of recordings and their texts (default: %(default)s)"


def _recordings() -> Path:
    """The larger collection beside a checkout where there is one, else the clips of the tests."""
    beside = Path("../shared/speech/speech-en")
    return beside if beside.is_dir() else Path("tests/data")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="antiphon", description="Speech in, speech out, fast. `antiphon COMMAND --help` has examples."
    )
    parser.add_argument("--version", action="version", version=f"antiphon {version('antiphon')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = _command(
        commands,
        "serve",
        "answer speech with speech on a websocket",
        """
        antiphon serve
        antiphon serve --host 0.0.0.0 --port 9000
        ANTIPHON_LOG_FORMAT=json antiphon serve --config antiphon.toml --set llm.threads=4
        """,
    )
    _direct(serve, "--host", "server.host", "address to listen on")
    _direct(serve, "--port", "server.port", "port to listen on, 0 for any")

    talk = _command(
        commands,
        "talk",
        "ask a recorded question and save the spoken answer",
        """
        antiphon talk question.wav
        antiphon talk question.m4a --json --save reply.wav
        antiphon talk question.wav --server ws://127.0.0.1:8080
        """,
    )
    talk.add_argument("file", type=Path, help="a recording: WAV, FLAC, MP3, OGG or M4A")
    talk.add_argument("--json", action="store_true", help="print one JSON object, on the last line")
    talk.add_argument("--save", type=Path, metavar="OUT.wav", help="write the reply there")
    talk.add_argument("--server", metavar="URL", help="ask this server; without it, one is started")
    talk.add_argument("--key", metavar="ak_...", help="an API key of that server")

    bench = _command(
        commands,
        "bench",
        "measure this machine",
        """
        antiphon bench latency --turns 20 --serial
        antiphon bench asr --json
        """,
        settings=False,  # of its own commands: argparse would let their defaults win over what stands here
    )
    benches = bench.add_subparsers(dest="bench", required=True, metavar="WHAT")
    latency = _command(
        benches,
        "latency",
        "time from the last word of the user to the first sound of the reply",
        """
        antiphon bench latency --audio recordings/ --turns 20
        antiphon bench latency --audio recordings/ --turns 20 --serial --json
        """,
    )
    latency.add_argument("--audio", type=Path, default=_recordings(), help=_AUDIO_HELP)
    latency.add_argument("--turns", type=int, default=20, help="utterances to play (default %(default)s)")
    latency.add_argument("--serial", action="store_true", help="run the plain serial chain too, and compare")
    latency.add_argument("--json", action="store_true", help="print only the JSON object")
    asr = _command(
        benches,
        "asr",
        "word error rate and final latency, beside faster-whisper's",
        """
        antiphon bench asr --audio recordings/
        antiphon bench asr --audio recordings/ --limit 50 --json
        """,
    )
    asr.add_argument("--audio", type=Path, default=_recordings(), help=_AUDIO_HELP)
    asr.add_argument("--limit", type=int, help="recordings to take (default: all)")
    asr.add_argument("--json", action="store_true", help="print only the JSON object")
    turns = _command(
        benches,
        "turns",
        "how often a pause is taken for the end of a turn, and how long an end is waited for",
        """
        antiphon bench turns --audio recordings/
        antiphon bench turns --audio recordings/ --json --set turn.slow=1.5
        """,
    )
    beside = Path("../shared/speech")
    turns.add_argument(
        "--audio",
        type=Path,
        default=beside if beside.is_dir() else None,
        required=not beside.is_dir(),
        help="a folder with conversation/turns-en.jsonl, the labelled pauses (default: %(default)s)",
    )
    turns.add_argument("--json", action="store_true", help="print only the JSON object")
    cancel = _command(
        benches,
        "cancel",
        "time until the language model's slot is free after a cancel, as the engine sees it",
        """
        antiphon bench cancel --tries 20
        """,
    )
    cancel.add_argument("--tries", type=int, default=20, help="cancels of each kind (default %(default)s)")
    cancel.add_argument("--json", action="store_true", help="print only the JSON object")
    over_http = _command(
        benches,
        "http",
        "what the HTTP API costs, beside the engine called directly",
        """
        antiphon bench http
        antiphon bench http --repeats 20 --json
        """,
    )
    over_http.add_argument("--repeats", type=int, default=20, help="pairs of runs (default %(default)s)")
    over_http.add_argument("--tokens", type=int, default=32, help="of each reply (default %(default)s)")
    over_http.add_argument("--json", action="store_true", help="print only the JSON object")

    load = _command(
        benches,
        "load",
        "many conversations at once: who is let in, how long they wait, what is wasted",
        """
        antiphon bench load --sessions 1,2,4,8
        antiphon bench load --fake --sessions 100,1000 --json
        antiphon bench load --fake --sessions 400 --policy fifo
        """,
    )
    load.add_argument("--sessions", metavar="N,N", help="levels (default 1,2,4,8; with --fake 100,1000)")
    load.add_argument("--seconds", type=float, default=60.0, help="of each level (default %(default)s)")
    load.add_argument("--think", type=float, help="seconds between turns (default 3; with --fake 20)")
    load.add_argument("--audio", type=Path, default=_recordings(), help=_AUDIO_HELP)
    load.add_argument("--fake", action="store_true", help="models of known service times, not real ones")
    load.add_argument(
        "--policy", choices=("deadlines", "fifo"), default="deadlines", help="compare with a plain queue too"
    )
    load.add_argument("--json", action="store_true", help="print only the JSON object")

    config = _command(
        commands,
        "config",
        "print the effective settings and who set each",
        """
        antiphon config
        antiphon config --set turn.silence=0.7 > patient.toml
        antiphon config --json | jq .sources
        antiphon config --describe
        """,
    )
    config.add_argument("--json", action="store_true", help="print one JSON object: values, sources")
    config.add_argument("--describe", action="store_true", help="print what each setting is, as markdown")

    models = _command(
        commands,
        "models",
        "list, fetch and verify model files",
        """
        antiphon models list
        antiphon models fetch                   # what the settings name
        antiphon models fetch whisper-base --progress
        antiphon models verify                  # hash again what is here
        """,
    )
    models.add_argument("action", choices=("list", "fetch", "verify"))
    models.add_argument("names", nargs="*", metavar="NAME", help="models; without any, all that are meant")
    models.add_argument("--progress", action="store_true", help="draw bars even when stderr is no terminal")

    keys = _command(
        commands,
        "keys",
        "make, list and revoke the API keys of this server",
        """
        antiphon keys add laptop
        antiphon keys add ci --requests-per-minute 60 --json
        antiphon keys list
        antiphon keys revoke key_0123456789ab
        """,
        settings=False,
    )
    actions = keys.add_subparsers(dest="action", required=True, metavar="WHAT")
    add = _command(
        actions, "add", "make a key and print its secret, once", "antiphon keys add laptop --sessions 2"
    )
    add.add_argument("name", metavar="NAME", type=_name, help="who or what it is for")
    for flag, about in (
        ("--requests-per-minute", "instead of auth.requests_per_minute"),
        ("--audio-seconds-per-minute", "instead of auth.audio_seconds_per_minute"),
        ("--sessions", "conversations at a time, instead of auth.sessions"),
    ):
        add.add_argument(flag, type=_count, metavar="N", help=f"{about}; 0 for no limit")
    listed = _command(actions, "list", "the keys, without their secrets", "antiphon keys list --json")
    revoke = _command(actions, "revoke", "let a key in no more", "antiphon keys revoke laptop")
    revoke.add_argument("id", metavar="ID", help="of the key, or its name when no other has it")
    for action in (add, listed, revoke):
        action.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _name(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 64:
        raise argparse.ArgumentTypeError("a name is 1 to 64 printable characters")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0")
    return int(text)


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],  # pyright: ignore[reportPrivateUsage]
    name: str,
    about: str,
    examples: str,
    *,
    settings: bool = True,
) -> argparse.ArgumentParser:
    lines = "".join(f"  {line.strip()}\n" for line in examples.strip().splitlines())
    parser = commands.add_parser(
        name,
        help=about,
        description=about[0].upper() + about[1:] + ".",
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not settings:
        return parser
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (default: ./antiphon.toml)")
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.NAME=VALUE",
        help="one setting, above the file and the environment",
    )
    return parser


class _Override(argparse.Action):
    """A flag of its own for a setting; `const` is the setting's key."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, *_: object) -> None:
        namespace.overrides = [*namespace.overrides, f"{self.const}={values}"]


def _direct(parser: argparse.ArgumentParser, flag: str, key: str, about: str) -> None:
    parser.add_argument(
        flag,
        action=_Override,
        const=key,
        dest=argparse.SUPPRESS,
        metavar=flag.strip("-").upper(),
        help=f"{about} ({key})",
    )
