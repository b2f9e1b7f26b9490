"""Which model a name in a request means. Pure.

A server has one model of each kind (recognisers may be two); clients know them by their own names or by
OpenAI's, which are aliases for the kind they name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..pipeline.errors import BadRequest, NotFound
from ..pipeline.settings import Settings

Kind = Literal["chat", "transcription", "speech", "embedding"]

ALIASES: Mapping[str, Kind] = {
    **dict.fromkeys(
        ("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-transcribe"), "transcription"
    ),
    **dict.fromkeys(("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15"), "speech"),
    **dict.fromkeys(
        ("text-embedding-3-small", "text-embedding-3-large", "text-embedding-ada-002"), "embedding"
    ),
}
"""OpenAI's names for the kinds of model that have no conversation partner's character; the name of a chat
model is an alias only where `llm.aliases` says so."""


@dataclass(frozen=True, slots=True)
class Served:
    id: str
    kind: Kind


class Models:
    """The models of a server: the first of a kind is what its aliases mean."""

    def __init__(self, served: tuple[Served, ...], aliases: Mapping[str, Kind] = ALIASES) -> None:
        self.served = served
        self._aliases = aliases

    @classmethod
    def of(cls, settings: Settings) -> Models:
        """The models that the settings name, and the names that `llm.aliases` adds."""
        # For files the larger recogniser comes first: it is what OpenAI's names mean.
        names: list[tuple[str, Kind]] = [
            (settings.llm.model, "chat"),
            (settings.asr.multilingual_model, "transcription"),
            (settings.asr.model, "transcription"),
            (settings.tts.backend, "speech"),
            (settings.embeddings.model, "embedding"),
        ]
        served = tuple(Served(name, kind) for name, kind in dict.fromkeys(names) if name)
        own = (name.strip() for name in settings.llm.aliases.split(","))
        return cls(served, {**ALIASES, **dict.fromkeys(filter(None, own), "chat")})

    def listed(self) -> list[str]:
        """Every name to offer: the models', and those that only this server knows."""
        own = [name for name in self._aliases if name not in ALIASES]
        return list(dict.fromkeys([*(served.id for served in self.served), *own]))

    def resolve(self, name: str, kind: Kind) -> str:
        """The id of the model that a request means.

        Raises NotFound (model_not_found) for an unknown name, BadRequest for a model of another kind.
        """
        served = self.get(name)
        if served.kind != kind:
            raise BadRequest(
                f"The model '{name}' does {served.kind}, not {kind}.", param="model", code="invalid_value"
            )
        return served.id

    def get(self, name: str) -> Served:
        """Raises NotFound (model_not_found)."""
        for served in self.served:
            if served.id == name:
                return served
        if kind := self._aliases.get(name):
            for served in self.served:
                if served.kind == kind:
                    return served
        known = ", ".join(served.id for served in self.served)
        raise NotFound(
            f"The model '{name}' does not exist here; there are: {known}.",
            param="model",
            code="model_not_found",
        )
