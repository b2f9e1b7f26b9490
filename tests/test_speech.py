"""Speech over HTTP: what is sent, when, and what a client's mistakes are called."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from fakes import FakeVoice, fake_engines
from starlette.requests import Request

from antiphon.asr.formats import decode_file
from antiphon.pipeline.errors import BadRequest, EngineFailed, NotFound, RateLimited
from antiphon.pipeline.events import Samples
from antiphon.pipeline.metrics import Metrics
from antiphon.pipeline.settings import Settings, load
from antiphon.transport.http import CLIENT, ClientGone, Endpoint, Services
from antiphon.transport.models import Models, Served
from antiphon.transport.server import running
from antiphon.transport.session_object import OPENAI_VOICES
from antiphon.transport.speech import SILENCE, Spoken, endpoints, speak, usage
from antiphon.tts.base import Voice
from antiphon.tts.encoding import MEDIA_TYPES, RATE, UNKNOWN_SIZE, Format

TEXT = "The first sentence is here. The second one follows it. And this is the third."
ASK = {"model": "tts-1", "input": TEXT, "voice": "heart"}
MAGIC = {"mp3": b"ID3", "opus": b"OggS", "aac": b"\xff\xf1", "flac": b"fLaC", "wav": b"RIFF"}


class HeldVoice(FakeVoice):
    """Speaks its first clause, and no other while `hold` is not set. active: clauses being spoken."""

    def __init__(self) -> None:
        super().__init__()
        self.hold = asyncio.Event()
        self.asked = asyncio.Event()
        self.active = 0
        self.left = asyncio.Event()
        self.deadlines: list[float] = []

    @asynccontextmanager
    async def synthesize(
        self, text: str, voice: Voice, *, owner: str, deadline: float
    ) -> AsyncIterator[AsyncIterator[Samples]]:
        self.active += 1
        self.deadlines.append(deadline)
        try:
            if self.spoken:
                self.asked.set()
                await self.hold.wait()
            async with super().synthesize(text, voice, owner=owner, deadline=deadline) as chunks:
                yield chunks
        finally:
            self.active -= 1
            self.left.set()


class MuteVoice(FakeVoice):
    """Can say nothing."""

    async def _chunks(self, samples: Samples) -> AsyncIterator[Samples]:
        for _ in ():
            yield samples


class BrokenVoice(FakeVoice):
    """Fails in its clause number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    async def _chunks(self, samples: Samples) -> AsyncIterator[Samples]:
        if len(self.spoken) > self.at:
            raise EngineFailed("the voice failed")
        async for chunk in super()._chunks(samples):
            yield chunk


class Call:
    """One request to a handler, below any server: what was sent, and a client that can leave or stall."""

    def __init__(self, endpoint: Endpoint, body: Any = None, client: Any = None) -> None:
        self._endpoint = endpoint
        self._client = client
        self._body: bytes | None = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.sent: list[bytes] = []
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = asyncio.Event()
        self.progress = asyncio.Event()
        self.leave = asyncio.Event()
        self.takes = asyncio.Event()
        self.takes.set()

    async def run(self) -> "Call":
        scope = {"type": "http", "method": self._endpoint.method, "path": self._endpoint.path, "headers": []}
        if self._client is not None:
            scope[CLIENT] = self._client
        response = await self._endpoint.handler(Request(scope, self._receive))
        await response(scope, self._receive, self._send)
        return self

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.leave.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.started.set()
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            return
        await self.takes.wait()
        self.sent.append(message["body"])
        self.progress.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.sent)


@asynccontextmanager
async def served(voice: FakeVoice) -> AsyncIterator[dict[str, Endpoint]]:
    settings = Settings()
    async with fake_engines(voice=voice) as engines:
        models = Models((Served("talker", "chat"), Served("voice-1", "speech")))
        services = Services(settings, engines, Metrics(), models, lambda prefix: f"{prefix}_1", lambda: 0.0)
        yield {endpoint.path: endpoint for endpoint in endpoints(services)}


async def said(speaker: FakeVoice | None = None, /, **members: Any) -> Call:
    async with served(speaker or FakeVoice()) as paths:
        return await Call(paths["/v1/audio/speech"], {**ASK, **members}).run()


