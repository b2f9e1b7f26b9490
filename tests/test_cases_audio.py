"""Cases 24 and 39 to 42: rates, seams, and text on its way to sound (docs/cases.md says where each is held)."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest
from fakes import FakeChat, FakeRecognizer, FakeVoice, fake_engines, loudness, tone
from test_session import SPEECH, of, silence, talking
from test_websocket import Client, client, settings

from antiphon.pipeline.audio import OutputEncoder
from antiphon.pipeline.events import CancelResponse, OutputAudio, OutputText, ResponseDone
from antiphon.transport.server import running


@pytest.mark.server
@pytest.mark.parametrize("encoding", ["pcmu", "pcma", "pcm"])
async def test_case_24_the_recogniser_hears_every_wire_format_at_its_own_rate(encoding: Any):
    """A note of 440 Hz is one at 16 kHz, lasts as long, and is where it was: no rate was taken for another."""
    recognizer = FakeRecognizer()
    rate = 24_000 if encoding == "pcm" else 8_000
    format: dict[str, Any] = {"type": f"audio/{encoding}"} | ({"rate": rate} if encoding == "pcm" else {})
    sound = np.concatenate(
        [np.zeros(12_000, np.float32), tone(1.0, 24_000, hz=440), np.zeros(24_000, np.float32)]
    )
    encoder = OutputEncoder(encoding, 24_000)
    data = encoder.encode(sound) + encoder.flush()
    async with running(settings(), engines=fake_engines(recognizer)) as url, client(url) as me:
        await me.send("session.update", session={"type": "realtime", "audio": {"input": {"format": format}}})
        await me.until("session.updated")
        for at in range(0, len(data), rate // 10 * 2):
            await append(me, data[at : at + rate // 10 * 2])
        (*_, stopped) = await me.until("input_audio_buffer.speech_stopped")
        await me.until("response.done")
    assert stopped["audio_end_ms"] == pytest.approx(1500, abs=50)
    window = next(w for w in reversed(recognizer.windows) if w.final).samples
    spectrum = np.abs(np.fft.rfft(window * np.hanning(len(window))))
    assert np.argmax(spectrum) * 16_000 / len(window) == pytest.approx(440, abs=3)
    assert np.count_nonzero(np.abs(window) > 0.01) == pytest.approx(16_000, rel=0.06)


async def append(me: Client, data: bytes) -> None:
    await me.send("input_audio_buffer.append", audio=base64.b64encode(data).decode())


@pytest.mark.parametrize("pieces", [1, 3, 9])
async def test_case_40_what_is_delivered_of_a_cut_reply_is_its_beginning_sample_by_sample(pieces: int):
    voice = FakeVoice()
    chat = FakeChat("One two three four five six seven eight nine ten. " * 4)
    async with talking(chat=chat, voice=voice, settings=["output.lead=0.2"]) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        for _ in range(pieces):
            await talk.until(OutputAudio)
        await talk.do(CancelResponse())
        await talk.until(ResponseDone)
        await asyncio.sleep(0.05)
    delivered = np.concatenate([o.samples for o in of(talk.outputs, OutputAudio)])
    produced = np.concatenate([tone(0.05 * len(clause), voice.sample_rate) for clause in voice.spoken])
    assert len(delivered) >= pieces * 2400
    assert np.array_equal(delivered, produced[: len(delivered)])
    assert loudness(delivered) > 0.1


@pytest.mark.parametrize(
    "reply",
    [
        "Is 3 < 4? Yes.",
        "<",
        "Then <thin",
        "**Bold** and `code`. Done.",
        "日本語です。はい。 Ça va?",
        "One.  Two.\n\nThree.",
        " ",
    ],
)
async def test_case_41_the_transcript_is_the_reply_to_the_letter(reply: str):
    """Whatever of it can be spoken."""
    async with talking(chat=FakeChat(reply)) as talk:
        await talk.hear(silence(0.3), SPEECH, silence(0.7))
        seen = await talk.until(ResponseDone)
    assert seen[-1].response.status == "completed"
    assert "".join(o.delta for o in of(seen, OutputText)) == reply
    assert seen[-1].response.output[0].parts[0].text == reply
