"""Checks that every asynchronous test gets: no task outlives it, and nothing of ours blocks the event loop."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import settings

# The same examples every time, so that a change is to blame for what fails; others with
# --hypothesis-profile=default.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")

DATA = Path(__file__).parent / "data"
SHARED_SPEECH = Path(__file__).parents[2] / "shared" / "speech"


@pytest.fixture
async def _clean_loop() -> AsyncIterator[None]:
    before = asyncio.all_tasks()
    with blockbuster_ctx("antiphon"):
        yield
    for _ in range(3):
        await asyncio.sleep(0)
    leaked = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert not leaked, f"tasks outlived the test: {leaked}"


@pytest.fixture(autouse=True)
def clean_loop(request: pytest.FixtureRequest) -> None:
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_clean_loop")


@pytest.fixture(scope="session")
def shared_speech() -> Path:
    """The recordings beside a development checkout; a user's clone has none."""
    if not SHARED_SPEECH.is_dir():
        pytest.skip("no ../shared/speech beside this checkout")
    return SHARED_SPEECH
