"""Figures as people and programs read them: percentiles, the machine they hold for, tables, one JSON line."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("antiphon", "ctranslate2", "xllamacpp", "hibari-tts", "onnxruntime", "faster-whisper")
"""Whose versions move the figures."""


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile, 0 <= q <= 100, linear between the two nearest ranks (as numpy's default).

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    rank = (len(ordered) - 1) * q / 100
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def summary(values: Iterable[float]) -> dict[str, float] | None:
    """p50, p95, mean, min and max, to a tenth; None for no values."""
    values = list(values)
    if not values:
        return None
    figures = {
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
        "mean": sum(values) / len(values),
        "min": min(values),
        "max": max(values),
    }
    return {name: round(figure, 1) for name, figure in figures.items()}


def ratio(ours: float | None, peer: float | None) -> float | None:
    """ours / peer, to three places; None where a side is missing."""
    return None if ours is None or not peer else round(ours / peer, 3)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    versions: dict[str, str] = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.system().lower(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = [
        "  ".join(
            c.ljust(w) if n == 0 else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def ms(value: float | None) -> str:
    """Milliseconds for a table; a dash where there is none."""
    return "-" if value is None else f"{value:.0f}"


def say(progress: str) -> None:
    """Progress goes to stderr, so stdout holds the report alone."""
    print(progress, file=sys.stderr, flush=True)


def last_line(figures: Mapping[str, Any]) -> str:
    """One JSON object on one line. A NaN would not be JSON: it raises ValueError."""
    return json.dumps(figures, allow_nan=False, ensure_ascii=False)
