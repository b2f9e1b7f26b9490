"""The chat template of a model: a conversation as the one text that the model continues. Pure.

Templates are Jinja programs that come with the weights, written for the environment that the transformers
library gives them: its filters and functions, whitespace trimmed around blocks, loop controls. They run in a
sandbox all the same, and without a way to change what they are given.

The text of a conversation begins with the text of the conversation before its last turn, which the engine's
prefix cache lives on; nothing here depends on anything but the arguments, except a template that asks for
the date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..pipeline.errors import BadRequest, WeightsError
from .base import Message, Tool

OURS = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})
"""Variables that a caller cannot set."""


class _Refused(TemplateError):
    """What a template says by `raise_exception`."""


class ChatTemplate:
    """One model's template.

    source: Jinja. bos, eos: the texts of the tokens that begin and end a text. now: local time, for
    templates that state the date. Raises WeightsError for a source that is no template.
    """

    def __init__(self, source: str, *, bos: str = "", eos: str = "", now: Callable[[], datetime]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson  # Jinja's own escapes for HTML
        functions = cast("dict[str, Any]", environment.globals)
        functions["raise_exception"] = _raise
        functions["strftime_now"] = partial(_dated, now)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise WeightsError(f"the model's chat template cannot be read: {error.message}") from error
        self._tokens = {"bos_token": bos, "eos_token": eos}
        self.thinks = "<think>" in source or "</think>" in source
        """Whether the model may begin with thoughts between these marks."""

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of the reply to `messages`. variables: more of the template's own.

        Raises BadRequest (param "messages") for a conversation that the template refuses.
        """
        variables = variables or {}
        if taken := OURS & variables.keys():
            raise BadRequest(
                f"The chat template's variable '{min(taken)}' cannot be set.", param="chat_template_kwargs"
            )
        try:
            return self._template.render(
                **variables,
                **self._tokens,
                messages=[_message(message) for message in messages],
                tools=[_tool(tool) for tool in tools] or None,
                add_generation_prompt=True,
            )
        except _Refused as error:
            raise BadRequest(
                f"The model's chat template refuses these messages: {error.message}", param="messages"
            ) from error
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, ArithmeticError) as error:
            raise BadRequest(
                f"The model's chat template cannot render these messages ({type(error).__name__}).",
                param="messages",
            ) from error


def _message(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        said["name"] = message.name
    if message.tool_call_id is not None:
        said["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        said["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call.arguments)},
            }
            for call in message.tool_calls
        ]
    return said


def _arguments(text: str) -> Any:
    """A call's arguments as the object they are; templates write them as JSON themselves."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest("The arguments of a tool call must be a JSON object.", param="messages") from error
    if not isinstance(value, dict):
        raise BadRequest("The arguments of a tool call must be a JSON object.", param="messages")
    return value  # pyright: ignore[reportUnknownVariableType]


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def _tojson(value: Any, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **more)


def _dated(now: Callable[[], datetime], form: str) -> str:
    return now().strftime(form)


def _raise(message: str) -> str:
    raise _Refused(message)


class _Generation(Extension):
    """`{% generation %}`, which marks what the model says; to a prompt it makes no difference."""

    tags = {"generation"}  # noqa: RUF012  as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
