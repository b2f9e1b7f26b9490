"""One conversation: does what the turn machine asks.

Everything that changes the conversation happens on the event loop in one synchronous step, `_happen`: an
event goes to the turn machine and its actions are carried out before anything else runs. Commands come in order
through a bounded inbox; engines run elsewhere (workers, the language model's threads) and report back as
events that carry their revision.

    commands ─▶ inbox ─▶ _listen: frames ─▶ detector ─▶ _happen ─▶ turn machine ─▶ _act ─▶ decode, Reply
    outputs  ◀─ outbox ◀──────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from ..asr.base import SAMPLE_RATE, Transcription, Window
from ..asr.streaming import Utterance
from ..asr.vad import FRAME, SpeechDetector, VadState
from ..llm.base import ChatRequest, Message
from ..tts.base import Voice
from .audio import Framer
from .conversation import Conversation, messages
from .engines import Engines, VadInput
from .errors import AntiphonError, BadRequest, EngineFailed, TooLarge
from .events import (
    Action,
    AppendAudio,
    AudioCleared,
    AudioCommitted,
    Cancel,
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
    Item,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    Output,
    Part,
    Refuse,
    Release,
    Respond,
    Response,
    ResponseEnded,
    RetrieveItem,
    Samples,
    SessionConfig,
    Speculate,
    SpeechStopped,
    StartTurn,
    Tick,
    Transcript,
    TranscriptionDelta,
    TranscriptionDone,
    TranscriptionFailed,
    TruncateItem,
    TurnPolicy,
    TurnStarted,
    TurnStopped,
)
from .metrics import TurnTrace
from .outbox import Outbox
from .reply import Reply
from .settings import Settings
from .turn import Floor, TurnMachine
from .worker import Dropped

HISTORY = 2.0
"""Seconds of audio kept before a turn begins: pre-roll, the detector's delay, and room."""

SHORTEST_COMMIT = 0.1
"""Seconds; less audio than this is an empty commit (OpenAI's rule)."""

VAD_FRAMES = 32
"""At most so many frames (1 s) go to the detector in one call, so a long append does not hold it."""

REFUSALS = {
    "conversation_already_has_active_response": "a response is active already; cancel it or wait for its end",
    "response_cancel_not_active": "no response is active",
}

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Turn:
    """The user's turn while it is open, and after it until its transcript is known.

    ended: event loop time of the last speech sample, as far as it is known.
    """

    item_id: str
    number: int
    start: float
    utterance: Utterance
    ended: float = 0.0
    duration: float = 0.0
    committed: int | None = None
    final: asyncio.Task[None] | None = None
    texts: dict[int, str] = field(default_factory=dict[int, str])
    failed: AntiphonError | None = None
    transcript_at: float | None = None
    launched: int = 0
    discarded: int = 0
    wasted_ms: float = 0.0


