"""llama.cpp behind its contract: deltas that join, prefixes that stay, cancels that the engine confirms.

The real shell, driven with a small engine of the same interface.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.llm import completion, llamacpp, room
from antiphon.llm.base import ChatRequest, Delta, Limits, Message, Sampling, TextRequest, Tool, ToolUse
from antiphon.llm.llamacpp import LlamaCpp, load
from antiphon.llm.reading import Reading
from antiphon.pipeline.errors import BadRequest, EngineFailed, Overloaded
from antiphon.pipeline.events import Usage
from antiphon.pipeline.settings import LlmSettings, Settings

# --- a small engine's chunks ----------------------------------------------------------------------------

PROGRESS = {
    "choices": [{"text": "", "finish_reason": None, "index": 0, "logprobs": None}],
    "prompt_progress": {"total": 32, "cache": 0, "processed": 16, "time_ms": 259},
}
TOO_LONG = {
    "code": 400,
    "message": "request (27030 tokens) exceeds the available context size (2048 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 27030,
    "n_ctx": 2048,
}


def content(text: str, **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": None, "index": 0, "logprobs": None}], **more}


def finish(reason: str, prompt: int, cached: int, completion: int) -> dict[str, Any]:
    details = {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    last = {"text": "", "finish_reason": reason, "index": 0, "logprobs": None}
    return {"choices": [last], "usage": counts}


def timings(cached: int, new: int, predicted: int) -> dict[str, Any]:
    return {"timings": {"cache_n": cached, "prompt_n": new, "predicted_n": predicted}}


# --- the shell, over a small engine ---------------------------------------------------------------------


class SmallEngine:
    """Prefills until `go` is set, calling back as the real one does, then says its words.

    An Exception among the words is raised, a dict is pushed as it is. `linger`: while set, a dropped request
    stays counted, as it does to the end of its batch. Its template is ChatML's shape with the date left out.
    """

    def __init__(self, words: Sequence[str | dict[str, Any] | Exception] = ("Hello", " you", ".")) -> None:
        self.words = list(words)
        self.template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
        self.bos: list[int] = []
        self.go = threading.Event()
        self.linger = threading.Event()
        self.bodies: list[dict[str, Any]] = []
        self.processing = 0
        self.lingering = 0
        self.longest = 20
        self.asking = threading.Event()
        self.asking.set()

    def complete(self, body: dict[str, Any], push: Callable[[Any], bool]) -> None:
        self.bodies.append(body)
        self.processing += 1
        try:
            while not self.go.wait(0.001):
                if push(PROGRESS):
                    self.lingering += 1
                    return
            for number, word in enumerate(self.words, 1):
                if isinstance(word, Exception):
                    raise word
                if push(content(word, **timings(4, 5, number)) if isinstance(word, str) else word):
                    self.lingering += 1
                    return
            push(finish("stop", 9, 4, len(self.words)))
        finally:
            self.processing -= 1

    def metrics(self) -> str:
        held = self.lingering if self.linger.is_set() else 0
        return f"llamacpp:requests_processing {self.processing + held}\nllamacpp:requests_deferred 0\n"

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        answer: Any = {
            "/props": {"chat_template": self.template, "bos_token": "<s>", "eos_token": "</s>"},
            "/v1/models": {"data": [{"meta": {"n_vocab": 100}}]},
            "/tokenize": self._split,
            "/detokenize": lambda body: {"content": "".join(map(self._piece, body["tokens"]))},
        }[path]
        return answer(body) if callable(answer) else answer

    def _piece(self, token: int) -> str:
        return {0: "</s>", 1: "<s>", 2: "x" * self.longest}.get(token, "ab")

    def _split(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asking.wait()
        if body["content"] == "</s>":
            return {"tokens": [0]}
        if body.get("with_pieces"):
            return {"tokens": [{"id": 3, "piece": "ab"}, {"id": 4, "piece": [0xC3]}]}
        return {"tokens": self.bos}


@pytest.fixture
def engine() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
async def small(engine: SmallEngine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A LlamaCpp of two slots, two more may wait."""
    monkeypatch.setattr(llamacpp, "_start", lambda *_: engine)
    model = LlamaCpp(Path("model.gguf"), slots=2, waiting=2)
    yield model
    engine.go.set()
    await model.aclose()


