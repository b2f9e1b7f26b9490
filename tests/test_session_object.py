"""The session object: what updates are taken, what they mean, and that a wrong one changes nothing."""

from dataclasses import replace
from typing import Any

import pytest
from wire import (
    BARGE_IN,
    DEFAULTS,
    OFFER,
    STARTED,
    check,
    codec,
    counting,
    one,
    play,
    refusal,
    session_of,
    update,
)

from antiphon.pipeline.events import (
    Configured,
    Failed,
    Patience,
    ResponseStarted,
    TurnPolicy,
)
from antiphon.pipeline.tools import Tool, ToolUse
from antiphon.transport.realtime import RealtimeCodec
from antiphon.transport.session_object import EAGERNESS, OPENAI_VOICES, SessionObject


def test_what_the_server_announces_is_what_the_pipeline_is_told():
    wire = codec()
    assert update(wire) == DEFAULTS
    session = session_of(wire)
    assert (session["id"], session["object"], session["model"]) == (
        "sess_1",
        "realtime.session",
        "gpt-realtime",
    )
    assert session["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 500


def test_an_update_keeps_the_siblings_of_what_it_changes():
    wire = codec()
    config = update(
        wire, audio={"input": {"turn_detection": {"silence_duration_ms": 700}}}, instructions="Shout."
    )
    assert config.turn == TurnPolicy(silence=0.7)
    assert (config.vad_threshold, config.instructions, config.transcribe) == (0.5, "Shout.", True)
    again = update(wire, audio={"input": {"turn_detection": {"threshold": 0.9, "type": "server_vad"}}})
    assert (again.turn, again.vad_threshold) == (TurnPolicy(silence=0.7), 0.9)
    assert session_of(wire)["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 700


def test_null_clears_and_goes_back_to_the_default():
    wire = codec()
    config = update(
        wire,
        instructions="Shout.",
        max_output_tokens=7,
        audio={
            "input": {"turn_detection": None, "transcription": None},
            "output": {"speed": 1.5, "voice": "alto"},
        },
    )
    assert config.turn is None
    assert (config.transcribe, config.speed, config.voice, config.max_output_tokens) == (
        False,
        1.5,
        "alto",
        7,
    )
    session = session_of(wire)
    assert session["audio"]["input"]["turn_detection"] is None
    assert session["audio"]["input"]["transcription"] is None
    config = update(
        wire, instructions=None, max_output_tokens=None, audio={"output": {"speed": None, "voice": None}}
    )
    assert config.turn is None
    assert (config.instructions, config.speed, config.voice) == ("Be brief.", 1.0, "heart")
    assert config.max_output_tokens is None
    assert update(wire, audio=None) == DEFAULTS


def test_escaped_characters_beyond_16_bits_are_text():
    wire = codec()
    asked = wire.decode('{"type": "session.update", "session": {"instructions": "\\ud83d\\ude00"}}')
    assert not isinstance(asked, Failed)
    assert asked[0].config.instructions == "😀"


def test_empty_is_not_the_default():
    assert update(codec(), instructions="").instructions == ""


@pytest.mark.parametrize("eagerness", ["low", "medium", "high", "auto", None])
def test_semantic_vad_is_patience_with_the_words(eagerness: str | None):
    wire = codec()
    detection = {"type": "semantic_vad"} | ({"eagerness": eagerness} if eagerness else {})
    config = update(wire, audio={"input": {"turn_detection": detection | {"create_response": False}}})
    patience = EAGERNESS.get(eagerness or "auto", Patience())
    assert config.turn == TurnPolicy(patience=patience, create_response=False)
    assert session_of(wire)["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": eagerness or "auto",
        "create_response": False,
        "interrupt_response": True,
    }


def test_an_idle_timeout_is_seconds_and_null_takes_it_away():
    wire = codec()
    config = update(
        wire, audio={"input": {"turn_detection": {"type": "server_vad", "idle_timeout_ms": 6000}}}
    )
    assert config.turn == TurnPolicy(0.5, idle_timeout=6.0)
    assert session_of(wire)["audio"]["input"]["turn_detection"]["idle_timeout_ms"] == 6000
    check(wire.created()[0])
    config = update(wire, audio={"input": {"turn_detection": {"create_response": False}}})
    assert config.turn == TurnPolicy(0.5, create_response=False)
    config = update(wire, audio={"input": {"turn_detection": {"idle_timeout_ms": None}}})
    assert "idle_timeout_ms" not in session_of(wire)["audio"]["input"]["turn_detection"]


def test_turn_detection_can_come_back():
    wire = codec()
    update(wire, audio={"input": {"turn_detection": None}})
    config = update(
        wire, audio={"input": {"turn_detection": {"type": "server_vad", "interrupt_response": False}}}
    )
    assert config.turn == TurnPolicy(0.5, interrupt_response=False)


def test_the_preroll_is_never_less_than_300_ms():
    wire = codec()
    config = update(wire, audio={"input": {"turn_detection": {"prefix_padding_ms": 20}}})
    assert config.prefix_padding == 0.3
    assert session_of(wire)["audio"]["input"]["turn_detection"]["prefix_padding_ms"] == 20


@pytest.mark.parametrize(("said", "meant"), [(0, 0.01), (1, 0.99), (0.3, 0.3)])
def test_the_detector_gets_a_threshold_it_can_cross(said: float, meant: float):
    config = update(codec(), audio={"input": {"turn_detection": {"threshold": said}}})
    assert config.vad_threshold == meant


@pytest.mark.parametrize("voice", ["alloy", {"id": "marin"}, "heart"])
def test_openai_voices_are_our_default_by_another_name(voice: Any):
    wire = codec()
    assert update(wire, audio={"output": {"voice": voice}}).voice == "heart"
    name = voice if isinstance(voice, str) else voice["id"]
    assert session_of(wire)["audio"]["output"]["voice"] == name
    response = play(wire, ResponseStarted(STARTED))[0]["response"]
    assert response["audio"]["output"]["voice"] == name
    assert len(OPENAI_VOICES) == 13


def test_languages_of_the_transcription():
    wire = codec()
    assert update(wire, audio={"input": {"transcription": {"language": "de-AT"}}}).language == "de"
    assert (
        update(wire, audio={"input": {"transcription": {"language": None, "languages": ["fr"]}}}).language
        == "fr"
    )
    assert update(wire, audio={"input": {"transcription": {"languages": ["fr", "it"]}}}).language == "en"
    assert update(wire, audio={"input": {"transcription": {"model": "gpt-4o-transcribe"}}}).transcribe


def test_what_agents_sdks_send_on_connecting_is_taken():
    wire = codec()
    config = update(
        wire,
        type="realtime",
        model="gpt-realtime",
        instructions="Hi.",
        output_modalities=["audio"],
        audio={
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": {"model": "gpt-4o-mini-transcribe"},
                "turn_detection": {"type": "semantic_vad", "interrupt_response": True},
                "noise_reduction": {"type": "near_field"},
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "ash", "speed": 1},
        },
        tracing="auto",
        tools=[],
        tool_choice="auto",
        truncation={"type": "retention_ratio", "retention_ratio": 0.8},
        prompt=None,
        include=None,
    )
    assert config.instructions == "Hi."
    (event,) = play(wire, Configured(config))
    assert event["session"]["tracing"] == "auto"
    assert event["session"]["audio"]["input"]["noise_reduction"] == {"type": "near_field"}


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "invalid_value", "type"),
        ({"type": "conversation"}, "invalid_value", "type"),
        ({"model": "gpt-5"}, "cannot_update_model", "model"),
        ({"voice": "alloy"}, "unknown_parameter", "voice"),
        ({"modalities": ["text"]}, "unknown_parameter", "modalities"),
        ({"output_modalities": ["audio", "text"]}, "invalid_value", "output_modalities"),
        ({"output_modalities": []}, "invalid_value", "output_modalities"),
        ({"output_modalities": ["video"]}, "invalid_value", "output_modalities[0]"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 4097}, "invalid_value", "max_output_tokens"),
        ({"instructions": 3}, "invalid_type", "instructions"),
        ({"tools": [{"type": "function", "name": "now", "parameters": 3}]}, "invalid_type",
         "tools[0].parameters"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "unsupported", "tools[0].type"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"prompt": {"id": "pmpt_1"}}, "unsupported", "prompt"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "unsupported", "include"),
        ({"audio": 3}, "invalid_type", "audio"),
        ({"audio": {"output": {"speed": 2}}}, "invalid_value", "audio.output.speed"),
        ({"audio": {"output": {"speed": "fast"}}}, "invalid_type", "audio.output.speed"),
        ({"audio": {"output": {"voice": "nobody"}}}, "invalid_value", "audio.output.voice"),
        ({"audio": {"output": {"format": {"type": "audio/opus"}}}}, "invalid_value", "audio.output.format"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}}, "invalid_value",
         "audio.input.format.rate"),
        ({"audio": {"input": {"format": "pcm16"}}}, "invalid_type", "audio.input.format"),
        ({"audio": {"input": {"turn_detection": {"type": "none"}}}}, "invalid_value",
         "audio.input.turn_detection"),
        ({"audio": {"input": {"turn_detection": {"threshold": 1.5}}}}, "invalid_value",
         "audio.input.turn_detection.threshold"),
        ({"audio": {"input": {"turn_detection": {"silence_duration_ms": "500"}}}}, "invalid_type",
         "audio.input.turn_detection.silence_duration_ms"),
        ({"audio": {"input": {"turn_detection": {"idle_timeout_ms": 600}}}}, "invalid_value",
         "audio.input.turn_detection.idle_timeout_ms"),
        ({"audio": {"input": {"turn_detection": {"eagerness": "high"}}}}, "unknown_parameter",
         "audio.input.turn_detection.eagerness"),
        ({"audio": {"input": {"transcription": {"language": "English!"}}}}, "invalid_value",
         "audio.input.transcription.language"),
    ],
)  # fmt: skip
def test_a_wrong_update_names_the_field_and_changes_nothing(session: dict[str, Any], code: str, param: str):
    wire = codec()
    before = session_of(wire)
    error = refusal(wire, "session.update", session={"type": "realtime", "instructions": "New."} | session)
    assert (error.code, error.param) == (code, f"session.{param}")
    assert session_of(wire) == before
    assert update(wire) == DEFAULTS


