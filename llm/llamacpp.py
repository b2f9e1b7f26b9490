"""llama.cpp in this process, through xllamacpp: streaming, prefix reuse, cancels that free the slot.

    event loop         stream: Slots ----> _Call <--- call_soon_threadsafe ---.
    a thread a slot                          '--> handle_chat_completions --> push: True cancels
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
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

from ..pipeline.errors import AntiphonError, BadRequest, EngineFailed, Overloaded, SetupError, WeightsError
from ..pipeline.events import Usage
from .base import ChatRequest, Delta

if TYPE_CHECKING:
    from ..pipeline.settings import Settings
    from ..pipeline.weights import WeightStore

log = logging.getLogger(__name__)

CACHE_RAM_MIB = 256
"""Prompts pushed out of their slots are kept in so much memory, oldest out first. The default model takes
12 KiB a token, so this holds some 20,000 tokens."""
FREE_TIMEOUT = 5.0
"""Seconds to wait for the engine to let go of a cancelled request before that is logged as an error."""
POLL = 0.002
"""Seconds between two looks at the engine's own count."""

Chunk = Mapping[str, Any]
Push = Callable[[Chunk | Sequence[Chunk]], bool]


class Engine(Protocol):
    """What is used of xllamacpp.Server, which carries no types. Both calls block, without the GIL."""

    def handle_chat_completions(self, body: dict[str, Any], push: Push, /) -> None: ...
    def handle_metrics(self) -> str: ...


class Chunks:
    """From the engine's chat.completion.chunk objects, pushed in order, to deltas. Pure; one a completion.

    Progress of the prefill and roles give nothing. The reason to finish comes before the usage, in a chunk
    of its own; it is kept back, so the last delta has both. Raises the error that a chunk reports.
    """

    def __init__(self) -> None:
        self._finish_reason: Literal["stop", "length"] = "stop"
        self.finished = False

    def push(self, chunk: Chunk) -> Delta | None:
        if (error := chunk.get("error")) is not None:
            raise failure(error)
        if (usage := chunk.get("usage")) is not None:
            self.finished = True
            details: Chunk = usage["prompt_tokens_details"]
            counts = Usage(usage["prompt_tokens"], details["cached_tokens"], usage["completion_tokens"])
            return Delta("", self._finish_reason, counts)
        for choice in chunk.get("choices", ()):
            if (reason := choice.get("finish_reason")) is not None:
                self._finish_reason = "length" if reason == "length" else "stop"
            if text := choice["delta"].get("content"):
                return Delta(text)
        return None


def failure(error: Mapping[str, Any]) -> AntiphonError:
    """The engine's error object as ours."""
    if error.get("type") == "exceed_context_size_error":
        return BadRequest(
            f"the messages have {error['n_prompt_tokens']} tokens; "
            f"the language model's context (llm.context) holds {error['n_ctx']}",
            code="context_length_exceeded",
            param="messages",
        )
    return EngineFailed(f"the language model failed: {error.get('type', 'no reason given')}")


