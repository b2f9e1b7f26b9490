"""The answer of a chat completion: what the models give, as OpenAI writes it, in chunks or whole. Pure.

    (index, Delta | Said) --ChatChunks--> chunks of a stream
                          --ChatWhole---> one object

Of a choice, the role comes in its first chunk alone, a call's id, type and name in the call's first, and the
reason to finish in a last one whose delta is empty. Thoughts are `reasoning_content`, as other servers have
it. Log probabilities are of every token, of thoughts and calls too.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..llm.base import CallDelta, Delta, FinishReason, TokenLogprob
from ..pipeline.events import Usage
from .custom_tools import InputReader
from .generation import usage_object

TOKENS_PER_SECOND = 20
"""Tokens of sound in `usage`, OpenAI's for what a model speaks."""


@dataclass(frozen=True, slots=True)
class Said:
    """The next piece of a spoken answer. text: what begins to be heard with it. seconds: of sound."""

    text: str
    audio: bytes
    seconds: float


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer says besides its choices.

    created: Unix seconds. usage: a stream ends with the counts. legacy, customs: as in `Asked`. audio: the id
    of each choice's sound, empty where nothing is spoken. expires_at: until when an id of it may be sent.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    n: int = 1
    usage: bool = False
    logprobs: bool = False
    legacy: bool = False
    customs: frozenset[str] = frozenset()
    tier: str | None = None
    metadata: Mapping[str, str] | None = None
    audio: tuple[str, ...] = ()
    expires_at: int = 0

    def object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": self.fingerprint,
        }
        if self.tier is not None:
            body["service_tier"] = self.tier
        return body

    def reason(self, reason: FinishReason) -> str:
        return "function_call" if self.legacy and reason == "tool_calls" else reason


def token_entry(token: TokenLogprob) -> dict[str, Any]:
    """A token's log probability as chat and responses have it."""
    return {
        "token": token.token,
        "logprob": token.logprob,
        "bytes": list(token.data),
        "top_logprobs": [
            {"token": text, "logprob": logprob, "bytes": list(data)} for text, logprob, data in token.top
        ],
    }


class _Base64:
    """Bytes to base64 of which any pieces joined are base64 again, and each is of whole 16-bit samples."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, data: bytes) -> str:
        data = self._rest + data
        whole = len(data) // 6 * 6
        self._rest = data[whole:]
        return base64.b64encode(data[:whole]).decode()

    def finish(self) -> str:
        return base64.b64encode(self._rest).decode()


class _Counts:
    """What the choices cost, and thought."""

    def __init__(self, n: int) -> None:
        self._usages = [Usage()] * n
        self._seconds = 0.0
        self._thoughts: list[str] = []

    @property
    def thoughts(self) -> str:
        return "".join(self._thoughts)

    def add(self, index: int, piece: Delta | Said) -> None:
        if isinstance(piece, Said):
            self._seconds += piece.seconds
            return
        if piece.reasoning:
            self._thoughts.append(piece.reasoning)
        if piece.usage is not None:
            self._usages[index] = piece.usage

    def usage(self, reasoning: int) -> dict[str, Any]:
        spoken = round(self._seconds * TOKENS_PER_SECOND)
        return usage_object(self._usages[:1], self._usages, reasoning=reasoning, spoken=spoken)


# --- in chunks ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Begun:
    """How far a choice of a stream is. inputs: of the calls of custom tools, by their index."""

    role: bool = False
    inputs: dict[int, InputReader] = field(default_factory=dict[int, InputReader])
    sound: _Base64 | None = None


class ChatChunks:
    """One stream's."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._choices = [_Begun() for _ in range(head.n)]
        self._counts = _Counts(head.n)

    @property
    def thoughts(self) -> str:
        """What was thought so far, by all choices."""
        return self._counts.thoughts

    def push(self, index: int, piece: Delta | Said) -> list[dict[str, Any]]:
        """The chunks of the next piece of a choice."""
        choice = self._choices[index]
        self._counts.add(index, piece)
        deltas: list[dict[str, Any]] = []
        if not choice.role:
            choice.role = True
            deltas.append({"role": "assistant", "content": "", "refusal": None})
        first = len(deltas)
        if isinstance(piece, Said):
            deltas += self._sound(choice, index, piece)
            return [self._chunk(index, delta) for delta in deltas]
        if piece.reasoning:
            deltas.append({"reasoning_content": piece.reasoning})
        if piece.text:
            deltas.append({"content": piece.text})
        for call in piece.calls:
            deltas += self._call(choice, call)
        reason = piece.finish_reason
        if reason is not None:
            deltas += self._silence(choice)
        tokens = piece.logprobs if self._head.logprobs else ()
        if tokens and len(deltas) == first and reason is None:
            deltas.append({"content": ""})
        chunks = [self._chunk(index, delta) for delta in deltas]
        if reason is not None:
            chunks.append(self._chunk(index, {}, self._head.reason(reason)))
        if tokens:
            told = {"content": [token_entry(token) for token in tokens], "refusal": None}
            chunks[min(first, len(chunks) - 1)]["choices"][0]["logprobs"] = told
        return chunks

    def finish(self, *, reasoning: int = 0) -> list[dict[str, Any]]:
        """The chunk of the counts, where it is wanted. reasoning: tokens of `thoughts`."""
        if not self._head.usage:
            return []
        chunk = self._head.object("chat.completion.chunk", [])
        return [{**chunk, "usage": self._counts.usage(reasoning)}]

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = self._head.object("chat.completion.chunk", [choice])
        if self._head.usage:
            chunk["usage"] = None
        return chunk

    def _call(self, choice: _Begun, call: CallDelta) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if self._head.legacy:
            if call.id:
                deltas.append({"function_call": {"name": call.name, "arguments": ""}})
            if call.arguments:
                deltas.append({"function_call": {"arguments": call.arguments}})
            return deltas
        arguments, member, key = call.arguments, "function", "arguments"
        if call.id and call.name in self._head.customs:
            choice.inputs[call.index] = InputReader()
        if (reader := choice.inputs.get(call.index)) is not None:
            arguments, member, key = reader.push(call.arguments), "custom", "input"
        if call.id:
            begun = {"index": call.index, "id": call.id, "type": member, member: {"name": call.name, key: ""}}
            deltas.append({"tool_calls": [begun]})
        if arguments:
            deltas.append({"tool_calls": [{"index": call.index, member: {key: arguments}}]})
        return deltas

    def _sound(self, choice: _Begun, index: int, said: Said) -> list[dict[str, Any]]:
        audio: dict[str, Any] = {}
        if choice.sound is None:
            choice.sound = _Base64()
            audio["id"] = self._head.audio[index]
        if said.text:
            audio["transcript"] = said.text
        if data := choice.sound.push(said.audio):
            audio["data"] = data
        return [{"audio": audio}] if audio else []

    def _silence(self, choice: _Begun) -> list[dict[str, Any]]:
        """The end of a choice's sound, where it has one."""
        if choice.sound is None:
            return []
        audio: dict[str, Any] = {"expires_at": self._head.expires_at}
        if data := choice.sound.finish():
            audio["data"] = data
        return [{"audio": audio}]