async def refused(speaker: FakeVoice | None = None, /, **members: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        await said(speaker, **members)
    return caught.value


def decoded(format: str, data: bytes) -> np.ndarray:
    if format == "pcm":
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    return decode_file(io.BytesIO(data), RATE)


def events(body: bytes) -> list[dict[str, Any]]:
    frames = body.decode().split("\n\n")
    assert frames.pop() == ""
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in frames)
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


# --- A28 ------------------------------------------------------------------------------------------------


async def test_a28_the_default_is_an_mp3_that_plays() -> None:
    call = await said()
    assert (call.status, call.headers["content-type"]) == (200, "audio/mpeg")
    assert "content-length" not in call.headers
    assert len(decoded("mp3", call.body)) > 2 * RATE


@pytest.mark.parametrize("format", MEDIA_TYPES)
async def test_a28_each_format_has_its_type_and_its_first_bytes(format: Format) -> None:
    voice = FakeVoice()
    call = await said(voice, response_format=format)
    assert call.headers["content-type"] == MEDIA_TYPES[format]
    assert call.body.startswith(MAGIC.get(format, b""))
    length = sum(round(0.05 * len(clause) * RATE) for clause in voice.spoken)
    assert length <= len(decoded(format, call.body)) <= length + 3 * 1024


async def test_a28_pcm_is_whole_samples_at_24_khz_and_wav_says_no_size() -> None:
    pcm = (await said(response_format="pcm")).body
    wav = (await said(response_format="wav")).body
    assert len(pcm) % 2 == 0
    assert wav[44:] == pcm
    assert wav[4:8] == wav[40:44] == UNKNOWN_SIZE.to_bytes(4, "little")


async def test_a28_twice_the_speed_is_half_the_sound() -> None:
    usual, twice = [len((await said(response_format="pcm", speed=speed)).body) for speed in (1, 2.0)]
    assert abs(twice / usual - 0.5) < 0.01


async def test_a28_events_carry_the_file_and_end_with_the_usage() -> None:
    call = await said(stream_format="sse", response_format="wav")
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"
    *deltas, done = events(call.body)
    assert {delta["type"] for delta in deltas} == {"speech.audio.delta"}
    assert len(deltas) > 3
    audio = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    plain = await said(response_format="wav")
    assert audio == plain.body
    seconds = (len(audio) - 44) / 2 / RATE
    assert done["type"] == "speech.audio.done"
    assert done["usage"] == usage(TEXT, seconds)
    assert (
        done["usage"]["total_tokens"] == done["usage"]["input_tokens"] + done["usage"]["output_tokens"] > 20
    )


async def test_a28_4096_characters_are_spoken_and_4097_are_not() -> None:
    voice = FakeVoice()
    await said(voice, input="a" * 4096, response_format="pcm")
    assert sum(map(len, voice.spoken)) >= 4096
    error = await refused(input="a" * 4097)
    assert (error.status, error.param) == (400, "input")


async def test_a28_the_first_bytes_leave_before_the_last_sentence_is_made() -> None:
    voice = HeldVoice()
    async with served(voice) as paths, asyncio.TaskGroup() as group:
        call = Call(paths["/v1/audio/speech"], ASK)
        group.create_task(call.run())
        await call.progress.wait()
        await voice.asked.wait()
        assert len(voice.spoken) == 1
        assert len(call.body) > 100
        voice.hold.set()
    assert len(voice.spoken) >= 3


async def test_a28_null_instructions_and_other_nulls_are_defaults() -> None:
    nulls = dict.fromkeys(("instructions", "response_format", "speed", "stream_format"))
    assert (await said(**nulls)).body == (await said()).body
    assert (await said(instructions="Whisper.")).status == 200


# --- voices ---------------------------------------------------------------------------------------------


async def test_openais_voices_are_names_of_the_default_voice() -> None:
    used: list[Voice] = []

    class Noting(FakeVoice):
        @asynccontextmanager
        async def synthesize(
            self, text: str, voice: Voice, *, owner: str, deadline: float
        ) -> AsyncIterator[AsyncIterator[Samples]]:
            used.append(voice)
            async with super().synthesize(text, voice, owner=owner, deadline=deadline) as chunks:
                yield chunks

    for name in (*OPENAI_VOICES, "heart", "alto", {"id": "alto"}, {"id": "onyx"}):
        await said(Noting(), voice=name, input="Yes.")
    assert [voice.name for voice in used] == ["heart"] * 14 + ["alto", "alto", "heart"]


