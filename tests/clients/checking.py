"""What every client's script is made of: its `check_…` functions, run in order, one JSON line each.

    {"check": "chat", "error": null}         it held
    {"check": "chat", "error": "…"}          it did not, and why
    {"check": "chat", "skipped": "…"}        it could not be tried, and why

The scripts run in processes of their own: a client may warn, log, start threads, or want another version of a
package than its neighbour. They get the server's address and a recording in the environment. This module uses
nothing but the standard library, for it runs in each client's environment.
"""

import asyncio
import inspect
import json
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

BASE_URL = os.environ.get("ANTIPHON_TEST_URL", "")
QUESTION = Path(os.environ.get("ANTIPHON_TEST_QUESTION", ""))
KEY = "unused"


class Skipped(Exception):
    """Not to be tried on this server."""


def models() -> list[str]:
    with urlopen(f"{BASE_URL}/models") as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def chat_model() -> str:
    return next(name for name in models() if "instruct" in name)


def embedding_model() -> str:
    """Raises Skipped when none is served."""
    for name in models():
        if "minilm" in name.lower():
            return name
    raise Skipped("no embedding model is configured")


def run(namespace: dict[str, Any]) -> None:
    """Run the checks of a script: `run(globals())`."""
    for name, check in list(namespace.items()):
        if name.startswith("check_"):
            print(json.dumps({"check": name.removeprefix("check_"), **_outcome(check)}), flush=True)


def _outcome(check: Callable[[], Any]) -> dict[str, str | None]:
    try:
        result = check()
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result))
    except Skipped as reason:
        return {"skipped": str(reason)}
    except Exception:
        return {"error": traceback.format_exc()}
    return {"error": None}


async def _awaited(result: Any) -> None:
    async with asyncio.timeout(120):
        await result
