"""The session object of the Realtime protocol: what the client sees, and what it means for the pipeline.

An update is merged deeply into the object, the result is checked as a whole, and only then taken: an update
that fails anywhere changes nothing. Objects are immutable, so one that was announced can be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from ..pipeline.errors import BadRequest
from ..pipeline.events import Patience, SessionConfig, TurnPolicy
from . import schema
from .schema import Json
from .session_tools import tool_use

Kind = Literal["realtime", "transcription"]
"""Of a session: one that answers, or one that only writes down what it hears."""

LEAST_PREROLL = 0.3
"""Seconds before the detected start that the recogniser always hears, whatever the client asked for."""

OPENAI_VOICES = (
    "alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer",
    "verse",
)  # fmt: skip
"""Taken as other names of our default voice."""

EAGERNESS = {"high": Patience(0.15, 0.8), "low": Patience(0.4, 3.0)}
"""How long a semantic detector waits; `medium` and `auto` take the server's own patience."""

NULLABLE = (
    "turn_detection", "transcription", "noise_reduction", "idle_timeout_ms", "tracing", "prompt", "include",
)  # fmt: skip
"""Members for which null is a value; for the others it means the default."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What this server gives every session.

    defaults: the session's configuration before the client says anything. voices: names of our own.
    model, transcription_model: names for the wire. max_append_bytes: decoded, in one append.
    """

    defaults: SessionConfig
    voices: Sequence[str]
    model: str = "antiphon"
    transcription_model: str = "whisper"
    max_append_bytes: int = 15 * 2**20


@dataclass(frozen=True, slots=True)
class SessionObject:
    """The checked object and what follows from it.

    config: the same in the pipeline's terms. fixed_model: the client has named a model. kind: what the client
    sees of it; a session that only transcribes has the members of the other as well, at their defaults.
    """

    offer: Offer
    checked: schema.Session
    config: SessionConfig
    fixed_model: bool
    kind: Kind = "realtime"

    @classmethod
    def initial(cls, offer: Offer, model: str | None, kind: Kind = "realtime") -> SessionObject:
        """Before any update. model: as named in the URL, None if it was not."""
        document = _defaults(offer, model)
        if kind == "transcription":
            document["audio"]["input"]["transcription"] = {"model": offer.transcription_model}
        checked = schema.parse_session(document)
        return cls(offer, checked, _derive(checked, offer, kind), model is not None, kind)

    @classmethod
    def begun(
        cls, offer: Offer, model: str | None, preset: Mapping[str, Any] | None, kind: Kind = "realtime"
    ) -> SessionObject:
        """What a session begins with. preset: of the client's secret, as an update; its model and its type
        go first.

        Raises BadRequest that names the field.
        """
        if preset is None:
            return cls.initial(offer, model, kind)
        kind = "transcription" if preset.get("type") == "transcription" else "realtime"
        initial = cls.initial(offer, None if "model" in preset else model, kind)
        return initial.updated(dict(preset), spoke=False)

    def updated(self, update: Json, *, spoke: bool) -> SessionObject:
        """With a `session.update` merged in.

        spoke: the session has sent audio, so its voice stays. Raises BadRequest that names the field.
        """
        said = update.get("type")
        if said in ("realtime", "transcription") and said != self.kind:
            raise BadRequest(
                f"Passing a {said} session update event to a {self.kind} session is not allowed.",
                code="invalid_value",
                param="session.type",
            )
        if self.kind == "transcription":
            schema.check_transcription(update)
            update = {**update, "type": "realtime"}
        named = "model" in update and not self.fixed_model
        merged = _merge(self._document(), update, _defaults(self.offer, self.checked.model))
        checked = schema.parse_session(merged)
        if checked.model != self.checked.model and not named:
            raise BadRequest(
                f"The session's model is {self.checked.model!r} and stays so.",
                code="cannot_update_model",
                param="session.model",
            )
        check_modalities(checked.output_modalities, "session.output_modalities")
        check_prompt(checked.prompt, "session")
        if checked.include:
            raise unsupported("Additional output fields are", "session.include")
        if self.kind == "transcription" and checked.audio.input.transcription is None:
            raise BadRequest(
                "A transcription session transcribes; 'transcription' cannot be null.",
                code="invalid_value",
                param="session.audio.input.transcription",
            )
        self.voice(checked.audio.output.voice, "session.audio.output.voice", spoke=spoke)
        config = _derive(checked, self.offer, self.kind)
        return SessionObject(self.offer, checked, config, self.fixed_model or named, self.kind)

    def voice(self, wanted: str | schema.VoiceId, param: str, *, spoke: bool) -> str:
        """Our name for a voice. Raises BadRequest when there is none, or when another has spoken already."""
        name = wanted if isinstance(wanted, str) else wanted.id
        if name not in self.offer.voices and name not in OPENAI_VOICES:
            known = ", ".join([*self.offer.voices, *OPENAI_VOICES])
            raise BadRequest(
                f"Unknown voice {name!r:.80}; there are: {known}.", code="invalid_value", param=param
            )
        voice = _own_voice(wanted, self.offer)
        if spoke and voice != self.config.voice:
            raise BadRequest(
                "The voice cannot be changed once the session has spoken.",
                code="cannot_update_voice",
                param=param,
            )
        return voice

    def voice_name(self, voice: str) -> str:
        """What the client calls one of our voices."""
        said = self.checked.audio.output.voice
        name = said if isinstance(said, str) else said.id
        return name if voice == self.config.voice else voice

    def wire(self) -> Json:
        """As JSON, without what only a connection knows: the id, the end."""
        document = self._document()
        if self.kind == "realtime":
            return {**document, "object": "realtime.session"}
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "audio": {"input": document["audio"]["input"]},
            "include": document["include"],
        }

    def _document(self) -> Json:
        """All members, as an update may name them."""
        document = self.checked.model_dump(exclude_none=True)
        heard: Json = document["audio"]["input"]
        for name in ("transcription", "noise_reduction", "turn_detection"):
            heard.setdefault(name, None)
        document["audio"]["output"]["voice"] = self.voice_name(self.config.voice)
        return document | {name: document.get(name) for name in ("tracing", "prompt", "include")}