@pytest.mark.parametrize("voice", ["nobody", {"id": "nobody"}])
async def test_an_unknown_voice_is_told_the_known_ones(voice: Any) -> None:
    error = await refused(voice=voice)
    assert (error.status, error.param) == (400, "voice")
    assert all(name in error.message for name in ("nobody", "heart", "alto", *OPENAI_VOICES))


async def test_the_voices_are_listed_with_what_each_name_means() -> None:
    async with served(FakeVoice()) as paths:
        call = await Call(paths["/v1/audio/voices"]).run()
    voices = {entry["id"]: entry for entry in json.loads(call.body)["voices"]}
    assert list(voices) == ["heart", "alto", *OPENAI_VOICES]
    assert voices["alto"] == {"id": "alto", "name": "Alto", "voice": "alto"}
    assert voices["shimmer"]["voice"] == "heart"


# --- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("input", ""),
        ("input", " \n"),
        ("input", None),
        ("input", ["Hello."]),
        ("voice", None),
        ("voice", 7),
        ("voice", {}),
        ("speed", 0.2),
        ("speed", 4.1),
        ("speed", "fast"),
        ("response_format", "ogg"),
        ("stream_format", "json"),
        ("instructions", "x" * 4097),
        ("model", 3),
    ],
)
async def test_what_cannot_be_done_names_its_member(member: str, value: Any) -> None:
    error = await refused(**{member: value})
    assert error.status == 400
    assert (error.param or "").split(".")[0] == member


@pytest.mark.parametrize("member", ["input", "model", "voice"])
async def test_what_is_missing_is_named(member: str) -> None:
    async with served(FakeVoice()) as paths:
        body = {name: value for name, value in ASK.items() if name != member}
        with pytest.raises(BadRequest) as caught:
            await Call(paths["/v1/audio/speech"], body).run()
    assert (caught.value.code, caught.value.param) == ("missing_required_parameter", member)


async def test_models() -> None:
    assert (await said(model="voice-1")).status == 200
    assert isinstance(await refused(model="nothing"), NotFound)
    error = await refused(model="talker")
    assert (error.status, error.param) == (400, "model")


# --- nothing to say, and failures -----------------------------------------------------------------------


@pytest.mark.parametrize("text", ["…", "🙂", " - "])
async def test_text_without_words_is_a_moment_of_silence(text: str) -> None:
    voice = FakeVoice()
    call = await said(voice, input=text, response_format="pcm")
    assert call.body == bytes(2 * round(SILENCE * RATE))
    assert not voice.spoken


async def test_words_that_the_voice_cannot_say_are_the_clients_fault() -> None:
    error = await refused(MuteVoice(), input="你好")
    assert (error.status, error.param) == (400, "input")


async def test_a_failure_before_the_first_byte_is_a_status_and_after_it_an_end() -> None:
    with pytest.raises(EngineFailed):
        await said(BrokenVoice(at=0))
    audio = await said(BrokenVoice(at=1))
    assert audio.sent[-1], "the body is cut off, not ended"
    sse = await said(BrokenVoice(at=1), stream_format="sse")
    assert events(sse.body)[-1]["error"]["code"] == "engine_failed"


# --- clients that leave, and slow ones ------------------------------------------------------------------


@pytest.mark.parametrize("stream_format", ["audio", "sse"])
async def test_a_client_that_leaves_frees_the_voice(stream_format: str) -> None:
    voice = HeldVoice()
    async with served(voice) as paths:
        call = Call(paths["/v1/audio/speech"], {**ASK, "stream_format": stream_format})
        task = asyncio.create_task(call.run())
        await voice.asked.wait()
        assert voice.active == 1
        call.leave.set()
        await task
        assert voice.active == 0
    assert len(voice.spoken) == 1


async def test_a_client_that_leaves_before_the_first_byte_frees_the_voice() -> None:
    voice = HeldVoice()
    voice.spoken.append("something before")  # so that the first clause is held
    async with served(voice) as paths:
        call = Call(paths["/v1/audio/speech"], ASK)
        task = asyncio.create_task(call.run())
        await voice.asked.wait()
        call.leave.set()
        await task
    assert (voice.active, call.status) == (0, 0)


