"""openai-agents: text agents with tools by way of both APIs, and a voice pipeline over HTTP."""

import checking
import numpy as np
from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.voice import (
    AudioInput,
    OpenAISTTModel,
    OpenAITTSModel,
    SingleAgentVoiceWorkflow,
    TTSModelSettings,
    VoicePipeline,
    VoicePipelineConfig,
)
from checking import BASE_URL, KEY, QUESTION
from openai import AsyncOpenAI
from pydantic import BaseModel

MODEL = checking.chat_model()
set_tracing_disabled(True)  # it would be sent to OpenAI


class Person(BaseModel):
    name: str
    age: int


def client() -> AsyncOpenAI:
    return AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)


def models() -> dict[str, OpenAIChatCompletionsModel | OpenAIResponsesModel]:
    return {
        "chat": OpenAIChatCompletionsModel(MODEL, client()),
        "responses": OpenAIResponsesModel(MODEL, client()),
    }


def settings(**members) -> ModelSettings:
    return ModelSettings(temperature=0, **{"max_tokens": 60, **members})


async def check_chat() -> None:
    for name, model in models().items():
        agent = Agent("Greeter", instructions="Be brief.", model=model, model_settings=settings())
        result = await Runner.run(agent, "Say hello.")
        assert result.final_output, name
        assert result.context_wrapper.usage.output_tokens > 0, name


async def check_stream() -> None:
    for name, model in models().items():
        agent = Agent("Greeter", model=model, model_settings=settings(max_tokens=24))
        result = Runner.run_streamed(agent, "Count to five.")
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert text, name
        assert text == result.final_output, name


def forecaster(model, cities: list[str]) -> Agent:
    """Calls its tool and answers with what that says: a small model would ask again and again."""

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return "It is sunny."

    return Agent(
        "Forecaster",
        tools=[weather],
        model=model,
        model_settings=settings(tool_choice="required"),
        tool_use_behavior="stop_on_first_tool",
    )


async def check_tools() -> None:
    for name, model in models().items():
        cities: list[str] = []
        result = await Runner.run(forecaster(model, cities), "What is the weather in Paris?")
        assert cities, name
        assert result.final_output == "It is sunny.", name
        listener = Agent("Listener", model=model, model_settings=settings(max_tokens=24))
        history = [*result.to_input_list(), {"role": "user", "content": "Thank you. Say goodbye."}]
        assert (await Runner.run(listener, history)).final_output, name


async def check_tools_streamed() -> None:
    for name, model in models().items():
        cities: list[str] = []
        result = Runner.run_streamed(forecaster(model, cities), "What is the weather in Paris?")
        kinds = [
            event.name async for event in result.stream_events() if event.type == "run_item_stream_event"
        ]
        assert kinds[:2] == ["tool_called", "tool_output"], (name, kinds)
        assert cities, name


async def check_structured_output() -> None:
    for name, model in models().items():
        agent = Agent("Reader", output_type=Person, model=model, model_settings=settings())
        result = await Runner.run(agent, "Ada is 36 years old.")
        assert isinstance(result.final_output, Person), name


async def check_voice() -> None:
    agent = Agent(
        "Speaker",
        instructions="Answer in one short sentence.",
        model=OpenAIChatCompletionsModel(MODEL, client()),
        model_settings=settings(max_tokens=24),
    )
    heard: list[str] = []

    class Workflow(SingleAgentVoiceWorkflow):
        async def run(self, transcription: str):
            heard.append(transcription)
            async for text in super().run(transcription):
                yield text

    pipeline = VoicePipeline(
        workflow=Workflow(agent),
        stt_model=OpenAISTTModel("whisper-1", client()),
        tts_model=OpenAITTSModel("gpt-4o-mini-tts", client()),
        config=VoicePipelineConfig(tracing_disabled=True, tts_settings=TTSModelSettings(voice="ash")),
    )
    sound = np.frombuffer(QUESTION.read_bytes()[44:], np.int16)
    result = await pipeline.run(AudioInput(sound, frame_rate=16_000))
    audio = []
    async for event in result.stream():
        if event.type == "voice_stream_event_audio":
            audio.append(event.data)
        assert event.type != "voice_stream_event_error", event
    assert "unusual" in heard[0].lower()
    spoken = np.concatenate([piece for piece in audio if piece is not None])
    assert len(spoken) > 12_000
    assert np.abs(spoken.astype(np.float64)).max() > 1000


checking.run(globals())
