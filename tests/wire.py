"""What the tests of the wire share: a codec with counted ids, the oracle for its events, captures of outputs."""

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import openai
from openai.types.realtime import RealtimeServerEvent
from openai.types.realtime.realtime_session_create_response import RealtimeSessionCreateResponse
from pydantic import TypeAdapter

from antiphon.pipeline.errors import BadRequest, EngineFailed
from antiphon.pipeline.events import (
    AudioCleared,
    AudioCommitted,
    Configure,
    Configured,
    Failed,
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    Output,
    OutputAudio,
    OutputCall,
    OutputDone,
    OutputStarted,
    OutputText,
    Part,
    Response,
    ResponseDone,
    ResponseStarted,
    SessionConfig,
    TimedOut,
    TranscriptionDelta,
    TranscriptionDone,
    TranscriptionFailed,
    TurnStarted,
    TurnStopped,
    Usage,
)
from antiphon.transport.realtime import RealtimeCodec
from antiphon.transport.session_object import Offer

WIRE = Path(__file__).parent / "data" / "wire"
DEFAULTS = SessionConfig(instructions="Be brief.", language="en")
OFFER = Offer(DEFAULTS, ("heart", "alto"), transcription_model="whisper-tiny.en", max_append_bytes=48_000 * 2)
EVENT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)


def counting() -> Any:
    """Ids in the order of asking: event_1, conv_2."""
    numbers = itertools.count(1)
    return lambda prefix: f"{prefix}_{next(numbers)}"


def codec(**options: Any) -> RealtimeCodec:
    return RealtimeCodec("sess_1", OFFER, new_id=counting(), **{"model": "gpt-realtime"} | options)


def decode(wire: RealtimeCodec, kind: str, **fields: Any) -> Any:
    return wire.decode(json.dumps({"type": kind, "event_id": "mine", **fields}))


def one(wire: RealtimeCodec, kind: str, **fields: Any) -> Any:
    asked = decode(wire, kind, **fields)
    assert not isinstance(asked, Failed), asked.error.message
    (command,) = asked
    return command


def refusal(wire: RealtimeCodec, kind: str, **fields: Any) -> BadRequest:
    asked = decode(wire, kind, **fields)
    assert isinstance(asked, Failed)
    assert asked.event_id == "mine"
    return asked.error


def update(wire: RealtimeCodec, **session: Any) -> SessionConfig:
    """The configuration after an update, acknowledged to the client."""
    command = one(wire, "session.update", session=session)
    assert isinstance(command, Configure)
    wire.encode(Configured(command.config))
    return command.config


def session_of(wire: RealtimeCodec) -> dict[str, Any]:
    return wire.created()[0]["session"]


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- server events are OpenAI's -------------------------------------------------------------------------


