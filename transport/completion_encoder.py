"""The answer of a legacy completion: what the model gives, as OpenAI writes it, in chunks or whole. Pure.

Chunks and the whole have the same object, and log probabilities the legacy shape: four lists, of tokens as
text, where each token begins in the text, how likely it was, and what else it might have been.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..llm.base import Delta, TokenLogprob
from ..pipeline.events import Usage
from .generation import usage_object


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer says besides its choices.

    prompts: what is echoed before each choice, by its prompt; empty texts where nothing is. n: choices of a
    prompt; choice j of prompt i has the index i * n + j. usage: a stream ends with the counts.
    """

    id: str
    created: int
    model: str
    fingerprint: str
    prompts: Sequence[str] = ("",)
    n: int = 1
    usage: bool = False
    logprobs: bool = False

    @property
    def choices(self) -> int:
        return len(self.prompts) * self.n

    def object(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": self.fingerprint,
        }


class Legacy:
    """Log probabilities in the legacy shape. One a choice, for it counts characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._offset = 0

    def lists(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of the next tokens. A token within a character begins where the character does."""
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.data))
        return {
            "tokens": [token.token for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [
                {token.token: token.logprob} | {text: logprob for text, logprob, _ in token.top}
                for token in tokens
            ],
            "text_offset": offsets,
        }


class _Counts:
    def __init__(self, head: Head) -> None:
        self._n = head.n
        self._usages = [Usage()] * head.choices

    def add(self, index: int, delta: Delta) -> None:
        if delta.usage is not None:
            self._usages[index] = delta.usage

    def usage(self) -> dict[str, Any]:
        return usage_object(self._usages[:: self._n], self._usages)


class CompletionChunks:
    """One stream's."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._begun = [False] * head.choices
        self._legacy = [Legacy() for _ in range(head.choices)]
        self._counts = _Counts(head)

    def push(self, index: int, delta: Delta) -> list[dict[str, Any]]:
        """The chunks of the next piece of a choice."""
        self._counts.add(index, delta)
        text = delta.text
        if not self._begun[index]:
            self._begun[index] = True
            text = self._head.prompts[index // self._head.n] + text
        tokens = delta.logprobs if self._head.logprobs else ()
        if not text and not tokens and delta.finish_reason is None:
            return []
        choice = {
            "index": index,
            "text": text,
            "logprobs": self._legacy[index].lists(tokens) if tokens else None,
            "finish_reason": delta.finish_reason,
        }
        chunk = self._head.object([choice])
        return [{**chunk, "usage": None} if self._head.usage else chunk]

    def finish(self) -> list[dict[str, Any]]:
        """The chunk of the counts, where it is wanted."""
        return [{**self._head.object([]), "usage": self._counts.usage()}] if self._head.usage else []


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list[str])
    tokens: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    reason: str = "stop"

    @property
    def score(self) -> float:
        """Mean log probability of its tokens; 0 of none."""
        return sum(token.logprob for token in self.tokens) / max(1, len(self.tokens))


class CompletionWhole:
    """One answer's. best_of: how many choices of each prompt were made, of which the `n` likeliest are given."""

    def __init__(self, head: Head, *, best_of: int) -> None:
        self._head = head
        self._best_of = best_of
        made = len(head.prompts) * best_of
        self._choices = [_Choice() for _ in range(made)]
        self._usages = [Usage()] * made

    def push(self, index: int, delta: Delta) -> None:
        """index: prompt * best_of + which of its choices."""
        choice = self._choices[index]
        choice.text.append(delta.text)
        choice.tokens += delta.logprobs
        if delta.usage is not None:
            self._usages[index] = delta.usage
        if delta.finish_reason is not None:
            choice.reason = delta.finish_reason

    def answer(self) -> dict[str, Any]:
        head, made = self._head, self._best_of
        choices: list[dict[str, Any]] = []
        for number, prompt in enumerate(head.prompts):
            of = self._choices[number * made : (number + 1) * made]
            if made > head.n:
                of = sorted(of, key=lambda choice: -choice.score)[: head.n]
            for choice in of:
                choices.append(
                    {
                        "index": len(choices),
                        "text": prompt + "".join(choice.text),
                        "logprobs": Legacy().lists(choice.tokens) if head.logprobs else None,
                        "finish_reason": choice.reason,
                    }
                )
        return {**head.object(choices), "usage": usage_object(self._usages[::made], self._usages)}
