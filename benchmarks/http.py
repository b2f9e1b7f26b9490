"""`antiphon bench http`: what the HTTP API costs, beside the engine called directly.

    direct   ChatModel.stream, iterated in the server's own event loop
    http     POST /v1/chat/completions with stream, from a client process on this machine

One process serves; both sides run on the same engine, in turn, and who goes first alternates. A run is so
many conversations at once (1, 4), all of the same messages, which were answered before: so every prompt is in
the cache, whichever slot it comes to. What HTTP adds does not depend on the prompt's length, and would be lost
in the seconds that four prompts take. Replies are greedy and of a fixed length, and the counts are compared.
From asking to the first text is the TTFT; tokens per second are all tokens of a run by the time from the first
question to the last token.

Beside a run over HTTP there is work that the direct one has not: the client reads and the kernel copies on the
same cores, and all of it counts against us. Figures are medians over runs; the ratio and
`added_ttft_ms` are the medians of what they are between neighbours, which see the same machine. Their spreads
(p25 to p75) say how far they can be trusted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import mean, median
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from ..llm.base import ChatModel, ChatRequest, Limits, Message, Sampling
from ..pipeline.engines import Engines
from ..pipeline.errors import EngineFailed
from ..pipeline.settings import Settings
from ..transport.engines import load_engines
from ..transport.server import running
from .report import last_line, machine, percentile, say, table

CONCURRENCIES = (1, 4)
INSTRUCTIONS = "You are a friendly assistant who tells stories at great length."
QUESTION = "Tell me a very long story about a ship and its crew, from the beginning."

AIM_RATIO = 0.9
AIM_TTFT_MS = 15.0


@dataclass(frozen=True, slots=True)
class Reply:
    """One conversation's. Times are seconds of this machine's steady clock."""

    asked: float
    first: float
    ended: float
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Run:
    """Conversations that were held at once."""

    tokens_per_s: float
    ttft_ms: float

    @classmethod
    def of(cls, replies: Sequence[Reply]) -> Run:
        seconds = max(reply.ended for reply in replies) - min(reply.asked for reply in replies)
        ttft = mean(reply.first - reply.asked for reply in replies)
        return cls(sum(reply.tokens for reply in replies) / seconds, ttft * 1000)


@dataclass(frozen=True, slots=True)
class Pair:
    direct: Run
    http: Run


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: repeats, tokens (ints), json (bool). Prints a report unless json; the last line is a JSON object.

    Returns 1 when an aim is missed.
    """
    measured = asyncio.run(_measure(settings, args.repeats, args.tokens))
    figures = {str(concurrency): summarized(pairs) for concurrency, pairs in measured.items()}
    slowest = min(found["ratio"]["tokens_per_s"] for found in figures.values())
    added = max(found["ours"]["added_ttft_ms"] for found in figures.values())
    if not args.json:
        columns = ("at once", "tok/s direct", "tok/s http", "ratio", "TTFT direct", "TTFT http", "added ms")
        print(table(columns, [_row(concurrency, found) for concurrency, found in figures.items()]))
        print(f"\naim: a ratio of at least {AIM_RATIO}, at most {AIM_TTFT_MS:g} ms added\n")
    report = {
        "bench": "http",
        "machine": machine(),
        "runs": {"repeats": args.repeats, "tokens": args.tokens, "concurrency": list(CONCURRENCIES)},
        "ours": {"added_ttft_ms": added, **{f"at_{n}": found["ours"] for n, found in figures.items()}},
        "peer": {f"at_{n}": found["peer"] for n, found in figures.items()},
        "ratio": {"tokens_per_s": slowest, **{f"at_{n}": found["ratio"] for n, found in figures.items()}},
    }
    print(last_line(report))
    return 0 if slowest >= AIM_RATIO and added <= AIM_TTFT_MS else 1


def summarized(pairs: Sequence[Pair]) -> dict[str, Any]:
    """ours, peer and ratio of one concurrency. Raises ValueError for no pairs."""
    http, direct = [pair.http for pair in pairs], [pair.direct for pair in pairs]
    added = [pair.http.ttft_ms - pair.direct.ttft_ms for pair in pairs]
    ratios = [pair.http.tokens_per_s / pair.direct.tokens_per_s for pair in pairs]
    ours, peer = _medians(http), _medians(direct)
    return {
        "ours": {**ours, "added_ttft_ms": round(median(added), 1), "added_ttft_ms_spread": _spread(added, 1)},
        "peer": peer,
        "ratio": {
            "tokens_per_s": round(median(ratios), 3),
            "tokens_per_s_spread": _spread(ratios, 3),
        },
    }


def _medians(runs: Sequence[Run]) -> dict[str, float]:
    return {
        "tokens_per_s": round(median(run.tokens_per_s for run in runs), 2),
        "ttft_ms": round(median(run.ttft_ms for run in runs), 1),
    }


def _spread(values: Sequence[float], digits: int) -> list[float]:
    return [round(percentile(values, q), digits) for q in (25, 75)]