def unknown_fields(value: object, path: str = "") -> Iterator[str]:
    if isinstance(value, openai.BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for member in value:
            yield from unknown_fields(member, f"{path}[]")


ONLY_IN_THE_RESPONSE_TYPE = {
    f".session.{name}"
    for name in ("id", "object", "expires_at")
    if name in RealtimeSessionCreateResponse.model_fields
}
"""OpenAI's server sends these, and its types have them, but not where the event types look."""


def check(event: dict[str, Any]) -> None:
    """Valid in the newest SDK's union, as the type it says it is, with no member that this type lacks."""
    parsed = EVENT.validate_json(json.dumps(event))
    (kind,) = get_args(type(parsed).model_fields["type"].annotation)
    assert kind == event["type"]
    assert set(unknown_fields(parsed)) <= ONLY_IN_THE_RESPONSE_TYPE


def play(wire: RealtimeCodec, *outputs: Output) -> list[dict[str, Any]]:
    events = [event for output in outputs for event in wire.encode(output)]
    for event in events:
        check(event)
    return events


USER = Item("item_1", role="user", parts=(Part("input_audio"),))
ASSISTANT = Item("item_2", role="assistant", parts=(Part("output_audio", ""),), status="in_progress")
SAID = Item("item_2", role="assistant", parts=(Part("output_audio", "Noon. Lunch?"),))
NOTE = {"client_event_id": "e1"}
STARTED = Response("resp_1", "audio", voice="heart", metadata=NOTE)
USAGE = Usage(input_tokens=31, cached_tokens=20, output_tokens=6, output_audio_tokens=25)


def ramp(start: float, seconds: float) -> np.ndarray:
    """A slow sawtooth at 24 kHz: exact in 16 bits, and never the same twice in a row."""
    index = np.arange(round(start * 24_000), round((start + seconds) * 24_000))
    return ((index % 2000 - 1000) / 32768).astype(np.float32)


VOICE_TURN: list[Output] = [
    TurnStarted("item_1", 0.2),
    TurnStopped("item_1", 1.5004),
    AudioCommitted("item_1", None),
    ItemAdded(USER, None),
    ItemDone(USER, None),
    TranscriptionDelta("item_1", "What time is it?"),
    TranscriptionDone("item_1", "What time is it?", 1.3004),
    ResponseStarted(STARTED),
    OutputStarted("resp_1", ASSISTANT, "item_1"),
    OutputText("resp_1", "item_2", "audio", "Noon."),
    OutputAudio("resp_1", "item_2", ramp(0, 0.01), 24_000, 0.0),
    OutputText("resp_1", "item_2", "audio", " Lunch?"),
    OutputAudio("resp_1", "item_2", ramp(0.01, 0.01), 24_000, 0.01),
    OutputDone("resp_1", SAID, "item_1"),
    ResponseDone(
        Response("resp_1", "audio", "completed", output=(SAID,), usage=USAGE, voice="heart", metadata=NOTE)
    ),
]  # fmt: skip

CUT = Item("item_2", role="assistant", parts=(Part("output_audio", "Noon."),), status="incomplete")
BARGE_IN: list[Output] = [
    ResponseStarted(STARTED),
    OutputStarted("resp_1", ASSISTANT, "item_1"),
    OutputText("resp_1", "item_2", "audio", "Noon."),
    OutputAudio("resp_1", "item_2", ramp(0, 0.01), 24_000, 0.0),
    TurnStarted("item_3", 3.0),
    OutputDone("resp_1", CUT, "item_1"),
    ResponseDone(
        Response("resp_1", "audio", "cancelled", "turn_detected", output=(CUT,), usage=USAGE, voice="heart")
    ),
    ItemTruncated("item_2", 0, 0.01),
]  # fmt: skip

WRITTEN = Item("item_2", role="assistant", parts=(Part("output_text", ""),), status="in_progress")
TEXT = Item("item_2", role="assistant", parts=(Part("output_text", "Noon ☀"),))
TEXT_TURN: list[Output] = [
    ItemAdded(Item("item_1", role="user", parts=(Part("input_text", "Time?"),)), "item_0"),
    ItemDone(Item("item_1", role="user", parts=(Part("input_text", "Time?"),)), "item_0"),
    ResponseStarted(Response("resp_1", "text", max_output_tokens=50)),
    OutputStarted("resp_1", WRITTEN, "item_1"),
    OutputText("resp_1", "item_2", "text", "Noon"),
    OutputText("resp_1", "item_2", "text", " ☀"),
    OutputDone("resp_1", TEXT, "item_1"),
    ResponseDone(Response("resp_1", "text", "completed", output=(TEXT,), usage=USAGE)),
]  # fmt: skip

NOW = {
    "type": "function",
    "name": "now",
    "description": "Tells the time.",
    "parameters": {"type": "object", "properties": {}},
}
CALLED = Item("item_3", "function_call", name="now", arguments='{"zone":"Oslo"}', call_id="call_1")
TOLD = Item("item_4", "function_call_output", call_id="call_1", output="12:00")
TOOL_TURN: list[Output] = [
    ResponseStarted(STARTED),
    OutputStarted("resp_1", ASSISTANT, "item_1"),
    OutputText("resp_1", "item_2", "audio", "Noon. Lunch?"),
    OutputAudio("resp_1", "item_2", ramp(0, 0.01), 24_000, 0.0),
    OutputDone("resp_1", SAID, "item_1"),
    OutputCall("resp_1", CALLED, "item_2", 1),
    ResponseDone(Response("resp_1", "audio", "completed", output=(SAID, CALLED), usage=USAGE, voice="heart")),
    ItemAdded(TOLD, "item_3"),
    ItemDone(TOLD, "item_3"),
]  # fmt: skip

FAILURE = EngineFailed("the model failed")
EVERYTHING_ELSE: list[Output] = [
    Configured(DEFAULTS),
    AudioCleared(),
    TimedOut("item_6", 4.0, 10.0),
    ItemRetrieved(Item("item_9", role="system", parts=(Part("input_text", "Be kind."),))),
    ItemAdded(Item("item_8", "function_call", name="now", arguments="{}", call_id="call_1"), None),
    ItemDone(Item("item_7", "function_call_output", call_id="call_1", output="12:00"), "item_8"),
    ItemDeleted("item_9"),
    TranscriptionFailed("item_1", FAILURE),
    ResponseStarted(Response("resp_2", "text", in_conversation=False)),
    OutputStarted("resp_2", WRITTEN, None, in_conversation=False),
    OutputDone("resp_2", TEXT, None, in_conversation=False),
    ResponseDone(Response("resp_2", "text", "failed", error=FAILURE, in_conversation=False)),
    ResponseDone(Response("resp_3", "text", "incomplete", "max_output_tokens")),
    Failed(BadRequest("No such thing.", code="invalid_value", param="item.id"), "mine"),
    Failed(BadRequest("No such thing.")),
]  # fmt: skip

CAPTURES = {
    "voice_turn": VOICE_TURN,
    "barge_in": BARGE_IN,
    "text_turn": TEXT_TURN,
    "tool_turn": TOOL_TURN,
    "everything_else": EVERYTHING_ELSE,
}
