"""Log lines on stderr: for people, or one JSON object a line."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

from .settings import LogSettings


class JsonLines(logging.Formatter):
    """One object a record: time (RFC 3339, UTC), level, logger, message, and exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def where(error: BaseException) -> str:
    """Types and places of an error and of what is inside it, without messages: those may quote what was said."""
    frames = traceback.extract_tb(error.__traceback__)
    place = " < ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(frames[-6:]))
    inner: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    nested = "".join(f" [{where(e)}]" for e in inner)
    return f"{type(error).__name__} at {place or 'no frame'}{nested}"


def configure(settings: LogSettings) -> None:
    """Send every logger's lines to stderr; a second call replaces the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines()
        if settings.format == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    )
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    # At debug level it writes the frames of a socket, with what was said in them.
    logging.getLogger("websockets").setLevel(logging.NOTSET if settings.transcripts else logging.INFO)
