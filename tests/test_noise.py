"""Ten minutes of silence, fan noise and music through the real server: no turn, no words, flat memory."""

import asyncio
import base64
import json
from pathlib import Path

import numpy as np
import psutil
import pytest
from websockets.asyncio.client import connect

from antiphon.asr.formats import decode_file
from antiphon.pipeline.audio import samples_to_pcm16
from antiphon.pipeline.settings import load
from antiphon.transport.server import running

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.slow]

RATE = 24_000
MINUTE = 60 * RATE


def fan(seconds: int, seed: int = 1) -> np.ndarray:
    """Brown-ish noise with a blade's hum, about -30 dBFS."""
    rng = np.random.default_rng(seed)
    white = rng.normal(0, 1, seconds * RATE)
    spectrum = np.fft.rfft(white)
    spectrum /= np.maximum(1.0, np.arange(len(spectrum)) / (50 * seconds))
    noise = np.fft.irfft(spectrum, len(white))
    hum = np.sin(2 * np.pi * 120 * np.arange(len(white)) / RATE)
    return (0.03 * noise / noise.std() + 0.01 * hum).astype(np.float32)


def music(seconds: int) -> np.ndarray:
    """Plucked chords, two a second."""
    time = np.arange(RATE // 2) / RATE
    chords = [(220, 277.2, 329.6), (196, 246.9, 293.7), (174.6, 220, 261.6), (196, 246.9, 293.7)]
    bars = [
        sum(np.sin(2 * np.pi * hz * k * time) * np.exp(-3 * k * time) / k for hz in chord for k in (1, 2, 3))
        for chord in chords
    ]
    once = np.concatenate(bars)
    return np.resize(0.08 * once, seconds * RATE).astype(np.float32)


async def listen(minutes: list[np.ndarray]) -> tuple[list[str], list[float]]:
    """(types of all events but the session's own, resident megabytes after each minute)."""
    kinds: list[str] = []
    memory: list[float] = []
    async with running(load(overrides=[])) as url, connect(f"{url}/v1/realtime", max_size=None) as socket:
        for sound in minutes:
            for at in range(0, len(sound), RATE):
                audio = base64.b64encode(samples_to_pcm16(sound[at : at + RATE])).decode()
                await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
            # An answer comes after all audio before it was heard.
            await socket.send(json.dumps({"type": "conversation.item.retrieve", "item_id": "none"}))
            async with asyncio.timeout(120):
                while (event := json.loads(await socket.recv()))["type"] != "error":
                    kinds.append(event["type"])
            memory.append(psutil.Process().memory_info().rss / 2**20)
    return [kind for kind in kinds if not kind.startswith("session.")], memory


async def test_generated_noise_takes_no_turn_and_no_memory():
    minute = [np.zeros(MINUTE, np.float32), fan(60), music(60)]
    kinds, memory = await listen([minute[i % 3] for i in range(10)])
    assert kinds == []
    assert memory[-1] - memory[2] < 16, memory


async def test_recorded_noise_takes_no_turn(shared_speech: Path):
    noise = shared_speech / "noise"
    manifest = [json.loads(line) for line in (noise / "manifest.jsonl").read_text().splitlines()]
    sounds = [
        decode_file(noise / entry["path"], RATE)
        for entry in manifest
        if entry["path"].split("/")[0] in ("background", "music", "silence")
    ]
    joined = np.concatenate(sounds)
    ten = np.resize(joined, 10 * MINUTE)
    kinds, memory = await listen([ten[at : at + MINUTE] for at in range(0, len(ten), MINUTE)])
    assert kinds == []
    assert memory[-1] - memory[2] < 16, memory
