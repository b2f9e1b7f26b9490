"""llama.cpp in this process, through xllamacpp: streaming, prefix reuse, cancels that free the slot.

    event loop         stream: Slots ----> Call <--- call_soon_threadsafe ---.
    a thread a slot                          '--> Engine.complete --> push: True cancels
    engine's thread                               batches over all slots; a cancel is seen between two

A conversation's next prompt begins with its last one and the reply, and llama.cpp computes only what is new
if it finds the old prompt in the slot. Left to choose, it takes the slot with the longest common prefix:
conversations that share their instructions then push each other out at every turn (docs/decisions/0003).
So the slot is chosen here, the owner's last one, and an owner has one request at a time: two would need two
slots, and the second would start without the prefix that the first is computing. What a newcomer pushes
out of a slot goes to the engine's cache in RAM and comes back from there.

The engine cannot be interrupted within a batch, and has begun the next one when it hears of a cancel: a
prefill runs on for up to two batches of `llm.batch` tokens, a reply for up to two tokens. Nothing here
writes prompts to the log, nor the engine's messages, which may quote them.

Conversations are rendered here (templates), and what the engine samples is read here (reading): it is given
a prompt, and a grammar where the reply has a form (grammars), and nothing else to interpret.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import insort
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..pipeline.admission import Service
from ..pipeline.errors import BadRequest, EngineFailed, Overloaded
from . import thinking
from .base import ChatRequest, Delta, Limits, TextRequest, ToolUse
from .completion import Call, Job
from .engine import Engine, Server, cores, read_metrics
from .grammars import Guard, Thoughts, grammar
from .reading import Reading
from .room import Room, longest, spelled
from .slots import Slots
from .templates import ChatTemplate
from .thinking import ThinkingSplitter
from .tools import ToolParser

if TYPE_CHECKING:
    from ..pipeline.settings import Settings
    from ..pipeline.weights import WeightStore

log = logging.getLogger(__name__)

FREE_TIMEOUT = 5.0
"""Seconds to wait for the engine to let go of a cancelled request before that is logged as an error."""
POLL = 0.002
"""Seconds between two looks at the engine's own count."""


