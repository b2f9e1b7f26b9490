"""What sound over a reply means."""

import pytest

from antiphon.pipeline.bargein import echo, interrupts, listening

SAID = (
    "The weather in Paris is sunny today, with a light breeze from the west. You will not need an umbrella."
)


@pytest.mark.parametrize("text", ["", "Mm-hm.", "Uh-huh.", "Yeah, okay.", "Oh, I see.", "Right."])
def test_listening(text: str) -> None:
    assert listening(text)
    assert not interrupts(text, SAID, whole=True)


@pytest.mark.parametrize(
    "text", ["Stop.", "No, in London.", "Okay, but what about tomorrow?", "And on Friday?"]
)
def test_taking_the_floor(text: str) -> None:
    assert interrupts(text, SAID, whole=True)


@pytest.mark.parametrize(
    ("heard", "whole", "taken"),
    [("And", False, False), ("And", True, True), ("Wait", False, True), ("What about", False, True)],
)
def test_a_word_alone_may_yet_become_another(heard: str, whole: bool, taken: bool) -> None:
    assert interrupts(heard, SAID, whole=whole) is taken


@pytest.mark.parametrize(
    "text",
    ["sunny today with a light breeze", "The weather in Paris is sunny.", "a white breeze from the west"],
)
def test_the_reply_come_back_is_no_interruption(text: str) -> None:
    assert echo(text, SAID)
    assert not interrupts(text, SAID, whole=True)


def test_words_of_the_reply_in_a_question_of_ones_own_are_no_echo() -> None:
    assert not echo("And what is the weather tomorrow in Rome?", SAID)


def test_yes_is_an_answer_to_a_question() -> None:
    assert interrupts("Yes.", "Shall I book it?", whole=True)
    assert not interrupts("Yes.", "I have booked it.", whole=True)


def test_the_end_of_a_reply_is_answered_by_any_word_but_its_own() -> None:
    said = "Would you like some tea or some coffee today"
    assert not interrupts("tea or some coffee", said, whole=True, speaking=False)
    for answer in ("Coffee.", "Yes.", "Okay."):
        assert interrupts(answer, said, whole=True, speaking=False)
    assert not interrupts("", said, whole=True, speaking=False)
    assert not interrupts("Okay.", said, whole=True)