async def test_for_a_slow_client_nothing_is_made_ahead() -> None:
    voice = FakeVoice()
    async with served(voice) as paths, asyncio.TaskGroup() as group:
        call = Call(paths["/v1/audio/speech"], {**ASK, "response_format": "pcm"})
        call.takes.clear()
        task = group.create_task(call.run())
        await call.started.wait()
        for _ in range(100):
            await asyncio.sleep(0)
        assert len(voice.spoken) == 1
        assert not task.done()
        call.takes.set()
    assert len(voice.spoken) >= 3


async def test_a_client_that_is_gone_before_its_body_is_read_is_nobody_to_answer() -> None:
    async with served(FakeVoice()) as paths:
        call = Call(paths["/v1/audio/speech"])
        call._body = None
        call.leave.set()
        with pytest.raises(ClientGone):
            await call.run()


@pytest.mark.server
async def test_a16_a_socket_closed_in_the_middle_frees_the_voice() -> None:
    voice = HeldVoice()
    async with running(Settings(), engines=fake_engines(voice=voice)) as url, asyncio.timeout(20):
        address = url.replace("ws://", "http://") + "/v1/audio/speech"
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", address, json=ASK) as answer,
            aclosing(answer.aiter_raw()) as pieces,
        ):
            assert answer.status_code == 200
            await anext(pieces)
            await voice.asked.wait()
            voice.left.clear()
        await voice.left.wait()
        assert voice.active == 0


class Account:
    """What a key's client spends; `debt` makes it refuse."""

    def __init__(self, *, debt: bool = False) -> None:
        self.spent = 0.0
        self.debt = debt

    def spend_audio(self, seconds: float) -> None:
        if self.debt:
            raise RateLimited("wait")
        self.spent += seconds


async def test_sound_is_counted_against_the_key_and_a_key_in_debt_waits() -> None:
    account = Account()
    async with served(FakeVoice()) as paths:
        endpoint = paths["/v1/audio/speech"]
        call = await Call(endpoint, {**ASK, "response_format": "pcm"}, account).run()
        assert account.spent == pytest.approx(len(call.body) / 2 / RATE)
        with pytest.raises(RateLimited):
            await Call(endpoint, ASK, Account(debt=True)).run()


async def test_sound_that_was_made_is_counted_when_the_client_leaves() -> None:
    voice, account = HeldVoice(), Account()
    async with served(voice) as paths:
        call = Call(paths["/v1/audio/speech"], ASK, account)
        task = asyncio.create_task(call.run())
        await voice.asked.wait()
        call.leave.set()
        await task
    assert account.spent == pytest.approx(0.05 * len(voice.spoken[0]))


async def test_conversations_come_first() -> None:
    voice = HeldVoice()
    voice.hold.set()
    await said(voice, response_format="pcm")
    now = asyncio.get_running_loop().time()
    assert all(deadline > now + 5 for deadline in voice.deadlines)


# --- speaking what is being written ---------------------------------------------------------------------


async def spoken(text: str | AsyncIterator[str], format: Format, voice: FakeVoice) -> list[Spoken]:
    async with (
        fake_engines(voice=voice) as engines,
        speak(engines, text, Voice("heart"), format, owner="one") as pieces,
    ):
        return [piece async for piece in pieces]


async def letters(text: str) -> AsyncIterator[str]:
    for letter in text:
        yield letter


@pytest.mark.parametrize("text", [TEXT, "# One\n\n- **two** 🙂\n```py\nx = 1\n```\nThree.", "", "…"])
async def test_a_text_in_pieces_sounds_as_the_whole(text: str) -> None:
    whole = await spoken(text, "wav", FakeVoice())
    pieces = await spoken(letters(text), "wav", FakeVoice())
    assert whole == pieces
    assert "".join(piece.text for piece in whole) == text
    audio = b"".join(piece.audio for piece in whole)
    assert len(audio) == 44 + 2 * round(sum(piece.seconds for piece in whole) * RATE)


async def test_words_come_with_the_sound_they_begin() -> None:
    pieces = await spoken("One sentence here. Another sentence there.", "pcm", FakeVoice())
    first, second = [number for number, piece in enumerate(pieces) if piece.text]
    assert pieces[first].text == "One sentence here. "
    assert all(piece.seconds > 0 for piece in pieces[first:second])


def test_the_settings_voice_is_one_that_is_there() -> None:
    assert load(environ={}).tts.voice in FakeVoice.voices