def asking(text: str = "Hi.", owner: str = "a", max_tokens: int | None = None, **more: Any) -> ChatRequest:
    return ChatRequest([Message("user", text)], owner, Limits(max_tokens), Sampling(**more))


async def collect(model: LlamaCpp, request: ChatRequest) -> tuple[str, Delta]:
    """(the text, the last delta)"""
    async with model.stream(request) as stream:
        deltas = [delta async for delta in stream]
    return "".join(delta.text for delta in deltas), deltas[-1]


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not (now if isinstance(now := condition(), bool) else await now):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_stream_joins_and_ends_with_its_usage(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    text, last = await collect(small, asking(seed=3, temperature=0.5, top_p=0.9))
    assert text == "Hello you."
    assert last == Delta("", "stop", Usage(9, 4, 3))
    body = engine.bodies[0]
    assert body["prompt"] == "[user]Hi.[assistant]"
    assert (body["seed"], body["temperature"], body["top_p"]) == (3, 0.5, 0.9)


@pytest.mark.parametrize(("asked", "sent"), [(None, -1), (7, 7), (0, 0)])
async def test_the_reply_is_no_longer_than_its_limit(
    small: LlamaCpp, engine: SmallEngine, asked: int | None, sent: int
) -> None:
    engine.go.set()
    async with small.stream(asking(max_tokens=asked)) as stream:
        async for _ in stream:
            pass
    assert engine.bodies[0]["max_tokens"] == sent


async def test_a_prefill_streams_nothing_and_ends(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    async with small.stream(asking(max_tokens=0)) as stream:
        assert [delta async for delta in stream] == []


async def test_who_finds_no_slot_waits_and_the_queue_is_bounded(small: LlamaCpp, engine: SmallEngine) -> None:
    replies = [asyncio.create_task(collect(small, asking(owner=str(n)))) for n in range(4)]
    await until(lambda: engine.processing == 2)
    with pytest.raises(Overloaded, match="2 requests wait"):
        await collect(small, asking(owner="late"))
    assert len(engine.bodies) == 2
    engine.go.set()
    assert [text for text, _ in await asyncio.gather(*replies)] == ["Hello you."] * 4
    await collect(small, asking(owner="late"))


async def test_an_owner_never_competes_with_itself(small: LlamaCpp, engine: SmallEngine) -> None:
    first = asyncio.create_task(collect(small, asking("first", max_tokens=1)))
    second = asyncio.create_task(collect(small, asking("second")))
    await until(lambda: engine.processing == 1)
    other = asyncio.create_task(collect(small, asking("other", owner="b")))
    await until(lambda: engine.processing == 2)
    assert [body["prompt"] for body in engine.bodies] == ["[user]first[assistant]", "[user]other[assistant]"]
    engine.go.set()
    await asyncio.gather(first, second, other)
    slots = {body["prompt"].split("]")[1].split("[")[0]: body["id_slot"] for body in engine.bodies}
    assert slots["first"] == slots["second"] != slots["other"]


async def test_being_cancelled_while_waiting_leaves_no_trace(small: LlamaCpp, engine: SmallEngine) -> None:
    running = [asyncio.create_task(collect(small, asking(owner=str(n)))) for n in range(2)]
    await until(lambda: engine.processing == 2)
    waiting = [asyncio.create_task(collect(small, asking(owner=f"w{n}"))) for n in range(2)]
    await asyncio.sleep(0)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    engine.go.set()
    await asyncio.gather(*running)
    await asyncio.gather(*(collect(small, asking(owner=f"n{n}")) for n in range(4)))
    assert len(engine.bodies) == 6


async def test_who_is_waited_for_is_seated_before_the_background(small: LlamaCpp) -> None:
    slot, _ = await small._seat("a"), await small._seat("b")
    useful = asyncio.create_task(small._seat("c", background=True))
    await asyncio.sleep(0)
    urgent = asyncio.create_task(small._seat("d"))
    await asyncio.sleep(0)
    small._slots.give(slot)
    small._assign()
    assert await urgent == slot
    assert not useful.done()
    useful.cancel()
    await asyncio.wait([useful])


async def test_a_seat_given_to_who_is_cancelled_in_that_moment_is_not_lost(small: LlamaCpp) -> None:
    slot, _ = await small._seat("a"), await small._seat("b")
    late = asyncio.create_task(small._seat("c"))
    await asyncio.sleep(0)
    small._slots.give(slot)
    small._assign()
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    async with asyncio.timeout(10):
        assert await small._seat("d") == slot


async def test_leaving_waits_for_the_engine_however_often_it_is_cancelled(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.linger.set()
    task = asyncio.create_task(collect(small, asking()))
    await until(lambda: engine.processing == 1)
    for _ in range(3):
        task.cancel()
        await until(lambda: engine.processing == 0)
        await asyncio.sleep(0.01)
        assert not task.done(), "the engine still counts the request"
    engine.linger.clear()
    with pytest.raises(asyncio.CancelledError):
        await task
    engine.go.set()
    assert (await collect(small, asking()))[0] == "Hello you."


async def test_an_exception_in_the_context_drops_the_request_and_passes(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    async def fail() -> None:
        async with small.stream(asking()):
            await until(lambda: engine.processing == 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await small.busy() == 0


async def test_a_stream_left_early_is_at_its_end(small: LlamaCpp) -> None:
    async with small.stream(asking()) as stream:
        pass
    assert [delta async for delta in stream] == []


async def test_an_engine_that_does_not_let_go_is_reported_and_not_waited_for(
    small: LlamaCpp, engine: SmallEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(llamacpp, "FREE_TIMEOUT", 0.05)
    engine.linger.set()
    async with small.stream(asking()):
        await until(lambda: engine.processing == 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    engine.go.set()
    engine.linger.clear()
    assert (await collect(small, asking()))[0] == "Hello you."


@pytest.mark.parametrize("trouble", [RuntimeError("my secret"), {"choices": "my secret"}, {"error": {}}])
async def test_trouble_in_the_engine_fails_one_request(
    small: LlamaCpp, engine: SmallEngine, trouble: Any, caplog: pytest.LogCaptureFixture
) -> None:
    engine.go.set()
    engine.words[1:1] = [trouble]
    for _ in range(3):  # more than there are threads
        with pytest.raises(EngineFailed):
            await collect(small, asking("my secret"))
    del engine.words[1]
    assert (await collect(small, asking()))[0] == "Hello you."
    assert "secret" not in caplog.text


async def test_what_came_before_the_trouble_is_still_read(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    engine.words[1:] = [{"error": TOO_LONG}]
    async with small.stream(asking()) as stream:
        assert await anext(stream) == Delta("Hello")
        with pytest.raises(BadRequest):
            await anext(stream)
        assert [delta async for delta in stream] == []


def test_a_loop_closed_meanwhile_ends_the_request() -> None:
    loop = asyncio.new_event_loop()
    job = completion.Job("Hi", Limits(), Sampling(), Reading())
    call = completion.Call(loop, job)
    assert call.push(content("Hi")) is False
    loop.close()
    assert call.push(content("Hi")) is True
    call.run(SmallEngine(), {})


async def test_closing_cancels_refuses_and_can_be_repeated(small: LlamaCpp, engine: SmallEngine) -> None:
    tasks = [asyncio.create_task(collect(small, asking(owner=str(n)))) for n in range(3)]
    await until(lambda: engine.processing == 2)
    await asyncio.gather(small.aclose(), small.aclose())
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, EngineFailed)
    assert engine.processing == 0
    assert not [thread for thread in threading.enumerate() if "llamacpp" in thread.name]
    with pytest.raises(EngineFailed, match="shut down"):
        await collect(small, asking())
    assert await small.busy() == 0
    await small.aclose()


# --- what is asked of the engine, and read --------------------------------------------------------------


async def test_a4_a_stop_string_ends_the_engine_and_is_counted_up_to_there(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.go.set()
    engine.words = ["Hello", " th", "ere", " my", " friend"]
    request = ChatRequest([Message("user", "Hi.")], "a", Limits(stop=(" there",)))
    text, last = await collect(small, request)
    assert text == "Hello"
    assert last.finish_reason == "stop"
    assert last.usage == Usage(9, 4, 3)
    assert engine.lingering == 1, "the engine was told to drop the rest"
    assert engine.bodies[0]["timings_per_token"] is True
    assert "stop" not in engine.bodies[0]


async def test_sampling_reaches_the_engine(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    sampling = Sampling(0.5, 0.9, 7, 0.1, 3, 0.2, 0.3, 1.1, {5: -100.0})
    await collect(small, ChatRequest([Message("user", "Hi.")], "a", Limits(logprobs=0), sampling))
    body = engine.bodies[0]
    sent = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3, "n_probs": 1}
    assert sent.items() <= body.items()
    assert (body["presence_penalty"], body["frequency_penalty"], body["repeat_penalty"]) == (0.2, 0.3, 1.1)
    assert body["logit_bias"] == [[5, -100.0]]
    assert "grammar" not in body


NUMBER = {"type": "integer", "minimum": 10, "maximum": 99}


async def test_a_reply_that_keeps_to_its_schema_is_passed_on(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    engine.words = ["4", "2"]
    text, last = await collect(small, ChatRequest([Message("user", "?")], "a", Limits(schema=NUMBER)))
    assert (text, last.finish_reason) == ("42", "stop")
    assert engine.bodies[0]["grammar"].startswith("%llguidance {}")


@pytest.mark.parametrize("words", [["4", "x"], ["Sure", "!"], ["4"]])
async def test_a_reply_that_leaves_its_schema_is_a_failure_and_never_passed_on(
    small: LlamaCpp, engine: SmallEngine, words: list[str]
) -> None:
    """As the engine goes on without a grammar, and silently, where it cannot keep to it."""
    engine.go.set()
    engine.words = [*words]
    heard = ""
    with pytest.raises(EngineFailed):  # noqa: PT012
        async with small.stream(ChatRequest([Message("user", "?")], "a", Limits(schema=NUMBER))) as stream:
            async for delta in stream:
                heard += delta.text
    assert heard == words[0][: len(heard)]
    assert await small.busy() == 0


async def test_a13_a_schema_that_cannot_be_held_to_is_refused_before_the_engine_is_asked(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.go.set()
    with pytest.raises(BadRequest, match="'not'") as raised:
        await collect(small, ChatRequest([Message("user", "?")], "a", Limits(schema={"not": {}})))
    assert raised.value.param == "response_format"
    assert engine.bodies == []


WEATHER = Tool("get_weather", "", {"type": "object", "properties": {"city": {"type": "string"}}})
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


async def calls(model: LlamaCpp, request: ChatRequest) -> tuple[str, list[tuple[str, str]], Delta]:
    """(the text, (name, arguments) of the calls, the last delta)"""
    found: dict[int, list[str]] = {}
    text = ""
    async with model.stream(request) as stream:
        async for delta in stream:
            text += delta.text
            for call in delta.calls:
                if call.id:
                    assert call.index == len(found), "dense, from 0"
                    assert call.name
                    found[call.index] = [call.name, ""]
                found[call.index][1] += call.arguments
    return text, [(name, arguments) for name, arguments in found.values()], delta


async def test_calls_are_taken_out_of_the_text(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    engine.words = ["Let me", " see.", *CALL]
    text, found, last = await calls(
        small, ChatRequest([Message("user", "?")], "a", tools=ToolUse((WEATHER,)))
    )
    assert (text, found, last.finish_reason) == (
        "Let me see.",
        [("get_weather", '{"city": "Oslo"}')],
        "tool_calls",
    )


async def test_a7_tools_that_may_not_be_called_are_not_shown_and_not_called(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.template = "{{ tools }}"
    small._template = llamacpp.ChatTemplate(engine.template, now=datetime.now)
    engine.go.set()
    await collect(small, ChatRequest([Message("user", "?")], "a", tools=ToolUse((WEATHER,), "none")))
    assert engine.bodies[0]["prompt"] == "None"
    assert "<tool_call>" in engine.bodies[0]["grammar"], "which keeps it out"


async def test_a14_thoughts_are_kept_out_of_the_text_and_the_schema_holds_after_them(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.go.set()
    for prompt, words in (
        ("", ["<think>\n", "{ hm", " }</thi", "nk>\n\n", "4", "2"]),
        ("<think>\n", ["{ hm", " }</think>", "\n\n42"]),
    ):
        engine.words = [*words]
        small._template = llamacpp.ChatTemplate("{# </think> #}" + prompt, now=datetime.now)
        request = ChatRequest([Message("user", "?")], "a", Limits(schema=NUMBER))
        async with small.stream(request) as stream:
            deltas = [delta async for delta in stream]
        assert "".join(delta.text for delta in deltas) == "42"
        assert "".join(delta.reasoning for delta in deltas) == "{ hm }"


async def test_a_model_that_begins_every_text_with_a_token_gets_it_once(engine: SmallEngine) -> None:
    engine.bos = [1]
    engine.template = "{{ bos_token }}{{ messages[0].content }}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llamacpp, "_start", lambda *_: engine)
        model = LlamaCpp(Path("model.gguf"), slots=1)
    assert await model.render(asking("<s>Hi.")) == "<s>Hi."
    await model.aclose()


async def test_a_prompt_is_completed_as_it_stands(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.go.set()
    for prompt, sent in (("Once", "Once"), ([5, 6], [5, 6]), ("", "<s>")):
        async with small.complete(TextRequest(prompt, "a", Limits(4))) as stream:
            assert "".join([delta.text async for delta in stream]) == "Hello you."
        assert engine.bodies[-1]["prompt"] == sent
    for wrong in ([], [100], [-1], "\ud800"):
        with pytest.raises(BadRequest) as raised:
            async with small.complete(TextRequest(wrong, "a")):
                pass
        assert raised.value.param == "prompt"
    assert (small.vocabulary, small.context) == (100, 2048)
    with pytest.raises(BadRequest, match="0 to 99"):
        await small.detokenize([3, 100])


async def test_what_cannot_fit_is_refused_by_its_size_and_takes_no_slot(
    small: LlamaCpp, engine: SmallEngine
) -> None:
    engine.go.set()
    most = small.context * engine.longest
    frame = len(await small.render(asking("")))
    assert (await collect(small, asking("é" * ((most - frame) // 2))))[0] == "Hello you."
    async with small.complete(TextRequest([5] * small.context, "a")) as stream:
        assert [delta async for delta in stream]
    assert len(engine.bodies) == 2
    seats = [await small._seat("x"), await small._seat("y")]
    for refused, param in (
        (small.stream(asking("é" * (most // 2))), "messages"),
        (small.complete(TextRequest("x" * (most + 1), "a")), "prompt"),
        (small.complete(TextRequest([5] * (small.context + 1), "a")), "prompt"),
    ):
        with pytest.raises(BadRequest, match=r"llm\.context") as raised:
            async with refused:
                pass
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", param)
    for seat in seats:
        small._slots.give(seat)
    assert len(engine.bodies) == 2


async def test_a_slot_is_freed_while_a_long_text_is_split(small: LlamaCpp, engine: SmallEngine) -> None:
    engine.asking.clear()
    splitting = asyncio.create_task(small.tokenize("long"))
    async with small.stream(asking()):
        await until(lambda: engine.processing == 1)
    assert await small.busy() == 0
    assert not splitting.done()
    engine.asking.set()
    assert await splitting == []


async def test_texts_are_split_up_to_a_size(small: LlamaCpp) -> None:
    assert await small.pieces("abÃ") == [(3, "ab"), (4, "\ufffd")]
    assert await small.tokenize("x" * room.MOST_TEXT) == []
    for split in (small.tokenize, small.pieces):
        with pytest.raises(BadRequest, match="bytes") as raised:
            await split("é" * (room.MOST_TEXT // 2 + 1))
        assert raised.value.param == "prompt"


def test_the_longest_token_is_asked_of_the_engine(engine: SmallEngine) -> None:
    engine.longest = 40
    assert room.longest(engine, 100, "</s>") == 40
    assert room.longest(engine, 100, "") == room.LONGEST, "no mark to tell tokens apart"
    assert room.longest(engine, 100, "ab") == room.LONGEST, "a mark that is no token"

    class Silent(SmallEngine):
        def ask(self, method: str, path: str, body: Any = None) -> Any:
            raise EngineFailed("no answer")

    assert room.longest(Silent(), 100, "</s>") == room.LONGEST


# --- loading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("local", [False, True])
def test_the_entry_point_takes_its_section_of_the_settings(
    local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(llamacpp, "_start", lambda *how: started.append(how) or SmallEngine())
    file = tmp_path / "my.gguf"
    file.touch()
    store: Any = SimpleNamespace(fetch=lambda name: file if local else tmp_path / name)
    (tmp_path / "m").mkdir()
    settings = Settings(llm=LlmSettings(model="m", context=512, slots=3, threads=5, batch=8))
    model = load(settings, store)
    assert model._capacity == 64 * 3 + 4 * 3, "every request that is let in may wait"
    assert started == [(file if local else tmp_path / "m" / "model.gguf", 512, 3, 5, 8)]
