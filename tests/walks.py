"""Random walks of a real session: engines that fail, dawdle and mishear, a client that does anything at any time.

`walk(seed)` is one of them. Its oracle looks at what the client was told; what it demands at the end is life: a
later utterance is answered, and closing frees every engine.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import numpy as np
from fakes import FakeChat, FakeRecognizer, FakeVoice, fake_engines, hear, tone
from test_endpointing import Model
from test_session import silence

from antiphon.asr.base import Transcription, Window
from antiphon.llm.base import ChatRequest, Delta, TextRequest
from antiphon.pipeline import session as sessions
from antiphon.pipeline.engines import Engines, VadInput, VadOutput
from antiphon.pipeline.errors import EngineFailed, Overloaded
from antiphon.pipeline.events import (
    AppendAudio,
    AudioCommitted,
    CancelResponse,
    ClearAudio,
    Command,
    CommitAudio,
    Configure,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Item,
    Output,
    OutputAudio,
    OutputDone,
    OutputStarted,
    OutputText,
    Part,
    Patience,
    ResponseDone,
    ResponseStarted,
    SessionConfig,
    TranscriptionDone,
    TranscriptionFailed,
    TruncateItem,
    TurnPolicy,
    TurnStarted,
    TurnStopped,
)
from antiphon.pipeline.metrics import TurnTrace
from antiphon.pipeline.session import Session
from antiphon.pipeline.settings import load
from antiphon.pipeline.worker import Worker
from antiphon.tts.base import Voice

RATE = 16_000
CLOSE = 5.0
"""Seconds in which a session must end whatever its engines do."""
HEARD = ("what time is it", "what time is it", "", "mm-hm", "one two three", "stop", "and then")
REPLY = "One two three four five. Six seven eight nine ten. "


class Faults:
    """What goes wrong, while it is on: a share of the calls fails, others take long."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.on = True
        self.active = 0

    def fail(self, share: float = 0.15) -> None:
        if self.on and self.rng.random() < share:
            raise self.rng.choice([EngineFailed("broken"), Overloaded("busy"), RuntimeError("a bug")])

    async def dawdle(self) -> None:
        if self.on and self.rng.random() < 0.3:
            await asyncio.sleep(self.rng.uniform(0, 0.03))

    @asynccontextmanager
    async def call(self) -> AsyncIterator[None]:
        """One that may fail to begin, and may take long to let go."""
        self.active += 1
        try:
            self.fail()
            await self.dawdle()
            yield
        finally:
            self.active -= 1
            if self.on and self.rng.random() < 0.3:
                await asyncio.sleep(0.01)


class Recognizer(FakeRecognizer):
    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    def transcribe(self, windows: Sequence[Window]) -> Sequence[Transcription]:
        rng = self.faults.rng
        if self.faults.on:
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.02))
            if rng.random() < 0.15:
                raise RuntimeError("no")
            self.text = rng.choice(HEARD)
        else:
            self.text = "what time is it"
        return super().transcribe(windows)


class Chat(FakeChat):
    def __init__(self, faults: Faults) -> None:
        super().__init__(REPLY * faults.rng.choice([1, 1, 6]))
        self.faults = faults

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        async with self.faults.call(), super().stream(request) as deltas:
            yield deltas

    async def _deltas(self, request: ChatRequest) -> AsyncIterator[Delta]:
        async for delta in super()._deltas(request):
            self.faults.fail(0.005)
            yield delta


class Speaker(FakeVoice):
    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    @asynccontextmanager
    async def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AsyncIterator[AsyncIterator[np.ndarray]]:
        async with (
            self.faults.call(),
            super().synthesize(text, voice, owner=owner, deadline=deadline) as chunks,
        ):
            yield chunks


