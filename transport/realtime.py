"""OpenAI's Realtime protocol (GA) as a pure codec: JSON text in, commands out; outputs in, JSON events out.

It decides nothing about the conversation. It keeps only what the wire needs: the session object as the client
sees it, one resampler each way, and the text of each reply so far. No I/O and no clock; ids are injected, so
a conversation replays to the same bytes.

What is taken, what is refused and what has no effect is decided event by event in docs/realtime.md.
"""

from __future__ import annotations

import base64
import json
import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, assert_never, cast

from ..pipeline.audio import RECOGNISER_RATE, Encoding, InputDecoder, OutputEncoder
from ..pipeline.errors import AntiphonError, BadRequest, TooLarge
from ..pipeline.events import (
    AppendAudio,
    AudioCleared,
    AudioCommitted,
    CancelResponse,
    ClearAudio,
    Command,
    CommitAudio,
    Configure,
    Configured,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Failed,
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    Modality,
    Output,
    OutputAudio,
    OutputCall,
    OutputDone,
    OutputStarted,
    OutputText,
    Response,
    ResponseDone,
    ResponseStarted,
    RetrieveItem,
    Samples,
    TimedOut,
    TranscriptionDelta,
    TranscriptionDone,
    TranscriptionFailed,
    TruncateItem,
    TurnStarted,
    TurnStopped,
)
from ..pipeline.tools import ToolUse
from . import schema
from .objects import item_from, item_object, present, status_details, usage_object
from .schema import Json
from .session_object import Offer, SessionObject, check_modalities, check_prompt, unsupported
from .session_tools import tool_use

PIECE_SECONDS = 1.0
"""A long append is handed on in pieces of this length, so that no other session waits for all of it."""

DELTA_SECONDS = 0.2
"""The most audio in one `response.output_audio.delta`."""

SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Half of a character, as JSON escapes it; alone it is no text, and nothing further in could take it."""

CONVERSING = (schema.ItemCreate, schema.ItemTruncate, schema.ResponseCreate, schema.ResponseCancel)
"""Client events that have no meaning where nobody answers."""


@dataclass(slots=True)
class _Reply:
    """One response's message while it is on the wire."""

    modality: Modality
    text: list[str] = field(default_factory=list[str])
    encoder: OutputEncoder | None = None


