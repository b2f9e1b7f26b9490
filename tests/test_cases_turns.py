"""Cases 16 to 24: double, lost, premature and clipped turns (docs/cases.md says where each is held)."""

import pytest
from walks import walk


@pytest.mark.parametrize("seed", range(24))
async def test_case_17_a_later_utterance_is_answered_after_any_interleaving(seed: int):
    await walk(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1200, 25))
async def test_case_17_two_hundred_walks(first: int):
    for seed in range(first, first + 25):
        await walk(seed, steps=40)
