"""Clients that nobody here wrote, each in a process of its own against one real server.

A client is a script of `check_…` functions (see checking.py); each is a test here. `make clients` installs what
they need; a client that is not there is skipped, and says so.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.slow]

HERE = Path(__file__).parent
OUTSIDE = HERE.parents[1] / ".venv-clients"
INSTRUCTOR = OUTSIDE / "instructor" / "bin" / "python"
CHECK = re.compile(r"^(?:async )?(?:def|function) check_(\w+)", re.MULTILINE)


def _importable(package: str) -> Callable[[], bool]:
    return lambda: importlib.util.find_spec(package) is not None


CLIENTS: dict[str, tuple[str, list[str], Callable[[], bool]]] = {
    "openai-agents": ("client_agents.py", [sys.executable], _importable("agents")),
    "langchain-openai": ("client_langchain.py", [sys.executable], _importable("langchain_openai")),
    "litellm": ("client_litellm.py", [sys.executable], _importable("litellm")),
    "instructor": ("client_instructor.py", [str(INSTRUCTOR)], INSTRUCTOR.exists),
    "openai-node": (
        "client_node.mjs",
        ["node"],
        lambda: shutil.which("node") is not None and (OUTSIDE / "node" / "node_modules" / "openai").exists(),
    ),
}
"""Name: its script, what runs it, whether it is installed."""

CHECKS = [
    pytest.param(client, check, id=f"{client}-{check}")
    for client, (script, _, _) in CLIENTS.items()
    for check in CHECK.findall((HERE / script).read_text())
]


@cache
def outcomes(client: str, base_url: str, question: Path) -> dict[str, dict[str, Any]]:
    """What each check of a client said. Its script is run once."""
    script, command, _ = CLIENTS[client]
    environment = os.environ | {
        "ANTIPHON_TEST_URL": base_url,
        "ANTIPHON_TEST_QUESTION": str(question),
        "ANTIPHON_TEST_NODE": str(OUTSIDE / "node"),
    }
    ran = subprocess.run(
        [*command, str(HERE / script)], env=environment, capture_output=True, text=True, timeout=600
    )
    said = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('{"check":')]
    assert said, f"{script} ended with {ran.returncode} and said nothing:\n{ran.stderr}"
    return {line["check"]: line for line in said}


@pytest.mark.parametrize(("client", "check"), CHECKS)
def test_client(
    client: str, check: str, request: pytest.FixtureRequest, question: Path, pytestconfig: pytest.Config
) -> None:
    _, _, installed = CLIENTS[client]
    if not installed():
        pytest.skip(f"{client} is not installed: make clients")
    found = outcomes(client, request.getfixturevalue("base_url"), question)
    outcome = found.get(check, {"error": f"{client} ended before this check"})
    if "skipped" in outcome:
        pytest.skip(outcome["skipped"])
    if outcome["error"] is not None:
        pytest.fail(outcome["error"], pytrace=False)