# --- whole ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list[str])
    thoughts: list[str] = field(default_factory=list[str])
    calls: dict[int, _Call] = field(default_factory=dict[int, _Call])
    logprobs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    transcript: list[str] = field(default_factory=list[str])
    sound: list[bytes] = field(default_factory=list[bytes])
    reason: FinishReason = "stop"


class ChatWhole:
    """One answer's: its pieces go in, then it is taken."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._choices = [_Choice() for _ in range(head.n)]
        self._counts = _Counts(head.n)

    @property
    def thoughts(self) -> str:
        """What was thought, by all choices."""
        return self._counts.thoughts

    def push(self, index: int, piece: Delta | Said) -> None:
        choice = self._choices[index]
        self._counts.add(index, piece)
        if isinstance(piece, Said):
            choice.transcript.append(piece.text)
            choice.sound.append(piece.audio)
            return
        choice.text.append(piece.text)
        choice.thoughts.append(piece.reasoning)
        for call in piece.calls:
            if call.id:
                choice.calls[call.index] = _Call(call.id, call.name)
            choice.calls[call.index].arguments.append(call.arguments)
        if self._head.logprobs:
            choice.logprobs += [token_entry(token) for token in piece.logprobs]
        if piece.finish_reason is not None:
            choice.reason = piece.finish_reason

    def answer(self, *, reasoning: int = 0) -> dict[str, Any]:
        """The whole. reasoning: tokens of `thoughts`."""
        head = self._head
        choices = [
            {
                "index": index,
                "message": self._message(choice, index),
                "logprobs": {"content": choice.logprobs, "refusal": None} if head.logprobs else None,
                "finish_reason": head.reason(choice.reason),
            }
            for index, choice in enumerate(self._choices)
        ]
        body = {**head.object("chat.completion", choices), "usage": self._counts.usage(reasoning)}
        if head.metadata is not None:
            body["metadata"] = dict(head.metadata)
        return body

    def transcript(self, index: int) -> str:
        """What a spoken choice says."""
        return "".join(self._choices[index].transcript)

    def _message(self, choice: _Choice, index: int) -> dict[str, Any]:
        text = "".join(choice.text)
        spoken = bool(choice.sound)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if spoken or (choice.calls and not text) else text,
            "refusal": None,
            "annotations": [],
        }
        if thoughts := "".join(choice.thoughts):
            message["reasoning_content"] = thoughts
        if spoken:
            message["audio"] = {
                "id": self._head.audio[index],
                "data": base64.b64encode(b"".join(choice.sound)).decode(),
                "expires_at": self._head.expires_at,
                "transcript": self.transcript(index),
            }
        calls = [choice.calls[number] for number in sorted(choice.calls)]
        if calls and self._head.legacy:
            message["function_call"] = {"name": calls[0].name, "arguments": "".join(calls[0].arguments)}
        elif calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        return message

    def _call(self, call: _Call) -> dict[str, Any]:
        arguments = "".join(call.arguments)
        if call.name in self._head.customs:
            custom = {"name": call.name, "input": InputReader().push(arguments)}
            return {"id": call.id, "type": "custom", "custom": custom}
        return {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }
