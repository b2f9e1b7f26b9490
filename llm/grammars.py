"""What a reply may look like, in the language of the engine's grammar library, and that it does. Pure.

    free text              no grammar
    a schema               JSON
    tools, one required    calls, each with the arguments of its tool's schema
    tools, the model's     calls, or JSON where a schema is given, else text in which every call is well formed
    choice
    tools, none may be     text without the mark of a call
    called

The engine generates unconstrained text, and says nothing, when it cannot compile a grammar or gives up on one.
So a grammar is compiled here first, by the same version of the library, and a Guard reads along.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Literal

from llguidance import LLMatcher, LLTokenizer

from ..pipeline.errors import BadRequest, EngineFailed
from . import structured, thinking, tools
from .base import JsonSchema, Tool, ToolUse

Thoughts = Literal["none", "possible", "begun"]
"""Whether a reply has thoughts before it: not, it may, the prompt has begun them."""

_ANY = "/(?s:.*)/"
_SPACE = "[ \\t\\n]{0,8}"
_NEWLINE = "\n"
_GAP = "[ \\t\\n]*"


def grammar(schema: JsonSchema | None, use: ToolUse, thoughts: Thoughts = "none") -> str | None:
    """The grammar of a reply, None for free text.

    Raises BadRequest for a schema that cannot be held to. Of tools that need not be called, it is a hint: one
    whose schema cannot be held to gets any object as arguments.
    """
    if schema is not None:
        structured.check(schema)
    rules = _rules(schema, use, thoughts)
    if rules is None:
        return None
    if thoughts == "none":
        rules += "start: reply\n"
    else:
        lead = "thoughts" if thoughts == "begun" else "(thoughts_open thoughts)?"
        rules += (
            f"start: {lead} reply\n"
            f"thoughts_open: {_literal(thinking.OPEN)}\n"
            f"thoughts: thoughts_end (/[ \\n]{{1,4}}/)?\n"
            f"thoughts_end[lazy]: {_ANY} {_literal(thinking.CLOSE)}\n"
        )
    return "%llguidance {}\n" + rules


def _rules(schema: JsonSchema | None, use: ToolUse, thoughts: Thoughts) -> str | None:
    answer = None if schema is None else structured.rule(schema)
    if not use.tools:
        return None if answer is None else f"reply: {answer}\n"
    if use.mode == "none":
        return f"reply: {answer}\n" if answer else f"reply: TEXT\nTEXT: {_ANY} & ~{_having(tools.OPEN)}\n"
    offered = [tool for tool in use.tools if use.name in (None, tool.name)]
    if not offered:
        raise BadRequest(f"There is no tool named '{use.name}'.", param="tool_choice")
    arguments = [f"arguments{number}: {_arguments(tool, use)}" for number, tool in enumerate(offered)]
    calls = " | ".join(
        f"{_literal(_opening(tool))} arguments{number} {_literal('}')}" for number, tool in enumerate(offered)
    )
    lines = [*arguments, f"call: {_literal(_NEWLINE)} ({calls}) {_literal(_NEWLINE + tools.CLOSE)}"]
    if use.mode == "required" or answer:
        more = f"({_literal(_NEWLINE)} tagged)*" if use.parallel else ""
        lines += [
            f"reply: tagged {more}" + (f" | {answer}" if answer and use.mode == "auto" else ""),
            f"tagged: {_literal(tools.OPEN)} call",
        ]
    else:
        lines += _free(offered, parallel=use.parallel, thoughts=thoughts)
    return "\n".join(lines) + "\n"


def _free(offered: Sequence[Tool], *, parallel: bool, thoughts: Thoughts) -> list[str]:
    """Text with calls in it, or a bare call (see tools.ToolParser), which other text must not begin like."""
    names = [_escaped(json.dumps(tool.name, ensure_ascii=False)) for tool in offered]
    fence = f"{_SPACE}(```(json)?{_SPACE})?"
    bare, again = (
        " | ".join(f"{head}{number} arguments{number}" for number in range(len(offered)))
        for head in ("BARE", "AGAIN")
    )
    begun = f'{_GAP}(```(json)?{_GAP})?\\{{{_GAP}"name"{_GAP}:{_GAP}({"|".join(names)})(?s:.*)'
    unlike = f" & ~/{_GAP}{_escaped(thinking.OPEN)}(?s:.*)/" if thoughts == "possible" else ""
    lines = [
        # A lazy rule takes its text to the first mark of a call, and then only a call can follow.
        f"reply: LEAD | first {'more* TEXT' if parallel else ''} | bare",
        "first: first_mark call",
        f"first_mark[lazy]: LEAD {_literal(tools.OPEN)}",
        f"LEAD: {_ANY} & ~/{begun}/{unlike}",
        f"bare: ({bare}) CLOSE" + (f" (({again}) CLOSE)* END" if parallel else " END"),
        f"CLOSE: /{_SPACE}\\}}/",
        f"END: /{_SPACE}(```)?{_SPACE}/",
    ]
    if parallel:
        lines += ["more: mark call", f"mark[lazy]: TEXT {_literal(tools.OPEN)}", f"TEXT: {_ANY}"]
    for number, name in enumerate(names):
        head = f'\\{{{_SPACE}"name"{_SPACE}:{_SPACE}{name}{_SPACE},{_SPACE}"arguments"{_SPACE}:{_SPACE}'
        lines.append(f"BARE{number}: /{fence}{head}/")
        if parallel:
            lines.append(f"AGAIN{number}: /{_SPACE}(```)?{fence}{head}/")
    return lines


def _arguments(tool: Tool, use: ToolUse) -> str:
    schema = dict(tool.parameters) or {"type": "object", "properties": {}, "additionalProperties": False}
    if schema.setdefault("type", "object") != "object":
        raise BadRequest(f"The parameters of tool '{tool.name}' must be an object's schema.", param="tools")
    try:
        structured.check(schema, subject=f"the parameters of tool '{tool.name}'", param="tools")
    except BadRequest:
        if use.mode == "required":
            raise
        schema = {"type": "object"}
    return structured.rule(schema)


def _opening(tool: Tool) -> str:
    return f'{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": '


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", "\\/").replace('\\"', '"').replace("\\-", "-")


def _having(mark: str) -> str:
    return f"/(?s:.*){_escaped(mark)}(?s:.*)/"


class Guard:
    """Reads a reply along with the engine, and knows whether it keeps to its grammar. A microsecond a byte.

    param: what in the request the grammar comes from.
    Raises BadRequest for a grammar that cannot be compiled; compiling takes milliseconds, for the largest
    schemas tenths of a second, and belongs on a thread.
    """

    def __init__(self, grammar: str, *, param: str = "response_format") -> None:
        self._matcher = LLMatcher(_bytes(), grammar, log_level=0)
        if self._matcher.is_error():
            reason = structured.reason(self._matcher.get_error())
            raise BadRequest(f"This cannot be held to as a whole: {reason}.", param=param)

    def push(self, text: str) -> None:
        """Raises EngineFailed when the reply leaves the grammar."""
        data = text.encode("utf-8", "surrogatepass")
        if self._matcher.try_consume_tokens(list(data)) < len(data):
            raise EngineFailed("the language model left the form that it was held to")

    def finish(self) -> None:
        """Raises EngineFailed when the reply is not whole."""
        if not self._matcher.is_accepting():
            raise EngineFailed("the language model stopped before the end of the form that it was held to")


@cache
def _bytes() -> LLTokenizer:
    """A vocabulary of the 256 bytes."""
    return LLTokenizer("byte")
