"""llama.cpp with the default model: prefixes that stay, cancels that the engine confirms, replies in form.

These ask the real engine, and believe its own counters instead of our flags.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from antiphon.llm.base import (
    ChatRequest,
    Delta,
    Limits,
    Message,
    Sampling,
    TextRequest,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolUse,
)
from antiphon.llm.llamacpp import LlamaCpp
from antiphon.pipeline.errors import BadRequest, WeightsError
from antiphon.pipeline.settings import Settings


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


SYSTEM = Message(
    "system",
    "You are a helpful voice assistant on a telephone. Answer in one short sentence, in plain words, without "
    "lists, without markdown and without emoji. When you do not know, say so.",
)
LONG = "The quick brown fox jumps over the lazy dog and then goes home to sleep. " * 15


@pytest.fixture(scope="module")
def path() -> Path:
    from antiphon.pipeline.weights import WeightStore

    settings = Settings()
    return WeightStore(settings.weights.root, bar=False).fetch(settings.llm.model) / "model.gguf"


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[LlamaCpp]:
    model = LlamaCpp(path, context=1024, slots=2, batch=8)
    yield model
    asyncio.run(model.aclose())


async def assert_idle(model: LlamaCpp) -> None:
    """The engine itself has nothing to do and does nothing."""
    assert await model.busy() == 0
    before = (await model.counters())["n_decode_total"]
    await asyncio.sleep(0.2)
    assert (await model.counters())["n_decode_total"] == before


async def until_computed(model: LlamaCpp, batches: int) -> None:
    """Until so many batches more are behind the engine."""
    begun = (await model.counters())["n_decode_total"]

    async def computed() -> bool:
        return (await model.counters())["n_decode_total"] >= begun + batches

    await until(computed)


async def idle(model: LlamaCpp) -> bool:
    return await model.busy() == 0


@pytest.mark.model
async def test_greedy_replies_repeat(model: LlamaCpp) -> None:
    request = ChatRequest([SYSTEM, Message("user", "What is the capital of France?")], "greedy", Limits(40))
    text, last = await collect(model, request)
    assert "Paris" in text
    assert last.finish_reason == "stop"
    assert last.usage is not None
    assert last.usage.input_tokens > 30
    assert 0 < last.usage.output_tokens < 40
    again, last = await collect(model, request)
    assert again == text
    assert last.usage is not None
    assert last.usage.cached_tokens == last.usage.input_tokens - 1
    assert (await collect(model, asking("Count to ten.", max_tokens=3)))[1].finish_reason == "length"
    await assert_idle(model)


@pytest.mark.model
async def test_conversations_with_the_same_instructions_keep_their_prefixes(model: LlamaCpp) -> None:
    """More conversations than slots, in turns: each turn computes only what it adds."""
    histories = {topic: [SYSTEM] for topic in ("cats", "the Moon", "bread")}
    before: dict[str, int] = {}
    for question in ("Tell me something about {}.", "Why?", "What else about {}?"):
        for topic, history in histories.items():
            history.append(Message("user", question.format(topic)))
            text, last = await collect(model, ChatRequest(tuple(history), topic, Limits(8)))
            history.append(Message("assistant", text))
            assert last.usage is not None
            if topic in before:
                assert last.usage.cached_tokens >= before[topic]
            before[topic] = last.usage.input_tokens


@pytest.mark.model
async def test_words_after_a_prefill_are_all_that_is_left_to_compute(model: LlamaCpp) -> None:
    def spoken(words: str, max_tokens: int) -> ChatRequest:
        return ChatRequest([SYSTEM, Message("user", words)], "prefill", Limits(max_tokens))

    words = "I would like to know what one could see in the old town on a rainy day"
    async with model.stream(spoken(words, 0)) as stream:
        assert [delta async for delta in stream] == []
    await assert_idle(model)
    _, last = await collect(model, spoken(words + ", with children.", 1))
    assert last.usage is not None
    # New are four tokens of text and the five that close the message and open the reply.
    assert last.usage.input_tokens - last.usage.cached_tokens <= 10


@pytest.mark.model
async def test_a_cancelled_prefill_keeps_what_it_computed(model: LlamaCpp) -> None:
    async with model.stream(asking(LONG, owner="cut", max_tokens=0)):
        await until_computed(model, 5)
    _, last = await collect(model, asking(LONG, owner="cut", max_tokens=1))
    assert last.usage is not None
    assert last.usage.cached_tokens >= 5 * 8


@pytest.mark.model
async def test_leaving_in_decode_frees_the_slot(model: LlamaCpp) -> None:
    async with model.stream(asking("Write a long story about the sea.")) as stream:
        for _ in range(3):
            await anext(stream)
        assert await model.busy() == 1
    await assert_idle(model)


@pytest.mark.model
async def test_leaving_in_prefill_frees_the_slot(model: LlamaCpp) -> None:
    async with model.stream(asking("Sum this up. " + LONG, owner="p")):
        await until_computed(model, 2)
    await assert_idle(model)


@pytest.mark.model
async def test_leaving_at_once_frees_the_slot(model: LlamaCpp) -> None:
    async with model.stream(asking("Sum that up. " + LONG, owner="q")):
        pass
    await assert_idle(model)


@pytest.mark.model
@pytest.mark.slow
async def test_cancelled_at_any_moment_the_model_goes_on(model: LlamaCpp) -> None:
    question = ChatRequest([SYSTEM, Message("user", "What is the capital of Italy?")], "witness", Limits(20))
    expected, _ = await collect(model, question)
    rng = random.Random(5)
    for number in range(20):
        text = rng.choice(["Tell me a story.", f"{number} " + LONG])
        task = asyncio.create_task(collect(model, asking(text, owner=rng.choice("abc"))))
        await asyncio.sleep(rng.choice([0.0, 0.001, rng.random() / 2]))
        for _ in range(rng.randint(1, 3)):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await model.busy() == 0
    await assert_idle(model)
    assert (await collect(model, question))[0] == expected


@pytest.mark.model
async def test_two_streams_run_side_by_side(model: LlamaCpp) -> None:
    order: list[str] = []

    async def read(owner: str) -> str:
        async with model.stream(asking("Count from one to ten in words.", owner, 20)) as stream:
            text = ""
            async for delta in stream:
                order.append(owner)
                text += delta.text
            return text

    texts = await asyncio.gather(read("left"), read("right"))
    assert all(texts)
    changes = sum(order[n] != order[n + 1] for n in range(len(order) - 1))
    assert changes > 4, order


@pytest.mark.model
async def test_a_reader_that_sleeps_holds_no_slot_and_loses_nothing(model: LlamaCpp) -> None:
    request = asking("Count from one to five in words.", owner="slow", max_tokens=24)
    expected, _ = await collect(model, request)
    async with model.stream(request) as stream:
        text = (await anext(stream)).text
        await until(lambda: idle(model))
        text += "".join([delta.text async for delta in stream])
    assert text == expected


@pytest.mark.model
async def test_messages_that_do_not_fit_are_refused_and_the_next_ones_answered(model: LlamaCpp) -> None:
    with pytest.raises(BadRequest, match=r"llm\.context.* 1024") as raised:
        await collect(model, asking(LONG * 10))
    assert raised.value.code == "context_length_exceeded"
    await assert_idle(model)
    assert (await collect(model, asking("Say hello.", max_tokens=5)))[0]


@pytest.mark.model
async def test_the_event_loop_runs_while_the_model_computes(model: LlamaCpp) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    counting = asyncio.create_task(count())
    seen: list[int] = []
    async with model.stream(asking("Tell me about rivers.", owner="beat", max_tokens=16)) as stream:
        async for _ in stream:
            seen.append(turns)
    counting.cancel()
    # A loop that is blocked while a token is computed turns about once for each.
    assert seen[-1] > 4 * len(seen)


@pytest.mark.model
@pytest.mark.slow
async def test_characters_come_whole_wherever_the_reply_is_cut(model: LlamaCpp) -> None:
    prompt = "Repeat exactly: 👩‍👩‍👧‍👦🇫🇷🦄你好नमस्ते"
    texts = [(await collect(model, asking(prompt, owner="utf8", max_tokens=n)))[0] for n in range(1, 25)]
    assert "\ufffd" not in "".join(texts)
    assert any(ord(character) > 0xFFFF for character in texts[-1])
    for shorter, longer in itertools.pairwise(texts):
        assert longer.startswith(shorter)


@pytest.mark.model
async def test_nothing_of_a_prompt_is_written_down(
    model: LlamaCpp, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    await collect(model, asking("xyzzy plugh", max_tokens=2))
    with pytest.raises(BadRequest):
        await collect(model, asking("xyzzy plugh " * 2000))
    with pytest.raises(BadRequest):
        await collect(model, asking("xyzzy \ud800"))
    written = capfd.readouterr()
    assert "xyzzy" not in caplog.text + written.out + written.err


@pytest.mark.model
async def test_nobody_else_can_connect_and_nothing_stays_behind(path: Path) -> None:
    process = psutil.Process()

    def listening() -> int:
        return sum(c.status == psutil.CONN_LISTEN for c in process.net_connections("inet"))

    def folders() -> set[Path]:
        names = [Path(str(c.laddr)) for c in process.net_connections("unix")]
        return {name.parent for name in names if "antiphon" in str(name) and name.exists()}

    threads, sockets, before = process.num_threads(), listening(), await asyncio.to_thread(folders)
    model = await asyncio.to_thread(LlamaCpp, path, context=256, slots=1)
    try:
        assert (await collect(model, asking("Hello.", max_tokens=2)))[0]
        assert listening() == sockets
        (folder,) = await asyncio.to_thread(folders) - before
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        await model.aclose()
        await model.aclose()
    assert not await asyncio.to_thread(folder.exists)
    await until(lambda: process.num_threads() <= threads + 1)  # one of asyncio.to_thread's


@pytest.mark.model
def test_a_file_that_is_no_model_is_the_operators_error(tmp_path: Path) -> None:
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(WeightsError, match="must be a whole"):
        LlamaCpp(broken)


# --- replies in form ------------------------------------------------------------------------------------

WEATHER = Tool(
    "get_weather",
    "The weather in a city",
    {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
TIME = Tool("get_time", "The time in a city", WEATHER.parameters)
TWO_CITIES = Message("user", "What is the weather in Paris and in Rome?")


async def read(model: LlamaCpp, request: ChatRequest | TextRequest) -> list[Delta]:
    opened = model.stream(request) if isinstance(request, ChatRequest) else model.complete(request)
    async with opened as stream:
        return [delta async for delta in stream]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def calls_of(deltas: Sequence[Delta]) -> list[tuple[str, str, str]]:
    """(id, name, arguments)"""
    calls: list[tuple[str, str, str]] = []
    for call in (call for delta in deltas for call in delta.calls):
        if call.id:
            assert call.index == len(calls)
            calls.append((call.id, call.name, ""))
        id, name, arguments = calls[call.index]
        calls[call.index] = (id, name, arguments + call.arguments)
    return calls


def tokens_of(deltas: Sequence[Delta]) -> list[TokenLogprob]:
    return [token for delta in deltas for token in delta.logprobs]


@pytest.mark.model
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a5_two_calls_in_one_reply(model: LlamaCpp, mode: Any) -> None:
    deltas = await read(model, ChatRequest([TWO_CITIES], mode, Limits(60), tools=ToolUse((WEATHER,), mode)))
    calls = calls_of(deltas)
    assert calls
    assert len({id for id, _, _ in calls}) == len(calls)
    if mode == "required":
        assert len(calls) > 1
    for _, name, arguments in calls:
        assert name == "get_weather"
        assert set(json.loads(arguments)) == {"city"}
    assert text_of(deltas) == ""
    assert deltas[-1].finish_reason == "tool_calls"
    assert deltas[-1].usage is not None


@pytest.mark.model
async def test_a7_the_choice_of_tools_is_kept_to(model: LlamaCpp) -> None:
    async def answer(use: ToolUse, tokens: int = 40) -> list[Delta]:
        messages = [Message("user", "Say hello, in one word. Call nothing.")]
        return await read(model, ChatRequest(messages, "choice", Limits(tokens), tools=use))

    named = await answer(ToolUse((WEATHER, TIME), "required", name="get_time", parallel=False))
    ((_, name, arguments),) = calls_of(named)
    assert name == "get_time"
    assert isinstance(json.loads(arguments)["city"], str)
    none = await answer(ToolUse((WEATHER,), "none"), 10)
    assert calls_of(none) == []
    assert text_of(none)
    one = await answer(ToolUse((WEATHER, TIME), "required", parallel=False), 60)
    assert len(calls_of(one)) == 1
    await assert_idle(model)


@pytest.mark.model
async def test_a6_cut_in_its_arguments_a_call_is_told_as_far_as_it_came(model: LlamaCpp) -> None:
    use = ToolUse((WEATHER,), "required")
    deltas = await read(model, ChatRequest([TWO_CITIES], "cut", Limits(13), tools=use))
    ((_, name, arguments),) = calls_of(deltas)
    assert name == "get_weather"
    assert arguments
    assert arguments.startswith("{")
    assert "}" not in arguments
    assert deltas[-1].finish_reason == "length"


@pytest.mark.model
async def test_a8_tools_do_not_hold_back_text(model: LlamaCpp) -> None:
    use = ToolUse((WEATHER,))
    messages = [Message("user", "Count from one to five in words.")]
    deltas = await read(model, ChatRequest(messages, "count", Limits(12), tools=use))
    assert calls_of(deltas) == []
    assert len(deltas) >= 8, "a delta a token"


@pytest.mark.model
async def test_calls_and_what_tools_said_are_rendered_as_the_model_knows_them(model: LlamaCpp) -> None:
    messages = [
        Message("user", "What is the weather in Oslo?"),
        Message("assistant", "", tool_calls=(ToolCall("call_1", "get_weather", '{"city": "Oslo"}'),)),
        Message("tool", "Snow.", tool_call_id="call_1"),
    ]
    prompt = await model.render(ChatRequest(messages, "told", tools=ToolUse((WEATHER,))))
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>' in prompt
    assert "<tool_response>\nSnow.\n</tool_response>" in prompt


@pytest.mark.model
@pytest.mark.parametrize("tools", [(), (WEATHER,)])
async def test_a9_every_token_sampled_has_its_log_probability(
    model: LlamaCpp, tools: tuple[Tool, ...]
) -> None:
    messages = [Message("user", "Count from one to five in words.")]
    for limits in (Limits(12, logprobs=0), Limits(12, logprobs=3), Limits(4, logprobs=0)):
        deltas = await read(model, ChatRequest(messages, "logprobs", limits, tools=ToolUse(tools)))
        tokens = tokens_of(deltas)
        usage = deltas[-1].usage
        assert usage is not None
        assert len(tokens) == usage.output_tokens
        assert b"".join(token.data for token in tokens).decode() == text_of(deltas)
        assert all(-9999 <= token.logprob <= 0 for token in tokens)
        assert {len(token.top) for token in tokens} == {limits.logprobs}
        if limits.logprobs:
            assert all(token.top[0][1] >= token.logprob - 1e-6 for token in tokens), "greedy"


@pytest.mark.model
async def test_a4_stop_strings_end_the_text_wherever_tokens_do(model: LlamaCpp) -> None:
    messages = [Message("user", "Count from one to ten in words, with commas.")]

    async def answer(*stop: str, tokens: int = 24) -> list[Delta]:
        return await read(model, ChatRequest(messages, "stops", Limits(tokens, stop, logprobs=0)))

    whole = text_of(await answer())
    assert len(whole) > 30
    for stop in (whole[9:12], whole[5:25], whole[:4], whole[10]):
        deltas = await answer(stop)
        text = text_of(deltas)
        assert text == whole[: whole.index(stop)]
        assert deltas[-1].finish_reason == "stop"
        usage = deltas[-1].usage
        assert usage is not None
        assert usage.input_tokens > 30
        assert usage.cached_tokens <= usage.input_tokens
        told = tokens_of(deltas)
        assert len(told) <= usage.output_tokens <= 24
        assert b"".join(token.data for token in told).decode().startswith(text)
    assert text_of(await answer(whole[20:] + "never")) == whole
    assert text_of(await answer(whole[4:9] + "never", tokens=3)) == text_of(await answer(tokens=3))
    await assert_idle(model)


@pytest.mark.model
async def test_a3_bytes_that_are_no_text_are_left_out(model: LlamaCpp) -> None:
    """Token 162 of the default model is the first byte of a character, again and again."""
    sampling = Sampling(logit_bias={162: 100.0})
    deltas = await read(model, TextRequest("x", "bytes", Limits(5), sampling))
    assert text_of(deltas) == ""
    assert deltas[-1].finish_reason == "length"


@pytest.mark.model
async def test_a_bias_can_forbid_a_token_and_a_seed_repeats(model: LlamaCpp) -> None:
    question = [Message("user", "What is the capital of France?")]
    (paris,) = await model.tokenize(" Paris")
    biased = Sampling(logit_bias={paris: -100.0})
    assert " Paris" not in text_of(await read(model, ChatRequest(question, "bias", Limits(8), biased)))
    seeded = [
        text_of(await read(model, TextRequest("Once", "seed", Limits(6), Sampling(1.5, seed=seed))))
        for seed in (1, 1, 2)
    ]
    assert seeded[0] == seeded[1]
    assert seeded[1] != seeded[2]


@pytest.mark.model
async def test_the_model_below_the_chat(model: LlamaCpp) -> None:
    assert model.context == 1024
    assert model.vocabulary > 151_000
    for text in ("Hello wörld 👩‍👩‍👧", "<|im_end|>", ""):
        for special in (True, False):
            tokens = await model.tokenize(text, special=special)
            assert all(0 <= token < model.vocabulary for token in tokens)
            assert await model.detokenize(tokens) == text
    assert len(await model.tokenize("<|im_end|>")) == 1
    pieces = await model.pieces("Grüße 👩 <|im_end|>")
    assert [token for token, _ in pieces] == await model.tokenize("Grüße 👩 <|im_end|>")
    assert "".join(piece for _, piece in pieces if "\ufffd" not in piece).startswith("Grüße")
    assert pieces[-1][1] == "<|im_end|>"
    assert len(await model.tokenize("<|im_end|>", special=False)) > 1
    prompt = await model.render(asking("Hi."))
    assert prompt.endswith("<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\n")
    direct = await read(model, TextRequest(prompt, "direct", Limits(6)))
    tokens = await read(model, TextRequest(await model.tokenize(prompt), "direct", Limits(6)))
    assert text_of(direct) == text_of(tokens) == text_of(await read(model, asking("Hi.", max_tokens=6)))


@pytest.mark.model
async def test_too_long_a_prompt_is_refused_by_its_own_name(model: LlamaCpp) -> None:
    with pytest.raises(BadRequest) as raised:
        await read(model, TextRequest("word " * 2000, "long"))
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "prompt")


@pytest.mark.model
async def test_the_longest_prompt_that_fits_is_not_taken_for_too_long(model: LlamaCpp) -> None:
    """Runs of 128 spaces are this vocabulary's longest token."""
    assert model._room.longest == 128
    text = " " * 128 * (model.context - 2)
    assert len(await model.tokenize(text)) == model.context - 2
    model._room.check(text, "prompt")
    for much in (" " * 20_000_000, "word " * 4_000_000):
        with pytest.raises(BadRequest) as raised:
            await read(model, TextRequest(much, "long"))
        assert raised.value.code == "context_length_exceeded"
    await assert_idle(model)


@pytest.mark.model
async def test_a_grammar_holds_on_any_seed(model: LlamaCpp) -> None:
    schema = {"type": "array", "items": {"enum": ["red", "blue"]}, "minItems": 1, "maxItems": 2}
    for seed in range(3):
        request = ChatRequest([TWO_CITIES], "seeds", Limits(24, schema=schema), Sampling(1.8, seed=seed))
        deltas = await read(model, request)
        assert deltas[-1].finish_reason == "stop"
        assert set(json.loads(text_of(deltas))) <= {"red", "blue"}
