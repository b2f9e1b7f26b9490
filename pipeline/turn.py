"""Who has the floor: the turn machine. Events in, actions out; no clock, no I/O, no engine.

The gate is on release, not on start. At the first silent frame (`SpeechStopped`, a candidate end) the machine
asks for a transcript, and for a reply to it, under a new revision. The reply waits behind a gate that opens
when the silence has lasted long enough: the surer the end of the turn, the shorter (`TurnEndProbability`). If
the user goes on before that, the revision is cancelled, nothing was said, and the next candidate end starts
the next revision.

         SpeechStarted                 SpeechStopped
    IDLE ─────────────▶ SPEAKING ◀───────────────────▶ PAUSED ──Tick past the silence──▶ IDLE, turn committed
                                     SpeechStarted

Beside the floor there is at most one reply: speculated (behind the gate) or active (released). A third state
between them, `owed`: the turn is committed, its transcript is still being decoded, and a reply is due.

The machine never decides what is said, never looks at audio, and knows time only as `Event.at`: seconds of
audio received. Late news about an old revision changes nothing.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import assert_never

from .events import (
    Action,
    Announce,
    Cancel,
    CancelReason,
    ClientAsked,
    ClientCancelled,
    ClientCleared,
    ClientCommitted,
    CommitTurn,
    Decode,
    DropTurn,
    Event,
    Interrupted,
    PlaybackEnded,
    PromptChanged,
    Refuse,
    Release,
    Respond,
    ResponseEnded,
    Speculate,
    SpeculationFailed,
    SpeechStarted,
    SpeechStopped,
    StartTurn,
    Tick,
    Transcript,
    TurnEndProbability,
    TurnPolicy,
)


class Floor(Enum):
    """What the user is doing."""

    IDLE = auto()
    SPEAKING = auto()
    PAUSED = auto()


class TurnMachine:
    """One conversation's turn-taking.

    policy: may be replaced between events; it holds from the next event on.
    """

    def __init__(self, policy: TurnPolicy) -> None:
        self.policy = policy
        self.floor = Floor.IDLE
        self.revision = 0
        """The latest attempt. Strictly growing; also the name of the reply that it leads to."""
        self.active: int | None = None
        """The released reply."""
        self.speculated: int | None = None
        """The reply behind the gate."""
        self.owed: int | None = None
        """The committed turn whose transcript is awaited in order to reply to it."""
        self.doubt = False
        """Somebody makes a sound over a reply, and it is not known yet whether they want the floor."""
        self.playing = False
        """The client still plays the end of a reply; what sounds meanwhile is in doubt too."""
        self._asked = False
        """The client asked for the owed reply itself: it comes whatever was heard."""
        self._undecoded: int | None = None
        """The committed turn whose transcript is not known yet."""
        self._end = 0.0
        self._at = 0.0
        self._words: str | None = None
        self._probability: float | None = None

    def handle(self, event: Event) -> list[Action]:
        """What to do about it, in this order."""
        match event:
            case SpeechStarted():
                return self._speech_started(event)
            case SpeechStopped():
                return self._speech_stopped(event)
            case Tick(at):
                self._at = at
                return self._look_at_the_silence()
            case TurnEndProbability(revision, probability, sound):
                if revision == self.revision and self.floor is Floor.PAUSED:
                    self._probability = probability
                return [] if sound else self._look_at_the_silence()
            case Transcript():
                return self._transcript(event)
            case Interrupted():
                return self._interrupted()
            case ResponseEnded(revision, playing):
                if self.active != revision:
                    return []
                self.active, self.playing = None, playing
                return [] if playing else self._believed()
            case PlaybackEnded():
                self.playing = False
                return []
            case SpeculationFailed(revision):
                if self.speculated == revision:
                    self.speculated = None
                return []
            case PromptChanged():
                if self.speculated is None:
                    return []
                return [Cancel(self.speculated, "superseded"), Speculate(self.speculated)]
            case ClientCommitted(at):
                return self._client_committed(at)
            case ClientCleared():
                self.floor = Floor.IDLE
                self.doubt = False
                return [*self._discard("cleared"), DropTurn()]
            case ClientAsked():
                return self._client_asked()
            case ClientCancelled():
                if self.active is None and self.owed is None:
                    return [Refuse("response_cancel_not_active")]
                return [*self._cancel_reply("client_cancelled"), *self._believed()]
        assert_never(event)

    # --- the user's voice -------------------------------------------------------------------------------

    def _speech_started(self, event: SpeechStarted) -> list[Action]:
        actions: list[Action]
        match self.floor:
            case Floor.SPEAKING:
                return []
            case Floor.PAUSED:
                actions = self._discard("resumed")
            case Floor.IDLE:
                heard = self.active is not None or self.playing
                self.doubt = heard and self.policy.interrupt_response
                actions = [StartTurn(event.start, quiet=self.doubt)]
            case _:
                assert_never(self.floor)
        self.floor = Floor.SPEAKING
        if self.policy.interrupt_response and not self.doubt:
            actions += self._cancel_reply("turn_detected")
        return actions

    def _interrupted(self) -> list[Action]:
        if not self.doubt:
            return []
        return [*self._believed(), *self._cancel_reply("turn_detected")]

    def _believed(self) -> list[Action]:
        """There is nothing to interrupt any more, or it shall be: the sound is a turn like any other."""
        if not self.doubt:
            return []
        self.doubt = False
        return [Announce()]

    def _speech_stopped(self, event: SpeechStopped) -> list[Action]:
        if self.floor is not Floor.SPEAKING:
            return []
        self.floor = Floor.PAUSED
        self._end = event.end
        self._at = event.at
        self._words = self._probability = None
        revision = self._next()
        return [Decode(revision)] if self.policy.speculate or self.doubt else []

    def _look_at_the_silence(self) -> list[Action]:
        if self.doubt:
            return []  # the words decide, and come soon
        over = self.floor is Floor.PAUSED and self._at - self._end >= self.policy.wait(self._probability)
        return self._open_gate() if over else []

    def _open_gate(self) -> list[Action]:
        self.floor = Floor.IDLE
        revision = self.revision
        actions: list[Action] = [CommitTurn(revision, self._end)]
        if not self.policy.speculate:
            actions.append(Decode(revision))
        self._undecoded = revision if self._words is None else None
        if not self.policy.create_response:
            return actions + self._discard("superseded")
        if self.active is not None or self.owed is not None:
            return [
                *actions,
                *self._discard("superseded"),
                Refuse("conversation_already_has_active_response"),
            ]
        if self.speculated == revision:
            self.active, self.speculated = revision, None
            return [*actions, Release(revision)]
        if self._words is None:
            self.owed, self._asked = revision, False
        elif self._words:
            self.active = revision
            actions.append(Respond(revision))
        return actions

    # --- what the recogniser heard ----------------------------------------------------------------------

    def _transcript(self, event: Transcript) -> list[Action]:
        if event.revision == self._undecoded:
            self._undecoded = None
        if event.revision == self.owed:
            self.owed = None
            if self.active is None and (self._asked or (event.text and self.policy.create_response)):
                self.active = event.revision
                return [Respond(event.revision)]
            return []
        if event.revision != self.revision or self.floor is not Floor.PAUSED:
            return []
        if self.doubt and not event.interrupts:
            self.doubt = False
            self.floor = Floor.IDLE
            return [DropTurn()]
        believed = self._interrupted()
        self._words = event.text
        free = self.active is None and self.owed is None and self.speculated is None
        if event.text and free and self.policy.create_response:
            self.speculated = event.revision
            return [*believed, Speculate(event.revision)]
        return believed

    # --- what the client does by hand -------------------------------------------------------------------

    def _client_committed(self, at: float) -> list[Action]:
        self.floor = Floor.IDLE
        cancelled = [*self._interrupted(), *self._discard("superseded")]
        revision = self._undecoded = self._next()
        return [*cancelled, CommitTurn(revision, at), Decode(revision)]

    def _client_asked(self) -> list[Action]:
        if self.active is not None or self.owed is not None:
            return [Refuse("conversation_already_has_active_response")]
        actions = self._discard("superseded")
        if self._undecoded is not None:
            self.owed, self._asked = self._undecoded, True
        else:
            self.active = self._next()
            actions.append(Respond(self.active))
        if self.floor is Floor.PAUSED:
            # The pause goes on under a revision of its own: the old one was cancelled, or is not the latest.
            self._words = self._probability = None
            revision = self._next()
            if self.policy.speculate:
                actions.append(Decode(revision))
        return actions

    # --- shared -----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.revision += 1
        return self.revision

    def _discard(self, reason: CancelReason) -> list[Action]:
        """Drop the reply behind the gate."""
        if self.speculated is None:
            return []
        revision, self.speculated = self.speculated, None
        return [Cancel(revision, reason)]

    def _cancel_reply(self, reason: CancelReason) -> list[Action]:
        """Stop the active reply, and forget one that is owed; speech does not undo what the client asked for."""
        if reason != "turn_detected" or not self._asked:
            self.owed = None
        if self.active is None:
            return []
        revision, self.active = self.active, None
        return [Cancel(revision, reason)]
