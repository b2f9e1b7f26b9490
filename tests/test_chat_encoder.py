"""Answers of chat completions, in chunks and whole, against what OpenAI's own package takes."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from asking import token, words
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from antiphon.llm.base import CallDelta, Delta
from antiphon.pipeline.events import Usage
from antiphon.transport.chat_encoder import ChatChunks, ChatWhole, Head, Said

HEAD = Head("chatcmpl-1", 1000, "talker", "fp_1")
CALLS = [
    Delta("", calls=(CallDelta(0, "c1", "weather", '{"ci'),)),
    Delta("", calls=(CallDelta(0, arguments='ty": "Oslo"}'), CallDelta(1, "c2", "clock"))),
    Delta("", calls=(CallDelta(1, arguments="{}"),)),
    Delta("", "tool_calls", Usage(10, 0, 20)),
]


def head(**members: Any) -> Head:
    return Head("chatcmpl-1", 1000, "talker", "fp_1", **members)


def chunks(head: Head, pieces: Sequence[Delta | Said], index: int = 0) -> list[dict[str, Any]]:
    encoder = ChatChunks(head)
    found = [chunk for piece in pieces for chunk in encoder.push(index, piece)] + encoder.finish()
    for chunk in found:
        ChatCompletionChunk.model_validate(chunk)
        assert chunk["id"] == "chatcmpl-1"
        assert chunk["created"] == 1000
    return found


def whole(head: Head, pieces: Sequence[Delta | Said]) -> dict[str, Any]:
    encoder = ChatWhole(head)
    for piece in pieces:
        encoder.push(0, piece)
    answer = encoder.answer()
    ChatCompletion.model_validate(answer)
    return answer


def deltas(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]


def test_text_in_chunks() -> None:
    found = chunks(HEAD, words("Hello there you."))
    assert deltas(found) == [
        {"role": "assistant", "content": "", "refusal": None},
        {"content": "Hello"},
        {"content": " there"},
        {"content": " you."},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None] * 4 + ["stop"]
    assert not any("usage" in chunk for chunk in found)


def test_text_as_a_whole() -> None:
    answer = whole(HEAD, words("Hello there you.", "length"))
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello there you.",
                "refusal": None,
                "annotations": [],
            },
            "logprobs": None,
            "finish_reason": "length",
        }
    ]
    assert answer["usage"]["total_tokens"] == 13


def test_an_answer_that_is_over_at_once() -> None:
    nothing = [Delta("", "stop", Usage(10, 0, 1))]
    assert deltas(chunks(HEAD, nothing)) == [{"role": "assistant", "content": "", "refusal": None}, {}]
    assert whole(HEAD, nothing)["choices"][0]["message"]["content"] == ""


def test_a_last_delta_with_text_ends_in_an_empty_one() -> None:
    assert deltas(chunks(HEAD, [Delta("Hi.", "stop", Usage())]))[1:] == [{"content": "Hi."}, {}]


def test_a1_usage_is_one_more_chunk_without_choices() -> None:
    found = chunks(head(usage=True), words("Hello there."))
    assert [chunk["usage"] for chunk in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["prompt_tokens"] == 10


def test_a5_calls_in_chunks() -> None:
    found = [call for delta in deltas(chunks(HEAD, CALLS)) for call in delta.get("tool_calls", ())]
    assert found == [
        {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"ci'}},
        {"index": 0, "function": {"arguments": 'ty": "Oslo"}'}},
        {"index": 1, "id": "c2", "type": "function", "function": {"name": "clock", "arguments": ""}},
        {"index": 1, "function": {"arguments": "{}"}},
    ]


def test_calls_as_a_whole() -> None:
    choice = whole(HEAD, CALLS)["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert choice["message"]["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
        {"id": "c2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]


def test_deprecated_function_calls() -> None:
    found = chunks(head(legacy=True), [CALLS[0], Delta("", "tool_calls", Usage())])
    assert deltas(found)[1:] == [
        {"function_call": {"name": "weather", "arguments": ""}},
        {"function_call": {"arguments": '{"ci'}},
        {},
    ]
    assert found[-1]["choices"][0]["finish_reason"] == "function_call"
    choice = whole(head(legacy=True), [CALLS[0], Delta("", "tool_calls", Usage())])["choices"][0]
    assert choice["message"]["function_call"] == {"name": "weather", "arguments": '{"ci'}
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]


def test_calls_of_custom_tools() -> None:
    pieces = [
        Delta("", calls=(CallDelta(0, "c1", "sql", '{"inp'),)),
        Delta("", calls=(CallDelta(0, arguments='ut": "SELECT \\"'),)),
        Delta("", calls=(CallDelta(0, arguments='a\\""}'),)),
        Delta("", "tool_calls", Usage()),
    ]
    encoder = ChatChunks(head(customs=frozenset({"sql"})))
    found = [chunk for piece in pieces for chunk in encoder.push(0, piece)]
    calls = [call for delta in deltas(found) for call in delta.get("tool_calls", ())]
    assert calls == [
        {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sql", "input": ""}},
        {"index": 0, "custom": {"input": 'SELECT "'}},
        {"index": 0, "custom": {"input": 'a"'}},
    ]
    message = whole(head(customs=frozenset({"sql"})), pieces)["choices"][0]["message"]
    assert message["tool_calls"][0]["custom"] == {"name": "sql", "input": 'SELECT "a"'}


def test_thoughts_are_not_content() -> None:
    pieces = [Delta("", reasoning="Well"), Delta("Yes.", "stop", Usage(1, 0, 5))]
    encoder = ChatChunks(head(usage=True))
    found = [chunk for piece in pieces for chunk in encoder.push(0, piece)]
    assert deltas(found)[1:] == [{"reasoning_content": "Well"}, {"content": "Yes."}, {}]
    assert encoder.thoughts == "Well"
    assert encoder.finish(reasoning=3)[0]["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    message = whole(HEAD, pieces)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Well", "Yes.")


def test_a9_every_token_is_told_once() -> None:
    pieces = [
        Delta("Hi", logprobs=(token("Hi", -0.1, ("Hi", -0.1), ("He", -3.0)),)),
        Delta("", logprobs=(token(" t"),)),
        Delta(" there", logprobs=(token("here"),)),
        Delta("", "stop", Usage(1, 0, 4), logprobs=(token(""),)),
    ]
    for got in (
        [
            entry
            for chunk in chunks(head(logprobs=True), pieces)
            for entry in (chunk["choices"][0]["logprobs"] or {}).get("content", ())
        ],
        whole(head(logprobs=True), pieces)["choices"][0]["logprobs"]["content"],
    ):
        assert [entry["token"] for entry in got] == ["Hi", " t", "here", ""]
        assert bytes(byte for entry in got for byte in entry["bytes"]) == b"Hi there"
        assert [entry["token"] for entry in got[0]["top_logprobs"]] == ["Hi", "He"]
        assert got[1]["top_logprobs"] == []
    assert all(chunk["choices"][0]["logprobs"] is None for chunk in chunks(HEAD, pieces))
    assert whole(HEAD, pieces)["choices"][0]["logprobs"] is None


def test_log_probabilities_of_calls() -> None:
    pieces = [Delta("", calls=CALLS[0].calls, logprobs=(token("{"),)), CALLS[3]]
    found = chunks(head(logprobs=True), pieces)
    told = [chunk for chunk in found if chunk["choices"][0]["logprobs"]]
    assert [chunk["choices"][0]["delta"].get("tool_calls") is not None for chunk in told] == [True]


def test_a10_choices_are_told_apart_and_counted_together() -> None:
    encoder = ChatChunks(head(n=3, usage=True))
    found: list[dict[str, Any]] = []
    for index in (0, 1, 2):
        for delta in words("a b"):
            found += encoder.push(index, delta)
    roles = [c["choices"][0]["index"] for c in found if "role" in c["choices"][0]["delta"]]
    assert roles == [0, 1, 2]
    assert encoder.finish()[0]["usage"]["completion_tokens"] == 6
    assert encoder.finish()[0]["usage"]["prompt_tokens"] == 10


def test_speech_in_chunks_joins_to_the_whole() -> None:
    sound = [bytes(range(n)) for n in (7, 0, 20, 3)]
    pieces: list[Delta | Said] = [
        Said(text, audio, 0.5) for text, audio in zip(("Hi. ", "", "You.", ""), sound, strict=True)
    ]
    pieces.append(Delta("", "stop", Usage(10, 0, 4)))
    spoken = head(audio=("audio_1",), expires_at=2000, usage=True)
    found = [delta["audio"] for delta in deltas(chunks(spoken, pieces)) if "audio" in delta]
    assert [audio["id"] for audio in found if "id" in audio] == ["audio_1"]
    assert "".join(audio.get("transcript", "") for audio in found) == "Hi. You."
    assert base64.b64decode("".join(audio.get("data", "") for audio in found)) == b"".join(sound)
    assert found[-1]["expires_at"] == 2000
    assert all(len(base64.b64decode(audio.get("data", ""))) % 2 == 0 for audio in found[:-1])
    message = whole(spoken, pieces)["choices"][0]["message"]
    assert message["content"] is None
    assert message["audio"] == {
        "id": "audio_1",
        "data": base64.b64encode(b"".join(sound)).decode(),
        "expires_at": 2000,
        "transcript": "Hi. You.",
    }
    usage = whole(spoken, pieces)["usage"]
    assert usage["completion_tokens_details"]["audio_tokens"] == 40
    assert usage["completion_tokens"] == 44


def test_what_was_sent_along_is_named_again() -> None:
    answer = whole(head(tier="flex", metadata={"a": "b"}), words("Hi."))
    assert (answer["service_tier"], answer["metadata"]) == ("flex", {"a": "b"})
    assert chunks(head(tier="flex"), words("Hi."))[0]["service_tier"] == "flex"
    assert "metadata" not in whole(HEAD, words("Hi."))


def test_everything_is_json() -> None:
    json.dumps([chunks(HEAD, CALLS), whole(HEAD, CALLS)], allow_nan=False)
