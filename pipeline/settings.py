"""One frozen, strict tree of settings, read once and passed down by section.

Four sources, each above the one before:

    defaults  ->  TOML file  ->  environment  ->  command line
                  antiphon.toml  ANTIPHON_SECTION_NAME  --set section.name=value

The file is the one named by `--config`, else ./antiphon.toml where there is one. A variable's section ends at
its first underscore, which no section's name holds: ANTIPHON_SERVER_MAX_SESSIONS is server.max_sessions. What
is wrong in key, type or range is a SettingsError that names the key, who said it and the nearest valid one;
nothing is ignored. TOML has types and they must fit; variables and the command line are text and are read
as what the setting is.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Le, MinLen
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from .errors import SettingsError

_STRICT = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
_PREFIX = "ANTIPHON_"

INSTRUCTIONS = (
    "You are a friendly voice assistant. Your answer is spoken aloud: "
    "answer in one or two short sentences of plain words."
)


class _Section(BaseModel):
    model_config = _STRICT


class ServerSettings(_Section):
    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes any free one.")
    max_sessions: int = Field(
        default=4, ge=1, le=1000, description="Conversations at a time; the next is refused."
    )
    drain_seconds: float = Field(
        default=20.0, ge=0, le=600, description="Seconds that running replies may still take after SIGTERM."
    )
    send_timeout: float = Field(
        default=15.0,
        ge=1,
        le=600,
        description="Seconds a client may leave output unread before it is closed.",
    )
    max_message_bytes: int = Field(
        default=33_554_432, ge=65_536, le=1_073_741_824, description="Largest websocket message, in bytes."
    )


class HttpSettings(_Section):
    max_body_bytes: int = Field(
        default=33_554_432, ge=1024, le=1_073_741_824, description="Largest JSON body, in bytes."
    )
    max_upload_bytes: int = Field(
        default=536_870_912, ge=1024, le=1_099_511_627_776, description="Largest uploaded file, in bytes."
    )
    max_audio_seconds: float = Field(
        default=14_400.0, ge=1, le=360_000, description="Longest uploaded recording, in seconds of sound."
    )
    max_requests: int = Field(
        default=64, ge=1, le=10_000, description="HTTP requests for models at a time; the next is refused."
    )
    read_timeout: float = Field(
        default=30.0, ge=1, le=600, description="Seconds that the next piece of a request's body may take."
    )
    cors_origins: str = Field(
        default="*", description="Origins whose browsers may call, with commas between; empty allows none."
    )


class AuthSettings(_Section):
    keys: str = Field(
        default="",
        description="File of the API keys' hashes; empty is antiphon/keys.json in $XDG_CONFIG_HOME or ~/.config.",
    )
    requests_per_minute: int = Field(
        default=0, ge=0, le=1_000_000, description="Requests a minute for each key; 0 for no limit."
    )
    audio_seconds_per_minute: int = Field(
        default=0,
        ge=0,
        le=100_000_000,
        description="Seconds of audio in and out, a minute for each key; 0 for no limit.",
    )
    sessions: int = Field(
        default=0, ge=0, le=100_000, description="Conversations at a time for each key; 0 for no limit."
    )

    @property
    def path(self) -> Path:
        """The file of the API keys' hashes."""
        if self.keys:
            return Path(self.keys).expanduser()
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "antiphon" / "keys.json"


class SessionSettings(_Section):
    max_append_bytes: int = Field(
        default=15_728_640,
        ge=1024,
        le=268_435_456,
        description="Largest decoded audio of one append, in bytes.",
    )
    max_seconds: float = Field(
        default=3600.0, ge=1, le=86_400, description="Longest conversation, in seconds."
    )
    resume_seconds: float = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="Seconds for which a session waits for a lost client that asked for it (?resume=true); "
        "0 for none.",
    )
    max_items: int = Field(default=1000, ge=2, le=100_000, description="Items a conversation may hold.")
    max_utterance_seconds: float = Field(
        default=120.0, ge=1, le=600, description="Longest turn of the user, in seconds of audio."
    )


