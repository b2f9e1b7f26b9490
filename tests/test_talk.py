"""`antiphon talk` on the real service: the question is heard, and what is said can be understood again."""

import json
import re
from pathlib import Path
from typing import Any

import jiwer
import pytest
from conftest import DATA

from antiphon.asr.base import Window
from antiphon.asr.ctranslate2 import Whisper
from antiphon.asr.formats import decode_file
from antiphon.pipeline.cli import main
from antiphon.pipeline.settings import load
from antiphon.pipeline.weights import WeightStore


def real(test: Any) -> Any:
    """Loads the models and starts the service."""
    return pytest.mark.model(pytest.mark.server(pytest.mark.slow(test)))


def words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9']+", text.lower()))


@real
def test_a_question_is_heard_answered_and_the_answer_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    saved = tmp_path / "reply.wav"
    assert main(["talk", str(DATA / "question.wav"), "--json", "--save", str(saved)]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(said) == {"transcript", "reply", "reply_wav", "v2v_ms", "stages_ms", "speculation"}
    question = json.loads((DATA / "manifest.jsonl").read_text().splitlines()[0])["text"]
    assert words(said["transcript"]) == words(question)
    assert words(said["reply"])
    assert said["reply_wav"] == str(saved)
    assert said["speculation"]["launched"] >= 1
    store = WeightStore(load(overrides=[]).weights.root)
    recognizer = Whisper(store.fetch("whisper-tiny.en"))
    [heard] = recognizer.transcribe([Window(decode_file(saved), language="en")])
    assert jiwer.wer(words(said["reply"]), words(heard.text)) <= 0.35, (said["reply"], heard.text)


@real
def test_a_recording_without_speech_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    silence = tmp_path / "silence.wav"
    silence.write_bytes(
        b"RIFF\x24\x7d\x00\x00WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x80\x3e\x00\x00\x00\x7d\x00\x00\x02\x00"
        b"\x10\x00data\x00\x7d\x00\x00" + bytes(32_000)
    )
    assert main(["talk", str(silence), "--json"]) == 1
    assert "speech" in json.loads(capsys.readouterr().out.splitlines()[-1])["problem"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["question.wav", "--save", "nowhere/x.wav"], "--save nowhere/x.wav: it must name a file"),
        (["NOTICE"], "NOTICE: The file is of no known kind"),
        (["question.wav", "--server", "127.0.0.1:8080"], "ws://HOST:PORT"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(words: list[str], said: str, capsys) -> None:
    assert main(["talk", str(DATA / words[0]), *words[1:]]) == 1
    assert said in capsys.readouterr().err