class Session:
    """One client's conversation.

    config: how it starts; `Configure` changes it. new_id: makes ids from a prefix ("item", "resp").
    record: gets the trace of every turn. Run `run()`, feed `send()`, read `outputs()`; `aclose()` ends all three.
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
        self._framer = Framer(FRAME)
        self._vad_state = VadState()
        self._detector = self._new_detector()
        self._frames = 0
        self._history: deque[Samples] = deque(maxlen=int(HISTORY * SAMPLE_RATE / FRAME))
        self._turn: _Turn | None = None
        self._last_turn: _Turn | None = None
        self._turns = 0
        self._replies: dict[int, Reply] = {}
        self._asked: CreateResponse | None = None
        self._command_id: str | None = None
        self._partial: tuple[asyncio.Task[None], Window] | None = None
        self._prefill: asyncio.Task[None] | None = None
        self._prefilled = ""
        self._group: asyncio.TaskGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._draining = False

    # --- life -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live until `aclose`. Cancelling ends everything the session started, and frees its engines."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._spawn(self._listen(), "listen")
                self._warm()
                await self._closing.wait()
                for reply in list(self._replies.values()):
                    reply.cancel("closed")
                for task in self._tasks:
                    task.cancel()
        finally:
            self._group = None
            self._closing.set()
            self._outbox.close()

    async def send(self, command: Command) -> None:
        """Take a command; waits while the inbox is full. Cancelling sends nothing."""
        await self._inbox.put(command)

    def outputs(self) -> AsyncIterator[Output]:
        """What the client is to be told, in order; audio is already paced. Ends with the session. One reader."""
        return self._outbox.read()

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
            command = await self._inbox.get()
            self._command_id = command.event_id
            try:
                if isinstance(command, AppendAudio):
                    await self._hear(command.samples)
                else:
                    self._obey(command)
            except AntiphonError as error:
                self._outbox.put(Failed(error, command.event_id))

    def _obey(self, command: Command) -> None:
        match command:
            case Configure():
                self._configure(command.config)
            case CommitAudio():
                self._commit()
            case ClearAudio():
                self._happen(ClientCleared(self._at))
                self._outbox.put(AudioCleared())
            case CreateItem():
                item = replace(command.item, id=command.item.id or self._new_id("item"))
                previous = self.conversation.add(item, command.previous_item_id)
                self._outbox.put(ItemAdded(item, previous))
                self._outbox.put(ItemDone(item, previous))
            case RetrieveItem():
                self._outbox.put(ItemRetrieved(self.conversation.get(command.item_id)))
            case TruncateItem():
                end = self.conversation.truncate(command.item_id, command.audio_end)
                self._outbox.put(ItemTruncated(command.item_id, command.content_index, end))
            case DeleteItem():
                self.conversation.delete(command.item_id)
                self._outbox.put(ItemDeleted(command.item_id))
            case CreateResponse():
                if self._draining:
                    raise AntiphonError("the server is shutting down", code="server_draining")
                self._asked = command
                self._happen(ClientAsked())
            case CancelResponse():
                self._cancel_asked(command.response_id)
            case AppendAudio():
                raise AssertionError("audio goes through _hear")
            case _:
                assert_never(command)

    def _configure(self, config: SessionConfig) -> None:
        manual_changes = (config.turn is None) != (self.config.turn is None)
        self.config = config
        self._machine.policy = config.turn or TurnPolicy()
        self._detector.configure(threshold=config.vad_threshold, prefix_padding=config.prefix_padding)
        self._outbox.put(Configured(config))
        if manual_changes:
            self._happen(ClientCleared(self._at))
        self._warm()

    def _commit(self) -> None:
        turn = self._turn
        if turn is None or turn.utterance.seconds < SHORTEST_COMMIT:
            raise BadRequest(
                f"the input audio buffer is empty, or holds less than {SHORTEST_COMMIT * 1000:.0f} ms of speech",
                code="input_audio_buffer_commit_empty",
            )
        turn.ended = self._now()
        self._detector.reset()
        self._happen(ClientCommitted(self._at))

    def _cancel_asked(self, response_id: str | None) -> None:
        active = self._replies.get(self._machine.active) if self._machine.active is not None else None
        if response_id is not None and (active is None or active.response.id != response_id):
            raise BadRequest(
                f"response {response_id!r} is not active",
                code="response_cancel_not_active",
                param="response_id",
            )
        self._happen(ClientCancelled())
        self._asked = None

    # --- audio ------------------------------------------------------------------------------------------

    @property
    def _at(self) -> float:
        """The session's clock: seconds of audio received, in whole frames."""
        return self._frames * FRAME / SAMPLE_RATE

    async def _hear(self, samples: Samples) -> None:
        frames = self._framer.push(samples)
        for first in range(0, len(frames), VAD_FRAMES):
            some = np.stack(frames[first : first + VAD_FRAMES])
            behind = len(frames) - first
            for frame, probability in zip(some, await self._probabilities(some), strict=True):
                behind -= 1
                self._frame(frame, float(probability), behind * FRAME / SAMPLE_RATE)

    async def _probabilities(self, frames: NDArray[np.float32]) -> NDArray[np.float32]:
        """Of speech in each frame; in manual turns nobody asks."""
        if self.config.turn is None:
            return np.zeros(len(frames), np.float32)
        heard = await self._engines.vad.submit(
            VadInput(frames, self._vad_state), owner=self.id, deadline=self._now()
        )
        self._vad_state = heard.state
        return heard.probabilities

    def _frame(self, frame: Samples, probability: float, behind: float) -> None:
        """One frame in: the detector's news, the clock's tick, and a partial when it is due.

        behind: seconds of audio that came in the same message after this frame.
        """
        self._frames += 1
        self._history.append(frame)
        if self._turn is not None:
            self._turn.utterance.push(frame)
        elif self.config.turn is None and not self._draining:
            self._turn = self._new_turn(self._at - FRAME / SAMPLE_RATE)
            self._turn.utterance.push(frame)
        for event in self._detector.push(probability):
            if self.config.turn is not None and not (self._draining and self._turn is None):
                if isinstance(event, SpeechStopped) and self._turn is not None:
                    self._turn.ended = self._now() - behind - (event.at - event.end)
                self._happen(event)
        if self.config.turn is not None:
            self._happen(Tick(self._at))
        if self._turn is not None:
            self._partial_when_due(self._turn)
            self._bound(self._turn)

    def _partial_when_due(self, turn: _Turn) -> None:
        speaking = self.config.turn is None or self._machine.floor is Floor.SPEAKING
        if self._partial is None and speaking and turn.utterance.due():
            window = turn.utterance.window(final=False)
            self._partial = self._spawn(self._decode_partial(turn, window), "partial"), window

    def _bound(self, turn: _Turn) -> None:
        limit = self._settings.session.max_utterance_seconds
        if self._at - turn.start < limit:
            return
        log.info("session %s: a turn reached session.max_utterance_seconds (%.0f s)", self.id, limit)
        turn.ended = self._now()
        if self.config.turn is None:
            self._happen(ClientCommitted(self._at))
            raise TooLarge(
                f"the input audio buffer reached {limit:.0f} s (session.max_utterance_seconds) and was committed",
                code="input_audio_buffer_full",
            )
        self._happen(SpeechStopped(self._at, self._at))
        self._happen(Tick(self._at + self._machine.policy.silence))
        self._detector.reset()

    # --- the turn machine's shell -----------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if self._group is None or self._closing.is_set():
            return
        for action in self._machine.handle(event):
            self._act(action)
        if self._machine.active is None and self._machine.owed is None:
            self._quiet.set()
        else:
            self._quiet.clear()

    def _act(self, action: Action) -> None:
        match action:
            case StartTurn(start):
                self._turn = self._new_turn(start)
                self._turn.utterance.push(self._since(start))
                self._outbox.put(TurnStarted(self._turn.item_id, start))
            case Decode(revision):
                turn = self._turn or self._last_turn
                assert turn is not None
                if turn.final is not None:
                    turn.final.cancel()
                turn.final = self._spawn(self._decode_final(turn, revision), "final")
                self._stop_prefill()
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
                self._detector.reset()
            case Respond(revision):
                asked = self._asked or CreateResponse()
                instructions = (
                    asked.instructions if asked.instructions is not None else self.config.instructions
                )
                if asked.input is not None:
                    prompt = [Message("system", instructions), *messages(asked.input)]
                else:
                    prompt = self.conversation.messages(instructions)
                turn = self._last_turn if self._last_turn and self._last_turn.committed == revision else None
                self._begin(revision, prompt, turn, asked).release()
                self._asked = None
            case Release(revision):
                turn, reply = self._last_turn, self._replies[revision]
                assert turn is not None
                reply.trace.launched, reply.trace.used = turn.launched, 1
                reply.trace.discarded, reply.trace.wasted_ms = turn.discarded, turn.wasted_ms
                reply.release()
            case Cancel(revision, reason):
                self._cancel(revision, reason)
            case Refuse(code):
                self._asked = None
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
        item = Item(turn.item_id, role="user", parts=(Part("input_audio"),))
        previous = self.conversation.add(item)
        self._outbox.put(AudioCommitted(turn.item_id, previous))
        self._outbox.put(ItemAdded(item, previous))
        self._outbox.put(ItemDone(item, previous))
        if turn.failed is not None:
            self._outbox.put(TranscriptionFailed(turn.item_id, turn.failed))
        elif revision in turn.texts:
            self._transcribed(turn, turn.texts[revision])

    def _transcribed(self, turn: _Turn, text: str) -> None:
        self.conversation.update(Item(turn.item_id, role="user", parts=(Part("input_audio", text),)))
        if self.config.transcribe:
            if text:
                self._outbox.put(TranscriptionDelta(turn.item_id, text))
            self._outbox.put(TranscriptionDone(turn.item_id, text, turn.duration))

    def _begin(
        self, revision: int, prompt: list[Message], turn: _Turn | None, asked: CreateResponse
    ) -> Reply:
        config = self.config
        trace = TurnTrace(self.id, self._turns, revision)
        since = self._now()
        if turn is not None:
            since = turn.ended
            trace.turn = turn.number
            trace.audio_seconds = turn.duration or self._at - turn.start
            trace.transcript = turn.texts.get(revision, "")
            trace.words = len(trace.transcript.split())
            if turn.transcript_at is not None:
                trace.transcript_final = (turn.transcript_at - since) * 1000
        response = Response(
            self._new_id("resp"),
            asked.modality or config.modality,
            metadata=asked.metadata,
            voice=asked.voice or config.voice,
            max_output_tokens=asked.max_output_tokens or config.max_output_tokens,
            in_conversation=asked.in_conversation,
        )
        limit = self._settings.llm.max_tokens
        wanted = response.max_output_tokens or limit
        request = ChatRequest(
            prompt, self.id, max_tokens=min(wanted, limit), temperature=self._settings.llm.temperature
        )
        reply = Reply(
            revision,
            response,
            self._new_id("item"),
            request,
            chat=self._engines.chat,
            synthesizer=self._engines.voice,
            voice=Voice(response.voice, config.speed),
            outbox=self._outbox,
            conversation=self.conversation,
            lead=self._settings.output.lead,
            trace=trace,
            since=since,
            ended=self._reply_ended,
        )
        self._replies[revision] = reply
        self._stop_prefill()
        reply.task = self._spawn(self._reply(reply), f"reply-{revision}")
        return reply

    async def _reply(self, reply: Reply) -> None:
        try:
            await reply.run()
        finally:
            self._replies.pop(reply.revision, None)

    def _reply_ended(self, reply: Reply) -> None:
        self._record(reply.trace)
        self._happen(ResponseEnded(reply.revision))

    def _cancel(self, revision: int, reason: str) -> None:
        reply = self._replies.get(revision)
        if reply is None:
            return
        wasted = reply.cancel(reason)  # type: ignore[arg-type]
        if reply.released:
            self._record(reply.trace)
        elif self._turn is not None:
            self._turn.discarded += 1
            self._turn.wasted_ms += wasted

    # --- the engines ------------------------------------------------------------------------------------

    async def _decode_partial(self, turn: _Turn, window: Window) -> None:
        try:
            result = await self._decode(window, self._now() + self._settings.asr.partial_interval)
            turn.utterance.accept(window, result)
            if self._turn is turn and self._machine.floor is Floor.SPEAKING:
                self._prefill_words(turn.utterance.committed)
        except Dropped:
            pass
        except AntiphonError as error:
            log.warning("a partial decode failed: %s", error)
        finally:
            self._partial = None

    async def _decode_final(self, turn: _Turn, revision: int) -> None:
        """The transcript of a candidate end. A partial in flight that holds all the speech serves as final."""
        upto = turn.utterance.seconds
        try:
            if self._partial is not None and turn.utterance.covers(self._partial[1]):
                await asyncio.wait([self._partial[0]])
            while not turn.utterance.reaches(upto):
                window = turn.utterance.window(final=True)
                turn.utterance.accept(window, await self._decode(window, self._now()))
            text = turn.texts[revision] = turn.utterance.text
            turn.transcript_at = self._now()
            if turn.committed == revision:
                self._transcribed(turn, text)
        except AntiphonError as error:
            log.warning("a final decode failed: %s", error)
            turn.failed = error
            if turn.committed == revision:
                self._outbox.put(TranscriptionFailed(turn.item_id, error))
            text = ""
        self._happen(Transcript(revision, text))

    async def _decode(self, window: Window, deadline: float) -> Transcription:
        recognizer = self._engines.english
        if window.language != "en":
            recognizer = await self._engines.multilingual()
        try:
            return await recognizer.submit(
                window,
                owner=self.id,
                deadline=deadline,
                bucket=self._engines.bucket(window),
                droppable=not window.final,
            )
        except (AntiphonError, Dropped):
            raise
        except Exception as error:
            log.error("the recogniser failed", exc_info=error)
            raise EngineFailed("the recogniser failed; the server's log has the reason") from error

    def _warm(self) -> None:
        """Bring the instructions and the conversation so far into the model's cache."""
        self._prefill_prompt(self._history_messages())

    def _prefill_words(self, words: str) -> None:
        if words and words != self._prefilled:
            self._prefilled = words
            self._prefill_prompt([*self._history_messages(), Message("user", words)])

    def _prefill_prompt(self, prompt: list[Message]) -> None:
        if self._settings.llm.prefill and prompt and self._prefill is None and not self._replies:
            self._prefill = self._spawn(self._run_prefill(prompt), "prefill")

    async def _run_prefill(self, prompt: list[Message]) -> None:
        try:
            async with self._engines.chat.stream(ChatRequest(prompt, self.id, max_tokens=0)) as deltas:
                async for _ in deltas:
                    pass
        except AntiphonError as error:
            log.debug("no prefill: %s", error)
        finally:
            self._prefill = None

    def _stop_prefill(self) -> None:
        if self._prefill is not None:
            self._prefill.cancel()

    # --- small things -----------------------------------------------------------------------------------

    def _history_messages(self) -> list[Message]:
        return self.conversation.messages(self.config.instructions)

    def _new_turn(self, start: float) -> _Turn:
        self._turns += 1
        self._prefilled = ""
        utterance = Utterance(
            language=self.config.language, partial_interval=self._settings.asr.partial_interval
        )
        return _Turn(self._new_id("item"), self._turns, start, utterance)

    def _new_detector(self) -> SpeechDetector:
        return SpeechDetector(
            threshold=self.config.vad_threshold,
            min_speech=self._settings.vad.min_speech,
            prefix_padding=self.config.prefix_padding,
        )

    def _since(self, start: float) -> Samples:
        """The audio from `start` seconds to now, as far as the history goes back."""
        wanted = round((self._at - start) * SAMPLE_RATE)
        held = np.concatenate(self._history)
        return held[max(0, len(held) - wanted) :]

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        assert self._group is not None
        task = self._group.create_task(work, name=f"{self.id}-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
