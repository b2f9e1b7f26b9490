"""The engine's chunks, read: text, tokens, the end and its counts, errors."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.llm.chunks import Chunks, Finished, Sampled, failure
from antiphon.pipeline.errors import BadRequest, EngineFailed
from antiphon.pipeline.events import Usage

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


def test_chunks_are_progress_text_and_an_end_with_usage() -> None:
    chunks = Chunks()
    assert [chunks.push(chunk) for chunk in (PROGRESS, PROGRESS, content(""))] == [None, None, None]
    assert chunks.push(content("Hi")) == Sampled("Hi")
    assert chunks.push(content(" there", **timings(30, 2, 2))) == Sampled(" there")
    assert chunks.usage == Usage(32, 30, 2)
    assert not chunks.finished
    assert chunks.push(finish("length", 32, 30, 2)) == Finished("length", Usage(32, 30, 2))
    assert chunks.finished


def test_log_probabilities_are_read_with_as_many_alternatives_as_were_asked_for() -> None:
    token = {"id": 9, "token": "\ufffd", "bytes": [240, 159], "logprob": -0.5}
    others = [{**token, "top_logprobs": []}, {"id": 1, "token": "b", "bytes": [98], "logprob": None}]
    chunk = content("a")
    chunk["choices"][0]["logprobs"] = {"content": [{**token, "top_logprobs": others}]}
    (first,) = Chunks(top=2).push(chunk).logprobs
    assert (first.token, first.data, first.logprob) == ("\ufffd", b"\xf0\x9f", -0.5)
    assert first.top == (("\ufffd", -0.5, b"\xf0\x9f"), ("b", -9999.0, b"b"))
    (bare,) = Chunks(top=0).push(chunk).logprobs
    assert bare.top == ()


@pytest.mark.parametrize(("theirs", "ours"), [("stop", "stop"), ("length", "length"), ("tool_calls", "stop")])
def test_a_reason_to_finish_is_stop_or_length(theirs: str, ours: str) -> None:
    last = Chunks().push(finish(theirs, 1, 0, 1))
    assert isinstance(last, Finished)
    assert last.reason == ours


@pytest.mark.parametrize("param", ["messages", "prompt"])
def test_too_long_a_prompt_is_the_clients_error(param: str) -> None:
    with pytest.raises(BadRequest, match=rf"the {param} .*27030 tokens.*llm\.context.*2048") as raised:
        Chunks(param=param).push({"error": TOO_LONG})
    assert raised.value.body()["code"] == "context_length_exceeded"
    assert raised.value.param == param


def test_any_other_error_is_ours_and_does_not_quote_the_engine() -> None:
    error = failure({"code": 500, "message": "cannot parse: my secret", "type": "server_error"})
    assert isinstance(error, EngineFailed)
    assert "server_error" in error.message
    assert "secret" not in error.message