def test_tools_are_kept_as_said_and_cleared_by_an_empty_list():
    wire = codec()
    schema = {"type": "object", "properties": {"at": {"type": ["string", "null"], "default": None}}}
    now = {"type": "function", "name": "now", "description": "The time.", "parameters": schema}
    config = update(wire, tools=[now], tool_choice="required")
    assert config.tools == ToolUse((Tool("now", "The time.", schema),), "required")
    assert session_of(wire)["tools"] == [now]
    assert update(wire, instructions="Hi.").tools == config.tools
    assert update(wire, tools=[], tool_choice=None).tools == ToolUse()


def transcribing() -> RealtimeCodec:
    return codec(begun=SessionObject.initial(OFFER, None, "transcription"))


def test_a_session_that_only_transcribes_shows_no_more_than_that():
    wire = transcribing()
    created = wire.created()[0]
    check(created)
    session = created["session"]
    assert set(session) == {"type", "object", "id", "audio", "include"}
    assert (session["type"], session["object"]) == ("transcription", "realtime.transcription_session")
    assert session["audio"]["input"]["transcription"] == {"model": "whisper-tiny.en"}
    config = update(wire, type="transcription", audio={"input": {"transcription": {"language": "de"}}})
    assert (config.answers, config.transcribe, config.language) == (False, True, "de")
    assert config.turn == TurnPolicy(create_response=False)
    (event,) = play(wire, Configured(config))
    assert event["session"]["audio"]["input"]["transcription"]["language"] == "de"
    assert update(wire, audio={"input": {"turn_detection": None}}).turn is None
    config = update(wire, audio={"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}})
    assert config.turn == TurnPolicy(patience=EAGERNESS["low"], create_response=False)


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "realtime"}, "invalid_value", "type"),
        ({"model": "gpt-realtime"}, "unknown_parameter", "model"),
        ({"instructions": "Sing."}, "unknown_parameter", "instructions"),
        ({"audio": {"output": {"voice": "alloy"}}}, "unknown_parameter", "audio.output"),
        ({"audio": {"input": {"transcription": None}}}, "invalid_value", "audio.input.transcription"),
        ({"audio": {"input": {"loud": True}}}, "unknown_parameter", "audio.input.loud"),
        ({"include": ["item.input_audio_transcription.logprobs"]}, "unsupported", "include"),
    ],
)
def test_what_a_session_that_only_transcribes_has_not(session: dict[str, Any], code: str, param: str):
    wire = transcribing()
    error = refusal(wire, "session.update", session={"type": "transcription"} | session)
    assert (error.code, error.param) == (code, f"session.{param}")


