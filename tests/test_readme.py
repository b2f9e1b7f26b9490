"""The README's promises: its client runs as it stands, and its settings table is the settings."""

import asyncio
import re
import sys
import wave
from pathlib import Path

import pytest
from conftest import DATA

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


@pytest.mark.model
@pytest.mark.server
@pytest.mark.slow
async def test_the_client_runs_as_it_stands(tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.splitlines()) <= 30
    script, answer = tmp_path / "client.py", tmp_path / "answer.wav"
    script.write_text(code)
    async with running(load(overrides=["server.port=0"])) as url:
        client = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            f"{url}/v1/realtime",
            DATA / "question.wav",
            answer,
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(client.communicate(), 120)
    assert client.returncode == 0
    you, antiphon = out.decode().splitlines()
    assert "something rather unusual" in you.lower()
    assert len(antiphon.removeprefix("antiphon:").strip()) > 1
    with wave.open(str(answer)) as wav:
        assert wav.getnframes() > 24_000 * 0.3
