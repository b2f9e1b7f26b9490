"""`antiphon talk FILE`: ask a recorded question aloud, hear the reply, see where the time went.

Starts the service in this process, or talks to one that runs. For people the report goes to stdout, and its
last line is always one JSON object; `--json` leaves only that. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from ..asr.formats import decode_file
from ..pipeline.audio import write_wav
from ..pipeline.errors import BadRequest
from ..pipeline.settings import Settings
from ..transport.server import running
from .client import SAMPLE_RATE, ClientError
from .exchange import Exchange, exchange
from .report import last_line, ms, say, table

LIMIT = 60.0
"""Seconds after the question within which a reply must be heard; a loaded laptop may need many."""

STEPS = {
    "transcript_final": "the recogniser is done",
    "first_token": "the model's first token",
    "first_clause": "the first clause is complete",
    "first_audio": "the voice has its first samples",
    "gate_open": "the silence was long enough: the turn is over",
    "first_audio_sent": "the first samples leave the server",
}


def main(settings: Settings, args: argparse.Namespace) -> int:
    """args: file, server (None to start one), key (of that server), save (None to keep no sound), json.

    Returns 0, or 1 when no reply was heard. Raises BadRequest for a file that holds no sound, SetupError for
    a service that cannot start. An interrupt ends the session and the service, and passes through.
    """
    return asyncio.run(talk(settings, args.file, args.server, args.save, key=args.key, quiet=args.json))


async def talk(
    settings: Settings, file: Path, server: str | None, save: Path | None, *, key: str | None, quiet: bool
) -> int:
    if server is not None and not server.startswith(("ws://", "wss://")):
        raise BadRequest(f"--server {server}: write it as a websocket's address, ws://HOST:PORT")
    _writable(save)
    try:
        samples = await asyncio.to_thread(decode_file, file, SAMPLE_RATE)
    except BadRequest as error:
        raise BadRequest(f"{file}: {error.message}") from error
    async with AsyncExitStack() as stack:
        if server is None:
            say("starting the service")
            url = await stack.enter_async_context(running(settings))
        else:
            url = server
        say(f"playing {file.name}, {len(samples) / SAMPLE_RATE:.1f} s, into {url}")
        try:
            said = await exchange(url, samples, limit=LIMIT, whole=True, key=key)
        except ClientError as error:
            said = Exchange(problem=str(error))
    saved = save if len(said.sound) else None
    if saved:
        await asyncio.to_thread(write_wav, saved, said.sound, SAMPLE_RATE)
    if not quiet and (said.transcript or said.reply):
        print(report(said, saved))
    print(last_line(figures(said, saved)), flush=True)
    if said.problem is not None:
        say(f"no reply: {said.problem}")
        return 1
    return 0


def _writable(save: Path | None) -> None:
    """Raises BadRequest when the reply could not be saved there: before the question is played."""
    if save is None:
        return
    place = save if save.exists() else save.parent
    if save.is_dir() or not place.exists() or not os.access(place, os.W_OK):
        raise BadRequest(f"--save {save}: it must name a file that can be written, in a folder that exists")


def figures(said: Exchange, saved: Path | None) -> dict[str, Any]:
    """The JSON of the last line; `problem` is there only when there is one."""
    return {
        "transcript": said.transcript,
        "reply": said.reply,
        "reply_wav": str(saved) if saved else None,
        "v2v_ms": None if said.v2v_ms is None else round(said.v2v_ms, 1),
        "stages_ms": said.stages_ms,
        "speculation": said.speculation,
        **({"problem": said.problem} if said.problem else {}),
    }


def report(said: Exchange, saved: Path | None) -> str:
    """For people: what was heard and answered, and the steps in the order in which they happened."""
    lines = [f"heard     {said.transcript or '-'}", f"answered  {said.reply or '-'}"]
    if saved:
        lines.append(f"saved     {saved}, {len(said.sound) / SAMPLE_RATE:.1f} s")
    reached = [(at, STEPS[stage]) for stage, at in said.stages_ms.items() if at is not None]
    if said.v2v_ms is not None:
        reached.append((said.v2v_ms, "the reply is heard"))
    before = 0.0
    rows: list[tuple[str, str, str]] = []
    for at, step in sorted(reached):
        rows.append((step, ms(at), f"{at - before:+.0f}"))
        before = at
    if rows:
        lines += ["", table(["ms after the last word", "at", "step"], rows)]
    if said.speculation.get("launched"):
        s = said.speculation
        lines += [
            "",
            f"speculation: {s['launched']:.0f} launched, {s['used']:.0f} used, "
            f"{s['discarded']:.0f} discarded, {s['wasted_ms']:.0f} ms wasted",
        ]
    return "\n".join([*lines, ""])