def unsupported(what: str, param: str) -> BadRequest:
    return BadRequest(f"{what} not supported by this server.", code="unsupported", param=param)


def check_modalities(modalities: Sequence[str], param: str) -> None:
    if len(modalities) != 1:
        raise BadRequest(
            f"Invalid modalities: {list(modalities)}. Supported combinations are: ['audio'] and ['text'].",
            code="invalid_value",
            param=param,
        )


def check_prompt(prompt: Json | None, at: str) -> None:
    if prompt is not None:
        raise unsupported("Stored prompts are", f"{at}.prompt")


def _derive(session: schema.Session, offer: Offer, kind: Kind) -> SessionConfig:
    base = offer.defaults
    policy = base.turn or TurnPolicy()
    threshold, padding = base.vad_threshold, base.prefix_padding
    match session.audio.input.turn_detection:
        case None:
            turn = None
        case schema.ServerVad() as vad:
            threshold, padding = vad.threshold, vad.prefix_padding_ms / 1000
            turn = replace(
                _policy(policy, vad),
                silence=vad.silence_duration_ms / 1000,
                patience=None,
                idle_timeout=_idle_timeout(vad),
            )
        case schema.SemanticVad() as vad:
            patience = EAGERNESS.get(vad.eagerness, policy.patience or Patience())
            turn = replace(_policy(policy, vad), patience=patience)
    answers = kind == "realtime"
    if turn is not None and not answers:
        turn = replace(turn, create_response=False, idle_timeout=None)
    transcription = session.audio.input.transcription
    return replace(
        base,
        instructions=session.instructions,
        modality=session.output_modalities[0],
        voice=_own_voice(session.audio.output.voice, offer),
        speed=session.audio.output.speed,
        language=_language(transcription) or base.language,
        transcribe=transcription is not None,
        vad_threshold=min(max(threshold, 0.01), 0.99),
        prefix_padding=max(LEAST_PREROLL, padding),
        turn=turn,
        max_output_tokens=None if session.max_output_tokens == "inf" else session.max_output_tokens,
        tools=tool_use(session.tools, session.tool_choice, session.parallel_tool_calls, "session"),
        answers=answers,
    )


def _policy(base: TurnPolicy, vad: schema.ServerVad | schema.SemanticVad) -> TurnPolicy:
    return replace(base, create_response=vad.create_response, interrupt_response=vad.interrupt_response)


def _idle_timeout(vad: schema.ServerVad) -> float | None:
    """Seconds. None where responses come only when they are asked for."""
    if vad.idle_timeout_ms is None or not vad.create_response:
        return None
    return vad.idle_timeout_ms / 1000


def _own_voice(wanted: str | schema.VoiceId, offer: Offer) -> str:
    name = wanted if isinstance(wanted, str) else wanted.id
    return name if name in offer.voices else offer.defaults.voice


def _language(transcription: schema.Transcription | None) -> str | None:
    """The one language asked for, without its region; None when there is none, or a choice."""
    if transcription is None:
        return None
    named = transcription.language
    if named is None and transcription.languages is not None and len(transcription.languages) == 1:
        named = transcription.languages[0]
    return None if named is None else named.partition("-")[0]


def _merge(current: Json, update: Json, defaults: Json) -> Json:
    """`update` laid over `current`. An object whose `type` changes is replaced, not mixed with the old."""
    merged = dict(current)
    for key, value in update.items():
        old = current.get(key)
        if value is None and key not in NULLABLE:
            merged.pop(key, None)
            if key in defaults:
                merged[key] = defaults[key]
        elif isinstance(value, dict) and isinstance(old, dict):
            new, old = cast("Json", value), cast("Json", old)
            same = new.get("type", old.get("type")) == old.get("type")
            merged[key] = _merge(old, new, defaults.get(key) or {}) if same else new
        else:
            merged[key] = value
    return merged


def _detection(base: SessionConfig, turn: TurnPolicy) -> Json:
    acts = {"create_response": turn.create_response, "interrupt_response": turn.interrupt_response}
    if turn.patience is not None:
        return {"type": "semantic_vad", "eagerness": "auto", **acts}
    return {
        "type": "server_vad",
        "threshold": base.vad_threshold,
        "prefix_padding_ms": round(base.prefix_padding * 1000),
        "silence_duration_ms": round(turn.silence * 1000),
        **acts,
    }


def _defaults(offer: Offer, model: str | None) -> Json:
    """The whole object before the client says anything."""
    base = offer.defaults
    detection = base.turn and _detection(base, base.turn)
    return {
        "type": "realtime",
        "model": model or offer.model,
        "output_modalities": [base.modality],
        "instructions": base.instructions,
        "max_output_tokens": base.max_output_tokens or "inf",
        "tools": [],
        "tool_choice": "auto",
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": offer.transcription_model} if base.transcribe else None,
                "turn_detection": detection,
            },
            "output": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "voice": base.voice,
                "speed": base.speed,
            },
        },
    }
