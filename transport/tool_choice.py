"""Tools as chat completions and responses both give them to the model. Pure.

The two write the same things differently; here is what they mean. A custom tool is a function of one string,
`input`. A schema that a client asked to be held to strictly is one to be checked, whether or not its tool comes
to be called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..llm.base import JsonSchema, Tool
from ..pipeline.errors import BadRequest

INPUT = "input"
"""The one argument of a custom tool."""


@dataclass(frozen=True, slots=True)
class Check:
    """A schema that must be enforceable, whether or not it comes to be used. subject: for the message."""

    schema: JsonSchema
    subject: str
    param: str


def function_tool(
    name: str, description: str | None, parameters: Mapping[str, Any] | None, *, strict: bool, at: str
) -> tuple[Tool, list[Check]]:
    """at: where the tool is, for errors."""
    parameters = parameters or {}
    subject = f"the parameters of function '{name}'"
    checks = [Check({"type": "object", **parameters}, subject, f"{at}.parameters")] if strict else []
    return Tool(name, description or "", parameters), checks


def custom_tool(
    name: str, description: str | None, grammar: tuple[str, str] | None, *, at: str
) -> tuple[Tool, list[Check]]:
    """grammar: its (syntax, definition). at: where that stands, for errors. Raises BadRequest for lark."""
    text: dict[str, Any] = {"type": "string"}
    about = description or ""
    checks: list[Check] = []
    if grammar is not None:
        syntax, definition = grammar
        if syntax != "regex":
            raise BadRequest(
                "Grammars of custom tools are supported as 'regex' only.",
                param=f"{at}.syntax",
                code="unsupported",
            )
        text["pattern"] = f"^(?:{definition})$"
        checks.append(Check(text, f"the input of custom tool '{name}'", f"{at}.definition"))
        about = f"{about}\nThe input matches the regular expression {definition}".strip()
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return Tool(name, about, parameters), checks
