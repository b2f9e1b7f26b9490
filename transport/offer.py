"""What this server gives every Realtime session, of its settings and its models."""

from __future__ import annotations

from ..pipeline.engines import Engines
from ..pipeline.events import Patience, SessionConfig, TurnPolicy
from ..pipeline.settings import Settings
from .session_object import Offer


def session_defaults(settings: Settings) -> SessionConfig:
    """What a session is before its client says anything."""
    return SessionConfig(
        instructions=settings.llm.instructions,
        voice=settings.tts.voice,
        language=settings.asr.language,
        vad_threshold=settings.vad.threshold,
        prefix_padding=settings.vad.prefix_padding,
        turn=_policy(settings),
    )


def _policy(settings: Settings) -> TurnPolicy:
    turn = settings.turn
    patience = Patience(turn.quick, turn.slow) if turn.endpointing == "probability" else None
    return TurnPolicy(silence=turn.silence, patience=patience, speculate=turn.speculate)


def offer_of(settings: Settings, engines: Engines) -> Offer:
    return Offer(
        defaults=session_defaults(settings),
        voices=engines.voice.voices,
        transcription_model=settings.asr.model,
        max_append_bytes=settings.session.max_append_bytes,
    )
