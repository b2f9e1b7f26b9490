"""One answer, from the prompt to paced audio: the visible chain.

    think: language model -> clauses  ─▶  speak: voice -> PCM  ─▶  gate  ─▶  play: paced, to the outbox

The three run side by side with short bounded queues between them, so a reply behind a shut gate works ahead
by a clause or two and then waits. Nothing leaves before `release`. `cancel` is immediate for the client (what
was not sent is flushed, the closing events follow at once) while the engines are freed in the task's own
unwinding; nothing of a closed reply reaches the client any more.

Tools are called last: after everything that was to be said, in the step that ends the response. A call is out
whole or not at all, whenever the reply is cut.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from ..llm.base import ChatModel, ChatRequest, ToolCall
from ..tts.base import Synthesizer, Voice
from ..tts.text import Clause, Clauses
from .audio import Gain
from .calls import Calls
from .conversation import Conversation, shortened
from .errors import AntiphonError, BadRequest, EngineFailed
from .events import (
    CancelReason,
    Item,
    OutputAudio,
    OutputCall,
    OutputDone,
    OutputStarted,
    OutputText,
    Part,
    Response,
    ResponseDone,
    ResponseStarted,
    Samples,
    Usage,
)
from .hearing import OpenTurn
from .logs import where
from .metrics import TurnTrace
from .outbox import Outbox
from .playback import Playback, Spoken

PIECE = 0.1
"""Seconds of audio in one output event: short enough to pace and to flush, long enough to be cheap."""

DUCKED = 10 ** (-14 / 20)
"""Gain of a voice that makes room: 14 dB down, clearly lower and still understood."""

AUDIO_TOKENS_PER_SECOND = 20
"""OpenAI bills an assistant's audio at one token per 50 ms; we report usage in the same unit."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sound:
    """A chunk of the voice, or a clause without sound; `text` stands with the first chunk of its clause."""

    text: str
    samples: Samples | None


