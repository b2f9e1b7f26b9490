"""The body of POST /v1/completions as a pydantic model, and what of it the model is asked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

from pydantic import Field

from ..llm.base import Limits, TextRequest
from ..pipeline.errors import BadRequest
from .generation import Generation, sampling, seeded, stops, wants_usage

MOST_PROMPTS = 2048
MAX_TOKENS = 16
"""OpenAI's default."""

Token = Annotated[int, Field(ge=0, lt=2**31)]
Tokens = Annotated[list[Token], Field(fail_fast=True, min_length=1, max_length=2**17)]
"""At most the largest `llm.context`."""
Prompts = Annotated[list[str], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]
TokenPrompts = Annotated[list[Tokens], Field(fail_fast=True, min_length=1, max_length=MOST_PROMPTS)]


class CompletionBody(Generation):
    """prompt: null is the beginning of a text."""

    prompt: str | Prompts | Tokens | TokenPrompts | None
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    best_of: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """requests: of every choice that is made, those of a prompt beside each other; without owners.

    prompts: as they were sent. n: choices given of a prompt; best_of: made of it. empty: nothing is to be made.
    """

    requests: tuple[TextRequest, ...]
    prompts: tuple[str | Sequence[int], ...]
    n: int
    best_of: int
    echo: bool
    stream: bool
    usage: bool
    logprobs: bool
    empty: bool


def read(body: CompletionBody, *, vocabulary: int) -> Asked:
    """What is asked. Raises BadRequest that names the member."""
    if body.suffix:
        raise BadRequest("Text cannot be inserted before a suffix.", param="suffix", code="unsupported")
    if body.echo and body.logprobs is not None:
        raise _refused(
            "echo", "The engine tells no log probabilities of a prompt: 'echo' and 'logprobs' exclude."
        )
    n = body.n or 1
    best_of = body.best_of or n
    if best_of < n:
        raise _refused("best_of", f"'best_of' must be at least 'n', {n}.")
    if best_of > n and body.stream:
        raise _refused(
            "best_of", "The best of several choices is not known while they are made: not in a stream."
        )
    prompts = _prompts(body.prompt)
    if any(max(prompt) >= vocabulary for prompt in prompts if not isinstance(prompt, str)):
        raise _refused("prompt", f"The model's tokens are 0 to {vocabulary - 1}.")
    if len(prompts) * best_of > MOST_PROMPTS:
        raise _refused(
            "prompt", f"{len(prompts)} prompts with {best_of} choices each are more than {MOST_PROMPTS}."
        )
    tokens = MAX_TOKENS if body.max_tokens is None else body.max_tokens
    logprobs = body.logprobs if body.logprobs is not None or best_of == n else 0
    limits, drawn = Limits(tokens, stops(body), logprobs=logprobs), sampling(body, vocabulary)
    requests = tuple(
        TextRequest(prompt, "", limits, replace(drawn, seed=seeded(drawn.seed, number)))
        for prompt in prompts
        for number in range(best_of)
    )
    return Asked(
        requests=requests,
        prompts=prompts,
        n=n,
        best_of=best_of,
        echo=bool(body.echo),
        stream=bool(body.stream),
        usage=wants_usage(body),
        logprobs=body.logprobs is not None,
        empty=tokens == 0,
    )


def _prompts(prompt: Any) -> tuple[str | Sequence[int], ...]:
    if prompt is None:
        return ("",)
    if isinstance(prompt, str):
        return (prompt,)
    several = cast("list[Any]", prompt)
    return (several,) if isinstance(several[0], int) else tuple(several)


def _refused(param: str, message: str) -> BadRequest:
    return BadRequest(message, param=param, code="invalid_value")
