"""The vocabulary of a conversation: frozen dataclasses that say what happened and what to do.

Two pairs of unions, each going one way:

    Event   -> turn machine -> Action     who has the floor (pipeline/turn.py)
    Command -> session      -> Output     what a client asks, and what it is told (pipeline/session.py)

Times are seconds of audio received since the session began, never wall time: the sample count is the
clock, so a recorded call replays to the same events at any speed. A `revision` numbers every attempt at an
answer; late news about an old revision changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .errors import AntiphonError

Samples = NDArray[np.float32]
"""Mono PCM, shape (n,), float32 in [-1, 1]; the rate is said beside it."""

CancelReason = Literal["turn_detected", "client_cancelled", "resumed", "cleared", "superseded", "closed"]
Modality = Literal["audio", "text"]

# --- what the turn machine hears ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The detector is sure of speech; `start` is its first sample, pre-roll included."""

    at: float
    start: float


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    """The first silent frame after speech, a candidate end; `end` is where the speech ended."""

    at: float
    end: float


@dataclass(frozen=True, slots=True)
class Tick:
    at: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """The finished window of `revision`; text may be empty.

    interrupts: said over a reply, whether it wants the floor.
    """

    revision: int
    text: str
    interrupts: bool = True


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Words of an open turn, heard over a reply, want the floor."""


@dataclass(frozen=True, slots=True)
class TurnEndProbability:
    """How likely the words of `revision` are all that is said, 0 to 1."""

    revision: int
    probability: float


@dataclass(frozen=True, slots=True)
class ResponseEnded:
    """A released response came to its end by itself, done or failed."""

    revision: int


@dataclass(frozen=True, slots=True)
class SpeculationFailed:
    """A reply behind the gate failed; what it would have said is not known."""

    revision: int


@dataclass(frozen=True, slots=True)
class PromptChanged:
    """The conversation or the instructions are not what a reply behind the gate was told."""


@dataclass(frozen=True, slots=True)
class ClientCommitted:
    """The client ended the turn by hand."""

    at: float


@dataclass(frozen=True, slots=True)
class ClientCleared:
    at: float


@dataclass(frozen=True, slots=True)
class ClientAsked:
    """`response.create`: answer what the conversation holds now."""


@dataclass(frozen=True, slots=True)
class ClientCancelled:
    """`response.cancel`."""


Event = (
    SpeechStarted
    | SpeechStopped
    | Tick
    | Transcript
    | Interrupted
    | TurnEndProbability
    | ResponseEnded
    | SpeculationFailed
    | PromptChanged
    | ClientCommitted
    | ClientCleared
    | ClientAsked
    | ClientCancelled
)

# --- what the turn machine asks for ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Listen to a turn from `start` on. quiet: over a reply; the client hears of it with `Announce`, if ever."""

    start: float
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Announce:
    """The quiet turn is one: tell the client that the user speaks."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Finish the open window and report a `Transcript` of this revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Speculate:
    """Think and speak for this revision, behind a shut gate."""

    revision: int


@dataclass(frozen=True, slots=True)
class CommitTurn:
    """The turn is over at `end`: its audio becomes an item of the conversation."""

    revision: int
    end: float


@dataclass(frozen=True, slots=True)
class DropTurn:
    """Forget the open turn and its audio."""


@dataclass(frozen=True, slots=True)
class Respond:
    """Think and speak for this revision with the gate open from the start."""

    revision: int


@dataclass(frozen=True, slots=True)
class Release:
    """Open the gate of a speculated revision."""

    revision: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop this revision in the engines, and flush what of it was not sent."""

    revision: int
    reason: CancelReason


@dataclass(frozen=True, slots=True)
class Refuse:
    """The client's last action cannot be done now."""

    code: Literal["conversation_already_has_active_response", "response_cancel_not_active"]


Action = (
    StartTurn | Announce | Decode | Speculate | CommitTurn | DropTurn | Respond | Release | Cancel | Refuse
)

# --- items and responses --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Part:
    """One piece of a message's content.

    `text` is the text or the transcript (None while it is not known); audio parts are marked by `kind`.
    """

    kind: Literal["input_text", "input_audio", "output_text", "output_audio"]
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the conversation.

    Messages have `role` and `parts`. `function_call` has `name`, `arguments` (a JSON string) and `call_id`;
    `function_call_output` has `call_id` and `output`.
    """

    id: str
    kind: Literal["message", "function_call", "function_call_output"] = "message"
    role: Literal["system", "user", "assistant"] | None = None
    parts: tuple[Part, ...] = ()
    status: Literal["in_progress", "completed", "incomplete"] = "completed"
    name: str | None = None
    call_id: str | None = None
    arguments: str | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one response; `cached_tokens` of the input came from the engine's prefix cache."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    output_audio_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Response:
    """A response as the client sees it. `output` is empty until items exist."""

    id: str
    modality: Modality
    status: Literal["in_progress", "completed", "cancelled", "failed", "incomplete"] = "in_progress"
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None
    error: AntiphonError | None = None
    output: tuple[Item, ...] = ()
    usage: Usage | None = None
    metadata: Mapping[str, str] | None = None
    voice: str = ""
    max_output_tokens: int | None = None
    in_conversation: bool = True


# --- what a client asks of a session --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for the user to go on, by the probability that the turn is over.

    quick: seconds when it surely is (`sure` or more). slow: seconds when it surely is not (`unsure` or less).
    Between them the wait is a straight line.
    """

    quick: float = 0.2
    slow: float = 1.0
    unsure: float = 0.6
    sure: float = 0.85

    def wait(self, probability: float) -> float:
        """Seconds of silence that end the turn; probability: 0 to 1."""
        share = (self.sure - probability) / (self.sure - self.unsure)
        return self.quick + (self.slow - self.quick) * min(1.0, max(0.0, share))