class Text(Model):
    def __init__(self, faults: Faults) -> None:
        share = faults.rng.random()
        super().__init__((".", share), (" and", 1 - share))
        self.faults = faults

    @asynccontextmanager
    async def complete(self, request: TextRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        async with self.faults.call(), super().complete(request) as deltas:
            yield deltas


@asynccontextmanager
async def faulty_engines(faults: Faults) -> AsyncIterator[Engines]:
    def listen(batch: Sequence[VadInput]) -> list[VadOutput]:
        if faults.on and faults.rng.random() < 0.02:
            raise RuntimeError("no ears")
        return hear(batch)

    vad: Worker[VadInput, VadOutput] = Worker("vad", listen)
    try:
        async with fake_engines(Recognizer(faults), Chat(faults), Speaker(faults)) as engines:
            yield replace(engines, vad=vad, text=Text(faults))
    finally:
        await vad.aclose()


class Oracle:
    """What a client may be told, in which order. Raises AssertionError."""

    def __init__(self) -> None:
        self.responses: dict[str, str] = {}
        """Response id to its state: created, open, closed, done."""
        self.outside: set[str] = set()
        """Responses that are not in the conversation: beside them there may be another."""
        self.sent: dict[str, float] = {}
        self.turns: set[str] = set()
        self.committed: set[str] = set()
        self.transcribed: set[str] = set()
        self.completed = 0

    def told(self, output: Output) -> None:
        match output:
            case TurnStarted(item_id):
                assert item_id not in self.turns
                self.turns.add(item_id)
            case TurnStopped(item_id):
                assert item_id in self.turns
                assert item_id not in self.committed
            case AudioCommitted(item_id):
                assert item_id not in self.committed
                self.committed.add(item_id)
            case TranscriptionDone(item_id) | TranscriptionFailed(item_id):
                assert item_id in self.committed
                assert item_id not in self.transcribed, "a turn is transcribed once"
                self.transcribed.add(item_id)
            case ResponseStarted(response):
                assert response.id not in self.responses
                if response.in_conversation:
                    inside = [state for id, state in self.responses.items() if id not in self.outside]
                    assert all(state == "done" for state in inside), "two active responses"
                else:
                    self.outside.add(response.id)
                self.responses[response.id] = "created"
            case OutputStarted(response_id):
                assert self.responses[response_id] == "created"
                self.responses[response_id] = "open"
            case OutputText(response_id) | OutputAudio(response_id):
                assert self.responses[response_id] == "open", "nothing of a closed response"
                if isinstance(output, OutputAudio):
                    at = self.sent.get(response_id, 0.0)
                    assert abs(output.start - at) < 1e-6, "no gap, no repeat"
                    self.sent[response_id] = at + len(output.samples) / output.sample_rate
            case OutputDone(response_id):
                assert self.responses[response_id] == "open"
                self.responses[response_id] = "closed"
            case ResponseDone(response):
                assert self.responses[response.id] in ("created", "closed")
                self.responses[response.id] = "done"
                self.completed += response.status == "completed"
                assert response.status != "in_progress"
            case _:
                pass

    def ended(self) -> None:
        assert all(state == "done" for state in self.responses.values()), "every response has an end"


def policy(rng: random.Random) -> TurnPolicy:
    return TurnPolicy(
        silence=rng.choice([0.2, 0.5]),
        patience=rng.choice([None, Patience()]),
        create_response=rng.random() < 0.85,
        interrupt_response=rng.random() < 0.85,
    )


def command(rng: random.Random, items: list[str], config: SessionConfig) -> list[Command]:
    """Anything a client may do next."""
    sound = tone(rng.choice([0.08, 0.2, 0.5, 1.0]), RATE)
    item = rng.choice(items) if items else "none"
    match rng.randrange(14):
        case 0 | 1 | 2:
            return audio(sound)
        case 3 | 4 | 5:
            return audio(silence(rng.choice([0.05, 0.2, 0.4, 0.8])))
        case 6:
            return audio(sound, silence(0.6))
        case 7:
            return [CreateResponse(modality=rng.choice([None, "text"]), in_conversation=rng.random() < 0.8)]
        case 8:
            return [CancelResponse()]
        case 9:
            return [rng.choice([CommitAudio(), ClearAudio()])]
        case 10:
            return [TruncateItem(item, 0, rng.choice([0.0, 0.2, 99.0]))]
        case 11:
            return [DeleteItem(item)]
        case 12:
            return [CreateItem(Item("", role="user", parts=(Part("input_text", "Well?"),)))]
        case _:
            turn = None if rng.random() < 0.2 else policy(rng)
            modality = rng.choice(["audio", "audio", "text"])
            return [Configure(replace(config, turn=turn, modality=modality))]


def audio(*sounds: np.ndarray) -> list[Command]:
    samples = np.concatenate(sounds)
    return [AppendAudio(samples[at : at + 1600]) for at in range(0, len(samples), 1600)]


class Client:
    """Reads while it may, and shows the oracle what it read."""

    def __init__(self, session: Session, oracle: Oracle) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.items: list[str] = []
        self.news = asyncio.Event()
        self._session = session
        self._oracle = oracle

    async def read(self) -> None:
        async for output in self._session.outputs():
            self._oracle.told(output)
            if isinstance(output, OutputStarted):
                self.items.append(output.item.id)
            self.news.set()
            await self.reads.wait()


async def walk(seed: int, *, steps: int = 14) -> None:
    rng = random.Random(seed)
    faults = Faults(rng)
    oracle = Oracle()
    traces: list[TurnTrace] = []
    dead = rng.random() < 0.25
    ids = iter(range(10**6))
    lead = rng.choice([0.2, 10.0])
    async with faulty_engines(faults) as engines:
        config = SessionConfig(instructions="Be brief.", language="en", turn=policy(rng))
        session = Session(
            engines,
            load(overrides=[f"output.lead={lead}"], environ={}),
            config=config,
            new_id=lambda prefix: f"{prefix}_{next(ids)}",
            record=traces.append,
        )
        client = Client(session, oracle)
        running = asyncio.create_task(session.run())
        reading = asyncio.create_task(client.read())
        try:
            for _ in range(steps):
                if rng.random() < 0.1:
                    client.reads.clear()
                elif rng.random() < 0.5 and not dead:
                    client.reads.set()
                for asked in command(rng, client.items, config):
                    await session.send(asked)
                    if rng.random() < 0.7:
                        await asyncio.sleep(rng.choice([0.0, 0.002, 0.005]))
                assert not running.done(), "the session fell over"
            if not dead:
                client.reads.set()
                faults.on = False
                await answered(session, client, oracle, config)
        finally:
            client.reads.set()
            await session.aclose()
            async with asyncio.timeout(CLOSE):
                await running
                await reading
    oracle.ended()
    assert faults.active == 0, "every engine is free"
    assert len(engines.english) == len(engines.vad) == 0
    assert not session._tasks


async def answered(session: Session, client: Client, oracle: Oracle, config: SessionConfig) -> None:
    """A later utterance gets its answer: its own, begun after it, and whole."""
    async with asyncio.timeout(20):
        await session.send(CancelResponse())
        await session.send(Configure(replace(config, modality="text", turn=TurnPolicy())))
        for asked in audio(silence(1.5)):
            await session.send(asked)
            await asyncio.sleep(0.002)
        before, committed, transcribed = oracle.completed, len(oracle.committed), len(oracle.transcribed)
        for asked in audio(tone(1.0, RATE), silence(1.5)):
            await session.send(asked)
            await asyncio.sleep(0.002)
        while not (
            oracle.completed > before
            and len(oracle.committed) > committed
            and len(oracle.transcribed) > transcribed
            and all(state == "done" for state in oracle.responses.values())
        ):
            client.news.clear()
            await client.news.wait()
    assert sessions.Floor.IDLE is session._machine.floor
