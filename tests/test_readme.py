"""The README's promises: its client runs as it stands, and its settings table is the settings."""

import asyncio
import re
import sys
import wave
from pathlib import Path

import pytest
from conftest import DATA

from antiphon.asr.formats import decode_file
from antiphon.pipeline.settings import describe, load
from antiphon.transport.server import running

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_settings_table_is_what_the_program_says():
    assert describe() in README


def test_the_files_it_names_are_there():
    root = Path(__file__).parents[1]
    for path in re.findall(r"`((?:transport|pipeline|asr|llm|tts|docs)/[\w./]+)`", README):
        assert (root / path).exists(), path
    for path in re.findall(r"\]\((docs/[\w./-]+)\)", README):
        assert (root / path).exists(), path


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


async def run(code: str, folder: Path, *args: str | Path) -> str:
    """What a client of the README prints."""
    script = folder / "client.py"
    script.write_text(code)
    client = await asyncio.create_subprocess_exec(
        sys.executable, script, *args, stdout=asyncio.subprocess.PIPE, cwd=folder
    )
    out, _ = await asyncio.wait_for(client.communicate(), 120)
    assert client.returncode == 0
    return out.decode()


@pytest.mark.model
@pytest.mark.server
@pytest.mark.slow
async def test_the_clients_run_as_they_stand(tmp_path: Path):
    talk, chat, transcription, speech = BLOCKS
    assert len(talk.splitlines()) <= 32
    answer, spoken = tmp_path / "answer.wav", tmp_path / "answer.mp3"
    async with running(load(overrides=["server.port=0"])) as url:
        base = f"{url.replace('ws:', 'http:')}/v1"
        said = await run(talk, tmp_path, f"{url}/v1/realtime", DATA / "question.wav", answer)
        assert "Paris" in await run(chat, tmp_path, base)
        subtitles = await run(transcription, tmp_path, base, DATA / "question.wav")
        await run(speech, tmp_path, base, spoken)
    you, antiphon = said.splitlines()
    assert "something rather unusual" in you.lower()
    assert len(antiphon.removeprefix("antiphon:").strip()) > 1
    with wave.open(str(answer)) as wav:
        assert wav.getnframes() > 24_000 * 0.3
    assert subtitles.startswith("1\n00:00:00,")
    assert "something rather unusual" in subtitles.lower()
    assert len(decode_file(spoken)) > 16_000
