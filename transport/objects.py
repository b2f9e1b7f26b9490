"""Items and responses as JSON objects, both ways. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Callable

from ..pipeline.errors import BadRequest
from ..pipeline.events import Item, Part, Response, Usage
from . import schema
from .schema import Json
from .session_object import unsupported

PARTS = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio"),
    "assistant": ("output_text", "output_audio"),
}


def item_from(
    item: schema.Message | schema.FunctionCall | schema.FunctionCallOutput,
    at: str,
    new_id: Callable[[str], str],
) -> Item:
    """A client's item. at: its path in the event, for errors. Raises BadRequest."""
    match item:
        case schema.Message():
            parts = tuple(_part(c, item.role, f"{at}.content[{n}]") for n, c in enumerate(item.content))
            return Item(item.id or "", role=item.role, parts=parts)
        case schema.FunctionCall():
            if not _is_object(item.arguments):
                raise BadRequest(
                    "The arguments of a call are a JSON object, as text.",
                    code="invalid_value",
                    param=f"{at}.arguments",
                )
            return Item(
                item.id or "",
                "function_call",
                name=item.name,
                arguments=item.arguments,
                call_id=item.call_id or new_id("call"),
            )
        case schema.FunctionCallOutput():
            return Item(item.id or "", "function_call_output", call_id=item.call_id, output=item.output)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments or "{}"), dict)
    except (ValueError, RecursionError):
        return False


def _part(content: schema.Content, role: str, at: str) -> Part:
    """One piece of a message. Audio stands here as its transcript."""
    if content.type == "input_image":
        raise unsupported("Images are", at)
    kind = content.type
    if kind not in PARTS[role]:
        allowed = ", ".join(PARTS[role])
        raise BadRequest(
            f"A message of role '{role}' holds {allowed}; not {kind}.",
            code="invalid_value",
            param=f"{at}.type",
        )
    if kind in ("input_text", "output_text"):
        if content.text is None:
            raise BadRequest(
                f"Missing required parameter: '{at}.text'.",
                code="missing_required_parameter",
                param=f"{at}.text",
            )
        return Part(kind, content.text)
    if content.transcript is None:
        raise unsupported("Audio in an item, without its transcript, is", f"{at}.audio")
    return Part(kind, content.transcript)


def present(document: Json) -> Json:
    """Without its nulls: some clients take a null string for a fault."""
    return {key: value for key, value in document.items() if value is not None}


def item_object(item: Item) -> Json:
    head = {"id": item.id, "object": "realtime.item", "type": item.kind, "status": item.status}
    if item.kind == "message":
        return {**head, "role": item.role, "content": [_part_object(part) for part in item.parts]}
    rest = {"name": item.name, "call_id": item.call_id, "arguments": item.arguments, "output": item.output}
    return head | present(rest)


def _part_object(part: Part) -> Json:
    name = "text" if part.kind in ("input_text", "output_text") else "transcript"
    return present({"type": part.kind, name: part.text})


def status_details(response: Response) -> Json | None:
    if response.status in ("in_progress", "completed"):
        return None
    details: Json = {"type": response.status}
    if response.reason is not None:
        details["reason"] = response.reason
    if response.error is not None:
        error = response.error
        details["error"] = present({"type": error.type, "code": error.code, "message": error.message})
    return details


def usage_object(usage: Usage) -> Json:
    output = usage.output_tokens + usage.output_audio_tokens
    return {
        "total_tokens": usage.input_tokens + output,
        "input_tokens": usage.input_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.input_tokens,
            "audio_tokens": 0,
            "cached_tokens": usage.cached_tokens,
        },
        "output_token_details": {
            "text_tokens": usage.output_tokens,
            "audio_tokens": usage.output_audio_tokens,
        },
    }