class Reply:
    """One revision's answer.

    request: the prompt. trace: filled in as stages are reached, in ms after `since` (event loop time).
    new_id: makes ids from a prefix. conversation: gets the message when it begins (at release; with tools, with
    its first words), and the calls, when the response belongs to it. turn: the user's, if it answers one.
    ended: called once, when the reply has ended by itself: done or failed, or failed behind the gate.
    """

    def __init__(
        self,
        revision: int,
        response: Response,
        new_id: Callable[[str], str],
        request: ChatRequest,
        *,
        chat: ChatModel,
        synthesizer: Synthesizer,
        voice: Voice,
        outbox: Outbox,
        conversation: Conversation,
        lead: float,
        trace: TurnTrace,
        since: float,
        turn: OpenTurn | None,
        ended: Callable[[Reply], None],
    ) -> None:
        self.revision = revision
        self.response = response
        self.trace = trace
        self.turn = turn
        self.released = False
        self.closed = False
        self.ducked = False
        """Speak lower: somebody makes a sound."""
        self.task: asyncio.Task[None] | None = None
        kind = "output_audio" if response.modality == "audio" else "output_text"
        self._item = Item(new_id("item"), role="assistant", parts=(Part(kind, ""),), status="in_progress")
        self._previous: str | None = None
        self._started_message = False
        self._calls = Calls()
        self._new_id = new_id
        self._request = request
        self._chat = chat
        self._synthesizer = synthesizer
        self._voice = voice
        self._outbox = outbox
        self._conversation = conversation
        self._lead = lead
        self._since = since
        self._ended = ended
        self._gate = asyncio.Event()
        self._clauses: asyncio.Queue[Clause | None] = asyncio.Queue(4)
        self._sounds: asyncio.Queue[_Sound | None] = asyncio.Queue(8)
        self._playback = Playback()
        self._spoken: list[Spoken] = []
        self._sent: float | None = None
        """Seconds of audio that left for the client, where it is less than what was put into the outbox."""
        self._gain = Gain()
        self._text = ""
        self._usage: Usage | None = None
        self._cut_short = False
        self._now = asyncio.get_running_loop().time
        self._started = self._now()

    # --- what the session does with it ------------------------------------------------------------------

    @property
    def item_id(self) -> str:
        return self._item.id

    @property
    def said(self) -> str:
        """The text sent so far."""
        return self._text

    @property
    def unplayed(self) -> float:
        """Seconds of audio that the client has and has not played."""
        return self._playback.wait(self._now(), 0.0)

    def caught_up(self, seconds: float) -> None:
        """The client was away, and has `seconds` of the audio; it hears the rest from now on."""
        self._playback.caught_up(self._now(), seconds)

    def release(self) -> None:
        """Open the gate: the response exists for the client from here on."""
        self.released = True
        self._stamp("gate_open")
        self._outbox.put(ResponseStarted(self.response))
        if not self._request.tools.tools:
            self._start_message()
        self._gate.set()

    def cancel(self, reason: CancelReason) -> float:
        """Stop it. Returns the milliseconds of work thrown away when it was still behind the gate.

        The engines are free when `task` is done. Idempotent.
        """
        if self.closed:
            return 0.0
        if self.task is not None:
            self.task.cancel()
        if self.released:
            self._sent = self._playback.sent - self._outbox.flush(self.response.id)
            heard = min(self._playback.position(self._now()), self._sent)
            self._finish(
                "cancelled", reason="turn_detected" if reason == "turn_detected" else "client_cancelled"
            )
            if self._spoken and self._item.id in self._conversation:
                self._conversation.truncate(self._item.id, heard)
            return 0.0
        self.closed = True
        return (self._now() - self._started) * 1000

    async def run(self) -> None:
        """Think, speak and play to the end. Cancelling frees the engines before it returns."""
        error: AntiphonError | None = None
        try:
            async with asyncio.TaskGroup() as group:
                if self.response.modality == "text":
                    group.create_task(self._write())
                else:
                    group.create_task(self._think())
                    group.create_task(self._speak())
                    group.create_task(self._play())
        except* AntiphonError as failures:
            error = _first(failures)
        except* Exception as failures:
            log.error("a reply failed: %s", where(failures))
            error = EngineFailed("the reply could not be made; the server's log has the reason")
        if error is not None and not self.released and not self.closed:
            self.closed = True
            self._ended(self)
        if not self.closed:
            await self._gate.wait()
        if not self.closed:
            calls = self._calls.whole()
            if error is None and len(calls) < len(self._calls) and not self._cut_short:
                error = EngineFailed("the language model called a tool with arguments that are not JSON")
            if error is not None:
                self._finish("failed", error=error)
            elif self._cut_short:
                self._finish("incomplete", reason="max_output_tokens", calls=calls)
            else:
                self._finish("completed", calls=calls)
            self._ended(self)

    # --- the chain --------------------------------------------------------------------------------------

    async def _think(self) -> None:
        clauses = Clauses()
        async with aclosing(self._deltas()) as deltas:
            async for text in deltas:
                for clause in clauses.push(text):
                    await self._clauses.put(clause)
        for clause in clauses.flush():
            await self._clauses.put(clause)
        await self._clauses.put(None)

    async def _write(self) -> None:
        """The whole chain of a text response."""
        async with aclosing(self._deltas()) as deltas:
            async for text in deltas:
                await self._gate.wait()
                self._say(text)

    async def _deltas(self) -> AsyncGenerator[str, None]:
        """The model's text. When the prompt is too long, the oldest half of the conversation is left out."""
        request = self._request
        while True:
            try:
                async with self._chat.stream(request) as deltas:
                    async for delta in deltas:
                        self._calls.push(delta.calls)
                        if delta.text and (delta.text.strip() or not self._calls):
                            self._stamp("first_token")
                            yield delta.text
                        if delta.finish_reason is not None:
                            self._cut_short = delta.finish_reason == "length"
                            self._usage = delta.usage or self._usage
                return
            except BadRequest as refusal:
                less = shortened(request.messages)
                if refusal.code != "context_length_exceeded" or less is None:
                    raise
                request = replace(request, messages=less)

    async def _speak(self) -> None:
        while (clause := await self._clauses.get()) is not None:
            self._stamp("first_clause")
            text = clause.text
            if clause.speech:
                deadline = self._now() + self._playback.wait(self._now(), 0.0)
                async with self._synthesizer.synthesize(
                    clause.speech, self._voice, owner=self._request.owner, deadline=deadline
                ) as chunks:
                    async for samples in chunks:
                        self._stamp("first_audio")
                        await self._sounds.put(_Sound(text, samples))
                        text = ""
            if text:
                await self._sounds.put(_Sound(text, None))
        await self._sounds.put(None)

    async def _play(self) -> None:
        await self._gate.wait()
        rate = self._synthesizer.sample_rate
        size = int(PIECE * rate)
        while (sound := await self._sounds.get()) is not None:
            if sound.text:
                self._say(sound.text)
                self._spoken.append(Spoken(sound.text, self._playback.sent, self._playback.sent))
            if sound.samples is None:
                continue
            # A clause ends where its sound will, not where sending has come to: words are placed over all of it.
            end = self._playback.sent + len(sound.samples) / rate
            self._spoken[-1] = replace(self._spoken[-1], end=end)
            for at in range(0, len(sound.samples), size):
                await self._send(sound.samples[at : at + size], rate)

    async def _send(self, piece: Samples, rate: int) -> None:
        if wait := self._playback.wait(self._now(), self._lead):
            await asyncio.sleep(wait)
        if self.closed:
            return
        start = self._playback.sent
        piece = self._gain.apply(piece, rate, DUCKED if self.ducked else 1.0)
        await self._outbox.put_audio(OutputAudio(self.response.id, self._item.id, piece, rate, start))
        self._stamp("first_audio_sent")
        self._playback.add(self._now(), len(piece) / rate)

    # --- what the client is told ------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        if not self.closed:
            if not self._started_message:
                if not text.strip():
                    return
                self._start_message()
            self._text += text
            self._outbox.put(OutputText(self.response.id, self._item.id, self.response.modality, text))

    def _start_message(self) -> None:
        self._started_message = True
        self._previous = self._entered(self._item)
        self._outbox.put(
            OutputStarted(self.response.id, self._item, self._previous, self.response.in_conversation)
        )

    def _entered(self, item: Item) -> str | None:
        """The id before an item that begins, which is in the conversation now if the response is."""
        return (
            self._conversation.append(item) if self.response.in_conversation else self._conversation.last_id
        )

    def _finish(
        self,
        status: Literal["completed", "cancelled", "failed", "incomplete"],
        *,
        reason: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None,
        error: AntiphonError | None = None,
        calls: Sequence[ToolCall] = (),
    ) -> None:
        """Close the response for the client and the conversation. Only after `release`, and once."""
        self.closed = True
        usage = self._usage or Usage()
        sent = self._playback.sent if self._sent is None else self._sent
        usage = replace(usage, output_audio_tokens=round(sent * AUDIO_TOKENS_PER_SECOND))
        output: list[Item] = []
        if self._started_message:
            output.append(self._close_message(status == "completed", sent))
        for call in calls:
            output.append(self._call(call, len(output)))
        self.response = replace(
            self.response, status=status, reason=reason, error=error, output=tuple(output), usage=usage
        )
        self._outbox.put(ResponseDone(self.response))
        self.trace.status = status
        self.trace.reply = self._text

    def _close_message(self, completed: bool, sent: float) -> Item:
        self._item = replace(
            self._item,
            status="completed" if completed else "incomplete",
            parts=(replace(self._item.parts[0], text=self._text),),
        )
        if self.response.in_conversation:
            self._conversation.update(self._item, self._spoken, sent=sent)
        self._outbox.put(
            OutputDone(self.response.id, self._item, self._previous, self.response.in_conversation)
        )
        return self._item

    def _call(self, call: ToolCall, index: int) -> Item:
        item = Item(
            self._new_id("item"),
            "function_call",
            name=call.name,
            arguments=call.arguments,
            call_id=call.id or self._new_id("call"),
        )
        previous = self._entered(item)
        self._outbox.put(OutputCall(self.response.id, item, previous, index, self.response.in_conversation))
        return item

    def _stamp(self, stage: str) -> None:
        """The first time a stage is reached, in ms after the end of speech."""
        if getattr(self.trace, stage) is None:
            setattr(self.trace, stage, (self._now() - self._since) * 1000)


def _first(failures: BaseExceptionGroup[AntiphonError]) -> AntiphonError:
    """One of the errors of a group, however deep."""
    failure = failures.exceptions[0]
    return _first(failure) if isinstance(failure, BaseExceptionGroup) else failure