class RealtimeCodec:
    """The wire side of one session.

    model: as named in the URL, None if it was not. begun: what the session begins with, if not the defaults
    and that model. new_id: `new_id("event")` gives a fresh "event_…".
    expires_at: when the session will end, in Unix seconds, for the client to read.
    """

    def __init__(
        self,
        session_id: str,
        offer: Offer,
        *,
        new_id: Callable[[str], str],
        model: str | None = None,
        expires_at: int | None = None,
        begun: SessionObject | None = None,
    ) -> None:
        self._offer = offer
        self._new_id = new_id
        self._conversation_id = new_id("conv")
        self._session_id = session_id
        self._tail = {} if expires_at is None else {"expires_at": expires_at}
        self._session = self._told = begun or SessionObject.initial(offer, model)
        self._awaiting: deque[SessionObject] = deque()
        self._decoder = InputDecoder(_encoding(self._session.checked.audio.input.format))
        self._replies: dict[str, _Reply] = {}
        self._spoke = False

    def created(self) -> list[Json]:
        """The events that open a session."""
        return [self._event("session.created", session=self._session_object())]

    # --- in -----------------------------------------------------------------------------------------------

    def decode(self, message: str | bytes) -> Sequence[Command] | Failed:
        """What a client's message asks for, or what is wrong with it (and then nothing has changed)."""
        event_id: str | None = None
        try:
            document = _document(message)
            given = document.get("event_id")
            event_id = given if isinstance(given, str) and _sendable(given) else None
            if isinstance(message, str) and SURROGATE.search(message) and not _sendable(document):
                raise BadRequest(
                    "The message is not valid JSON: it holds half a surrogate pair.", code="invalid_json"
                )
            return self._commands(schema.parse_event(document))
        except BadRequest as error:
            return Failed(error, event_id)

    def _commands(self, event: schema.ClientEvent) -> Sequence[Command]:
        event_id = event.event_id
        if self._session.kind == "transcription" and isinstance(event, CONVERSING):
            raise BadRequest(
                f"'{event.type}' is not for transcription sessions.", code="invalid_value", param="type"
            )
        match event:
            case schema.SessionUpdate(session=update):
                return self._update(update, event_id)
            case schema.BufferAppend(audio=audio):
                return self._append(audio, event_id)
            case schema.BufferCommit():
                return [*_pieces(self._decoder.flush(), event_id), CommitAudio(event_id)]
            case schema.BufferClear():
                self._decoder.flush()
                return [ClearAudio(event_id)]
            case schema.ItemCreate(item=item, previous_item_id=previous):
                return [CreateItem(item_from(item, "item", self._new_id), previous, event_id)]
            case schema.ItemRetrieve(item_id=item_id):
                return [RetrieveItem(item_id, event_id)]
            case schema.ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end):
                return [TruncateItem(item_id, index, end / 1000, event_id)]
            case schema.ItemDelete(item_id=item_id):
                return [DeleteItem(item_id, event_id)]
            case schema.ResponseCreate(response=params):
                return [self._create_response(params or schema.ResponseParams(), event_id)]
            case schema.ResponseCancel(response_id=response_id):
                return [CancelResponse(response_id, event_id)]
            case _:
                raise BadRequest(
                    f"'{event.type}' is for WebRTC and SIP; here the client clears its own buffer.",
                    code="unsupported",
                    param="type",
                )

    def _append(self, audio: str, event_id: str | None) -> list[Command]:
        limit = self._offer.max_append_bytes
        if len(audio) > (limit + 2) // 3 * 4:
            raise TooLarge(
                f"One append holds at most {limit} bytes of audio; send it in pieces.", param="audio"
            )
        try:
            data = base64.b64decode(audio, validate=True)
        except ValueError as error:
            raise BadRequest(
                f"'audio' is not base64: {error}.", code="invalid_base64", param="audio"
            ) from None
        return _pieces(self._decoder.decode(data), event_id)

    def _update(self, update: Json, event_id: str | None) -> list[Command]:
        old = self._session.checked.audio.input.format
        self._session = self._session.updated(update, spoke=self._spoke)
        self._awaiting.append(self._session)
        configure = Configure(self._session.config, event_id)
        new = self._session.checked.audio.input.format
        if new == old:
            return [configure]
        rest = _pieces(self._decoder.flush(), event_id)
        self._decoder = InputDecoder(_encoding(new))
        return [*rest, configure]

    def _create_response(self, params: schema.ResponseParams, event_id: str | None) -> CreateResponse:
        modality: Modality | None = None
        if params.output_modalities is not None:
            check_modalities(params.output_modalities, "response.output_modalities")
            modality = params.output_modalities[0]
        check_prompt(params.prompt, "response")
        voice = None
        output = params.audio.output if params.audio is not None else None
        if output is not None:
            if output.format not in (None, self._session.checked.audio.output.format):
                raise unsupported("A format of its own is", "response.audio.output.format")
            if output.voice is not None:
                voice = self._session.voice(output.voice, "response.audio.output.voice", spoke=self._spoke)
        limit = params.max_output_tokens
        if limit == "inf":
            limit = None if self._session.config.max_output_tokens is None else 4096
        items = params.input
        return CreateResponse(
            instructions=params.instructions,
            modality=modality,
            voice=voice,
            max_output_tokens=limit,
            metadata=params.metadata,
            input=None
            if items is None
            else [item_from(item, f"response.input[{n}]", self._new_id) for n, item in enumerate(items)],
            in_conversation=params.conversation != "none",
            tools=self._tools(params),
            event_id=event_id,
        )

    def _tools(self, params: schema.ResponseParams) -> ToolUse | None:
        """A response's own tools; what it does not say of them is the session's."""
        if params.tools is params.tool_choice is params.parallel_tool_calls is None:
            return None
        checked = self._session.checked
        tools = checked.tools if params.tools is None else params.tools
        choice = params.tool_choice
        if choice is None:
            choice = checked.tool_choice if params.tools is None else "auto"
        parallel = params.parallel_tool_calls
        if parallel is None:
            parallel = checked.parallel_tool_calls
        return tool_use(tools, choice, parallel, "response")

    # --- out ----------------------------------------------------------------------------------------------

    def encode(self, output: Output) -> list[Json]:
        """The server events that tell the client of `output`, in OpenAI's order."""
        match output:
            case Configured(config):
                if any(asked.config is config for asked in tuple(self._awaiting)):
                    while (told := self._awaiting.popleft()).config is not config:
                        pass
                    self._told = told
                return [self._event("session.updated", session=self._session_object())]
            case TurnStarted(item_id, start):
                return [
                    self._event(
                        "input_audio_buffer.speech_started", audio_start_ms=_ms(start), item_id=item_id
                    )
                ]
            case TurnStopped(item_id, end):
                return [
                    self._event("input_audio_buffer.speech_stopped", audio_end_ms=_ms(end), item_id=item_id)
                ]
            case TimedOut(item_id, start, end):
                return [
                    self._event(
                        "input_audio_buffer.timeout_triggered",
                        audio_start_ms=_ms(start),
                        audio_end_ms=_ms(end),
                        item_id=item_id,
                    )
                ]
            case AudioCommitted(item_id, previous):
                return [
                    self._event("input_audio_buffer.committed", previous_item_id=previous, item_id=item_id)
                ]
            case AudioCleared():
                return [self._event("input_audio_buffer.cleared")]
            case ItemAdded(item, previous):
                return [self._item_event("conversation.item.added", item, previous)]
            case ItemDone(item, previous):
                return [self._item_event("conversation.item.done", item, previous)]
            case ItemRetrieved(item):
                return [self._event("conversation.item.retrieved", item=item_object(item))]
            case ItemTruncated(item_id, index, end):
                return [
                    self._event(
                        "conversation.item.truncated",
                        item_id=item_id,
                        content_index=index,
                        audio_end_ms=_ms(end),
                    )
                ]
            case ItemDeleted(item_id):
                return [self._event("conversation.item.deleted", item_id=item_id)]
            case TranscriptionDelta(item_id, text):
                return [self._transcription("delta", item_id, delta=text)]
            case TranscriptionDone(item_id, text, duration):
                usage = {"type": "duration", "seconds": round(duration, 3)}
                return [self._transcription("completed", item_id, transcript=text, usage=usage)]
            case TranscriptionFailed(item_id, error):
                return [self._transcription("failed", item_id, error=present(error.body()))]
            case ResponseStarted(response):
                return [self._event("response.created", response=self._response_object(response))]
            case OutputStarted():
                return self._output_started(output)
            case OutputText(response_id, item_id, modality, delta):
                if response_id in self._replies:
                    self._replies[response_id].text.append(delta)
                kind = "output_text" if modality == "text" else "output_audio_transcript"
                return [self._content(f"response.{kind}.delta", response_id, item_id, delta=delta)]
            case OutputAudio():
                return self._output_audio(output)
            case OutputDone():
                return self._output_done(output)
            case OutputCall():
                return self._output_call(output)
            case ResponseDone(response):
                self._replies.pop(response.id, None)
                return [self._event("response.done", response=self._response_object(response))]
            case Failed(error, event_id):
                return [error_event(error, self._new_id, event_id)]
            case _:
                assert_never(output)

    def _output_started(self, output: OutputStarted) -> list[Json]:
        item, response_id = output.item, output.response_id
        audio = item.parts[0].kind == "output_audio"
        self._replies[response_id] = _Reply("audio" if audio else "text")
        empty = replace(item, parts=())
        events = [self._output_item("response.output_item.added", response_id, empty)]
        if output.in_conversation:
            events.append(self._item_event("conversation.item.added", empty, output.previous_item_id))
        part = {"type": "audio", "transcript": ""} if audio else {"type": "text", "text": ""}
        events.append(self._content("response.content_part.added", response_id, item.id, part=part))
        return events

    def _output_audio(self, output: OutputAudio) -> list[Json]:
        reply = self._replies.get(output.response_id)
        if reply is None:
            return []
        if reply.encoder is None:
            reply.encoder = OutputEncoder(
                _encoding(self._told.checked.audio.output.format), output.sample_rate
            )
        self._spoke = True
        step = int(DELTA_SECONDS * output.sample_rate)
        pieces = [
            reply.encoder.encode(output.samples[at : at + step]) for at in range(0, len(output.samples), step)
        ]
        return [
            self._content(
                "response.output_audio.delta", output.response_id, output.item_id, delta=_base64(piece)
            )
            for piece in pieces
            if piece
        ]

    def _output_done(self, output: OutputDone) -> list[Json]:
        """The closing events. What a resampler still holds goes first, unless the reply was cut."""
        item, response_id = output.item, output.response_id
        reply = self._replies.pop(response_id)
        text = "".join(reply.text)
        events: list[Json] = []
        if reply.modality == "audio":
            rest = reply.encoder.flush() if reply.encoder and item.status == "completed" else b""
            if rest:
                events.append(
                    self._content("response.output_audio.delta", response_id, item.id, delta=_base64(rest))
                )
            events.append(self._content("response.output_audio.done", response_id, item.id))
            events.append(
                self._content("response.output_audio_transcript.done", response_id, item.id, transcript=text)
            )
            part = {"type": "audio", "transcript": text}
        else:
            events.append(self._content("response.output_text.done", response_id, item.id, text=text))
            part = {"type": "text", "text": text}
        events.append(self._content("response.content_part.done", response_id, item.id, part=part))
        if output.in_conversation:
            events.append(self._item_event("conversation.item.done", item, output.previous_item_id))
        events.append(self._output_item("response.output_item.done", response_id, item))
        return events

    def _output_call(self, output: OutputCall) -> list[Json]:
        item, response_id, index = output.item, output.response_id, output.output_index
        empty = replace(item, arguments="", status="in_progress")
        call = {
            "call_id": item.call_id,
            "response_id": response_id,
            "item_id": item.id,
            "output_index": index,
        }
        arguments = "response.function_call_arguments"
        events = [self._output_item("response.output_item.added", response_id, empty, index)]
        if output.in_conversation:
            events.append(self._item_event("conversation.item.added", empty, output.previous_item_id))
        events += [
            self._event(f"{arguments}.delta", **call, delta=item.arguments),
            self._event(f"{arguments}.done", **call, name=item.name, arguments=item.arguments),
        ]
        if output.in_conversation:
            events.append(self._item_event("conversation.item.done", item, output.previous_item_id))
        return [*events, self._output_item("response.output_item.done", response_id, item, index)]

    # --- objects of the wire ------------------------------------------------------------------------------

    def _event(self, kind: str, **fields: Any) -> Json:
        return {"type": kind, "event_id": self._new_id("event"), **fields}

    def _content(self, kind: str, response_id: str, item_id: str, **fields: Any) -> Json:
        return self._event(
            kind, response_id=response_id, item_id=item_id, output_index=0, content_index=0, **fields
        )

    def _output_item(self, kind: str, response_id: str, item: Item, index: int = 0) -> Json:
        return self._event(kind, response_id=response_id, output_index=index, item=item_object(item))

    def _item_event(self, kind: str, item: Item, previous: str | None) -> Json:
        return self._event(kind, previous_item_id=previous, item=item_object(item))

    def _transcription(self, kind: str, item_id: str, **fields: Any) -> Json:
        name = f"conversation.item.input_audio_transcription.{kind}"
        return self._event(name, item_id=item_id, content_index=0, **fields)

    def _session_object(self) -> Json:
        told = self._told.wire()
        head = {"type": told["type"], "object": told["object"], "id": self._session_id}
        return {**head, **told, **self._tail}

    def _response_object(self, response: Response) -> Json:
        audio = {
            "format": self._told.checked.audio.output.format.model_dump(),
            "voice": self._told.voice_name(response.voice),
        }
        return {
            "object": "realtime.response",
            "id": response.id,
            "status": response.status,
            "status_details": status_details(response),
            "output": [item_object(item) for item in response.output],
            "conversation_id": self._conversation_id if response.in_conversation else None,
            "output_modalities": [response.modality],
            "max_output_tokens": "inf" if response.max_output_tokens is None else response.max_output_tokens,
            "audio": {"output": audio},
            "usage": None if response.usage is None else usage_object(response.usage),
            "metadata": None if response.metadata is None else dict(response.metadata),
        }


def error_event(error: AntiphonError, new_id: Callable[[str], str], event_id: str | None = None) -> Json:
    """event_id: of the client's event that is to blame."""
    return {"type": "error", "event_id": new_id("event"), "error": {**error.body(), "event_id": event_id}}


def _document(message: str | bytes) -> Json:
    """The JSON object that a message is. Raises BadRequest."""
    if isinstance(message, bytes):
        raise BadRequest("Binary frames have no meaning here; send JSON as text.", code="binary_frame")
    try:
        document = json.loads(message, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"The message is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(document, dict):
        raise BadRequest("The message must be a JSON object.", code="invalid_json")
    return cast("Json", document)


def _sendable(value: Json | str) -> bool:
    """Whether it can be sent back: half a surrogate pair cannot."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _pieces(samples: Samples, event_id: str | None) -> list[Command]:
    step = int(PIECE_SECONDS * RECOGNISER_RATE)
    return [AppendAudio(samples[at : at + step], event_id) for at in range(0, len(samples), step)]


def _encoding(format: schema.PCM | schema.PCMU | schema.PCMA) -> Encoding:
    match format:
        case schema.PCM():
            return "pcm"
        case schema.PCMU():
            return "pcmu"
        case schema.PCMA():
            return "pcma"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