def _row(concurrency: str, found: dict[str, Any]) -> tuple[object, ...]:
    ours, peer = found["ours"], found["peer"]
    low, high = ours["added_ttft_ms_spread"]
    return (
        concurrency,
        peer["tokens_per_s"],
        ours["tokens_per_s"],
        found["ratio"]["tokens_per_s"],
        peer["ttft_ms"],
        ours["ttft_ms"],
        f"{ours['added_ttft_ms']} ({low} to {high})",
    )


# --- measuring ------------------------------------------------------------------------------------------


async def _measure(settings: Settings, repeats: int, tokens: int) -> dict[int, list[Pair]]:
    say("loading the models")
    async with AsyncExitStack() as stack:
        engines = await stack.enter_async_context(load_engines(settings))
        url = await stack.enter_async_context(running(settings, engines=_there(engines)))
        client = await stack.enter_async_context(_client(url, settings.llm.model))
        pairs: dict[int, list[Pair]] = {}
        for concurrency in CONCURRENCIES:
            pairs[concurrency] = []
            for turn in range(-1, repeats):  # the first fills the cache
                runs: dict[str, Run] = {}
                for side in ("direct", "http") if turn % 2 else ("http", "direct"):
                    replies = await (
                        client.ask(concurrency, tokens)
                        if side == "http"
                        else asyncio.gather(*(_direct(engines.chat, tokens) for _ in range(concurrency)))
                    )
                    _check(replies, tokens)
                    runs[side] = Run.of(replies)
                if turn >= 0:
                    pairs[concurrency].append(Pair(**runs))
                    say(f"{concurrency} at once, {turn + 1}/{repeats}: {_said(pairs[concurrency][-1])}")
        return pairs


def _said(pair: Pair) -> str:
    added = pair.http.ttft_ms - pair.direct.ttft_ms
    return f"{pair.direct.tokens_per_s:.1f} and {pair.http.tokens_per_s:.1f} tokens/s, {added:+.1f} ms"


def _check(replies: Sequence[Reply], tokens: int) -> None:
    """Raises EngineFailed when replies cannot be compared: they are not as long, or their prompts are not."""
    if (
        any(reply.tokens != tokens for reply in replies)
        or len({reply.prompt_tokens for reply in replies}) > 1
    ):
        raise EngineFailed("a reply ended early, or prompts differ in length; use fewer --tokens")


@asynccontextmanager
async def _there(engines: Engines) -> AsyncGenerator[Engines]:
    yield engines


async def _direct(chat: ChatModel, tokens: int) -> Reply:
    asked, first, usage = perf_counter(), 0.0, None
    messages = [Message("system", INSTRUCTIONS), Message("user", QUESTION)]
    request = ChatRequest(messages, f"bench-{secrets.token_hex(8)}", Limits(tokens), Sampling())
    async with chat.stream(request) as deltas:
        async for delta in deltas:
            if delta.text and not first:
                first = perf_counter()
            usage = delta.usage or usage
    assert usage is not None
    return Reply(asked, first, perf_counter(), usage.input_tokens, usage.output_tokens)


# --- the client's process -------------------------------------------------------------------------------


class _Client:
    """The client process: a line of what to ask in, a line of replies out."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, conversations: int, tokens: int) -> Sequence[Reply]:
        """Raises EngineFailed when the client fails."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{conversations} {tokens}\n".encode())
        line = await self._process.stdout.readline()
        if not line:
            raise EngineFailed("the client's process ended; it said why above")
        return [Reply(**reply) for reply in json.loads(line)]


@asynccontextmanager
async def _client(url: str, model: str) -> AsyncGenerator[_Client]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", __name__, url, model),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield _Client(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def ask(url: str, model: str, tokens: int) -> Reply:
    """Hold a conversation, with no more work than a client must do. The connection is there when time begins.

    Raises EngineFailed when the server refuses.
    """
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        asked, first, usage = perf_counter(), 0.0, None
        writer.write(_request(address.netloc, model, tokens))
        status = await reader.readline()
        if b" 200 " not in status:
            raise EngineFailed(f"the server answered {status.decode().strip()}")
        async with aclosing(_events(reader)) as events:
            async for event in events:
                if not first and b'"delta":{"content":"' in event:
                    first = perf_counter()
                if b'"choices":[]' in event:
                    usage = json.loads(event)["usage"]
        assert usage is not None
        return Reply(asked, first, perf_counter(), usage["prompt_tokens"], usage["completion_tokens"])
    finally:
        writer.close()
        await writer.wait_closed()


def _request(host: str, model: str, tokens: int) -> bytes:
    body = json.dumps(
        {
            "model": model,
            "messages": [
                {"role": "system", "content": INSTRUCTIONS},
                {"role": "user", "content": QUESTION},
            ],
            "max_completion_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The data of a chunked event stream. A chunk's length is never a line that begins with "data: "."""
    async for line in reader:
        if line.startswith(b"data: "):
            yield line[6:]
        elif line == b"0\r\n":
            await reader.readline()
            return


async def serve(url: str, model: str, lines: Iterable[str]) -> None:
    """Be the client: of each line of `lines`, how many conversations of how many tokens; replies to stdout."""
    for line in lines:
        conversations, tokens = map(int, line.split())
        replies = await asyncio.gather(*(ask(url, model, tokens) for _ in range(conversations)))
        print(json.dumps([asdict(reply) for reply in replies]), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], sys.stdin))
