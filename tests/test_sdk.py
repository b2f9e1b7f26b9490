"""The stock `openai` SDK against the real server and the real models: what clients nobody here wrote will do."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from conftest import DATA
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from antiphon.asr.formats import decode_file
from antiphon.pipeline.audio import samples_to_pcm16
from antiphon.pipeline.settings import load
from antiphon.transport.server import running

pytestmark = [pytest.mark.server, pytest.mark.model, pytest.mark.slow]

RATE = 24_000
SILENCE = np.zeros(RATE, np.float32)
EVENT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)


def clip(name: str) -> np.ndarray:
    return decode_file(DATA / name, RATE)


class Client:
    """The SDK's connection, and every event it gave, each valid in the SDK's own types."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[RealtimeServerEvent] = []

    async def next(self) -> RealtimeServerEvent:
        async with asyncio.timeout(60):
            event = await self.connection.recv()
        self.events.append(EVENT.validate_python(event.to_dict(mode="json", exclude_unset=True)))
        assert event.type != "error", event.to_json()
        return event

    async def until(self, kind: str) -> list[RealtimeServerEvent]:
        seen = []
        while not seen or seen[-1].type != kind:
            seen.append(await self.next())
        return seen

    async def append(self, samples: np.ndarray) -> None:
        for at in range(0, len(samples), RATE // 10):
            audio = base64.b64encode(samples_to_pcm16(samples[at : at + RATE // 10])).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    async def say(self, name: str) -> list[RealtimeServerEvent]:
        """Speak a clip and the silence after it; everything until the reply's end."""
        await self.append(np.concatenate([clip(name), SILENCE]))
        return await self.until("response.done")


@asynccontextmanager
async def connected(**session: object) -> AsyncIterator[Client]:
    settings = load(overrides=["server.port=0"])
    async with (
        running(settings) as url,
        AsyncOpenAI(
            api_key="none", base_url=f"{url.replace('ws', 'http', 1)}/v1", websocket_base_url=f"{url}/v1"
        ) as openai,
        openai.realtime.connect(model="antiphon") as connection,
    ):
        client = Client(connection)
        await client.until("session.created")
        await connection.session.update(session={"type": "realtime", **session})  # type: ignore[arg-type]
        await client.until("session.updated")
        yield client


def kinds(events: list[RealtimeServerEvent]) -> list[str]:
    """Types in order, repeats folded."""
    names = [event.type for event in events]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


def transcript(events: list[RealtimeServerEvent]) -> str:
    return "".join(e.delta for e in events if e.type == "response.output_audio_transcript.delta")


def audio_seconds(events: list[RealtimeServerEvent]) -> float:
    return sum(
        len(base64.b64decode(e.delta)) / 2 / RATE for e in events if e.type == "response.output_audio.delta"
    )


async def test_a_conversation_of_three_spoken_turns_a_text_turn_and_a_manual_turn():
    async with connected() as client:
        first = await client.say("question.wav")
        names = kinds(first)
        assert names[:7] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "conversation.item.input_audio_transcription.delta",
            "conversation.item.input_audio_transcription.completed",
        ]
        assert names[7:11] == [
            "response.created",
            "response.output_item.added",
            "conversation.item.added",
            "response.content_part.added",
        ]
        assert names[-6:] == [
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "conversation.item.done",
            "response.output_item.done",
            "response.done",
        ]
        turns = [first, await client.say("question.wav"), await client.say("question.wav")]
        for turn in turns:
            assert turn[-1].response.status in ("completed", "incomplete")
            assert transcript(turn).strip()
            assert audio_seconds(turn) > 0.3
        assert turns[2][-1].response.usage.input_tokens > turns[0][-1].response.usage.input_tokens

        await client.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "What is the capital of France?"}],
            }
        )
        await client.connection.response.create(response={"output_modalities": ["text"]})
        text = await client.until("response.done")
        assert "Paris" in "".join(e.delta for e in text if e.type == "response.output_text.delta")
        assert audio_seconds(text) == 0.0

        await client.connection.session.update(
            session={"type": "realtime", "audio": {"input": {"turn_detection": None}}}
        )
        await client.until("session.updated")
        await client.append(clip("question.wav"))
        await client.connection.input_audio_buffer.commit()
        await client.connection.response.create()
        manual = await client.until("response.done")
        assert "input_audio_buffer.speech_started" not in kinds(manual)
        assert audio_seconds(manual) > 0.3
        heard = [e.transcript for e in manual if e.type.endswith("input_audio_transcription.completed")]
        assert len(heard) == 1
        assert heard[0].strip()


