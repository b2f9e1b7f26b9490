"""How likely a pause is the end of a turn."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from antiphon.llm.base import ChatRequest, Delta, Message, TextRequest, TokenLogprob
from antiphon.pipeline import endpointing
from antiphon.pipeline.endpointing import EndOfTurn, calibrated, dictating, from_model, from_rules, is_end
from antiphon.pipeline.errors import Overloaded


@pytest.mark.parametrize("token", [".", "?", " !", ".\n", "\n\n", "<|im_end|>", "</s>", "。", "…"])
def test_ends(token: str) -> None:
    assert is_end(token)


@pytest.mark.parametrize("token", ["", " ", ",", " and", "...", "..", "<", "a."])
def test_what_goes_on(token: str) -> None:
    assert not is_end(token)


def test_the_probability_grows_with_the_mass_on_ends() -> None:
    masses = [0.0, 0.01, 0.1, 0.5, 0.9, 1.0]
    found = [calibrated(mass) for mass in masses]
    assert found == sorted(found)
    assert found[0] < 0.2
    assert found[-1] > 0.95
    top = [(".", math.log(0.3)), (" and", math.log(0.4)), ("?", math.log(0.2))]
    assert from_model(top) == pytest.approx(calibrated(0.5))


@pytest.mark.parametrize(
    ("text", "likely"),
    [
        ("What time is it?", True),
        ("I would like a table for two.", True),
        ("I would like a table for", False),
        ("I would like, um...", False),
        ("bread, butter,", False),
        ("Call me at my", False),
    ],
)
def test_rules(text: str, likely: bool) -> None:
    assert (from_rules(text) > 0.5) is likely


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("My number is 555", True),
        ("five five five one two", True),
        ("It is 4 5 5 1 2 3.", True),
        ("My number is 555 123 4567 8", False),
        ("There were two.", False),
        ("call 911 now", False),
    ],
)
def test_a_number_that_is_being_dictated(text: str, more: bool) -> None:
    assert dictating(text) is more


class Model:
    """A text model that gives one next token's alternatives, and notes what it was asked."""

    vocabulary = context = 100

    def __init__(self, *top: tuple[str, float], error: Exception | None = None) -> None:
        self.top = tuple((token, math.log(share), token.encode()) for token, share in top)
        self.error = error
        self.asked: list[TextRequest] = []

    async def render(self, request: ChatRequest) -> str:
        return "".join(f"<{m.role}>{m.content}</{m.role}>" for m in request.messages) + "<assistant>"

    @asynccontextmanager
    async def complete(self, request: TextRequest) -> AsyncIterator[AsyncIterator[Delta]]:
        self.asked.append(request)
        if self.error is not None:
            raise self.error
        yield self._deltas()

    async def _deltas(self) -> AsyncIterator[Delta]:
        yield Delta(".", logprobs=(TokenLogprob(".", -0.1, b".", self.top),))
        yield Delta("", "length")

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        raise NotImplementedError

    async def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError


HISTORY = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hi")]


async def test_the_model_is_asked_after_the_bare_words_of_the_user() -> None:
    model = Model((".", 0.6), ("?", 0.2), (" and", 0.2))
    found = await EndOfTurn(model, "me").probability(HISTORY, "Hi there. Is it noon?")
    assert found == pytest.approx(calibrated(0.8))
    (request,) = model.asked
    assert isinstance(request.prompt, str)
    assert request.prompt.endswith("<user>Hi there. Is it noon")
    assert (request.owner, request.limits.max_tokens) == ("me", 1)


@pytest.mark.parametrize("model", [None, Model(error=Overloaded("full")), Model(error=RuntimeError("a bug"))])
async def test_without_an_answer_the_rules_decide(model: Model | None) -> None:
    assert await EndOfTurn(model, "me").probability(HISTORY, "I want to") == from_rules("I want to")


class Stuck(Model):
    async def render(self, request: ChatRequest) -> str:
        await asyncio.Event().wait()
        raise AssertionError


async def test_an_answer_that_takes_too_long_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpointing, "TIMEOUT", 0.0)
    assert await EndOfTurn(Stuck(), "me").probability(HISTORY, "All right.") == from_rules("All right.")


async def test_a_number_that_is_being_dictated_is_waited_for() -> None:
    sure = Model((".", 1.0))
    assert await EndOfTurn(sure, "me").probability(HISTORY, "My number is 555.") <= 0.4


async def test_words_that_were_brought_are_not_asked_for_again() -> None:
    model = Model((".", 0.6), (" and", 0.4))
    end = EndOfTurn(model, "me")
    assert await end.bring(HISTORY, "Is it noon")
    assert model.asked[0].background
    assert await end.probability(HISTORY, "is it, noon?") == pytest.approx(calibrated(0.6))
    assert len(model.asked) == 1
    await end.probability(HISTORY, "Is it noon now?")
    await end.probability(HISTORY[:1], "Is it noon")
    assert [request.background for request in model.asked] == [True, False, False]


@pytest.mark.parametrize("model", [Model(error=Overloaded("full")), Model(error=RuntimeError("a bug"))])
async def test_words_that_could_not_be_brought_are_asked_for(model: Model) -> None:
    end = EndOfTurn(model, "me")
    assert await end.bring(HISTORY, "I want to")
    model.error, model.top = None, Model((".", 1.0)).top
    assert await end.probability(HISTORY, "I want to") == pytest.approx(calibrated(1.0))


async def test_without_a_model_or_words_nothing_is_brought() -> None:
    assert not await EndOfTurn(None, "me").bring(HISTORY, "Is it noon")
    assert not await EndOfTurn(Model((".", 1.0)), "me").bring(HISTORY, "...")