@pytest.mark.parametrize("kind", ["transcription", "realtime"])
def test_an_update_of_the_other_kind_is_refused_in_openais_words(kind: str):
    wire = codec() if kind == "transcription" else transcribing()
    other = "realtime" if kind == "transcription" else "transcription"
    error = refusal(wire, "session.update", session={"type": kind})
    assert error.message == f"Passing a {kind} session update event to a {other} session is not allowed."


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("response.create", {}),
        ("response.cancel", {}),
        ("conversation.item.create", {"item": {"type": "message", "role": "user", "content": []}}),
        ("conversation.item.truncate", {"item_id": "a", "content_index": 0, "audio_end_ms": 0}),
    ],
)
def test_nobody_answers_in_a_session_that_only_transcribes(kind: str, fields: dict[str, Any]):
    error = refusal(transcribing(), kind, **fields)
    assert (error.code, error.param) == ("invalid_value", "type")


def test_the_kind_of_a_secret_goes_before_the_urls():
    secret = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    assert SessionObject.begun(OFFER, "gpt-realtime", secret).kind == "transcription"
    assert SessionObject.begun(OFFER, None, {"instructions": "Hi."}, "transcription").kind == "realtime"
    assert SessionObject.begun(OFFER, None, None, "transcription").kind == "transcription"