class AsrSettings(_Section):
    backend: str = Field(
        default="ctranslate2", min_length=1, description="Recogniser, an entry point of antiphon.asr."
    )
    model: str = Field(
        default="whisper-tiny.en", min_length=1, description="Model for English, or a path to one."
    )
    multilingual_model: str = Field(
        default="whisper-base",
        min_length=1,
        description="Model for other languages and for files, or a path to one.",
    )
    language: str = Field(
        default="en",
        pattern="^[a-z]{2,3}$",
        examples=["en"],
        description="Language of a conversation that names none, as its ISO code.",
    )
    threads: int = Field(default=2, ge=1, le=256, description="CPU threads of the recogniser.")
    partial_interval: float = Field(
        default=0.6, ge=0.1, le=10, description="Seconds of speech between decodes while the user speaks."
    )


class VadSettings(_Section):
    model: str = Field(default="silero-vad", min_length=1, description="Speech detector, or a path to one.")
    threshold: float = Field(
        default=0.5, ge=0.05, le=0.95, description="Speech probability above which speech begins."
    )
    min_speech: float = Field(default=0.2, ge=0, le=2, description="Seconds of speech that make a turn.")
    prefix_padding: float = Field(
        default=0.3, ge=0.3, le=3, description="Seconds of audio kept from before the detected start."
    )


class LlmSettings(_Section):
    backend: str = Field(
        default="llamacpp",
        min_length=1,
        description="Language model's engine, an entry point of antiphon.llm.",
    )
    model: str = Field(
        default="qwen2.5-coder-0.5b-instruct", min_length=1, description="Model, or a path to a .gguf file."
    )
    context: int = Field(default=2048, ge=256, le=131_072, description="Tokens of context, for each slot.")
    slots: int = Field(default=4, ge=1, le=256, description="Completions at a time.")
    threads: int = Field(default=0, ge=0, le=512, description="CPU threads; 0 takes all cores.")
    batch: int = Field(
        default=8, ge=1, le=4096, description="Prompt tokens computed between looks for a cancel."
    )
    max_tokens: int = Field(default=160, ge=1, le=8192, description="Longest reply, in tokens.")
    temperature: float = Field(default=0.0, ge=0, le=2, description="Randomness of replies; 0 is greedy.")
    instructions: str = Field(
        default=INSTRUCTIONS, description="System prompt of a conversation that brings none of its own."
    )
    aliases: str = Field(
        default="", description="Other names that clients may call the model by, with commas between."
    )
    prefill: bool = Field(
        default=True, description="Read the prompt into the cache while the user still speaks."
    )

    @model_validator(mode="after")
    def _reply_fits(self) -> LlmSettings:
        if self.max_tokens >= self.context:
            raise ValueError(
                f"llm.max_tokens = {self.max_tokens} must be less than llm.context = {self.context}"
            )
        return self


class TtsSettings(_Section):
    backend: str = Field(
        default="hibari", min_length=1, description="Voice engine, an entry point of antiphon.tts."
    )
    voice: str = Field(default="heart", min_length=1, description="Voice of a conversation that names none.")


class EmbeddingsSettings(_Section):
    model: str = Field(
        default="",
        description="Embedding model, or a path to one; empty serves none. Known: all-minilm-l6-v2.",
    )


class ResponsesSettings(_Section):
    max_stored: int = Field(
        default=1000, ge=0, le=1_000_000, description="Responses kept for later requests; the oldest go."
    )
    max_stored_bytes: int = Field(
        default=67_108_864,
        ge=0,
        le=1_099_511_627_776,
        description="Memory that kept responses may take, in bytes.",
    )
    max_age: float = Field(
        default=86_400.0, ge=1, le=31_536_000, description="Seconds for which a response is kept."
    )
    max_background: int = Field(
        default=32, ge=0, le=10_000, description="Responses in the background at a time; the next is refused."
    )


class TurnSettings(_Section):
    silence: float = Field(
        default=0.5,
        ge=0.1,
        le=5,
        description="Seconds of silence that end the user's turn, where no probability says better.",
    )
    endpointing: Literal["probability", "silence"] = Field(
        default="probability",
        description="What ends a turn: a silence as long as the words make it likely, or always `silence`.",
    )
    quick: float = Field(
        default=0.2, ge=0.05, le=5, description="Seconds of silence after words that surely end a turn."
    )
    slow: float = Field(
        default=1.0, ge=0.1, le=10, description="Seconds of silence after words that surely do not."
    )
    speculate: bool = Field(
        default=True,
        description="Prepare the reply during that silence; false waits for the end of the turn first.",
    )


class OutputSettings(_Section):
    lead: float = Field(
        default=0.5, ge=0.1, le=10, description="Seconds of audio sent ahead of playback, at most."
    )


