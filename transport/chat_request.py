"""What the body of a chat completion asks of the models. Pure.

    ChatBody --sounds--> recordings to be heard first
             --read----> Asked: a ChatRequest, how often it is run, how the answer is written

Every refusal names the member as a path (`messages[2].tool_call_id`). Things that the models know nothing of
are said in what they know: developer messages are system messages, deprecated functions are tools of which
one may be called, a custom tool is a function with one string, `input`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from ..llm.base import ChatRequest, JsonSchema, Limits, Message, Tool, ToolCall, ToolUse
from ..pipeline.errors import BadRequest
from .chat_schema import (
    Allowed,
    AssistantMessage,
    Audio,
    AudioPart,
    Call,
    ChatBody,
    Custom,
    CustomCall,
    FilePart,
    Function,
    FunctionCall,
    FunctionMessage,
    FunctionTool,
    GrammarFormat,
    ImagePart,
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedFunction,
    NamedTool,
    RefusalPart,
    TextPart,
    ToolMessage,
    UserMessage,
)
from .generation import sampling, stops, wants_usage
from .tool_choice import INPUT, Check, custom_tool, function_tool


@dataclass(frozen=True, slots=True)
class Sound:
    """A recording in a message. param: where it is. data: base64."""

    param: str
    data: str


@dataclass(frozen=True, slots=True)
class Asked:
    """request: of one choice, without an owner. form: the member that gave its schema.

    legacy: calls are answered as the deprecated function_call. customs: which tools are custom ones.
    speech: how the answer is to be spoken, if it is.
    """

    request: ChatRequest
    n: int
    stream: bool
    usage: bool
    logprobs: bool
    form: str
    legacy: bool
    customs: frozenset[str]
    checks: tuple[Check, ...]
    speech: Audio | None


def sounds(body: ChatBody) -> list[Sound]:
    """The recordings in the messages, in order."""
    return [
        Sound(_part(number, place), part.input_audio.data)
        for number, message in enumerate(body.messages)
        if isinstance(message, UserMessage) and not isinstance(message.content, str)
        for place, part in enumerate(message.content)
        if isinstance(part, AudioPart)
    ]


def read(
    body: ChatBody,
    *,
    vocabulary: int | None,
    heard: Mapping[str, str],
    recalled: Callable[[str], str | None],
) -> Asked:
    """What is asked. Raises BadRequest.

    vocabulary: token ids are below it, None where that is not known. heard: the text of each of `sounds`, by
    its param. recalled: what an answer's audio said, by its id.
    """
    if body.web_search_options is not None:
        raise _unsupported("web_search_options", "There is no web search here.")
    if body.top_logprobs is not None and not body.logprobs:
        raise _refused("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true.")
    schema, form = _form(body)
    legacy = bool(body.functions)
    tools, customs, checks = _tools(body)
    limits = Limits(
        max_tokens=body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        stop=stops(body),
        schema=schema,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    return Asked(
        request=ChatRequest(
            _Conversation(heard, recalled).read(body),
            "",
            limits,
            sampling(body, vocabulary),
            tools,
            _template(body),
        ),
        n=body.n or 1,
        stream=bool(body.stream),
        usage=wants_usage(body),
        logprobs=bool(body.logprobs),
        form=form,
        legacy=legacy,
        customs=customs,
        checks=checks,
        speech=_speech(body),
    )


def _refused(param: str, message: str) -> BadRequest:
    return BadRequest(message, param=param, code="invalid_value")


def _unsupported(param: str, message: str) -> BadRequest:
    return BadRequest(message, param=param, code="unsupported")


# --- messages -------------------------------------------------------------------------------------------


class _Conversation:
    """One body's messages as the model's."""

    def __init__(self, heard: Mapping[str, str], recalled: Callable[[str], str | None]) -> None:
        self._heard = heard
        self._recalled = recalled
        self._announced: set[str] = set()
        """Ids of the calls so far."""
        self._functions: dict[str, str] = {}
        """The id given to the last call of a deprecated function, by its name."""

    def read(self, body: ChatBody) -> Sequence[Message]:
        messages: list[Message] = []
        for number, message in enumerate(body.messages):
            at = f"messages[{number}]"
            match message:
                case UserMessage():
                    messages.append(Message("user", self._said(message, number), message.name))
                case AssistantMessage():
                    messages.append(self._assistant(message, at, number))
                case ToolMessage():
                    messages.append(self._answer(message, at))
                case FunctionMessage():
                    messages.append(self._function(message, at))
                case _:
                    messages.append(Message("system", _joined(message.content), message.name))
        return messages

    def _said(self, message: UserMessage, number: int) -> str:
        if isinstance(message.content, str):
            return message.content
        texts: list[str] = []
        for place, part in enumerate(message.content):
            at = _part(number, place)
            match part:
                case TextPart():
                    texts.append(part.text)
                case AudioPart():
                    texts.append(self._heard[at])
                case ImagePart():
                    raise _unsupported(at, "The model cannot see: image_url parts are not supported.")
                case FilePart():
                    raise _unsupported(at, "The model cannot read files: file parts are not supported.")
        return "\n".join(texts)

    def _assistant(self, message: AssistantMessage, at: str, number: int) -> Message:
        calls = [
            self._call(call, f"{at}.tool_calls[{place}]")
            for place, call in enumerate(message.tool_calls or ())
        ]
        if (function := message.function_call) is not None:
            id = f"function_{number}"
            _object(function.arguments, f"{at}.function_call.arguments")
            calls.append(ToolCall(id, function.name, function.arguments))
            self._functions[function.name] = id
        text = _joined(message.content) if message.content is not None else message.refusal
        if message.audio is not None and not text:
            text = self._recalled(message.audio.id)
            if text is None:
                raise _refused(
                    f"{at}.audio.id", "This audio is unknown, or has expired; send its transcript."
                )
        if text is None and not calls:
            raise _refused(
                f"{at}.content", "An assistant message has content, or tool_calls, or a function_call."
            )
        return Message("assistant", text or "", message.name, tuple(calls))

    def _call(self, call: Call, at: str) -> ToolCall:
        self._announced.add(call.id)
        match call:
            case FunctionCall():
                _object(call.function.arguments, f"{at}.function.arguments")
                return ToolCall(call.id, call.function.name, call.function.arguments)
            case CustomCall():
                arguments = json.dumps({INPUT: call.custom.input}, ensure_ascii=False)
                return ToolCall(call.id, call.custom.name, arguments)

    def _answer(self, message: ToolMessage, at: str) -> Message:
        if message.tool_call_id not in self._announced:
            raise _refused(
                f"{at}.tool_call_id",
                "Messages with role 'tool' must answer a call that an assistant message before them has in its "
                "'tool_calls'; none has this id.",
            )
        return Message("tool", _joined(message.content), tool_call_id=message.tool_call_id)

    def _function(self, message: FunctionMessage, at: str) -> Message:
        id = self._functions.get(message.name)
        if id is None:
            raise _refused(
                f"{at}.name",
                "Messages with role 'function' must answer a 'function_call' of an assistant message before "
                "them; none calls this function.",
            )
        return Message("tool", message.content or "", message.name, tool_call_id=id)


def _part(number: int, place: int) -> str:
    return f"messages[{number}].content[{place}]"


def _joined(content: str | Sequence[TextPart | RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _object(arguments: str, param: str) -> None:
    try:
        value: Any = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _refused(param, "The arguments of a call must be a JSON object, as text.")


# --- tools ----------------------------------------------------------------------------------------------


def _tools(body: ChatBody) -> tuple[ToolUse, frozenset[str], tuple[Check, ...]]:
    if body.functions:
        return _functions(body, body.functions)
    tools: list[Tool] = []
    customs: set[str] = set()
    checks: list[Check] = []
    for number, entry in enumerate(body.tools or ()):
        at = f"tools[{number}]"
        if isinstance(entry, FunctionTool):
            tools.append(_function(entry.function, f"{at}.function", checks))
        else:
            tools.append(_custom(entry.custom, f"{at}.custom", checks))
            customs.add(entry.custom.name)
    use = _use(body, tuple(tools), frozenset(customs))
    return use, frozenset(customs), tuple(checks)


def _functions(
    body: ChatBody, functions: Sequence[Function]
) -> tuple[ToolUse, frozenset[str], tuple[Check, ...]]:
    if body.tools:
        raise _refused("functions", "'functions' is deprecated, and not allowed beside 'tools'.")
    checks: list[Check] = []
    tools = tuple(
        _function(function, f"functions[{number}]", checks) for number, function in enumerate(functions)
    )
    choice = body.function_call
    if choice is None or isinstance(choice, str):
        use = ToolUse(tools, choice or "auto", parallel=False)
    else:
        if choice.name not in {tool.name for tool in tools}:
            raise _refused("function_call.name", "No function has this name.")
        use = ToolUse(tools, "required", choice.name, parallel=False)
    return use, frozenset(), tuple(checks)


def _function(function: Function, at: str, checks: list[Check]) -> Tool:
    tool, more = function_tool(
        function.name, function.description, function.parameters, strict=bool(function.strict), at=at
    )
    checks += more
    return tool


def _custom(custom: Custom, at: str, checks: list[Check]) -> Tool:
    grammar = custom.format.grammar if isinstance(custom.format, GrammarFormat) else None
    form = None if grammar is None else (grammar.syntax, grammar.definition)
    tool, more = custom_tool(custom.name, custom.description, form, at=f"{at}.format.grammar")
    checks += more
    return tool


def _use(body: ChatBody, tools: tuple[Tool, ...], customs: frozenset[str]) -> ToolUse:
    choice = body.tool_choice
    parallel = body.parallel_tool_calls is not False
    if not tools:
        if choice not in (None, "none", "auto"):
            raise _refused("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
        return ToolUse()
    if choice is None or isinstance(choice, str):
        return ToolUse(tools, choice or "auto", parallel=parallel)
    functions = {tool.name for tool in tools} - customs
    if isinstance(choice, Allowed):
        allowed = choice.allowed_tools
        names = {
            _known(tool, functions, customs, f"tool_choice.allowed_tools.tools[{number}]")
            for number, tool in enumerate(allowed.tools)
        }
        return ToolUse(tuple(tool for tool in tools if tool.name in names), allowed.mode, parallel=parallel)
    return ToolUse(tools, "required", _known(choice, functions, customs, "tool_choice"), parallel=parallel)


def _known(tool: NamedTool, functions: set[str], customs: frozenset[str], at: str) -> str:
    if isinstance(tool, NamedFunction):
        name, known, member = tool.function.name, functions, "function"
    else:
        name, known, member = tool.custom.name, customs, "custom"
    if name not in known:
        raise _refused(f"{at}.{member}.name", f"No {member} tool in 'tools' has this name.")
    return name


# --- the form of the answer -----------------------------------------------------------------------------


def _form(body: ChatBody) -> tuple[JsonSchema | None, str]:
    """(the schema of the answer, the member that gave it)"""
    forms: list[tuple[JsonSchema, str]] = []
    match body.response_format:
        case JsonObjectFormat():
            forms.append(({}, "response_format"))
        case JsonSchemaFormat(json_schema=named):
            forms.append((named.schema_ or {}, "response_format"))
        case _:
            pass
    if body.guided_json is not None:
        forms.append((_schema(body.guided_json, "guided_json"), "guided_json"))
    if (outputs := body.structured_outputs) is not None:
        for member in ("regex", "choice", "grammar", "structural_tag"):
            if getattr(outputs, member) is not None:
                raise _only_schemas(f"structured_outputs.{member}")
        if outputs.json_ is not None:
            forms.append((_schema(outputs.json_, "structured_outputs.json"), "structured_outputs.json"))
        if outputs.json_object:
            forms.append(({}, "structured_outputs.json_object"))
    for member in ("guided_regex", "guided_choice", "guided_grammar"):
        if getattr(body, member) is not None:
            raise _only_schemas(member)
    if len(forms) > 1:
        raise _refused(forms[1][1], f"An answer has one form; '{forms[0][1]}' gives another.")
    return forms[0] if forms else (None, "response_format")


def _only_schemas(param: str) -> BadRequest:
    return _unsupported(param, f"'{param}' is not supported; give the form of the answer as a JSON schema.")


def _schema(given: Mapping[str, Any] | str, param: str) -> Mapping[str, Any]:
    if not isinstance(given, str):
        return given
    try:
        value: Any = json.loads(given)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _refused(param, f"'{param}' must be a JSON schema, an object.")
    return cast("Mapping[str, Any]", value)


def _template(body: ChatBody) -> Mapping[str, Any]:
    """Variables for the chat template; one that does not use them is not troubled by them."""
    variables: dict[str, Any] = {}
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            variables["enable_thinking"] = False
    if body.verbosity is not None:
        variables["verbosity"] = body.verbosity
    return {**variables, **(body.chat_template_kwargs or {})}


def _speech(body: ChatBody) -> Audio | None:
    if "audio" not in (body.modalities or ()):
        return None
    if body.audio is None:
        raise BadRequest(
            "Missing required parameter: 'audio', for the modality 'audio'.",
            param="audio",
            code="missing_required_parameter",
        )
    return body.audio
