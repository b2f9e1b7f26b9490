"""Cutting a streamed reply: exact joins, chunking that does not matter, and where the cuts lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.tts.text import Clause, Clauses

FRAGMENTS = [
    *[
        "Yes",
        "the ",
        "capital of ",
        "France ",
        "is ",
        "Paris. ",
        "and ",
        "Dr. Smith ",
        "3.14 ",
        "e.g. ",
        "U.S. ",
    ],
    *[
        "10:30, ",
        "\n",
        "\n\n",
        "- ",
        "1. ",
        "# ",
        "```",
        "```python\n",
        "`x`",
        "<think>",
        "</think>",
        "<thi",
        "[a ",
        "](u)",
    ],
    *[
        "| a | b |\n",
        "**",
        "_",
        "…",
        "...",
        "。",
        "！",
        "，",
        "—",
        " - ",
        "😀",
        "\ud83d",
        "\u200d",
        "\t",
        "\x00",
        "!",
        "?",
        '"',
    ],
]
reply = st.one_of(st.text(st.characters(), max_size=300), st.lists(st.sampled_from(FRAGMENTS)).map("".join))


def cut(text: str, size: int | None = None) -> list[Clause]:
    """All clauses of a reply that comes in deltas of `size` characters."""
    clauses = Clauses()
    size = size or max(1, len(text))
    out = [c for i in range(0, len(text), size) for c in clauses.push(text[i : i + size])]
    return out + clauses.flush()


def texts(text: str) -> list[str]:
    return [clause.text for clause in cut(text)]


def speech(text: str) -> list[str]:
    return [clause.speech for clause in cut(text) if clause.speech]


@given(reply)
def test_the_clauses_joined_are_the_reply(text: str) -> None:
    clauses = cut(text)
    assert "".join(clause.text for clause in clauses) == text
    assert all(clause.text for clause in clauses)


@given(reply, st.data())
def test_chunking_changes_nothing(text: str, data: st.DataObject) -> None:
    clauses, out, rest = Clauses(), [], text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        out += clauses.push(rest[:size])
        rest = rest[size:]
    assert out + clauses.flush() == cut(text)


@given(reply, reply)
def test_flush_leaves_it_as_new(first: str, second: str) -> None:
    clauses = Clauses()
    clauses.push(first)
    clauses.flush()
    assert clauses.push(second) + clauses.flush() == cut(second)


@pytest.mark.parametrize(
    "whole",
    [
        "Pi is about 3.14 today",
        "I met Dr. Smith today",
        "Take fruit, e.g. apples",
        "The U.S. is big",
        "It is 10:30 now",
        "Over 1,000 came",
        "See www.example.com/a,b;c:d now",
        "Ask J. K. Rowling",
        "We lost approx. five",
        "Read No. 5 first",
        "Wait... then go",
        "See [the docs. Part two](https://example.com) now",
        "1. Milk",
        "```x = 1. Y``` is code",
    ],
)
def test_not_cut(whole: str) -> None:
    # In a later clause, where only the end of a sentence cuts so short a text.
    assert texts(f"That is so.\n\n{whole}.") == ["That is so.\n\n", whole + "."]


@pytest.mark.parametrize(
    "whole",
    ["Ask J. K. Rowling.", "Dr. Smith Jones.", "We lost approx. five.", "It is 1,000.50 today.", "1. Milk"],
)
def test_not_cut_first(whole: str) -> None:
    assert texts(whole) == [whole]


@pytest.mark.parametrize(
    ("reply", "clauses"),
    [
        ("Paris. It is.", ["Paris. ", "It is."]),
        ("Yes, it is. Paris is.", ["Yes, it is. ", "Paris is."]),
        ("Of course, I can.", ["Of course, ", "I can."]),
        ("Well then: go on.", ["Well then: ", "go on."]),
        ("It is - I think - so.", ["It is - ", "I think - ", "so."]),
        ("Well, yes—it is.", ["Well, yes—", "it is."]),
        ("He said “Stop!” Then he ran.", ["He said “Stop!” ", "Then he ran."]),
        ("“Really?” he said.", ["“Really?” he said."]),
        ("You and I. Then go.", ["You and I. ", "Then go."]),
        ("你好。再见！好", ["你好。", "再见！", "好"]),
        ("はい。」そう", ["はい。」", "そう"]),
    ],
)
def test_cut_at_marks(reply: str, clauses: list[str]) -> None:
    assert texts(reply) == clauses


def test_first_clause_without_a_mark_ends_before_a_joint_word() -> None:
    assert texts("The quick brown fox jumps over the lazy dog today")[0] == "The quick brown fox jumps "


def test_first_clause_never_ends_on_a_leaning_word() -> None:
    assert texts("Nobody here really saw such big red the cat run")[0] == "Nobody here really saw such big "
    assert texts("Nobody here ever saw such big red the cat run")[0].split()[-1] not in ("the", "such big")


def test_first_clause_is_ready_before_the_sentence_is() -> None:
    clauses = Clauses()
    assert clauses.push("The tower was built") == []
    assert clauses.push(" in") == []
    assert [c.text for c in clauses.push(" Paris")] == ["The tower was built "]


def test_one_word_before_a_comma_waits() -> None:
    assert texts("Yes, Paris.") == ["Yes, Paris."]


def test_later_clauses_run_to_the_end_of_the_sentence() -> None:
    first, later = "Good morning my dear friend. ", "It rained, then not, and so on for a while."
    assert texts(first + later) == [first, later]


def test_later_clauses_may_end_at_a_comma_once_as_long_as_what_plays() -> None:
    first, second = "Good morning. ", "It rained then for a while, "
    assert texts(first + second + "then not.") == [first, second, "then not."]


def test_later_clauses_may_end_at_a_comma_when_long() -> None:
    first = "Good morning. We had a rather long winter here and it was a mild one at that, I think. "
    short, long = "It rained, ", "The weather in the mountains is cold and wet for most of the year, "
    assert texts(first + short + "then not. ")[-1] == short + "then not. "
    assert texts(first + long + "so go.")[-2:] == [long, "so go."]


def test_later_clauses_have_a_cap() -> None:
    clauses = texts("Good. " + "word " * 200)
    assert max(map(len, clauses)) <= 210
    assert all(clause.endswith("word ") for clause in clauses[1:])


def test_blocks_are_clauses() -> None:
    reply = "# Shopping\nBuy this:\n\n- milk\n- two eggs\n1. Boil it\n\n| a | b |\n|---|---|\n| c. D | e |\n"
    assert speech(reply) == [
        "Shopping.",
        "Buy this:",
        "milk.",
        "two eggs.",
        "one, Boil it.",
        "a, b.",
        "c. D, e.",
    ]


def test_a_wrapped_line_is_no_block() -> None:
    assert texts("Good. This line goes\non here.") == ["Good. ", "This line goes\non here."]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ("<think>", "</think>"),
        ("<|think|>", "<|/think|>"),
        ("<Thinking>", "</Thinking>"),
        ("[THINK]", "[/THINK]"),
    ],
)
def test_thinking_is_never_spoken(opened: str, closed: str, size: int) -> None:
    reply = f"Sure. {opened}Secret one. Two,\n\nthree <b> four.{closed}\n\nThe end."
    clauses = cut(reply, size)
    assert [c.speech for c in clauses if c.speech] == ["Sure.", "The end."]
    assert "".join(c.text for c in clauses) == reply


def test_thinking_left_open_is_never_spoken() -> None:
    assert speech("Hello<think>and. Then, on and on for a long while") == ["Hello"]
    assert speech("Hello there <thin") == ["Hello there"]


def test_a_quoted_tag_is_no_tag() -> None:
    assert speech("Use `<think>` here. Good.") == ["Use here.", "Good."]


def test_code_is_announced_once() -> None:
    reply = "Try this:\n\n```python\nx = 1\n\n# No. Really\n```\nIt prints one."
    assert speech(reply) == ["Try this:", "Code block.", "It prints one."]
    assert speech("Try this:\n~~~\n```\nx\n~~~\nDone.") == ["Try this:", "Code block.", "Done."]
    assert speech("```\nnever closed. At all") == ["Code block."]
    assert speech("Look:\n```py") == ["Look:", "Code block."]


def test_long_input_is_quick() -> None:
    # Quadratic or worse would hang here, not merely be slow.
    for char in "a1-.([*_`<|\n。,~ ":
        cut(char * 4000)
