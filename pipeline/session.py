"""One conversation: does what the turn machine asks.

Everything that changes the conversation happens on the event loop in one synchronous step, `_happen`: an
event goes to the turn machine and its actions are carried out before anything else runs. Commands come in
order through a bounded inbox; engines run elsewhere (workers, the language model's threads) and report back
as events that carry their revision.

    commands ─▶ inbox ─▶ _listen: frames ─▶ detector ─▶ _happen ─▶ turn machine ─▶ _act ─▶ decode, Reply
    outputs  ◀─ outbox ◀──────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import assert_never

from ..asr.streaming import Utterance
from ..asr.vad import FRAME_SECONDS, RESUME_WITHIN, SpeechDetector
from ..llm.base import Message
from ..tts.base import Voice
from .asides import Asides
from .asking import prompt_for, request_for, response_for
from .bargein import TAIL, echo, interrupts
from .conversation import Conversation
from .editing import edit, entered
from .endpointing import EndOfTurn
from .engines import Engines
from .errors import AntiphonError, BadRequest, TooLarge
from .events import (
    Action,
    Announce,
    AppendAudio,
    AudioCleared,
    Cancel,
    CancelReason,
    CancelResponse,
    ClearAudio,
    ClientAsked,
    ClientCancelled,
    ClientCleared,
    ClientCommitted,
    Command,
    CommitAudio,
    CommitTurn,
    Configure,
    Configured,
    CreateItem,
    CreateResponse,
    Decode,
    DeleteItem,
    DropTurn,
    Event,
    Failed,
    Interrupted,
    Item,
    ItemTruncated,
    Output,
    Part,
    PlaybackEnded,
    PromptChanged,
    Refuse,
    Release,
    Respond,
    ResponseDone,
    ResponseEnded,
    ResponseStarted,
    RetrieveItem,
    Samples,
    SessionConfig,
    Speculate,
    SpeculationFailed,
    SpeechStopped,
    StartTurn,
    Tick,
    TimedOut,
    Transcript,
    TranscriptionDelta,
    TranscriptionDone,
    TranscriptionFailed,
    TruncateItem,
    TurnEndProbability,
    TurnPolicy,
    TurnStarted,
    TurnStopped,
)
from .hearing import Ear, OpenTurn, Scribe
from .idle import SILENCE, Idle
from .metrics import TurnTrace
from .outbox import NotReading, Outbox
from .prefill import Prefill
from .reply import Reply
from .settings import Settings
from .turn import Floor, TurnMachine

SHORTEST_COMMIT = 0.1
"""Seconds; less audio than this is an empty commit (OpenAI's rule)."""

MUTED = 1.0
"""Seconds without audio, on the wall's clock, that stand for the silence at the end of a turn."""

Ordinary = (
    Configure
    | ClearAudio
    | CreateItem
    | RetrieveItem
    | TruncateItem
    | DeleteItem
    | CreateResponse
    | CancelResponse
)
"""Commands that are done in one step; those about audio wait for the detector."""

REFUSALS: Mapping[str, str] = {
    "conversation_already_has_active_response": "a response is active already; cancel it or wait for its end",
    "response_cancel_not_active": "no response is active",
}

log = logging.getLogger(__name__)


class Session:
    """One client's conversation.

    config: how it starts; `Configure` changes it. new_id: makes ids from a prefix ("item", "resp").
    record: gets the trace of every turn. Run `run`, feed `send`, read `outputs`; `aclose` ends all three.
    """

    def __init__(
        self,
        engines: Engines,
        settings: Settings,
        *,
        config: SessionConfig,
        new_id: Callable[[str], str],
        record: Callable[[TurnTrace], None],
    ) -> None:
        self.id = new_id("sess")
        self.config = config
        self.conversation = Conversation(max_items=settings.session.max_items)
        self._engines = engines
        self._settings = settings
        self._new_id = new_id
        self._record = record
        self._inbox: asyncio.Queue[Command] = asyncio.Queue(64)
        self._outbox = Outbox()
        self._machine = TurnMachine(config.turn or TurnPolicy())
        self._ear = Ear(engines, self.id)
        self._scribe = Scribe(engines, self.id, settings.asr.partial_interval, self._spawn)
        self._asides = Asides(self._spawn, self._begin_aside)
        self._idle = Idle()
        self._end_of_turn = EndOfTurn(engines.text, self.id)
        self._prefill = Prefill(engines.chat, self.id, self._spawn, self._end_of_turn)
        self._detector = SpeechDetector(min_speech=settings.vad.min_speech)
        self._tune_detector()
        self._turn: OpenTurn | None = None
        self._last_turn: OpenTurn | None = None
        self._turns = 0
        self._replies: dict[int, Reply] = {}
        self._last_reply: Reply | None = None
        """That ended, and may be playing still."""
        self._asked: CreateResponse | None = None
        self._command_id: str | None = None
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = False
        self._echoes = False
        self._tail = "", 0.0
        """What the last reply said, and the event loop time when it is played and its echo is over."""

    # --- life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until `aclose`. Cancelling ends everything the session started, and frees its engines."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._spawn(self._listen(), "listen")
                self._bring()
                await self._closing.wait()
                for reply in list(self._replies.values()):
                    reply.cancel("closed")
                for task in self._tasks:
                    task.cancel()
        finally:
            self._group = None
            self._closing.set()
            self._quiet.set()
            self._outbox.close()

    async def send(self, command: Command) -> None:
        """Take a command; waits while the inbox is full. Cancelling sends nothing."""
        await self._inbox.put(command)

    def refuse(self, failed: Failed) -> None:
        """Tell the client, after what it is told before, that its message was no command. Raises NotReading."""
        self._outbox.put(failed)

    def outputs(self) -> AsyncIterator[Output]:
        """What the client is to be told, in order, audio paced; ends with the session. One reader."""
        return self._outbox.read()

    def caught_up(self, item_id: str, seconds: float) -> None:
        """The client was away. Of this item's sound it has `seconds`, and hears what follows from now on."""
        for reply in [*self._replies.values(), *([self._last_reply] if self._last_reply else [])]:
            if reply.item_id == item_id:
                reply.caught_up(seconds)
                if reply is self._last_reply and self._machine.playing:
                    self._tail = self._tail[0], self._now() + reply.unplayed + TAIL

    async def drain(self, seconds: float) -> None:
        """Take no new turn, and wait until the running reply has ended, at most `seconds`."""
        self._draining = True
        try:
            async with asyncio.timeout(seconds):
                await self._quiet.wait()
        except TimeoutError:
            log.info("session %s still spoke after %.0f s of draining", self.id, seconds)

    async def aclose(self) -> None:
        """End the session: `run` returns and `outputs` ends. Idempotent."""
        self._closing.set()

    # --- commands ---------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        while True:
            command = await self._next()
            self._command_id = command.event_id
            try:
                if isinstance(command, AppendAudio):
                    await self._hear(command.samples)
                elif isinstance(command, CommitAudio):
                    await self._commit()
                else:
                    self._obey(command)
            except NotReading:
                raise
            except AntiphonError as error:
                self._outbox.put(Failed(error, command.event_id))

    async def _next(self) -> Command:
        """The client's next command. One that sends no more audio in the middle of a turn, or of a sound over
        a reply, has ended it: a microphone that is muted, a recording that is over."""
        while True:
            active = self._active_reply()
            unsettled = self._machine.floor is not Floor.IDLE or (active is not None and active.ducked)
            waiting = self.config.turn is not None and unsettled
            try:
                async with asyncio.timeout(MUTED if waiting else None):
                    return await self._inbox.get()
            except TimeoutError:
                self._muted()

    def _muted(self) -> None:
        turn = self._turn
        if self._machine.floor is Floor.SPEAKING and turn is not None:
            turn.ended = self._now() - MUTED
            self._happen(SpeechStopped(self._ear.at, self._ear.at))
        self._happen(Tick(self._ear.at + self._machine.policy.longest))
        self._detector.reset()
        self._duck()

    def _obey(self, command: Ordinary) -> None:
        match command:
            case Configure():
                self._configure(command.config)
            case ClearAudio():
                self._ear.drop()
                self._detector.reset()
                self._happen(ClientCleared(self._ear.at))
                self._outbox.put(AudioCleared())
            case CreateItem() | RetrieveItem() | DeleteItem():
                for told in edit(self.conversation, command, self._new_id):
                    self._outbox.put(told)
                if not isinstance(command, RetrieveItem):
                    self._happen(PromptChanged())
            case TruncateItem():
                self._truncate(command)
            case CreateResponse():
                if self._draining:
                    raise AntiphonError("the server is shutting down", code="server_draining")
                busy = self._machine.active is not None or self._machine.owed is not None
                if busy and not command.in_conversation and not self._asides.full:
                    self._asides.start(command, self._last_turn and self._last_turn.final)
                    return
                if not busy:
                    self._asked = command
                self._happen(ClientAsked())
            case CancelResponse():
                self._cancel_asked(command.response_id)
            case _:
                assert_never(command)

    def _begin_aside(self, revision: int, asked: CreateResponse) -> Reply:
        prompt = prompt_for(asked, self.config, self.conversation)
        return self._begin(revision, prompt, None, asked, f"{self.id}-aside")

    def _configure(self, config: SessionConfig) -> None:
        manual_changes = (config.turn is None) != (self.config.turn is None)
        self.config = config
        self._machine.policy = config.turn or TurnPolicy()
        self._tune_detector()
        self._outbox.put(Configured(config))
        if manual_changes:
            self._detector.reset()
        self._happen(ClientCleared(self._ear.at) if manual_changes else PromptChanged())
        self._bring()

    def _tune_detector(self) -> None:
        # Speech that goes on after a pause is the same turn's for as long as the gate may be shut.
        self._detector.configure(
            threshold=self.config.vad_threshold,
            prefix_padding=self.config.prefix_padding,
            resume_within=max(RESUME_WITHIN, self._machine.policy.longest + self._settings.vad.min_speech),
        )

    def _truncate(self, command: TruncateItem) -> None:
        """What plays is stopped first: nobody truncates what they go on listening to."""
        self.conversation.truncatable(command.item_id, command.content_index)
        active = self._active_reply()
        if active is not None and active.item_id == command.item_id:
            self._happen(ClientCancelled())
        end = self.conversation.truncate(command.item_id, command.audio_end)
        self._outbox.put(ItemTruncated(command.item_id, command.content_index, end))
        self._happen(PromptChanged())

    def _active_reply(self) -> Reply | None:
        return None if self._machine.active is None else self._replies.get(self._machine.active)

    async def _commit(self) -> None:
        if self.config.turn is None:
            await self._hear(self._ear.rest())
        turn = self._turn
        if turn is None or turn.utterance.seconds < SHORTEST_COMMIT:
            raise BadRequest(
                f"the input audio buffer holds less than {SHORTEST_COMMIT * 1000:.0f} ms of speech",
                code="input_audio_buffer_commit_empty",
            )
        turn.ended = self._now()
        self._detector.reset()
        self._happen(ClientCommitted(self._ear.at))

    def _cancel_asked(self, response_id: str | None) -> None:
        if response_id is not None and (aside := self._asides.find(response_id)) is not None:
            self._cancel(aside.revision, "client_cancelled")
            return
        active = self._active_reply()
        if response_id is not None and (active is None or active.response.id != response_id):
            raise BadRequest(
                f"response {response_id!r} is not active",
                code="response_cancel_not_active",
                param="response_id",
            )
        if self._machine.owed is not None and self._asked is not None:
            # Asked for and not begun: it exists for the client just long enough to be cancelled.
            response = response_for(self._asked, self.config, self._new_id)
            self._outbox.put(ResponseStarted(response))
            self._outbox.put(ResponseDone(replace(response, status="cancelled", reason="client_cancelled")))
        self._happen(ClientCancelled())
        self._asked = None

    # --- audio ------------------------------------------------------------------------------------------

    async def _hear(self, samples: Samples) -> None:
        detect = self.config.turn is not None
        async with aclosing(self._ear.hear(samples, detect=detect)) as frames:
            async for frame, probability, behind in frames:
                self._frame(frame, probability, behind)

    def _frame(self, frame: Samples, probability: float, behind: float) -> None:
        """One frame in: the detector's news, the clock's tick, and a partial when it is due.

        behind: seconds of audio that came in the same message after this frame.
        """
        if self._turn is not None:
            self._turn.utterance.push(frame)
        elif self.config.turn is None and not self._draining:
            self._turn = self._new_turn(self._ear.at - FRAME_SECONDS)
            self._turn.utterance.push(frame)
        if self._machine.playing and self._now() > self._tail[1]:
            self._happen(PlaybackEnded())
        for event in self._detector.push(probability):
            if self.config.turn is not None and not (self._draining and self._turn is None):
                if isinstance(event, SpeechStopped) and self._turn is not None:
                    self._turn.ended = self._now() - behind - (event.at - event.end)
                self._happen(event)
        if self.config.turn is not None and not self._detector.pending:
            self._happen(Tick(self._ear.at))
        self._duck()
        self._look_at_the_idle_time()
        if self._turn is not None:
            self._partial_when_due(self._turn)
            self._bound(self._turn)

    def _look_at_the_idle_time(self) -> None:
        """Nobody has said anything for long enough: the agent takes the floor, as after a turn without words."""
        machine, at = self._machine, self._ear.at
        if machine.floor is not Floor.IDLE or machine.active is not None or machine.owed is not None:
            self._idle.stir(at)
        elif self.config.turn is not None and not (self._draining or self._detector.pending):
            since = self._idle.over(at, self.config.turn.idle_timeout)
            if since is not None:
                self._timed_out(since, at)

    def _timed_out(self, since: float, at: float) -> None:
        item = Item(self._new_id("item"), role="user", parts=(Part("input_audio", ""),))
        said = Item("", role="user", parts=(Part("input_text", SILENCE),))
        self._asked = CreateResponse(input=(*self.conversation.items, said))
        self._outbox.put(TimedOut(item.id, since, at))
        self._enter(item)
        if self.config.transcribe:
            self._outbox.put(TranscriptionDone(item.id, "", at - since))
        self._happen(ClientAsked())

    def _duck(self) -> None:
        """Lower the reply's voice while somebody may want the floor; not for its own echo."""
        active = self._active_reply()
        if active is not None:
            turn = self.config.turn
            sound = turn is not None and turn.interrupt_response and self._detector.candidate
            active.ducked = (sound or self._machine.doubt) and not self._echoes

    def _partial_when_due(self, turn: OpenTurn) -> None:
        speaking = self.config.turn is None or self._machine.floor is Floor.SPEAKING
        if speaking and not self._scribe.busy and turn.utterance.due(self._scribe.stretch):
            self._scribe.partial(turn, self._partly_heard)

    def _bound(self, turn: OpenTurn) -> None:
        limit = self._settings.session.max_utterance_seconds
        if self._ear.at - turn.start < limit:
            return
        log.info("session %s: a turn reached session.max_utterance_seconds (%.0f s)", self.id, limit)
        turn.ended = self._now()
        if self.config.turn is None:
            self._happen(ClientCommitted(self._ear.at))
            error = TooLarge(
                f"the input audio reached {limit:.0f} s (session.max_utterance_seconds) and was committed",
                code="input_audio_buffer_full",
            )
            self._outbox.put(Failed(error, self._command_id))
            return
        self._happen(SpeechStopped(self._ear.at, self._ear.at))
        self._happen(Tick(self._ear.at + self._machine.policy.silence))
        self._detector.reset()

    # --- the turn machine's shell -----------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if self._group is None or self._closing.is_set():
            return
        for action in self._machine.handle(event):
            self._act(action)
        machine = self._machine
        if machine.active is machine.owed is machine.speculated is None and machine.floor is not Floor.PAUSED:
            self._quiet.set()
        else:
            self._quiet.clear()

    def _act(self, action: Action) -> None:
        match action:
            case StartTurn(start, quiet):
                self._turn = self._new_turn(start)
                self._turn.utterance.push(self._ear.since(start))
                if not quiet:
                    self._outbox.put(TurnStarted(self._turn.item_id, start))
            case Announce():
                assert self._turn is not None
                self._outbox.put(TurnStarted(self._turn.item_id, self._turn.start))
            case Decode(revision):
                turn = self._turn or self._last_turn
                assert turn is not None
                if turn.final is not None:
                    turn.final.cancel()
                turn.over = None
                turn.final = self._spawn(self._decode_final(turn, revision), "final")
                self._prefill.stop()
            case Speculate(revision):
                turn = self._turn
                assert turn is not None
                turn.launched += 1
                prompt = [*self._history_messages(), Message("user", turn.texts[revision])]
                self._begin(revision, prompt, turn, CreateResponse())
            case CommitTurn(revision, end):
                self._commit_turn(revision, end)
            case DropTurn():
                self._turn = None
                self._detector.settle()
            case Respond(revision):
                asked = self._asked or CreateResponse()
                prompt = prompt_for(asked, self.config, self.conversation)
                turn = self._last_turn if self._last_turn and self._last_turn.committed == revision else None
                self._asked = None
                self._release(self._begin(revision, prompt, turn, asked))
            case Release(revision):
                turn, reply = self._last_turn, self._replies[revision]
                assert turn is not None
                reply.trace.used = 1
                self._release(reply)
            case Cancel(revision, reason):
                self._cancel(revision, reason)
            case Refuse(code):
                self._outbox.put(Failed(BadRequest(REFUSALS[code], code=code), self._command_id))
            case _:
                assert_never(action)

    def _commit_turn(self, revision: int, end: float) -> None:
        turn = self._turn
        assert turn is not None
        self._turn, self._last_turn = None, turn
        turn.committed = revision
        turn.duration = max(0.0, end - turn.start)
        if self.config.turn is not None:
            self._outbox.put(TurnStopped(turn.item_id, end))
        self._enter(Item(turn.item_id, role="user", parts=(Part("input_audio"),)))
        if revision in turn.failed:
            self._outbox.put(TranscriptionFailed(turn.item_id, turn.failed[revision]))
        elif revision in turn.texts:
            self._transcribed(turn, turn.texts[revision])

    def _enter(self, item: Item) -> None:
        """The user's audio becomes an item."""
        for told in entered(self.conversation, item):
            self._outbox.put(told)

    def _transcribed(self, turn: OpenTurn, text: str) -> None:
        self.conversation.update(Item(turn.item_id, role="user", parts=(Part("input_audio", text),)))
        if self.config.transcribe:
            if text:
                self._outbox.put(TranscriptionDelta(turn.item_id, text))
            self._outbox.put(TranscriptionDone(turn.item_id, text, turn.duration))

    def _begin(
        self,
        revision: int,
        prompt: list[Message],
        turn: OpenTurn | None,
        asked: CreateResponse,
        owner: str | None = None,
    ) -> Reply:
        trace = TurnTrace(self.id, self._turns, revision)
        since = self._now()
        if turn is not None:
            since = turn.ended
            turn.heard(trace, self._ear.at)
        response = response_for(asked, self.config, self._new_id)
        llm = self._settings.llm
        request = request_for(asked, response, prompt, self.config, llm, owner or self.id)
        reply = Reply(
            revision,
            response,
            self._new_id,
            request,
            chat=self._engines.chat,
            synthesizer=self._engines.voice,
            voice=Voice(response.voice, self.config.speed),
            outbox=self._outbox,
            conversation=self.conversation,
            lead=self._settings.output.lead,
            trace=trace,
            since=since,
            turn=turn,
            ended=self._reply_ended,
        )
        self._replies[revision] = reply
        self._prefill.stop()
        reply.task = self._spawn(reply.run(), f"reply-{revision}")
        reply.task.add_done_callback(lambda _: self._forget(reply))
        return reply

    def _release(self, reply: Reply) -> None:
        """Let a reply out, with what its turn has cost so far in its trace."""
        if reply.turn is not None:
            reply.turn.closed(reply.trace)
        reply.release()

    def _forget(self, reply: Reply) -> None:
        # A revision's reply may have been replaced by another (PromptChanged) while it unwound.
        if self._replies.get(reply.revision) is reply:
            del self._replies[reply.revision]

    def _reply_ended(self, reply: Reply) -> None:
        if reply.released:
            self._record(reply.trace)
            left = reply.unplayed
            if reply.revision > 0:
                self._idle.begin(self._ear.at + left)
            self._tail = reply.said, self._now() + left + TAIL
            self._last_reply = reply
            self._happen(ResponseEnded(reply.revision, playing=left > 0))
        else:
            self._count_discarded(reply, 0.0)
            self._happen(SpeculationFailed(reply.revision))

    def _count_discarded(self, reply: Reply, wasted_ms: float) -> None:
        if reply.turn is not None:
            reply.turn.discarded += 1
            reply.turn.wasted_ms += wasted_ms

    def _cancel(self, revision: int, reason: CancelReason) -> None:
        reply = self._replies.get(revision)
        if reply is None:
            return
        wasted = reply.cancel(reason)
        if reply.released:
            if revision > 0:
                self._idle.begin(self._ear.at)
            self._record(reply.trace)
        else:
            self._count_discarded(reply, wasted)

    # --- the engines ------------------------------------------------------------------------------------

    def _partly_heard(self, turn: OpenTurn) -> None:
        # All words, not only the agreed ones: a wrong guess costs a few tokens while the user still speaks, a
        # right one saves them when the turn ends.
        if self._machine.doubt and self._turn is turn:
            if self._interrupts(turn.utterance.text, whole=False):
                self._happen(Interrupted())
            return
        words = turn.utterance.text
        if words and self._turn is turn and self._machine.floor is Floor.SPEAKING:
            self._bring(words)

    async def _decode_final(self, turn: OpenTurn, revision: int) -> None:
        text = ""
        try:
            text = turn.texts[revision] = await self._scribe.final(turn)
            turn.transcript_at = self._now()
            if turn.committed == revision:
                self._transcribed(turn, text)
            elif text and self._machine.policy.patience is not None and not self._machine.doubt:
                # Before the reply: both want the conversation's slot, and the words are the reply's prefix.
                turn.over = await self._end_of_turn.probability(
                    self._history_messages(), text, self.config.tools
                )
        except AntiphonError as error:
            turn.failed[revision] = error
            if turn.committed == revision:
                self._outbox.put(TranscriptionFailed(turn.item_id, error))
        doubted = self._machine.doubt and self._turn is turn
        self._happen(Transcript(revision, text, not doubted or self._interrupts(text, whole=True)))
        if turn.over is not None:
            self._happen(TurnEndProbability(revision, turn.over, sound=self._detector.pending))

    def _interrupts(self, text: str, *, whole: bool) -> bool:
        active = self._active_reply()
        said = self._tail[0] if active is None or self._machine.playing else ""
        said = said if active is None else f"{said} {active.said}"
        wanted = interrupts(text, said, whole=whole, speaking=active is not None)
        if wanted or whole:
            self._echoes = not wanted and echo(text, said)
        return wanted

    def _bring(self, words: str = "") -> None:
        if self._settings.llm.prefill and self.config.answers and not self._replies:
            self._prefill.bring(self._history_messages(), words, self.config.tools)

    # --- small things -----------------------------------------------------------------------------------

    def _history_messages(self) -> list[Message]:
        return self.conversation.messages(self.config.instructions) if self.config.answers else []

    def _new_turn(self, start: float) -> OpenTurn:
        self._turns += 1
        utterance = Utterance(
            language=self.config.language, partial_interval=self._settings.asr.partial_interval
        )
        return OpenTurn(self._new_id("item"), self._turns, start, utterance)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._group is not None
        task = self._group.create_task(work, name=f"{self.id}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
