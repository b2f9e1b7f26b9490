"""The shapes a Realtime client may send, checked where they enter.

Every model is strict: no coercion ("0.5" is not a number), no unknown fields (a misspelt setting is an
error, not a shrug). A field that is allowed here but has no effect says so. What a shape cannot express
(which voices there are, what is unsupported) is decided in `session_object.py` and `realtime.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from ..pipeline.errors import BadRequest

Json = dict[str, Any]
"""A JSON object."""


class Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


Text = Annotated[str, Field(max_length=2**17)]
"""Longer than any model here reads; a bound, so that a conversation of many items stays one."""


# --- the session ----------------------------------------------------------------------------------------


class PCM(Shape):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class PCMU(Shape):
    type: Literal["audio/pcmu"]


class PCMA(Shape):
    type: Literal["audio/pcma"]


Format = Annotated[PCM | PCMU | PCMA, Field(discriminator="type")]


class ServerVad(Shape):
    """Turns end after a silence. After one of `idle_timeout_ms` the agent speaks by itself."""

    type: Literal["server_vad"] = "server_vad"
    threshold: float = Field(0.5, ge=0, le=1)
    prefix_padding_ms: int = Field(300, ge=0, le=5000)
    silence_duration_ms: int = Field(500, ge=50, le=10_000)
    create_response: bool = True
    interrupt_response: bool = True
    idle_timeout_ms: int | None = Field(None, ge=5000, le=30_000)


class SemanticVad(Shape):
    """Turns end after a silence that the words and the eagerness set."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


class NoiseReduction(Shape):
    """No effect: the recogniser and the detector hear the audio as it came."""

    type: Literal["near_field", "far_field"]
    strength: float | None = Field(None, ge=0, le=1)


class Transcription(Shape):
    """`language` has an effect, and `languages` when it names one; the others are hints without effect."""

    model: str | None = None
    language: str | None = Field(None, pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")
    languages: list[str] | None = None
    prompt: str | None = None
    keywords: list[str] | None = None
    delay: Literal["minimal", "low", "medium", "high", "xhigh"] | None = None


class AudioInput(Shape):
    format: Format = PCM()
    noise_reduction: NoiseReduction | None = None
    transcription: Transcription | None = None
    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] | None = None


class VoiceId(Shape):
    id: str


class AudioOutput(Shape):
    format: Format = PCM()
    voice: str | VoiceId
    speed: float = Field(1.0, ge=0.25, le=1.5)


class Audio(Shape):
    input: AudioInput
    output: AudioOutput


class RetentionRatio(Shape):
    type: Literal["retention_ratio"]
    retention_ratio: float = Field(ge=0, le=1)
    token_limits: dict[str, int] | None = None


class Tracing(Shape):
    group_id: str | None = None
    metadata: dict[str, str | int | float | bool | None] | None = None
    workflow_name: str | None = None


class Reasoning(Shape):
    effort: str | None = None


class FunctionTool(Shape):
    type: Literal["function"]
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: Text | None = None
    parameters: Json | None = None


class McpTool(BaseModel):
    """Here to be refused with a reason."""

    type: Literal["mcp"]


class NamedFunction(Shape):
    type: Literal["function"]
    name: str


Tools = Annotated[list[Annotated[FunctionTool | McpTool, Field(discriminator="type")]], Field(max_length=128)]
ToolChoice = (
    Literal["none", "auto", "required"] | Annotated[NamedFunction | McpTool, Field(discriminator="type")]
)

Modalities = Annotated[list[Literal["audio", "text"]], Field(min_length=1, max_length=2)]
MaxTokens = Annotated[int, Field(ge=1, le=4096)] | Literal["inf"]


class Session(Shape):
    """The whole session object after an update was merged in. The fields from `tracing` on have no effect."""

    type: Literal["realtime"]
    model: str
    output_modalities: Modalities
    instructions: Text
    max_output_tokens: MaxTokens
    audio: Audio
    tools: Tools
    tool_choice: ToolChoice
    parallel_tool_calls: bool | None = None
    prompt: Json | None = None
    include: list[str] | None = None
    tracing: Literal["auto"] | Tracing | None = None
    truncation: Literal["auto", "disabled"] | RetentionRatio = "auto"
    reasoning: Reasoning | None = None


class TranscriptionInput(Shape):
    input: Json | None = None


class TranscriptionUpdate(Shape):
    """What an update may say of a session that only transcribes; `input` is checked with the session."""

    type: Literal["transcription"] | None = None
    audio: TranscriptionInput | None = None
    include: list[str] | None = None


# --- items ----------------------------------------------------------------------------------------------


class Content(Shape):
    type: Literal["input_text", "input_audio", "input_image", "output_text", "output_audio"]
    text: Text | None = None
    audio: str | None = None
    transcript: Text | None = None
    image_url: str | None = None
    detail: str | None = None


class Entry(Shape):
    """What every item may carry. `object` and `status` are ours to say: taken, without effect."""

    id: str | None = Field(None, min_length=1, max_length=64)
    object: str | None = None
    status: str | None = None


