"""The text of a custom tool's call, in any pieces."""

import json

from hypothesis import given
from hypothesis import strategies as st

from antiphon.transport.custom_tools import InputReader


@given(st.text(), st.booleans(), st.data())
def test_any_text_in_any_pieces(text: str, ascii: bool, data: st.DataObject) -> None:
    written = json.dumps({"input": text}, ensure_ascii=ascii)
    reader = InputReader()
    read = ""
    while written:
        size = data.draw(st.integers(1, len(written)))
        read += reader.push(written[:size])
        written = written[size:]
    assert read == text


def test_a_call_that_is_cut_off_gives_what_is_whole() -> None:
    assert InputReader().push('{"input": "SELECT \\u00') == "SELECT "


def test_half_a_character_waits() -> None:
    reader = InputReader()
    assert reader.push('{"input": "a\\ud83d') == "a"
    assert reader.push("\\ude00b") == "😀b"


def test_nothing_after_the_text_is_text() -> None:
    reader = InputReader()
    assert [reader.push(piece) for piece in ('{"input": "a"', ', "b"', ': "c"}')] == ["a", "", ""]
