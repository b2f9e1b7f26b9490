"""A response: what the model gives, as OpenAI's events and as the response object. Pure.

    begin   response.created, response.in_progress            (response.queued for one that waits first)
    push    output_item.added, [content_part.added,] deltas, … done, [content_part.done,] output_item.done
    finish  response.completed, or response.incomplete
    fail    error, response.failed

One item of the output is open at a time: thoughts, then text, then calls one after the other. `document` is the
response object as it is at any time; the answer without a stream is what it is at the end. Events are
numbered from 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..llm.base import Delta, FinishReason, TokenLogprob
from ..pipeline.errors import AntiphonError, BadRequest, Overloaded, RateLimited
from ..pipeline.events import Usage
from .chat_encoder import token_entry
from .custom_tools import InputReader
from .generation import tier
from .responses_schema import (
    HostedTool,
    JsonObjectFormat,
    JsonSchemaFormat,
    ResponsesBody,
    tool_object,
)

Json = dict[str, Any]
Kind = Literal["reasoning", "message", "function_call", "custom_tool_call"]

DELTAS = {
    "reasoning": ("response.reasoning_text", "text"),
    "message": ("response.output_text", "text"),
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
"""Of each kind of item: what its events are called, and the member that has the whole in the last of them."""

PREFIXES: Mapping[Kind, str] = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}


def opening(body: ResponsesBody, id: str, created: int) -> Json:
    """The response object before anything has happened. created: Unix seconds."""
    reasoning = body.reasoning
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": bool(body.background),
        "completed_at": None,
        "error": None,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": body.presence_penalty or 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "prompt_cache_retention": body.prompt_cache_retention,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": _tier(body.service_tier),
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _text(body),
        "tool_choice": _choice(body),
        "tools": [tool_object(tool) for tool in body.tools or () if not isinstance(tool, HostedTool)],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _tier(asked: str | None) -> str:
    """The tier that was used: of those left to the server, the one that there is."""
    return "default" if asked in (None, "auto") else tier(asked) or "default"


def _text(body: ResponsesBody) -> Json:
    config = body.text
    said: Json = {"format": {"type": "text"}}
    match config.format if config else None:
        case JsonObjectFormat():
            said["format"] = {"type": "json_object"}
        case JsonSchemaFormat() as named:
            said["format"] = {
                "type": "json_schema",
                "name": named.name,
                "description": named.description,
                "schema": named.schema_,
                "strict": named.strict,
            }
        case _:
            pass
    if config and config.verbosity:
        said["verbosity"] = config.verbosity
    return said


def _choice(body: ResponsesBody) -> str | Json:
    choice = body.tool_choice
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return choice.model_dump()


# --- items ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Item:
    """An item of the output while it is written. reader: of a custom tool's call."""

    kind: Kind
    id: str
    index: int
    call_id: str = ""
    name: str = ""
    reader: InputReader | None = None
    pieces: list[str] = field(default_factory=list[str])
    logprobs: list[Json] = field(default_factory=list[Json])

    @property
    def whole(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> Json:
        """The one part of its content, as it is so far."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.whole}
        return {
            "type": "output_text",
            "annotations": [],
            "logprobs": list(self.logprobs),
            "text": self.whole,
        }

    def document(self, status: str) -> Json:
        head: Json = {"id": self.id, "type": self.kind, "status": status}
        content = [] if status == "in_progress" else [self.part]
        match self.kind:
            case "reasoning":
                return {**head, "summary": [], "content": content}
            case "message":
                return {**head, "role": "assistant", "content": content}
            case "function_call":
                return {**head, "call_id": self.call_id, "name": self.name, "arguments": self.whole}
            case "custom_tool_call":
                return {**head, "call_id": self.call_id, "name": self.name, "input": self.whole}

    @property
    def in_parts(self) -> bool:
        return self.kind in ("reasoning", "message")

    def at(self) -> Json:
        where: Json = {"item_id": self.id, "output_index": self.index}
        return {**where, "content_index": 0} if self.in_parts else where


# --- the response ---------------------------------------------------------------------------------------


class ResponseEncoder:
    """One response's. Its pieces go in as they come, and come out as events.

    document: as of `opening`. new_id: "msg" to "msg_…". customs: which tools are custom ones.
    logprobs: whether they are told of the text.
    """

    def __init__(
        self,
        document: Json,
        *,
        new_id: Callable[[str], str],
        customs: frozenset[str] = frozenset(),
        logprobs: bool = False,
    ) -> None:
        self._document = document
        self._new_id = new_id
        self._customs = customs
        self._logprobs = logprobs
        self._output: list[Json] = []
        self._item: _Item | None = None
        self._count = 0
        self._thoughts: list[str] = []
        self._reason: FinishReason = "stop"
        self._usage: Usage | None = None

    @property
    def document(self) -> Json:
        """The response object as it is now; nobody changes it later."""
        return {**self._document, "output": list(self._output)}

    @property
    def thoughts(self) -> str:
        """What was thought so far."""
        return "".join(self._thoughts)

    @property
    def events(self) -> int:
        """How many there were so far, which is the number of the next one."""
        return self._count

    def queue(self) -> list[Json]:
        """The beginning of a response that waits for its turn; `begin` then tells of that."""
        self._document["status"] = "queued"
        return [self._whole("response.created"), self._whole("response.queued")]

    def begin(self) -> list[Json]:
        self._document["status"] = "in_progress"
        begun = [] if self._count else [self._whole("response.created")]
        return [*begun, self._whole("response.in_progress")]

    def push(self, delta: Delta) -> list[Json]:
        """The events of the next piece."""
        events: list[Json] = []
        if delta.reasoning:
            self._thoughts.append(delta.reasoning)
            events += self._write("reasoning", delta.reasoning)
        if delta.text:
            events += self._write("message", delta.text, _of_text(delta) if self._logprobs else ())
        for call in delta.calls:
            if call.id:
                custom = call.name in self._customs
                events += self._open(
                    "custom_tool_call" if custom else "function_call", call_id=call.id, name=call.name
                )
            item = self._item
            if item is not None and call.arguments:
                piece = item.reader.push(call.arguments) if item.reader else call.arguments
                events += self._delta(item, piece)
        if delta.finish_reason is not None:
            self._reason = delta.finish_reason
        if delta.usage is not None:
            self._usage = delta.usage
        return events

    def finish(self, now: float, *, reasoning: int = 0) -> list[Json]:
        """The end, as the last piece said it. now: Unix seconds. reasoning: tokens of `thoughts`."""
        cut = self._reason == "length"
        events = self._close("incomplete" if cut else "completed")
        if not cut and not any(item["type"] != "reasoning" for item in self._output):
            # Nothing said is a message too: clients look for one.
            events += [*self._open("message"), *self._close("completed")]
        self._document["usage"] = _usage(self._usage or Usage(), reasoning)
        if cut:
            self._document["status"] = "incomplete"
            self._document["incomplete_details"] = {"reason": "max_output_tokens"}
            return [*events, self._whole("response.incomplete")]
        self._document["status"] = "completed"
        self._document["completed_at"] = int(now)
        return [*events, self._whole("response.completed")]

    def fail(self, error: AntiphonError) -> list[Json]:
        """The end after an error; what was said until then stays."""
        events = [*self._close("incomplete"), self._error(error)]
        self._document["status"] = "failed"
        self._document["error"] = {"code": _code(error), "message": error.message}
        return [*events, self._whole("response.failed")]

    def cancel(self) -> list[Json]:
        """The end of one that was cancelled, of which OpenAI's events know nothing but an error."""
        events = self._close("incomplete")
        self._document["status"] = "cancelled"
        cancelled = AntiphonError("The response was cancelled.", code="response_cancelled")
        return [*events, self._error(cancelled)]

    # --- items --------------------------------------------------------------------------------------------

    def _write(self, kind: Kind, piece: str, tokens: tuple[TokenLogprob, ...] = ()) -> list[Json]:
        """A piece of thoughts or text, in the item that is open if it is of that kind."""
        events: list[Json] = []
        item = self._item
        if item is None or item.kind != kind:
            events += self._open(kind)
            item = self._item
        return events if item is None else [*events, *self._delta(item, piece, tokens)]

    def _open(self, kind: Kind, *, call_id: str = "", name: str = "") -> list[Json]:
        events = self._close("completed")
        reader = InputReader() if kind == "custom_tool_call" else None
        item = _Item(kind, self._new_id(PREFIXES[kind]), len(self._output), call_id, name, reader)
        self._item = item
        events.append(
            self._event(
                "response.output_item.added", output_index=item.index, item=item.document("in_progress")
            )
        )
        if item.in_parts:
            events.append(self._event("response.content_part.added", **item.at(), part=item.part))
        return events

    def _delta(self, item: _Item, piece: str, tokens: tuple[TokenLogprob, ...] = ()) -> list[Json]:
        if not piece:
            return []
        item.pieces.append(piece)
        entries = [token_entry(token) for token in tokens]
        item.logprobs += entries
        more: Json = {"logprobs": entries} if item.kind == "message" else {}
        return [self._event(f"{DELTAS[item.kind][0]}.delta", **item.at(), delta=piece, **more)]

    def _close(self, status: Literal["completed", "incomplete"]) -> list[Json]:
        item, self._item = self._item, None
        if item is None:
            return []
        name, member = DELTAS[item.kind]
        more: Json = {"logprobs": list(item.logprobs)} if item.kind == "message" else {}
        events = [self._event(f"{name}.done", **item.at(), **{member: item.whole}, **more)]
        if item.in_parts:
            events.append(self._event("response.content_part.done", **item.at(), part=item.part))
        document = item.document(status)
        self._output.append(document)
        events.append(self._event("response.output_item.done", output_index=item.index, item=document))
        return events

    # --- events -------------------------------------------------------------------------------------------

    def _event(self, kind: str, **members: Any) -> Json:
        number, self._count = self._count, self._count + 1
        return {"type": kind, "sequence_number": number, **members}

    def _whole(self, kind: str) -> Json:
        return self._event(kind, response=self.document)

    def _error(self, error: AntiphonError) -> Json:
        number, self._count = self._count, self._count + 1
        return error_event(error, number)


def error_event(error: AntiphonError, number: int) -> Json:
    """An error in the middle of a stream. number: of the event."""
    return {
        "type": "error",
        "sequence_number": number,
        "code": error.code or error.type,
        "message": error.message,
        "param": error.param,
    }


def _of_text(delta: Delta) -> tuple[TokenLogprob, ...]:
    """The tokens of a piece that are of its text: thoughts come before that, calls after."""
    tokens = delta.logprobs
    if not delta.reasoning and not delta.calls:
        return tokens
    size = len(delta.text.encode())
    backwards = bool(delta.reasoning)
    taken: list[TokenLogprob] = []
    for token in reversed(tokens) if backwards else tokens:
        if size <= 0:
            break
        size -= len(token.data)
        taken.append(token)
    return tuple(reversed(taken) if backwards else taken)


def _usage(usage: Usage, reasoning: int) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": min(reasoning, usage.output_tokens)},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _code(error: AntiphonError) -> str:
    """Of OpenAI's codes for a response that failed, the one that is meant."""
    match error:
        case BadRequest():
            return "invalid_prompt"
        case RateLimited() | Overloaded():
            return "rate_limit_exceeded"
        case _:
            return "server_error"