class SloSettings(_Section):
    voice_to_voice_ms: float = Field(
        default=6000.0,
        ge=100,
        le=600_000,
        description="Milliseconds from a user's last word to the reply, 95th percentile; a session that would "
        "break it is refused.",
    )


class WeightsSettings(_Section):
    cache: str = Field(
        default="", description="Folder of the model files; empty is antiphon in $XDG_CACHE_HOME or ~/.cache."
    )
    offline: bool = Field(default=False, description="Use only files that are here already.")

    @property
    def root(self) -> Path:
        """Folder of the model files."""
        if self.cache:
            return Path(self.cache).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon"


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe line logged."
    )
    format: Literal["text", "json"] = Field(
        default="text", description="Lines for people, or one JSON object a line."
    )
    transcripts: bool = Field(default=False, description="Let what was said and answered into the log.")


class Settings(_Section):
    """The whole tree. `Settings()` is the defaults; Settings(turn=TurnSettings(silence=0.2)) changes one."""

    server: ServerSettings = ServerSettings()
    http: HttpSettings = HttpSettings()
    auth: AuthSettings = AuthSettings()
    session: SessionSettings = SessionSettings()
    asr: AsrSettings = AsrSettings()
    vad: VadSettings = VadSettings()
    llm: LlmSettings = LlmSettings()
    tts: TtsSettings = TtsSettings()
    embeddings: EmbeddingsSettings = EmbeddingsSettings()
    responses: ResponsesSettings = ResponsesSettings()
    turn: TurnSettings = TurnSettings()
    output: OutputSettings = OutputSettings()
    slo: SloSettings = SloSettings()
    weights: WeightsSettings = WeightsSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _append_fits_a_message(self) -> Settings:
        # Base64 makes four bytes of three; the rest of the event has room in the 4 KiB.
        if self.session.max_append_bytes * 4 // 3 + 4096 > self.server.max_message_bytes:
            raise ValueError(
                f"session.max_append_bytes = {self.session.max_append_bytes} in base64 must fit "
                f"server.max_message_bytes = {self.server.max_message_bytes}"
            )
        return self


# --- the tree as a list ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting: where it is, what it may be, what it does."""

    section: str
    name: str
    field: FieldInfo

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        return f"{_PREFIX}{self.section}_{self.name}".upper()

    @property
    def default(self) -> Any:
        return self.field.default

    @property
    def description(self) -> str:
        return self.field.description or ""

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.field.annotation) if get_origin(self.field.annotation) is Literal else ()

    @property
    def range(self) -> tuple[float, float] | None:
        """(lowest, highest), both allowed; None where it is no number."""
        low = [rule.ge for rule in self.field.metadata if isinstance(rule, Ge)]
        high = [rule.le for rule in self.field.metadata if isinstance(rule, Le)]
        return (low[0], high[0]) if low and high else None  # pyright: ignore[reportReturnType]

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return " or ".join(map(json.dumps, self.choices))
        if self.field.annotation is bool:
            return "true or false"
        if self.range:
            kind = "an integer" if self.field.annotation is int else "a number"
            return f"{kind} from {self.range[0]} to {self.range[1]}"
        if any(isinstance(rule, MinLen) for rule in self.field.metadata):
            return "text, not empty"
        return f"text like {json.dumps(self.field.examples[0])}" if self.field.examples else "text"

    def parse(self, value: Any, *, text: bool) -> Any:
        """The value as this setting's type; `text` when it comes from a source without types.

        Raises ValidationError.
        """
        rules = TypeAdapter[Any](self.field.rebuild_annotation(), config=ConfigDict(allow_inf_nan=False))
        return rules.validate_python(value, strict=not text)

    def nearest(self, value: Any) -> Any:
        """The valid value nearest to a wrong one, None where there is no telling."""
        if self.choices:
            return max(self.choices, key=lambda choice: _likeness(choice, str(value)))
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            return None
        if self.range is None or isinstance(value, bool) or number != number:
            return None
        number = min(max(number, self.range[0]), self.range[1])
        return round(number) if self.field.annotation is int else number


def _leaves() -> Iterator[Leaf]:
    defaults = Settings()
    for section in Settings.model_fields:
        part: _Section = getattr(defaults, section)
        for name, field in type(part).model_fields.items():
            yield Leaf(section, name, field)


