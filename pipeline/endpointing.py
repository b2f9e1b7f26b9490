"""When a pause is the end of a turn: how likely it is from the words, and how long to wait then.

The language model is asked for its next token after the user's words: the share of its probability that lies
on an end of the sentence, or of the message, says whether all was said. The words are in its cache by then, so
this costs a token. Where the model gives no probabilities, rules on the last words stand in.

    p           calibrated    wait, with the defaults
    sure        0.9           0.2 s
    ask on      0.7           0.5 s
    surely not  0.2           1.0 s

Measured on 185 labelled pauses and ends of read English (bench turns; docs/decisions/0005). Knows no audio and
no clock; the silence is counted by the turn machine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Iterable, Sequence

from ..llm.base import ChatRequest, Limits, Message, TextModel, TextRequest, ToolUse
from .errors import AntiphonError
from .logs import where

NO_TOOLS = ToolUse()

ALTERNATIVES = 20
"""Of the next token; the mass beyond them is next to nothing."""

TIMEOUT = 0.5
"""Seconds for the model's answer; a gate that waits for it longer has waited long enough."""

# A logistic fit (maximum likelihood) on 185 pauses and ends of LibriSpeech, words recognised by whisper-tiny.en,
# model qwen2.5-coder-0.5b-instruct: P(over) = 1 / (1 + exp(-(INTERCEPT + SLOPE * logit(mass)))).
INTERCEPT = 2.34
SLOPE = 0.45

log = logging.getLogger(__name__)

MARKS = " .,;:!?…-–—\"'"
"""Taken off the words' end before the model is asked: the recogniser ends every window with a full stop."""

_OPEN = """
    a an the her his my our their your as at because but by for from if in into like of on or so than that then to
    and um uh er hmm well when where which while who whose with am are be been is was were
"""
OPEN_ENDS = frozenset(_OPEN.split())
"""English words after which more is coming."""

NUMBERS = frozenset(
    ("zero", "oh", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
)


def is_end(token: str) -> bool:
    """Whether a token ends what the user says: a mark, a new line, the end of the message."""
    bare = token.strip()
    if not bare:
        return "\n" in token
    return (bare[0] in ".?!。？！…" and not bare.startswith("..")) or bare.startswith(("<|", "</s>", "<end"))


def calibrated(mass: float) -> float:
    """The probability that the turn is over, from the model's mass on ends, 0 to 1."""
    mass = min(max(mass, 1e-4), 1 - 1e-4)
    return 1 / (1 + math.exp(-(INTERCEPT + SLOPE * math.log(mass / (1 - mass)))))


def from_model(top: Iterable[tuple[str, float]]) -> float:
    """The probability that the turn is over. top: the model's next tokens and their natural log probabilities."""
    return calibrated(sum(math.exp(logprob) for token, logprob in top if is_end(token)))


def from_rules(text: str) -> float:
    """The same without a model: the recogniser's last mark, and what the last words call for."""
    words = re.findall(r"[\w']+", text.lower())
    if not words:
        return 0.5
    if words[-1] in OPEN_ENDS or text.rstrip().endswith(("...", "…", "-", "—")):
        return 0.2
    if text.rstrip().endswith(","):
        return 0.4
    return 0.85 if text.rstrip().endswith((".", "?", "!")) else 0.6


def dictating(text: str) -> bool:
    """Whether the user is in the middle of a number: three figures or more at the end, fewer than ten."""
    words = re.findall(r"[\w']+", text.lower())
    count = 0
    for word in reversed(words):
        if word.isdigit():
            count += len(word)
        elif word in NUMBERS:
            count += 1
        else:
            break
    return 3 <= count < 10


def _words(text: str) -> list[str]:
    """For comparing: case and marks aside."""
    return re.findall(r"\w+", text.casefold())


class EndOfTurn:
    """Asks the model for one conversation. owner: as in its `ChatRequest`s, so its cache is used.

    model: None where the backend offers no text model; then the rules decide.
    """

    def __init__(self, model: TextModel | None, owner: str) -> None:
        self._model = model
        self._owner = owner
        self._known: tuple[Sequence[Message], list[str], float] | None = None
        """What was brought last: the history, the bare words after it, and the probability there."""

    async def bring(self, history: Sequence[Message], text: str, tools: ToolUse = NO_TOOLS) -> bool:
        """Have the model read the words so far, in the background; `probability` of the same words then needs
        nothing more of it. False, and nothing done, without a model. Raises nothing; cancelling frees it."""
        bare = text.rstrip(MARKS)
        if self._model is None or not bare:
            return False
        try:
            found = await self._asked(self._model, history, bare, tools, background=True)
            self._known = history, _words(bare), found
        except AntiphonError as error:
            log.debug("the words so far were not read: %s", error)
        except Exception as error:
            log.error("having the model read the words so far failed: %s", where(error))
        return True

    async def probability(self, history: Sequence[Message], text: str, tools: ToolUse = NO_TOOLS) -> float:
        """That the turn is over after these words of the user. history, tools: the prompt before them.

        Takes the conversation's slot of the model for a token, unless the same words, case and marks aside,
        were brought last. Cancelling frees it. Raises nothing: without an answer within TIMEOUT the rules decide.
        """
        found = from_rules(text)
        bare = text.rstrip(MARKS)
        if self._known is not None and self._known[:2] == (history, _words(bare)):
            found = self._known[2]
        elif self._model is not None and bare:
            try:
                async with asyncio.timeout(TIMEOUT):
                    found = await self._asked(self._model, history, bare, tools)
            except (AntiphonError, TimeoutError) as error:
                log.debug("no probability of an end from the model: %s", type(error).__name__)
            except Exception as error:
                log.error("asking the model for the end of a turn failed: %s", where(error))
        return min(found, 0.4) if dictating(text) else found

    async def _asked(
        self,
        model: TextModel,
        history: Sequence[Message],
        bare: str,
        tools: ToolUse,
        *,
        background: bool = False,
    ) -> float:
        messages = [*history, Message("user", bare)]
        prompt = await model.render(ChatRequest(messages, self._owner, tools=tools))
        at = prompt.rindex(bare) + len(bare)
        limits = Limits(max_tokens=1, logprobs=ALTERNATIVES)
        request = TextRequest(prompt[:at], self._owner, limits, background=background)
        async with model.complete(request) as deltas:
            async for delta in deltas:
                for sampled in delta.logprobs:
                    return from_model((token, logprob) for token, logprob, _ in sampled.top)
        return from_model([("<|end|>", 0.0)])