async def test_barge_in_cancels_and_flushes():
    async with connected(instructions="Count slowly from one to fifty in words.") as client:
        await client.append(np.concatenate([clip("question.wav"), SILENCE]))
        await client.until("response.output_audio.delta")
        # From here as a live microphone would, so that the reply is cut while it plays.
        interruption = clip("question.wav")
        step = RATE // 25

        async def speak() -> None:
            for at in range(0, len(interruption), step):
                await client.append(interruption[at : at + step])
                await asyncio.sleep(1 / 25)
            await client.append(SILENCE)

        async with asyncio.TaskGroup() as group:
            group.create_task(speak())
            events = await client.until("response.done")
            cut = events[-1].response
            assert (cut.status, cut.status_details.reason) == ("cancelled", "turn_detected")
            names = kinds(events)
            assert "input_audio_buffer.speech_started" in names
            started = [event.type for event in events].index("input_audio_buffer.speech_started")
            assert "response.output_audio.delta" not in kinds(events[started:])
            item = cut.output[0]
            assert item.status == "incomplete"
            second = await client.until("response.done")
        assert all(e.response_id != cut.id for e in second if e.type == "response.output_audio.delta")
        assert second[-1].response.status in ("completed", "incomplete")
        await client.connection.conversation.item.truncate(
            item_id=item.id, content_index=0, audio_end_ms=100_000
        )
        (*_, truncated) = await client.until("conversation.item.truncated")
        assert truncated.item_id == item.id


async def test_a_forced_tool_is_called_and_its_result_is_told():
    lookup = {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city now.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    async with connected(tools=[lookup], tool_choice="required") as client:
        create = client.connection.conversation.item.create
        await create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "What is the weather in Paris?"}],
            }
        )
        await client.connection.response.create()
        seen = await client.until("response.done")
        (done,) = [e for e in seen if e.type == "response.function_call_arguments.done"]
        assert done.name == "get_weather"
        assert isinstance(json.loads(done.arguments)["city"], str)
        assert "".join(e.delta for e in seen if e.type == "response.function_call_arguments.delta") == (
            done.arguments
        )
        assert seen[-1].response.output[-1].call_id == done.call_id
        await create(
            item={
                "type": "function_call_output",
                "call_id": done.call_id,
                "output": '{"sky": "clear", "degrees": 21}',
            }
        )
        await client.connection.response.create(response={"tool_choice": "none"})
        told = await client.until("response.done")
        assert "21" in transcript(told) or "clear" in transcript(told).lower()
        assert audio_seconds(told) > 0.3


async def test_a_transcription_session_by_intent_and_by_secret():
    """semantic_vad as the Agents SDK's speech-to-text asks for it, then the client's own commit."""
    async with (
        running(load(overrides=["server.port=0"])) as url,
        AsyncOpenAI(
            api_key="none", base_url=f"{url.replace('ws', 'http', 1)}/v1", websocket_base_url=f"{url}/v1"
        ) as openai,
    ):
        async with openai.realtime.connect(extra_query={"intent": "transcription"}) as connection:
            client = Client(connection)
            (created,) = await client.until("session.created")
            assert created.session.type == "transcription"
            for detection in ({"type": "semantic_vad", "eagerness": "high"}, None):
                await connection.session.update(
                    session={
                        "type": "transcription",
                        "audio": {
                            "input": {
                                "format": {"type": "audio/pcm", "rate": 24000},
                                "transcription": {"model": "gpt-4o-transcribe"},
                                "turn_detection": detection,  # type: ignore[typeddict-item]
                            }
                        },
                    }
                )
                await client.until("session.updated")
                await client.append(np.concatenate([clip("question.wav"), SILENCE]))
                if detection is None:
                    await connection.input_audio_buffer.commit()
                seen = await client.until("conversation.item.input_audio_transcription.completed")
                assert seen[-1].transcript.strip()
            assert not [e for e in client.events if e.type.startswith("response.")]

        secret = await openai.realtime.client_secrets.create(
            session={"type": "transcription", "audio": {"input": {"turn_detection": None}}}
        )
        assert secret.session.type == "transcription"
        async with (
            openai.with_options(api_key=secret.value) as page,
            page.realtime.connect(extra_query={"intent": "transcription"}) as connection,
        ):
            (created,) = await Client(connection).until("session.created")
            assert created.session.type == "transcription"
            assert created.session.audio.input.turn_detection is None