LEAVES: Mapping[str, Leaf] = {leaf.key: leaf for leaf in _leaves()}
"""Every setting by its key, `section.name`, in the tree's order."""


# --- reading --------------------------------------------------------------------------------------------


def load(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> Settings:
    """The effective settings; see `resolve`."""
    return resolve(config, environ, overrides)[0]


def resolve(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Sequence[str] = (),
) -> tuple[Settings, dict[str, str]]:
    """(the effective settings, for each key who set it: "default", the file, the variable, "command line").

    config: a TOML file that must be there; None takes ./antiphon.toml if it is.
    environ: None is this process's environment. overrides: "section.name=value", later ones first.
    Raises SettingsError.
    """
    origins = dict.fromkeys(LEAVES, "default")
    tree: dict[str, dict[str, Any]] = {section: {} for section in Settings.model_fields}
    given = [
        *_from_file(config),
        *_from_environment(os.environ if environ is None else environ),
        *_from_command_line(overrides),
    ]
    for key, value, origin, text in given:
        leaf = _find(key, origin)
        try:
            tree[leaf.section][leaf.name] = leaf.parse(value, text=text)
        except ValidationError:
            raise SettingsError(_refusal(leaf, value, origin)) from None
        origins[key] = origin
    try:
        return Settings.model_validate(tree), origins
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        blame = [f"{key} from {origin}" for key, origin in origins.items() if f"{key} " in message]
        raise SettingsError(f"{message} ({', '.join(blame)})") from None


_Given = tuple[str, Any, str, bool]
"""(key, value, origin, whether the value is untyped text)"""


def _from_file(config: Path | None) -> Iterator[_Given]:
    path = config or Path("antiphon.toml")
    if config is None and not path.exists():
        return
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: cannot be read as TOML: {error}") from None
    for section, table in tables.items():
        if not isinstance(table, dict) or (not table and section not in Settings.model_fields):
            yield section, table, str(path), False
            continue
        for name, value in table.items():  # pyright: ignore[reportUnknownVariableType]
            yield f"{section}.{name}", value, str(path), False


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for variable in sorted(environ):
        if variable.startswith(_PREFIX):
            key = variable.removeprefix(_PREFIX).lower().replace("_", ".", 1)
            yield key, environ[variable], f"environment {variable}", True


def _from_command_line(overrides: Sequence[str]) -> Iterator[_Given]:
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise SettingsError(f'"{override}" (command line) must be written section.name=value')
        yield key.strip(), value, "command line", True


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other).ratio()


def _find(key: str, origin: str) -> Leaf:
    if key in LEAVES:
        return LEAVES[key]
    name = key.rpartition(".")[2]
    near = max(
        LEAVES.values(), key=lambda leaf: max(_likeness(leaf.key, key), 0.9 * _likeness(leaf.name, name))
    )
    raise SettingsError(f'unknown setting "{key}" ({origin}); the nearest is {near.key} or {near.variable}')


def _refusal(leaf: Leaf, value: Any, origin: str) -> str:
    shown = json.dumps(value, default=str, ensure_ascii=False)
    nearest = leaf.nearest(value)
    hint = "" if nearest is None else f"; the nearest is {json.dumps(nearest)}"
    return f"{leaf.key} = {shown} ({origin}) must be {leaf.allowed}{hint}"


# --- writing --------------------------------------------------------------------------------------------


def to_toml(settings: Settings, origins: Mapping[str, str]) -> str:
    """The effective values as a TOML file that sets them again, with who set each as a comment."""
    lines: list[str] = []
    for section, values in settings.model_dump().items():
        lines += ["", f"[{section}]"]
        for name, value in values.items():
            # A JSON scalar is a TOML value, as long as no character outside ASCII is escaped in pairs.
            said = f"{name} = {json.dumps(value, ensure_ascii=False)}"
            lines.append(f"{said:<40} # {origins[f'{section}.{name}']}")
    return "\n".join(lines[1:]) + "\n"


def describe() -> str:
    """Every setting as a markdown table: key, default, what it may be, what it does."""
    rows = ["| setting | default | may be | what it does |", "|---|---|---|---|"]
    for leaf in LEAVES.values():
        default = json.dumps(leaf.default, ensure_ascii=False)
        rows.append(f"| `{leaf.key}` | `{default}` | {leaf.allowed} | {leaf.description} |")
    return "\n".join(rows) + "\n"
