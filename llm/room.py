"""Whether a prompt can fit the context, by its size, before the engine has read it.

The engine splits a whole prompt into tokens before it looks at its context, holds the slot meanwhile, and
cannot be stopped there: half a minute for some 20 MB. No token is longer than the longest of the vocabulary,
so a prompt of more bytes than context x longest does not fit, whatever it says; what is let through may still
be too long, which the engine then says, but is split in well under a second for each 1,000 tokens of context.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ..pipeline.errors import AntiphonError, BadRequest
from .engine import Engine

log = logging.getLogger(__name__)

LONGEST = 256
"""Bytes of a token, where the vocabulary cannot be asked: twice those of the longest that we know."""
MOST_TEXT = 2_000_000
"""Bytes of a text that is only to be split into tokens: 1 to 3 s of work, on texts without spaces the most."""


@dataclass(frozen=True, slots=True)
class Room:
    """context: tokens; longest: bytes that a token can stand for."""

    context: int
    longest: int

    def check(self, prompt: str | Sequence[int], param: str) -> None:
        """Raises BadRequest (context_length_exceeded) for a prompt that cannot fit."""
        if isinstance(prompt, str):
            size, most, unit = len(prompt.encode()), self.context * self.longest, "bytes"
        else:
            size, most, unit = len(prompt), self.context, "tokens"
        if size > most:
            raise BadRequest(
                f"the {param} have {size} {unit}; the language model's context (llm.context) holds "
                f"{self.context} tokens, at most {most} {unit}",
                code="context_length_exceeded",
                param=param,
            )

    def check_text(self, text: str, param: str) -> None:
        """Raises BadRequest for a text that is too long to be split into tokens for its own sake."""
        most = max(MOST_TEXT, self.context * self.longest)
        if (size := len(text.encode())) > most:
            raise BadRequest(
                f"The text has {size} bytes; at most {most} are split into tokens.",
                param=param,
                code="string_above_max_length",
            )


def longest(engine: Engine, vocabulary: int, mark: str) -> int:
    """Bytes of the vocabulary's longest token. mark: a special token's text, which no other one contains.

    Takes 0.15 s for 150,000 tokens: all are written out at once, with the mark between them.
    """
    try:
        asked = {"content": mark, "add_special": False, "parse_special": True}
        between: list[int] = engine.ask("POST", "/tokenize", asked)["tokens"] if mark else []
        if len(between) != 1:
            return LONGEST
        tokens = [token for number in range(vocabulary) for token in (number, between[0])]
        text: str = engine.ask("POST", "/detokenize", {"tokens": tokens})["content"]
    except AntiphonError as error:
        log.warning("llama.cpp did not tell its vocabulary: %s", type(error).__name__)
        return LONGEST
    parts = text.split(mark)
    # The mark itself is one of the tokens, and the text ends with one.
    if len(parts) != vocabulary + 2:
        return LONGEST
    return max(16, *(len(part.encode()) for part in parts))


def spelled(piece: str | Sequence[int]) -> str:
    """A token's text as the engine tells it: a string, or bytes where these are no whole characters."""
    return piece if isinstance(piece, str) else bytes(piece).decode(errors="replace")