def test_the_model_may_be_named_once_when_the_url_named_none():
    wire = codec(model=None)
    assert session_of(wire)["model"] == "antiphon"
    update(wire, model="gpt-realtime")
    assert session_of(wire)["model"] == "gpt-realtime"
    assert refusal(wire, "session.update", session={"model": "other"}).code == "cannot_update_model"


def test_the_voice_stays_once_it_has_spoken():
    wire = codec()
    update(wire, audio={"output": {"voice": "alto"}})
    play(wire, *BARGE_IN)
    error = refusal(wire, "session.update", session={"audio": {"output": {"voice": "heart"}}})
    assert (error.code, error.param) == ("cannot_update_voice", "session.audio.output.voice")
    error = refusal(wire, "response.create", response={"audio": {"output": {"voice": "alloy"}}})
    assert (error.code, error.param) == ("cannot_update_voice", "response.audio.output.voice")
    assert update(wire, audio={"output": {"voice": "alto", "speed": 0.5}}).speed == 0.5


def test_each_update_is_acknowledged_with_its_own_session():
    wire = codec()
    first = one(wire, "session.update", session={"instructions": "One."}).config
    second = one(wire, "session.update", session={"instructions": "Two."}).config
    events = play(wire, Configured(first), Configured(second))
    assert [event["session"]["instructions"] for event in events] == ["One.", "Two."]


def test_a_server_that_asks_for_probabilities_says_so_and_a_client_may_have_plain_silence():
    offer = replace(OFFER, defaults=replace(DEFAULTS, turn=TurnPolicy(patience=Patience())))
    wire = RealtimeCodec("sess_1", offer, new_id=counting(), model="gpt-realtime")
    assert session_of(wire)["audio"]["input"]["turn_detection"]["type"] == "semantic_vad"
    detection = {"type": "server_vad", "silence_duration_ms": 700}
    assert update(wire, audio={"input": {"turn_detection": detection}}).turn == TurnPolicy(silence=0.7)