@dataclass(frozen=True, slots=True)
class TurnPolicy:
    """How the server finds turns; see the settings section `turn`.

    silence: seconds that end a turn. patience: how a probability of the end changes that; None for not at all.
    """

    silence: float = 0.5
    patience: Patience | None = None
    speculate: bool = True
    create_response: bool = True
    interrupt_response: bool = True

    def wait(self, probability: float | None) -> float:
        """Seconds of silence that end a turn; the probability is None while it is not known."""
        if self.patience is None or probability is None:
            return self.silence
        return self.patience.wait(probability)

    @property
    def longest(self) -> float:
        """Seconds of silence after which a turn has ended whatever was said."""
        return self.silence if self.patience is None else max(self.silence, self.patience.slow)


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """What a client may change about its session, in the pipeline's own terms.

    `turn` None means manual turns: the client commits and asks. `max_output_tokens` None means no limit but
    the model's. `speed` 1.0 is the voice's own pace. `language` None lets the recogniser decide.
    """

    instructions: str = ""
    modality: Modality = "audio"
    voice: str = "heart"
    speed: float = 1.0
    language: str | None = None
    transcribe: bool = True
    vad_threshold: float = 0.5
    prefix_padding: float = 0.3
    turn: TurnPolicy | None = field(default_factory=TurnPolicy)
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Configure:
    config: SessionConfig
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Input audio: 16 kHz, mono."""

    samples: Samples
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CommitAudio:
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ClearAudio:
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateItem:
    """`item.id` is empty when the client gave none. `previous_item_id`: None appends, "root" prepends."""

    item: Item
    previous_item_id: str | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """Keep the first `audio_end` seconds of an assistant item's audio, and the words heard in them."""

    item_id: str
    content_index: int
    audio_end: float
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    item_id: str
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """None in a field takes the session's value. `input` replaces the conversation as the prompt."""

    instructions: str | None = None
    modality: Modality | None = None
    voice: str | None = None
    max_output_tokens: int | None = None
    metadata: Mapping[str, str] | None = None
    input: Sequence[Item] | None = None
    in_conversation: bool = True
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    response_id: str | None = None
    event_id: str | None = None


Command = (
    Configure
    | AppendAudio
    | CommitAudio
    | ClearAudio
    | CreateItem
    | RetrieveItem
    | TruncateItem
    | DeleteItem
    | CreateResponse
    | CancelResponse
)

# --- what a session tells its client --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Configured:
    config: SessionConfig


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The user took the floor; `item_id` is the item this turn will become."""

    item_id: str
    start: float


@dataclass(frozen=True, slots=True)
class TurnStopped:
    item_id: str
    end: float


@dataclass(frozen=True, slots=True)
class AudioCommitted:
    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class AudioCleared:
    pass


@dataclass(frozen=True, slots=True)
class ItemAdded:
    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemDone:
    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    item: Item


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    item_id: str
    content_index: int
    audio_end: float


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    item_id: str


@dataclass(frozen=True, slots=True)
class TranscriptionDelta:
    item_id: str
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptionDone:
    """`duration` is the seconds of audio that were transcribed."""

    item_id: str
    text: str
    duration: float


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    item_id: str
    error: AntiphonError


@dataclass(frozen=True, slots=True)
class ResponseStarted:
    response: Response


@dataclass(frozen=True, slots=True)
class OutputStarted:
    """The response's one message item begins (status in_progress, one part of the response's modality)."""

    response_id: str
    item: Item
    previous_item_id: str | None
    in_conversation: bool = True


@dataclass(frozen=True, slots=True)
class OutputText:
    """Text of a text response, or transcript of an audio one, in the order spoken; deltas join exactly."""

    response_id: str
    item_id: str
    modality: Modality
    delta: str


@dataclass(frozen=True, slots=True)
class OutputAudio:
    """Audio of a reply at `sample_rate`, contiguous: `start` seconds into the item's audio."""

    response_id: str
    item_id: str
    samples: Samples
    sample_rate: int
    start: float


@dataclass(frozen=True, slots=True)
class OutputDone:
    """The response's message item is finished, or cut (status incomplete)."""

    response_id: str
    item: Item
    previous_item_id: str | None
    in_conversation: bool = True


@dataclass(frozen=True, slots=True)
class ResponseDone:
    response: Response


@dataclass(frozen=True, slots=True)
class Failed:
    """A command could not be carried out; the session goes on. `event_id` is the client's."""

    error: AntiphonError
    event_id: str | None = None


Output = (
    Configured
    | TurnStarted
    | TurnStopped
    | AudioCommitted
    | AudioCleared
    | ItemAdded
    | ItemDone
    | ItemRetrieved
    | ItemTruncated
    | ItemDeleted
    | TranscriptionDelta
    | TranscriptionDone
    | TranscriptionFailed
    | ResponseStarted
    | OutputStarted
    | OutputText
    | OutputAudio
    | OutputDone
    | ResponseDone
    | Failed
)
