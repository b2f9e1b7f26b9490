"""The functions that a model may call: what a session, a request and a backend say of them alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call. parameters: the JSON Schema of its arguments, an object's."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Which tools may, or must, be called.

    mode: "none" no call, "auto" the model decides, "required" at least one call.
    name: with "required", the one tool that must be called. parallel: more than one call in a reply.
    """

    tools: tuple[Tool, ...] = ()
    mode: Literal["none", "auto", "required"] = "auto"
    name: str | None = None
    parallel: bool = True
