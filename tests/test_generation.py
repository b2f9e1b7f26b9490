"""What chat and completions have in common."""

from typing import Any

import pytest
from pydantic import ValidationError

from antiphon.pipeline.errors import BadRequest
from antiphon.pipeline.events import Usage
from antiphon.transport.generation import Generation, sampling, seeded, stops, tier, usage_object, wants_usage


def asked(**members: Any) -> Generation:
    return Generation.model_validate({"model": "m", **members})


def test_the_defaults_are_openais() -> None:
    drawn = sampling(asked(), 10)
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p, drawn.seed) == (1.0, 1.0, 0, 0.0, None)
    assert (drawn.presence_penalty, drawn.frequency_penalty, drawn.repetition_penalty) == (0.0, 0.0, 1.0)


def test_everything_that_was_said_is_kept() -> None:
    drawn = sampling(
        asked(
            temperature=0, top_p=0.5, top_k=-1, min_p=0.1, seed=-1, presence_penalty=-2, frequency_penalty=2,
            repetition_penalty=1.5, logit_bias={"7": -100, "0": 1.5},
        ),
        10,
    )  # fmt: skip
    assert (drawn.temperature, drawn.top_p, drawn.top_k, drawn.min_p, drawn.seed) == (
        0,
        0.5,
        0,
        0.1,
        2**32 - 1,
    )
    assert (drawn.presence_penalty, drawn.frequency_penalty, drawn.repetition_penalty) == (-2, 2, 1.5)
    assert drawn.logit_bias == {7: -100, 0: 1.5}


@pytest.mark.parametrize("key", ["10", "-1", "x", "", "1.0", "٣", "9" * 5000])
def test_a_bias_of_no_token_is_refused(key: str) -> None:
    with pytest.raises(BadRequest) as caught:
        sampling(asked(logit_bias={key: 1}), 10)
    assert caught.value.param == "logit_bias"
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 2.1), ("temperature", -0.1), ("temperature", "1"), ("temperature", True), ("top_p", 1.1),
        ("presence_penalty", 3), ("frequency_penalty", -3), ("n", 0), ("n", 129), ("n", 1.5), ("seed", 2**63),
        ("stop", ["a"] * 5), ("stop", ""), ("stop", [""]), ("stop", 1), ("logit_bias", {"1": 101}), ("stream", 1),
        ("min_p", 2), ("repetition_penalty", 0), ("top_k", -2), ("stream_options", True),
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        asked(**{name: value})


def test_null_is_the_default_for_everything() -> None:
    names = [name for name in Generation.model_fields if name != "model"]
    assert sampling(asked(**dict.fromkeys(names)), 10) == sampling(asked(), 10)


@pytest.mark.parametrize(("stop", "strings"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stops(stop: Any, strings: tuple[str, ...]) -> None:
    assert stops(asked(stop=stop)) == strings


def test_choices_have_seeds_of_their_own_that_follow_from_the_requests() -> None:
    assert [seeded(7, index) for index in range(3)] == [7, 8, 9]
    assert seeded(2**32 - 1, 1) == 0
    assert seeded(None, 3) is None


def test_usage_is_told_when_it_is_asked_for() -> None:
    assert wants_usage(asked(stream=True, stream_options={"include_usage": True}))
    assert not wants_usage(asked(stream=True, stream_options={}))
    assert not wants_usage(asked(stream=True))
    with pytest.raises(BadRequest) as caught:
        wants_usage(asked(stream_options={}))
    assert caught.value.param == "stream_options"


def test_a_prompt_counts_once_and_every_choice() -> None:
    usage = usage_object([Usage(10, 4, 0)], [Usage(10, 4, 3), Usage(10, 9, 5)], spoken=2)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (10, 10, 20)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 4
    assert usage["completion_tokens_details"]["audio_tokens"] == 2


def test_a_tier_that_clients_cannot_read_is_not_named() -> None:
    assert (tier("flex"), tier("gold"), tier(None)) == ("flex", "default", None)
