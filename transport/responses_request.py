"""What the body of a response asks of the models. Pure.

    ContextBody --own_items--> items as they are kept and listed, each with an id
    items of before + own items --read--> Asked: a ChatRequest

Items become the messages that the model knows: an assistant's calls belong to its message before them, what it
thought in earlier turns is left out, developer messages are system messages. Every refusal names the member as
a path (`input[2].call_id`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..llm.base import ChatRequest, JsonSchema, Limits, Message, Sampling, Tool, ToolCall, ToolUse
from ..pipeline.errors import BadRequest
from .generation import sampling, stops
from .responses_schema import (
    Allowed,
    Content,
    ContextBody,
    CustomCallItem,
    CustomOutputItem,
    CustomTool,
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    GrammarFormat,
    InputText,
    ItemReference,
    JsonObjectFormat,
    JsonSchemaFormat,
    MessageItem,
    NamedFunction,
    NamedTool,
    OtherPart,
    Part,
    ReasoningItem,
    Refusal,
    ResponsesBody,
)
from .tool_choice import INPUT, Check, custom_tool, function_tool

Json = Mapping[str, Any]

LOGPROBS = "message.output_text.logprobs"

PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
"""Of the ids of items, by their type."""


@dataclass(frozen=True, slots=True)
class Asked:
    """request: without an owner. customs: which tools are custom ones. checks: schemas to be held to."""

    request: ChatRequest
    customs: frozenset[str]
    checks: tuple[Check, ...]


def refused(param: str, message: str, code: str = "invalid_value") -> BadRequest:
    return BadRequest(message, param=param, code=code)


def read(body: ContextBody, before: Sequence[Json], own: Sequence[Json], *, vocabulary: int | None) -> Asked:
    """What is asked. Raises BadRequest.

    before: the items of the conversation so far; own: those of this body. vocabulary: token ids are below it.
    """
    for member in ("conversation", "prompt"):
        if getattr(body, member) is not None:
            raise refused(member, f"'{member}' is not supported here.", "unsupported")
    use, customs, checks = _tools(body)
    schema, of_format = _form(body)
    limits, drawn = Limits(schema=schema), Sampling()
    if isinstance(body, ResponsesBody):
        limits, drawn = _limits(body, schema), sampling(body, vocabulary)
    request = ChatRequest(_messages(body.instructions, before, own), "", limits, drawn, use, _template(body))
    return Asked(request, customs, (*checks, *of_format))


def _limits(body: ResponsesBody, schema: JsonSchema | None) -> Limits:
    if body.n not in (None, 1):
        raise refused("n", "A response is one answer; 'n' is not supported here.", "unsupported")
    told = LOGPROBS in (body.include or ())
    if body.top_logprobs and not told:
        raise refused("top_logprobs", f"'top_logprobs' is only allowed when 'include' has '{LOGPROBS}'.")
    return Limits(
        max_tokens=body.max_output_tokens,
        stop=stops(body),
        schema=schema,
        logprobs=(body.top_logprobs or 0) if told else None,
    )


# --- items ----------------------------------------------------------------------------------------------


def own_items(
    body: ContextBody, new_id: Callable[[str], str], find: Callable[[str], Json | None]
) -> tuple[Json, ...]:
    """The items of a body's input as JSON objects, each with an id; references are what they refer to.

    find: a kept item by its id. Raises BadRequest.
    """
    given = body.input
    if given is None:
        return ()
    if isinstance(given, str):
        content = [{"type": "input_text", "text": given}]
        return (
            {
                "id": new_id("msg"),
                "type": "message",
                "role": "user",
                "status": "completed",
                "content": content,
            },
        )
    found: list[Json] = []
    for number, item in enumerate(given):
        at = f"input[{number}]"
        if isinstance(item, ItemReference):
            kept = find(item.id)
            if kept is None:
                raise refused(
                    f"{at}.id",
                    "No item with this id is kept here; items are kept with the responses that are stored.",
                    "item_not_found",
                )
            found.append(kept)
            continue
        document = _document(item, at)
        kind = document["type"]
        head = {"id": item.id or new_id(PREFIXES[kind]), "type": kind}
        found.append({**head, "status": item.status or "completed", **document})
    return tuple(found)


def _document(
    item: MessageItem
    | FunctionCallItem
    | FunctionOutputItem
    | CustomCallItem
    | CustomOutputItem
    | ReasoningItem,
    at: str,
) -> dict[str, Any]:
    match item:
        case MessageItem():
            return {"type": "message", "role": item.role, "content": _content(item, f"{at}.content")}
        case FunctionCallItem():
            if item.status != "incomplete":
                _object(item.arguments, f"{at}.arguments")
            return {
                "type": item.type,
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
            }
        case CustomCallItem():
            return {"type": item.type, "call_id": item.call_id, "name": item.name, "input": item.input}
        case FunctionOutputItem() | CustomOutputItem():
            output = item.output
            if not isinstance(output, str):
                output = list(_parts(output, f"{at}.output", assistant=False))
            return {"type": item.type, "call_id": item.call_id, "output": output}
        case ReasoningItem():
            thoughts: dict[str, Any] = {
                "type": "reasoning",
                "summary": [part.model_dump() for part in item.summary or ()],
            }
            if item.content is not None:
                thoughts["content"] = [part.model_dump() for part in item.content]
            if item.encrypted_content is not None:
                thoughts["encrypted_content"] = item.encrypted_content
            return thoughts


def _content(item: MessageItem, at: str) -> list[Json]:
    content: Content = item.content
    if isinstance(content, str):
        content = [InputText(type="input_text", text=content)]
    return list(_parts(content, at, assistant=item.role == "assistant"))


def _parts(content: Sequence[Part], at: str, *, assistant: bool) -> Iterator[Json]:
    for number, part in enumerate(content):
        match part:
            case OtherPart():
                what = {"input_image": "see", "input_file": "read files", "input_audio": "hear"}[part.type]
                raise refused(
                    f"{at}[{number}]",
                    f"The model cannot {what}: {part.type} parts are not supported.",
                    "unsupported",
                )
            case Refusal() if assistant:
                yield {"type": "refusal", "refusal": part.refusal}
            case Refusal():
                raise refused(f"{at}[{number}]", "Only an assistant's message holds a refusal.")
            case _ if assistant:
                yield {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
            case _:
                yield {"type": "input_text", "text": part.text}


def _object(arguments: str, param: str) -> None:
    if not _is_object(arguments):
        raise refused(param, "The arguments of a call must be a JSON object, as text.")


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        return False


# --- messages -------------------------------------------------------------------------------------------


def _messages(instructions: str | None, before: Sequence[Json], own: Sequence[Json]) -> list[Message]:
    if not before and not own:
        raise refused("input", "Missing required parameter: 'input'.", "missing_required_parameter")
    messages = [] if instructions is None else [Message("system", instructions)]
    announced: set[str] = set()
    for number, item in enumerate((*before, *own)):
        match item["type"]:
            case "message":
                role = "system" if item["role"] in ("system", "developer") else item["role"]
                messages.append(Message(role, _text(item["content"])))
            case "function_call" | "custom_tool_call":
                if (call := _call(item)) is not None:
                    announced.add(call.id)
                    _append_call(messages, call)
            case "function_call_output" | "custom_tool_call_output":
                if item["call_id"] not in announced:
                    raise refused(
                        f"input[{number - len(before)}].call_id",
                        f"No tool call found for the output of the call '{item['call_id']:.100}'.",
                    )
                messages.append(Message("tool", _text(item["output"]), tool_call_id=item["call_id"]))
            case _:
                pass  # Templates leave the thoughts of earlier turns out, and so does what stands here.
    return messages


def _text(content: str | Sequence[Json]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content)


def _call(item: Json) -> ToolCall | None:
    """The call of an item, None for one that was cut off before it was whole: nobody can have answered it."""
    if item["type"] == "custom_tool_call":
        arguments = json.dumps({INPUT: item["input"]}, ensure_ascii=False)
    else:
        arguments = item["arguments"]
        if item["status"] == "incomplete" and not _is_object(arguments):
            return None
    return ToolCall(item["call_id"], item["name"], arguments)


def _append_call(messages: list[Message], call: ToolCall) -> None:
    last = messages[-1] if messages else None
    if last is not None and last.role == "assistant":
        messages[-1] = replace(last, tool_calls=(*last.tool_calls, call))
    else:
        messages.append(Message("assistant", "", tool_calls=(call,)))


def shorter(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """The messages with ever more of their oldest turns left out, the least first; the last turn stays.

    A turn begins with what the user says. System messages before the first one stay.
    """
    begins = [number for number, message in enumerate(messages) if message.role == "user"]
    head = messages[: begins[0]] if begins else ()
    head = [message for message in head if message.role == "system"]
    return [[*head, *messages[begin:]] for begin in begins[1:]]


# --- tools ----------------------------------------------------------------------------------------------


def _tools(body: ContextBody) -> tuple[ToolUse, frozenset[str], list[Check]]:
    tools: list[Tool] = []
    customs: set[str] = set()
    checks: list[Check] = []
    for number, entry in enumerate(body.tools or ()):
        at = f"tools[{number}]"
        match entry:
            case FunctionTool():
                tool, more = function_tool(
                    entry.name, entry.description, entry.parameters, strict=bool(entry.strict), at=at
                )
            case CustomTool():
                form = entry.format
                grammar = (form.syntax, form.definition) if isinstance(form, GrammarFormat) else None
                tool, more = custom_tool(entry.name, entry.description, grammar, at=f"{at}.format")
                customs.add(tool.name)
            case _:
                raise refused(
                    f"{at}.type",
                    f"Hosted tools are not offered here: '{entry.type}'; tools are functions and custom tools.",
                    "unsupported",
                )
        tools.append(tool)
        checks += more
    return _use(body, tuple(tools), frozenset(customs)), frozenset(customs), checks


def _use(body: ContextBody, tools: tuple[Tool, ...], customs: frozenset[str]) -> ToolUse:
    choice = body.tool_choice
    parallel = body.parallel_tool_calls is not False
    if not tools:
        if choice not in (None, "none", "auto"):
            raise refused("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
        return ToolUse()
    if choice is None or isinstance(choice, str):
        return ToolUse(tools, choice or "auto", parallel=parallel)
    functions = {tool.name for tool in tools} - customs
    if isinstance(choice, Allowed):
        names = {
            _known(tool, functions, customs, f"tool_choice.tools[{number}]")
            for number, tool in enumerate(choice.tools)
        }
        return ToolUse(tuple(tool for tool in tools if tool.name in names), choice.mode, parallel=parallel)
    return ToolUse(tools, "required", _known(choice, functions, customs, "tool_choice"), parallel=parallel)


def _known(tool: NamedTool, functions: set[str], customs: frozenset[str], at: str) -> str:
    known = functions if isinstance(tool, NamedFunction) else customs
    if tool.name not in known:
        raise refused(f"{at}.name", f"No {tool.type} tool in 'tools' has this name.")
    return tool.name


# --- the form of the answer -----------------------------------------------------------------------------


def _form(body: ContextBody) -> tuple[JsonSchema | None, list[Check]]:
    match body.text.format if body.text is not None else None:
        case JsonObjectFormat():
            return {}, []
        case JsonSchemaFormat(schema_=schema, name=name):
            return schema, [Check(schema, f"text.format '{name}'", "text.format.schema")]
        case _:
            return None, []


def _template(body: ContextBody) -> Mapping[str, Any]:
    """Variables for the chat template; one that does not use them is not troubled by them."""
    variables: dict[str, Any] = {}
    if body.reasoning is not None and (effort := body.reasoning.effort) is not None:
        variables["reasoning_effort"] = effort
        if effort == "none":
            variables["enable_thinking"] = False
    if body.text is not None and body.text.verbosity is not None:
        variables["verbosity"] = body.text.verbosity
    return {**variables, **(body.chat_template_kwargs or {})}