class Message(Entry):
    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: list[Content]


class FunctionCall(Entry):
    type: Literal["function_call"]
    name: Text
    arguments: Text
    call_id: str | None = None


class FunctionCallOutput(Entry):
    type: Literal["function_call_output"]
    call_id: str
    output: Text


AnyItem = Annotated[Message | FunctionCall | FunctionCallOutput, Field(discriminator="type")]

# --- client events --------------------------------------------------------------------------------------


class ClientEvent(Shape):
    type: str
    event_id: str | None = Field(None, max_length=512)


class SessionUpdate(ClientEvent):
    session: Json


class BufferAppend(ClientEvent):
    audio: str


class BufferCommit(ClientEvent):
    pass


class BufferClear(ClientEvent):
    pass


class OutputClear(ClientEvent):
    pass


class ItemCreate(ClientEvent):
    item: AnyItem
    previous_item_id: str | None = None


class ItemRetrieve(ClientEvent):
    item_id: str


class ItemTruncate(ClientEvent):
    item_id: str
    content_index: int = Field(ge=0, le=2**31)
    audio_end_ms: int = Field(ge=0, le=2**31)


class ItemDelete(ClientEvent):
    item_id: str


class ResponseOutput(Shape):
    format: Format | None = None
    voice: str | VoiceId | None = None


class ResponseAudio(Shape):
    output: ResponseOutput | None = None


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class ResponseParams(Shape):
    instructions: Text | None = None
    output_modalities: Modalities | None = None
    audio: ResponseAudio | None = None
    max_output_tokens: MaxTokens | None = None
    conversation: Literal["auto", "none"] | None = None
    metadata: Metadata | None = None
    input: list[AnyItem] | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prompt: Json | None = None
    reasoning: Reasoning | None = None


class ResponseCreate(ClientEvent):
    response: ResponseParams | None = None


class ResponseCancel(ClientEvent):
    response_id: str | None = None


EVENTS: dict[str, type[ClientEvent]] = {
    "session.update": SessionUpdate,
    "input_audio_buffer.append": BufferAppend,
    "input_audio_buffer.commit": BufferCommit,
    "input_audio_buffer.clear": BufferClear,
    "output_audio_buffer.clear": OutputClear,
    "conversation.item.create": ItemCreate,
    "conversation.item.retrieve": ItemRetrieve,
    "conversation.item.truncate": ItemTruncate,
    "conversation.item.delete": ItemDelete,
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}

# --- what is wrong, in the client's words ---------------------------------------------------------------


def parse_event(document: Json) -> ClientEvent:
    """The typed event. Raises BadRequest that names the field."""
    kind = document.get("type")
    if kind is None:
        raise BadRequest(
            "Missing required parameter: 'type'.", code="missing_required_parameter", param="type"
        )
    shape = EVENTS.get(kind) if isinstance(kind, str) else None
    if shape is None:
        known = ", ".join(repr(name) for name in EVENTS)
        raise BadRequest(
            f"Invalid value: {kind!r:.100}. Supported values are: {known}.",
            code="invalid_value",
            param="type",
        )
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        raise blame(error, document) from None


def parse_session(document: Json) -> Session:
    """The checked session object. Raises BadRequest that names the field, as `session.…`."""
    try:
        return Session.model_validate(document)
    except ValidationError as error:
        raise blame(error, document, "session") from None


def check_transcription(update: Json) -> None:
    """Raises BadRequest that names the field, as `session.…`."""
    try:
        TranscriptionUpdate.model_validate(update)
    except ValidationError as error:
        raise blame(error, update, "session") from None


CODES = {
    "missing": ("missing_required_parameter", "Missing required parameter: '{param}'."),
    "extra_forbidden": ("unknown_parameter", "Unknown parameter: '{param}'."),
}


def blame(error: ValidationError, document: object, root: str = "") -> BadRequest:
    """The first of pydantic's complaints, as an error whose `param` is the path of a field."""
    detail = error.errors(include_url=False, include_context=False)[0]
    param = _path(detail, document, root)
    code, text = CODES.get(detail["type"], (None, "Invalid value for '{param}': {reason}."))
    if code is None:
        code = "invalid_type" if detail["type"].endswith("_type") else "invalid_value"
    reason = detail["msg"][:1].lower() + detail["msg"][1:]
    return BadRequest(text.format(param=param, reason=reason), code=code, param=param)


def _path(detail: ErrorDetails, document: object, root: str) -> str:
    """`a.b[0].c`. Pydantic also lists which member of a union it tried; only steps of the document count."""
    path, here = root, document
    steps = detail["loc"]
    for number, step in enumerate(steps):
        last = number == len(steps) - 1
        if isinstance(here, list) and isinstance(step, int):
            items = cast("list[object]", here)
            path += f"[{step}]"
            here = items[step] if step < len(items) else None
        elif isinstance(here, dict) and isinstance(step, str):
            fields = cast("dict[str, object]", here)
            if step in fields or last:
                path += f".{step}" if path else step
                here = fields.get(step)
    return path
