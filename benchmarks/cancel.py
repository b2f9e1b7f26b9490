"""`antiphon bench cancel`: how soon the language model's slot is free after a cancel, as the engine sees it.

A stream is cancelled at a random moment, by cancelling the task that reads it, as a barge-in does. The time
runs from that cancel until the engine itself, asked through its own queue, counts no request any more. Two
kinds: in the prefill of a long prompt that is not cached, and while tokens are decoded. There is no peer: the
pipelines that we compare with stop listening, and let the engine finish.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from contextlib import suppress
from typing import Protocol

from ..llm.base import ChatModel, ChatRequest, Limits, Message
from ..pipeline import backends
from ..pipeline.errors import SetupError
from ..pipeline.settings import Settings
from ..pipeline.weights import WeightStore
from .report import last_line, machine, say, summary, table

POLL = 0.002
"""Seconds between two looks at the engine."""

LIMIT_MS = 200.0
"""What we hold ourselves to."""

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")


class CountingChat(ChatModel, Protocol):
    async def busy(self) -> int: ...
    async def aclose(self) -> None: ...


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: tries (int), json (bool). Prints a report unless json, and one JSON object on the last line."""
    store = WeightStore(settings.weights.root, offline=settings.weights.offline)
    say(f"loading {settings.llm.model}")
    chat = backends.load("llm", settings.llm.backend)(settings, store)
    if not hasattr(chat, "busy"):
        raise SetupError(f"llm.backend = {settings.llm.backend!r} has no count of its own to look at")
    measured = asyncio.run(_measure(chat, args.tries))
    ours = {f"{kind}_ms": summary(times) for kind, times in measured.items()}
    if not args.json:
        columns = ("p50", "p95", "max")
        rows = [
            (kind, *(f"{(summary(times) or {})[c]:.0f}" for c in columns)) for kind, times in measured.items()
        ]
        print(table(("ms until the slot is free", *columns), rows))
        print(f"\naim: at most {LIMIT_MS:.0f} ms\n")
    over = sum(time > LIMIT_MS for times in measured.values() for time in times)
    figures = {"bench": "cancel", "machine": machine(), "ours": {**ours, "over_200_ms": over}}
    print(last_line({**figures, "peer": {}, "ratio": {}}))
    return 1 if over else 0


async def _measure(chat: CountingChat, tries: int) -> dict[str, list[float]]:
    rng = random.Random(1)
    times: dict[str, list[float]] = {"prefill": [], "decode": []}
    try:
        for number in range(tries):
            for kind, found in times.items():
                while (took := await _cancel_once(chat, kind, rng, number)) is None:
                    say(f"{kind} {number + 1}/{tries}: ended before the cancel; again")
                found.append(took)
                say(f"{kind} {number + 1}/{tries}: {took:.0f} ms")
    finally:
        await chat.aclose()
    return times


async def _cancel_once(chat: CountingChat, kind: str, rng: random.Random, number: int) -> float | None:
    """Milliseconds from the cancel to the engine's count of zero; None when the request ended before it.

    Raises what the request raised.
    """
    begun = asyncio.Event()
    words = 400 if kind == "prefill" else 5
    prompt = f"Tell a very long story with {' '.join(rng.choices(WORDS, k=words))}."

    async def read() -> None:
        request = ChatRequest([Message("user", prompt)], f"bench-{number}", Limits(max_tokens=256))
        async with chat.stream(request) as deltas:
            async for _ in deltas:
                begun.set()

    loop = asyncio.get_running_loop()
    reading = asyncio.create_task(read())
    # The engine has no event to wait for.
    while not reading.done() and (await chat.busy() == 0 or (kind == "decode" and not begun.is_set())):  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    await asyncio.sleep(rng.uniform(0.1, 0.6))
    if reading.done() or await chat.busy() == 0:
        await reading
        return None
    cancelled = loop.time()
    reading.cancel()
    while await chat.busy() > 0:  # noqa: ASYNC110
        await asyncio.sleep(POLL)
    free = loop.time()
    with suppress(asyncio.CancelledError):
        await reading
    return (free - cancelled) * 1000