class Slots:
    """Which of the engine's slots an owner computes in. Pure."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))
        """The one left longest ago first."""
        self._owners: dict[int, str] = {}
        """Of each slot, who has it or had it last."""
        self._seated: set[str] = set()

    def take(self, owner: str) -> int | None:
        """The slot the owner had last, else the one left longest ago. None while the owner has a slot, or
        none is free."""
        if owner in self._seated or not self._free:
            return None
        slot = next((slot for slot in self._free if self._owners.get(slot) == owner), self._free[0])
        self._free.remove(slot)
        self._owners[slot] = owner
        self._seated.add(owner)
        return slot

    def give(self, slot: int) -> None:
        self._seated.remove(self._owners[slot])
        self._free.append(slot)


class _Call(AsyncIterator[Delta]):
    """One completion, between the engine's thread, which pushes, and the event loop, which iterates.

    The queue between them never makes the engine's thread wait, so a slow reader cannot hold a slot: it is
    bounded by max_tokens, a delta each. None in it is the end.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, prefill: bool) -> None:
        self._loop = loop
        self._prefill = prefill
        self._chunks = Chunks()
        self._deltas: asyncio.Queue[Delta | AntiphonError | None] = asyncio.Queue()
        self._ended = False
        self.cancelled = False

    @property
    def finished(self) -> bool:
        """The engine came to the end by itself; it lets go of the slot before it says so."""
        return self._chunks.finished

    # On the engine's thread.

    def push(self, chunks: Chunk | Sequence[Chunk]) -> bool:
        """The engine's callback; True cancels. The engine swallows what it raises, so it raises nothing."""
        try:
            for chunk in [chunks] if isinstance(chunks, Mapping) else chunks:
                delta = self._chunks.push(chunk)
                if delta is not None and not self._prefill:
                    self._hand_over(delta)
        except AntiphonError as error:
            self._hand_over(error)
            return True
        except Exception as error:
            log.error("llama.cpp sent a chunk that cannot be read: %s", type(error).__name__)
            self._hand_over(EngineFailed("the language model sent what cannot be read"))
            return True
        return self.cancelled

    def run(self, engine: Engine, body: dict[str, Any]) -> None:
        """Blocks until the engine is done with the request, or was told to drop it. Raises nothing."""
        try:
            if not self.cancelled:
                engine.handle_chat_completions(body, self.push)
        except Exception as error:
            log.error("llama.cpp raised %s", type(error).__name__)
        if not self.finished:
            self._hand_over(EngineFailed("the language model stopped before its end"))
        self._hand_over(None)

    def _hand_over(self, item: Delta | AntiphonError | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._deltas.put_nowait, item)
        except RuntimeError:  # the loop is closed, nobody reads
            self.cancelled = True

    # On the event loop.

    def cancel(self, error: AntiphonError | None = None) -> None:
        """Drop the request when the engine looks next. A reader gets what came before, then error or end."""
        self.cancelled = True
        self._deltas.put_nowait(error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """Cancelling is safe: no delta is lost."""
        item = None if self._ended else await self._deltas.get()
        if isinstance(item, Delta):
            return item
        self._ended = True
        raise item or StopAsyncIteration


class LlamaCpp:
    """A ChatModel in this process.

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
        self._waiting: list[tuple[str, asyncio.Future[int]]] = []
        self._calls: dict[_Call, asyncio.Future[None]] = {}
        self._closing = asyncio.Lock()
        self._engine: Engine | None = _start(model, context, slots, threads or _cores(), batch)
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="antiphon-llamacpp")
        self._monitor = ThreadPoolExecutor(1, thread_name_prefix="antiphon-llamacpp-monitor")

    @asynccontextmanager
    async def stream(self, request: ChatRequest) -> AsyncGenerator[AsyncIterator[Delta]]:
        """Stream one completion; with max_tokens=0 the stream ends, empty, when the messages are cached.

        Entering waits for a slot, and for the owner's request before; being cancelled there leaves no
        trace. Leaving, also by cancellation, tells the engine to drop the request and waits until it has,
        however often it is cancelled: two batches or tokens, at most FREE_TIMEOUT.

        Entering raises Overloaded when too many wait; iterating raises BadRequest (context_length_exceeded)
        when the messages do not fit the context, EngineFailed otherwise.
        """
        slot = await self._seat(request.owner)
        loop = asyncio.get_running_loop()
        call = _Call(loop, prefill=request.limits.max_tokens == 0)
        body = self._body(request, slot)
        self._calls[call] = loop.run_in_executor(self._threads, call.run, self._running(), body)
        try:
            yield call
        finally:
            await _to_the_end(self._free(call, slot))

    async def counters(self) -> dict[str, float]:
        """What the engine counts (requests_processing, n_decode_total, ...), asked through its own queue."""
        if self._engine is None:
            return {}
        loop = asyncio.get_running_loop()
        return read_metrics(await loop.run_in_executor(self._monitor, self._engine.handle_metrics))

    async def busy(self) -> int:
        """How many requests the engine computes or holds back, by its own count; 0 when closed."""
        counters = await self.counters()
        return int(counters.get("requests_processing", 0) + counters.get("requests_deferred", 0))

    async def aclose(self) -> None:
        """Cancel what runs, refuse what waits, stop the engine and its threads. Idempotent."""
        async with self._closing:
            if self._engine is None:
                return
            engine, self._engine = self._engine, None
            for _, seat in self._waiting:
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
            # The last reference: the engine's thread and memory go with it. That holds the GIL for 0.1 s.
            del engine

    def _running(self) -> Engine:
        if self._engine is None:
            raise _closed()
        return self._engine

    def _body(self, request: ChatRequest, slot: int) -> dict[str, Any]:
        limits, sampling = request.limits, request.sampling
        body: dict[str, Any] = {
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "max_tokens": -1 if limits.max_tokens is None else limits.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "id_slot": slot,
            "cache_prompt": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            # Chunks of progress call back, and so let a cancel in, after each batch of the prefill.
            "return_progress": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body

    async def _seat(self, owner: str) -> int:
        """A slot for this owner, in order of asking among those who could sit."""
        self._running()
        seat: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((owner, seat))
        self._assign()
        if not seat.done() and len(self._waiting) > self._capacity:
            self._waiting.pop()
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
            self._waiting = [entry for entry in self._waiting if entry[1] is not seat]

    def _assign(self) -> None:
        for owner, seat in list(self._waiting):
            if not seat.done() and (slot := self._slots.take(owner)) is not None:
                seat.set_result(slot)
                self._waiting.remove((owner, seat))

    async def _free(self, call: _Call, slot: int) -> None:
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
    )


def read_metrics(exposition: str) -> dict[str, float]:
    """Prometheus' text format, llamacpp's samples without labels: by name, the prefix taken off."""
    samples = (line.rpartition(" ") for line in exposition.splitlines() if line.startswith("llamacpp:"))
    return {name.removeprefix("llamacpp:"): float(value) for name, _, value in samples}


def _closed() -> EngineFailed:
    return EngineFailed("the language model is shut down")


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


def _start(model: Path, context: int, slots: int, threads: int, batch: int) -> Engine:
    xllamacpp = _import_engine()
    params: Any = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = context * slots
    params.n_parallel = slots
    params.n_batch = params.n_ubatch = batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.use_jinja = True
    params.endpoint_metrics = True
    params.verbosity = -1
    params.cache_ram_mib = CACHE_RAM_MIB
    # No similarity exceeds 1, so who comes to a slot always has its contents saved, and looks for its own.
    params.slot_prompt_similarity = 1.0
    params.cache_idle_slots = False
    # The engine insists on listening for HTTP. A socket in a folder of our own is out of others' reach, and
    # out of everyone's as soon as it has no name any more.
    params.n_threads_http = 1
    folder = tempfile.mkdtemp(prefix="antiphon-")
    params.hostnames = [str(Path(folder) / "engine.sock")]
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise WeightsError(
            f"llama.cpp cannot load {model} (llm.model): it must be a whole .gguf file of a chat model, "
            f"with memory for {context * slots} tokens (llm.context x llm.slots)"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _import_engine() -> Any:
    """xllamacpp, whose OpenMP threads must sleep while they wait.

    By default they spin: two threads beside other work on two cores then give 0.5 to 2.6 tokens/s, against
    14 to 17. OpenMP reads its policy once, when it is loaded.
    """
    unset = "OMP_WAIT_POLICY" not in os.environ
    policy = os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if policy.lower() != "passive" or (unset and _mapped("libgomp.so.1")):
        log.warning("OpenMP's threads will spin: set OMP_WAIT_POLICY=passive before the process starts")
    try:
        return importlib.import_module("xllamacpp")
    except ImportError as error:
        raise SetupError(
            f"llama.cpp cannot be loaded: {error}; it needs the system's OpenMP library, "
            "on Debian and Ubuntu the package libgomp1"
        ) from error


def _mapped(library: str) -> bool:
    if sys.platform != "linux":
        return False
    with open("/proc/self/maps") as maps:
        return any(line.rstrip().endswith(f"/{library}") for line in maps)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
