"""Thoughts and text of a thinking model, whichever pieces they come in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.llm.thinking import ThinkingSplitter


def run(pieces: list[str], *, inside: bool = False) -> tuple[str, str, int]:
    """(thoughts, text, characters accounted for)"""
    splitter = ThinkingSplitter(inside=inside)
    parts = [*(splitter.push(piece) for piece in pieces), splitter.finish()]
    sizes = sum(size + len(text) for size, _, text in parts)
    return "".join(thoughts for _, thoughts, _ in parts), "".join(text for _, _, text in parts), sizes


@pytest.mark.parametrize(
    ("reply", "inside", "thoughts", "text"),
    [
        ("<think>\nHm, 2+2.\n</think>\n\nFour.", False, "Hm, 2+2.", "Four."),
        ("\n<think></think>Four. ", False, "", "Four. "),
        ("Hm.\n</think>\n\nFour.", True, "Hm.", "Four."),
        ("Four, <think>no</think>.", False, "", "Four, <think>no</think>."),
        ("  Four.", False, "", "  Four."),
        ("<think>never ends </thin", False, "never ends </thin", ""),
        ("<thin", False, "", "<thin"),
        ("<think>a</think>b</think>", False, "a", "b</think>"),
        ("", True, "", ""),
    ],
)
def test_thoughts_are_what_a_reply_begins_with(reply: str, inside: bool, thoughts: str, text: str) -> None:
    for pieces in ([reply], list(reply)):
        assert run(pieces, inside=inside) == (thoughts, text, len(reply))


def test_text_is_not_held_back() -> None:
    splitter = ThinkingSplitter()
    assert splitter.push("Hello") == (0, "", "Hello")
    assert splitter.push(" <") == (0, "", " <")


@given(st.text("a< \n", max_size=8), st.text("a<> \n", max_size=8), st.booleans(), st.integers(1, 5))
def test_any_pieces_give_the_same(before: str, after: str, inside: bool, size: int) -> None:
    reply = f"<think>{before}</think>{after}"[7 * inside :]
    pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
    assert (
        run(pieces, inside=inside)
        == run([reply], inside=inside)
        == (before.strip(), after.lstrip(), len(reply))
    )
