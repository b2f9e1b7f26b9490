"""What requests for text have in common, chat's and completions': how it is drawn, where it ends, what it cost.

Pure: the model of the common members, and what of them the engine is asked. Members that are not named here
are taken and have no effect, for clients send what other servers know; what would change an answer's meaning
is refused where it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from ..llm.base import Sampling
from ..pipeline.errors import BadRequest
from ..pipeline.events import Usage

MOST_CHOICES = 128
MOST_STOPS = 4
TIERS = ("auto", "default", "flex", "scale", "priority", "fast")
SEEDS = 2**32
"""The engine's seeds; those of a wider range are taken modulo this."""

Stop = Annotated[str, Field(min_length=1)]
Penalty = Annotated[float, Field(ge=-2.0, le=2.0)]


class Strict(BaseModel):
    """JSON's types as they are: no number for a string, no string for a number."""

    model_config = ConfigDict(strict=True)


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Generation(Strict):
    """OpenAI's members of both requests, and those of vLLM's that clients send in `extra_body`."""

    model: str
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MOST_STOPS)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: Annotated[int, Field(ge=-1, le=1_000_000)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=2.0)] | None = None


def sampling(asked: Generation, vocabulary: int | None) -> Sampling:
    """How tokens are drawn; OpenAI's default is a temperature of 1.

    vocabulary: how many token ids there are, None where it is not known. Raises BadRequest for a logit_bias
    of what is no token.
    """

    def given(value: float | None, default: float) -> float:
        return default if value is None else value

    return Sampling(
        temperature=given(asked.temperature, 1.0),
        top_p=given(asked.top_p, 1.0),
        top_k=max(0, asked.top_k or 0),
        min_p=given(asked.min_p, 0.0),
        seed=None if asked.seed is None else asked.seed % SEEDS,
        presence_penalty=given(asked.presence_penalty, 0.0),
        frequency_penalty=given(asked.frequency_penalty, 0.0),
        repetition_penalty=given(asked.repetition_penalty, 1.0),
        logit_bias=_biases(asked.logit_bias or {}, vocabulary),
    )


def _biases(given: Mapping[str, float], vocabulary: int | None) -> dict[int, float]:
    biases: dict[int, float] = {}
    for key, bias in given.items():
        # No id has ten digits, and Python refuses to read thousands of them.
        if not (key.isascii() and key.isdecimal() and len(key) < 10) or not (
            vocabulary is None or int(key) < vocabulary
        ):
            among = "" if vocabulary is None else f", 0 to {vocabulary - 1}"
            raise BadRequest(
                f"Invalid key in 'logit_bias': {key!r:.40} is no token id{among}.",
                param="logit_bias",
                code="invalid_value",
            )
        biases[int(key)] = bias
    return biases


def seeded(seed: int | None, index: int) -> int | None:
    """The seed of one of several choices: each has its own, and all follow from the request's."""
    return None if seed is None else (seed + index) % SEEDS


def stops(asked: Generation) -> tuple[str, ...]:
    if asked.stop is None:
        return ()
    return (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop)


def wants_usage(asked: Generation) -> bool:
    """Whether a stream ends with the counts. Raises BadRequest for stream_options without a stream."""
    if asked.stream_options is None:
        return False
    if not asked.stream:
        raise BadRequest(
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
            code="invalid_value",
        )
    return bool(asked.stream_options.include_usage)


def tier(asked: str | None) -> str | None:
    """The service tier to be named in the answer; there is only one, whatever it is called."""
    return None if asked is None else asked if asked in TIERS else "default"


def usage_object(
    prompts: Sequence[Usage], usages: Sequence[Usage], *, reasoning: int = 0, spoken: int = 0
) -> dict[str, Any]:
    """OpenAI's usage of an answer.

    prompts: of one choice for each prompt, for a prompt counts once, however many choices it has. usages: of
    every choice. reasoning: tokens of thoughts. spoken: tokens of sound, which the text's do not include.
    """
    read = sum(usage.input_tokens for usage in prompts)
    written = sum(usage.output_tokens for usage in usages) + spoken
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {
            "cached_tokens": sum(usage.cached_tokens for usage in prompts),
            "audio_tokens": 0,
        },
        "completion_tokens_details": {
            "reasoning_tokens": reasoning,
            "audio_tokens": spoken,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
