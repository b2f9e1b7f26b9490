"""A reply's calls: put together from pieces, and whole or none."""

import pytest

from antiphon.llm.base import CallDelta, ToolCall
from antiphon.pipeline.calls import Calls


def test_pieces_make_calls_in_the_order_they_began():
    calls = Calls()
    calls.push([CallDelta(0, "a", "now"), CallDelta(0, arguments='{"zone":')])
    calls.push([CallDelta(0, arguments='"Oslo"}'), CallDelta(1, "b", "book", "{}")])
    assert calls.whole() == [ToolCall("a", "now", '{"zone":"Oslo"}'), ToolCall("b", "book", "{}")]


@pytest.mark.parametrize("arguments", ["", "{", '{"zone": "Os', "[]", '"{}"', "{} {}"])
def test_a_call_without_whole_arguments_is_none(arguments: str):
    calls = Calls()
    calls.push([CallDelta(0, "a", "now", "{}"), CallDelta(1, "b", "book", arguments)])
    assert len(calls) == 2
    assert [call.name for call in calls.whole()] == ["now"]