class LlamaCpp:
    """A ChatModel and TextModel in this process.

    model: a .gguf file. context: tokens of prompt and reply together, for each slot. slots: completions at
    a time, in one batch. threads: of the engine, 0 for all cores. batch: prompt tokens computed between two
    looks for a cancel. waiting: how many requests may wait for a slot.

    Blocks while it loads, a second or two, and holds the GIL. Raises WeightsError when the file cannot be
    loaded, SetupError when llama.cpp itself cannot.
    """

    def __init__(
        self,
        model: Path,
        *,
        context: int = 2048,
        slots: int = 4,
        threads: int = 0,
        batch: int = 8,
        waiting: int = 32,
    ) -> None:
        self._capacity = waiting
        self._slots = Slots(slots)
        self._waiting: list[tuple[bool, str, asyncio.Future[int]]] = []
        """Whether nobody waits for it, who asked, and their seat; those that somebody waits for first."""
        self._calls: dict[Call, asyncio.Future[None]] = {}
        self._report: Callable[[Service], None] = lambda service: None
        self._closing = asyncio.Lock()
        engine = _start(model, context, slots, threads or cores(), batch)
        self._engine: Engine | None = engine
        properties = engine.ask("GET", "/props")
        self._bos, eos = properties["bos_token"], properties["eos_token"]
        # Models that begin every text with a token of their own get it once, from the engine.
        self._begins = engine.ask("POST", "/tokenize", {"content": "", "add_special": True})["tokens"] != []
        self._template = ChatTemplate(properties["chat_template"], bos=self._bos, eos=eos, now=datetime.now)
        self.vocabulary: int = engine.ask("GET", "/v1/models")["data"][0]["meta"]["n_vocab"]
        self.context = context
        self._room = Room(context, longest(engine, self.vocabulary, eos))
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="antiphon-llamacpp")
        self._monitor = ThreadPoolExecutor(1, thread_name_prefix="antiphon-llamacpp-monitor")
        # Of its own, as a long text would keep the monitor from seeing that a slot is free.
        self._asking = ThreadPoolExecutor(1, thread_name_prefix="antiphon-llamacpp-asking")

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[Delta]]:
        """Stream one completion; with max_tokens=0 the stream ends, empty, when the messages are cached.

        Entering waits for a slot, and for the owner's request before; being cancelled there leaves no
        trace. Leaving, also by cancellation, tells the engine to drop the request and waits until it has,
        however often it is cancelled: two batches or tokens, at most FREE_TIMEOUT.

        Entering raises BadRequest for what cannot be rendered or held to, Overloaded when too many wait;
        iterating raises BadRequest (context_length_exceeded) when the messages do not fit the context, which
        entering does where their size shows it; EngineFailed otherwise.
        """
        prompt = self._rendered(request)
        self._room.check(prompt, "messages")
        limits, use = request.limits, request.tools
        thoughts = self._thoughts(prompt)
        form, guard = await self._guarded(limits, use, thoughts)
        parser = None
        if use.tools and use.mode != "none":
            bare = use.mode == "auto" and limits.schema is None
            names = [tool.name for tool in use.tools]
            parser = ToolParser(names, new_id=_call_id, bare=bare, parallel=use.parallel)
        splitter = None if thoughts == "none" else ThinkingSplitter(inside=thoughts == "begun")
        reading = Reading(limits.stop, thinking=splitter, tools=parser)
        job = Job(prompt, limits, request.sampling, reading, form, guard, background=request.background)
        async with self._run(job, request.owner) as call:
            yield call

    @asynccontextmanager
    async def complete(self, request: TextRequest) -> AsyncGenerator[AsyncIterator[Delta]]:
        """As stream, for a prompt as it stands; an empty one begins a text."""
        prompt = request.prompt
        if isinstance(prompt, str):
            prompt = _whole(prompt or self._bos, "prompt")
        elif not prompt or not all(0 <= token < self.vocabulary for token in prompt):
            raise BadRequest(f"A prompt's tokens are 1 or more, 0 to {self.vocabulary - 1}.", param="prompt")
        self._room.check(prompt, "prompt")
        form, guard = await self._guarded(request.limits, ToolUse(), "none")
        reading = Reading(request.limits.stop)
        job = Job(
            prompt, request.limits, request.sampling, reading, form, guard, "prompt", request.background
        )
        async with self._run(job, request.owner) as call:
            yield call

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        """special: read the names of special tokens, `<|im_end|>`, as these. Raises BadRequest for a text
        that is far too long for the model."""
        return (await self._ask("/tokenize", self._split(text, special)))["tokens"]

    async def pieces(self, text: str) -> list[tuple[int, str]]:
        """As tokenize, each token with its text, half a character as U+FFFD."""
        tokens = (await self._ask("/tokenize", {**self._split(text), "with_pieces": True}))["tokens"]
        return [(token["id"], spelled(token["piece"])) for token in tokens]

    def _split(self, text: str, special: bool = True) -> dict[str, Any]:
        self._room.check_text(_whole(text, "prompt"), "prompt")
        return {"content": text, "add_special": False, "parse_special": special}

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """Raises BadRequest for an id that the model does not have."""
        if not all(0 <= token < self.vocabulary for token in tokens):
            raise BadRequest(f"Tokens are 0 to {self.vocabulary - 1}.", param="tokens")
        return (await self._ask("/detokenize", {"tokens": list(tokens)}))["content"]

    async def render(self, request: ChatRequest) -> str:
        """The prompt that the model's chat template makes of the messages. Raises BadRequest."""
        return self._rendered(request)

    async def counters(self) -> dict[str, float]:
        """What the engine counts (requests_processing, n_decode_total, ...), asked through its own queue."""
        if self._engine is None:
            return {}
        loop = asyncio.get_running_loop()
        return read_metrics(await loop.run_in_executor(self._monitor, self._engine.metrics))

    async def busy(self) -> int:
        """How many requests the engine computes or holds back, by its own count; 0 when closed."""
        counters = await self.counters()
        return int(counters.get("requests_processing", 0) + counters.get("requests_deferred", 0))

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    def watch(self, report: Callable[[Service], None]) -> None:
        """Tell `report` of every request that had a slot, from now on. The background is not urgent."""
        self._report = report

    async def aclose(self) -> None:
        """Cancel what runs, refuse what waits, stop the engine and its threads. Idempotent."""
        async with self._closing:
            if self._engine is None:
                return
            engine, self._engine = self._engine, None
            for _, _, seat in self._waiting:
                if not seat.done():
                    seat.set_exception(_closed())
            for call in self._calls:
                call.cancel(_closed())
            stuck = False
            if self._calls:
                _, running = await asyncio.wait(self._calls.values(), timeout=FREE_TIMEOUT)
                stuck = bool(running)
            if stuck:
                log.error(
                    "llama.cpp is still computing after %.0f s; left to the end of the process", FREE_TIMEOUT
                )
            await asyncio.to_thread(self._threads.shutdown, wait=not stuck)
            await asyncio.to_thread(self._monitor.shutdown)
            await asyncio.to_thread(self._asking.shutdown, cancel_futures=True)
            # The last reference: the engine's thread and memory go with it. That holds the GIL for 0.1 s.
            del engine

    def _running(self) -> Engine:
        if self._engine is None:
            raise _closed()
        return self._engine

    def _rendered(self, request: ChatRequest) -> str:
        shown = request.tools.tools if request.tools.mode != "none" else ()
        prompt = self._template.render(request.messages, shown, request.template)
        if self._begins:
            prompt = prompt.removeprefix(self._bos)
        return _whole(prompt, "messages")

    def _thoughts(self, prompt: str) -> Thoughts:
        """Whether the reply to a rendered prompt begins with thoughts."""
        end = prompt.rstrip()
        if not self._template.thinks or end.endswith(thinking.CLOSE):
            return "none"
        return "begun" if end.endswith(thinking.OPEN) else "possible"

    async def _guarded(
        self, limits: Limits, use: ToolUse, thoughts: Thoughts
    ) -> tuple[str | None, Guard | None]:
        """The grammar of a reply and who sees to it, compiled on a thread. Raises BadRequest."""
        if limits.max_tokens == 0 or (limits.schema is None and not use.tools):
            return None, None

        def compiled() -> tuple[str | None, Guard | None]:
            form = grammar(limits.schema, use, thoughts)
            param = "tools" if limits.schema is None else "response_format"
            return form, None if form is None else Guard(form, param=param)

        return await asyncio.to_thread(compiled)

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        engine = self._running()
        return await asyncio.get_running_loop().run_in_executor(self._asking, engine.ask, "POST", path, body)

    @asynccontextmanager
    async def _run(self, job: Job, owner: str) -> AsyncGenerator[Call]:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        slot = await self._seat(owner, job.background)
        began = loop.time()
        call = Call(loop, job)
        self._calls[call] = loop.run_in_executor(
            self._threads, call.run, self._running(), job.body(slot, self.context)
        )
        try:
            yield call
        finally:
            try:
                await _to_the_end(self._free(call, slot))
            finally:
                self._report(Service("llm", began - asked, loop.time() - began, 1, not job.background))

    async def _seat(self, owner: str, background: bool = False) -> int:
        """A slot for this owner, in order of asking among those who could sit, the background last."""
        self._running()
        seat: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        entry = background, owner, seat
        insort(self._waiting, entry, key=itemgetter(0))
        self._assign()
        if not seat.done() and len(self._waiting) > self._capacity:
            self._waiting.remove(entry)
            raise Overloaded(
                f"{self._capacity} requests wait for the language model already; try again later"
            )
        try:
            return await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled() and seat.exception() is None:
                self._slots.give(seat.result())
                self._assign()
            raise
        finally:
            self._waiting = [entry for entry in self._waiting if entry[2] is not seat]

    def _assign(self) -> None:
        for entry in list(self._waiting):
            _, owner, seat = entry
            if not seat.done() and (slot := self._slots.take(owner)) is not None:
                seat.set_result(slot)
                self._waiting.remove(entry)

    async def _free(self, call: Call, slot: int) -> None:
        """Have the engine let go of a call, and give its slot to who waits."""
        call.cancel()
        try:
            async with asyncio.timeout(FREE_TIMEOUT):
                await asyncio.wait([self._calls[call]])
                if not call.finished:
                    await self._dropped()
        except TimeoutError:
            log.error("llama.cpp holds slot %d %.0f s after its request was cancelled", slot, FREE_TIMEOUT)
        finally:
            del self._calls[call]
            self._slots.give(slot)
            self._assign()

    async def _dropped(self) -> None:
        """Wait until the engine holds no more requests than are still wanted.

        The engine's call returns as soon as the cancel is queued; the slot computes on to the end of its
        batch. The count is over all slots, so where another request ends within that batch, this returns up
        to a batch early. That does no harm: what is sent to the slot next is queued behind the cancel.
        """
        # The engine has no event to wait for.
        while await self.busy() > sum(not done.done() for done in self._calls.values()):  # noqa: ASYNC110
            await asyncio.sleep(POLL)


def load(settings: Settings, store: WeightStore) -> LlamaCpp:
    """The backend's entry point. Raises WeightsError, SetupError; blocks while it loads."""
    llm = settings.llm
    path = store.fetch(llm.model)
    return LlamaCpp(
        path / "model.gguf" if path.is_dir() else path,
        context=llm.context,
        slots=llm.slots,
        threads=llm.threads,
        batch=llm.batch,
        # Whoever is let in may wait: every HTTP request with as many choices as compute at a time, every
        # conversation with a reply, a prefill and what is asked beside it.
        waiting=settings.http.max_requests * llm.slots + settings.server.max_sessions * 3,
    )


def _start(model: Path, context: int, slots: int, threads: int, batch: int) -> Engine:
    return Server(model, context=context, slots=slots, threads=threads, batch=batch)


def _closed() -> EngineFailed:
    return EngineFailed("the language model is shut down")


def _call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def _whole(text: str, param: str) -> str:
    """Raises BadRequest for a text that has half a character, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadRequest("The text holds half of a surrogate pair.", param=param) from error
    return text


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end in spite of cancellations, which are raised again then."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
