"""From a backend's name to its factory, through entry points.

A package, ours or another's, declares `[project.entry-points."antiphon.asr"] name = "module:load"`; the
module is imported when its name is asked for and not before. An entry point may name an extra,
`"module:load [extra]"`: the one that installs what the backend imports.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from .errors import UnknownBackend

Group = Literal["asr", "llm", "tts"]


def installed(group: Group) -> dict[str, EntryPoint]:
    """The backends of a group by name, none of them imported."""
    return {point.name: point for point in sorted(entry_points(group=f"antiphon.{group}"))}


def load(group: Group, name: str) -> Callable[..., Any]:
    """The factory of a backend, called as factory(settings, store).

    Raises UnknownBackend when no such backend is installed, or when it lacks a package of its extra.
    """
    known = installed(group)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise UnknownBackend(
            f'{group}.backend = "{name}": no such backend; installed are {_listed(known)}'
            + (f'; did you mean "{near[0]}"?' if near else "")
        )
    point = known[name]
    try:
        return point.load()
    except ModuleNotFoundError as error:
        extra = f"pip install 'antiphon[{point.extras[0]}]'" if point.extras else f"install {error.name}"
        raise UnknownBackend(f'{group}.backend = "{name}" needs the module {error.name}: {extra}') from error
    except AttributeError as error:
        raise UnknownBackend(f'{group}.backend = "{name}" is broken: {point.value}: {error}') from error


def _listed(known: dict[str, EntryPoint]) -> str:
    return (
        ", ".join(
            f"{name} (extra {point.extras[0]})" if point.extras else name for name, point in known.items()
        )
        or "none"
    )
