"""The codec: what each client event asks for, what is refused and how, and the wire of every output."""

import base64
import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import (
    ASSISTANT,
    CALLED,
    CAPTURES,
    EVERYTHING_ELSE,
    FAILURE,
    NOW,
    VOICE_TURN,
    WIRE,
    b64,
    check,
    codec,
    decode,
    one,
    play,
    ramp,
    refusal,
    session_of,
    update,
)

from antiphon.pipeline.audio import mulaw_to_samples, pcm16_to_samples, samples_to_mulaw, samples_to_pcm16
from antiphon.pipeline.events import (
    AppendAudio,
    CancelResponse,
    ClearAudio,
    CommitAudio,
    Configure,
    Configured,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Failed,
    Item,
    Output,
    OutputAudio,
    OutputCall,
    OutputDone,
    OutputStarted,
    Part,
    Response,
    ResponseDone,
    RetrieveItem,
    TruncateItem,
)
from antiphon.pipeline.tools import Tool, ToolUse
from antiphon.transport import schema
from antiphon.transport.realtime import RealtimeCodec


@pytest.mark.parametrize("name", CAPTURES)
def test_the_wire_is_the_golden_capture(name: str, request: pytest.FixtureRequest):
    wire = codec(expires_at=1_800_000_000)
    events = [*wire.created(), *play(wire, *CAPTURES[name])]
    check(events[0])
    lines = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events)
    assert lines == (WIRE / f"{name}.jsonl").read_text(encoding="utf-8")


def test_every_output_is_in_a_capture():
    covered = {type(output) for outputs in CAPTURES.values() for output in outputs}
    assert covered == set(get_args(Output))


def test_a_voice_turn_comes_in_the_order_of_the_api():
    kinds = [event["type"] for event in play(codec(), *VOICE_TURN)]
    transcription = "conversation.item.input_audio_transcription"
    assert kinds == [
        "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed", "conversation.item.added", "conversation.item.done",
        f"{transcription}.delta", f"{transcription}.completed",
        "response.created", "response.output_item.added", "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta", "response.output_audio.delta",
        "response.output_audio_transcript.delta", "response.output_audio.delta",
        "response.output_audio.done", "response.output_audio_transcript.done", "response.content_part.done",
        "conversation.item.done", "response.output_item.done", "response.done",
    ]  # fmt: skip


def test_event_ids_are_all_different():
    events = play(codec(), *VOICE_TURN)
    assert len({event["event_id"] for event in events}) == len(events)


def test_an_out_of_band_response_is_not_an_item_of_the_conversation():
    kinds = [event["type"] for event in play(codec(), *EVERYTHING_ELSE)]
    added = kinds.index("response.output_item.added")
    assert "conversation.item.added" not in kinds[added:]


def test_optional_strings_are_left_out_rather_than_null():
    events = play(codec(), *VOICE_TURN, *EVERYTHING_ELSE)
    for event in events:
        if event["type"].startswith("response.content_part"):
            assert None not in event["part"].values()
        if event["type"].endswith("transcription.failed"):
            assert event["error"] == {
                "message": "the model failed", "type": "server_error", "code": "engine_failed"
            }  # fmt: skip


# --- audio out ------------------------------------------------------------------------------------------


def sent(events: list[dict[str, Any]]) -> bytes:
    return b"".join(
        base64.b64decode(event["delta"]) for event in events if event["type"] == "response.output_audio.delta"
    )


def spoken(
    wire: RealtimeCodec, samples: np.ndarray, rate: int, *, status: Any = "completed"
) -> list[dict[str, Any]]:
    item = Item("item_2", role="assistant", parts=(Part("output_audio", "x"),), status=status)
    pieces = np.array_split(samples, 7)
    return play(
        wire,
        OutputStarted("resp_1", ASSISTANT, None),
        *(OutputAudio("resp_1", "item_2", piece, rate, 0.0) for piece in pieces),
        OutputDone("resp_1", item, None),
    )


def test_all_that_is_produced_is_delivered():
    samples = ramp(0, 3)
    assert sent(spoken(codec(), samples, 24_000)) == samples_to_pcm16(samples)


def test_resampled_audio_loses_nothing_at_its_end():
    assert len(sent(spoken(codec(), ramp(0, 1.0)[:22_050], 22_050))) == 2 * 24_000


def test_a_cut_reply_sends_nothing_after_the_cut():
    events = spoken(codec(), ramp(0, 1.0)[:22_050], 22_050, status="incomplete")
    assert 2 * 23_900 < len(sent(events)) < 2 * 24_000


def test_a_delta_holds_at_most_200_ms():
    deltas = [e["delta"] for e in spoken(codec(), ramp(0, 5), 24_000) if "output_audio.delta" in e["type"]]
    assert max(len(base64.b64decode(delta)) for delta in deltas) == 2 * 4800


def test_g711_goes_out_at_8_khz():
    wire = codec()
    update(wire, audio={"output": {"format": {"type": "audio/pcmu"}}})
    samples = (0.3 * np.sin(np.arange(24_000) * 2 * np.pi * 300 / 24_000)).astype(np.float32)
    heard = mulaw_to_samples(sent(spoken(wire, samples, 24_000)))
    assert len(heard) == 8000
    assert np.sqrt(np.mean((heard - samples[::3]) ** 2)) < 0.01


def test_the_output_format_changes_when_the_client_is_told():
    wire = codec()
    configure = one(wire, "session.update", session={"audio": {"output": {"format": {"type": "audio/pcma"}}}})
    assert len(sent(spoken(wire, ramp(0, 1), 24_000))) == 48_000
    play(wire, Configured(configure.config))
    assert len(sent(spoken(wire, ramp(0, 1), 24_000))) == 8_000


def test_audio_of_a_reply_that_is_done_is_not_sent():
    wire = codec()
    play(wire, *VOICE_TURN)
    assert wire.encode(OutputAudio("resp_1", "item_2", ramp(0, 1), 24_000, 0.0)) == []


# --- audio in -------------------------------------------------------------------------------------------


def appended(commands: Any) -> np.ndarray:
    assert not isinstance(commands, Failed), commands.error.message
    return np.concatenate([np.zeros(0)] + [c.samples for c in commands if isinstance(c, AppendAudio)])


def test_appended_audio_is_16_khz_and_whole_after_a_commit():
    wire = codec()
    tone = (0.5 * np.sin(np.arange(12_000) * 2 * np.pi * 440 / 24_000)).astype(np.float32)
    data = samples_to_pcm16(tone)
    heard = [appended(decode(wire, "input_audio_buffer.append", audio=b64(data[at : at + 1000])))
             for at in range(0, len(data), 1000)]  # fmt: skip
    *rest, commit = decode(wire, "input_audio_buffer.commit")
    assert commit == CommitAudio("mine")
    samples = np.concatenate([*heard, appended(rest)])
    expected = 0.5 * np.sin(np.arange(8_000) * 2 * np.pi * 440 / 16_000)
    assert len(samples) == 8_000
    assert np.abs(samples - expected)[100:-100].max() < 1e-3


def test_a_long_append_comes_in_pieces():
    commands = decode(codec(), "input_audio_buffer.append", audio=b64(bytes(96_000)))
    assert [len(c.samples) for c in commands[:-1]] == [16_000]
    assert all(c.event_id == "mine" for c in commands)


def test_clear_forgets_what_the_resampler_holds():
    wire = codec()
    decode(wire, "input_audio_buffer.append", audio=b64(samples_to_pcm16(np.ones(2400, np.float32))))
    assert one(wire, "input_audio_buffer.clear") == ClearAudio("mine")
    assert np.abs(appended(decode(wire, "input_audio_buffer.append", audio=b64(bytes(4800))))).max() == 0


def test_g711_comes_in_at_8_khz():
    wire = codec()
    update(wire, audio={"input": {"format": {"type": "audio/pcmu"}}})
    data = samples_to_mulaw(np.zeros(801, np.float32))
    heard = appended(decode(wire, "input_audio_buffer.append", audio=b64(data)))
    assert 1550 < len(heard) <= 1602


def test_a_change_of_format_keeps_the_old_audio():
    wire = codec()
    first = appended(decode(wire, "input_audio_buffer.append", audio=b64(bytes(4800))))
    *rest, configure = decode(
        wire, "session.update", session={"audio": {"input": {"format": {"type": "audio/pcma"}}}}
    )
    assert isinstance(configure, Configure)
    assert len(first) + len(appended(rest)) == 1600


# --- bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "code", "param"),
    [
        ("{", "invalid_json", None),
        ("", "invalid_json", None),
        ("[" * 100_000, "invalid_json", None),
        ('{"type": "response.cancel", "x": NaN}', "invalid_json", None),
        ("[]", "invalid_json", None),
        ("null", "invalid_json", None),
        (b"\x00\x01", "binary_frame", None),
        ("{}", "missing_required_parameter", "type"),
        ('{"type": 3}', "invalid_value", "type"),
        ('{"type": "response.audio"}', "invalid_value", "type"),
        ('{"type": "output_audio_buffer.clear"}', "unsupported", "type"),
        ('{"type": "input_audio_buffer.append"}', "missing_required_parameter", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": 1}', "invalid_type", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "###"}', "invalid_base64", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "é"}', "invalid_base64", "audio"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "invalid_audio", None),
        ('{"type": "input_audio_buffer.commit", "final": true}', "unknown_parameter", "final"),
        ('{"type": "response.cancel", "event_id": 7}', "invalid_type", "event_id"),
        ('{"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": -1}',
         "invalid_value", "audio_end_ms"),
        ('{"type": "conversation.item.truncate", "item_id": "a", "content_index": 0, "audio_end_ms": "1"}',
         "invalid_type", "audio_end_ms"),
        ('{"type": "session.update", "session": {"instructions": "\\ud800"}}', "invalid_json", None),
    ],
)  # fmt: skip
def test_bad_messages_are_errors_that_name_the_fault(message: str | bytes, code: str, param: str | None):
    wire = codec()
    before = session_of(wire)
    asked = wire.decode(message)
    assert isinstance(asked, Failed)
    assert (asked.error.code, asked.error.param) == (code, param)
    (event,) = play(wire, asked)
    assert event["error"]["type"] == "invalid_request_error"
    assert session_of(wire) == before


WORDS = sorted(
    {"type", "session", "event_id", "item", "item_id", "response", "audio", "content", "role", "id", "input"}
    | {"output", "format", "turn_detection", "voice", "speed", "tracing", "metadata", "truncation", "tools"}
    | {"transcription", "threshold", "message", "user", "server_vad", "audio/pcmu", "realtime", "auto", "inf"}
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(WORDS)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS) | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(schema.EVENTS)), st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=5))
def test_whatever_comes_is_a_command_or_an_error(kind: str, fields: dict[str, Any]):
    wire = codec()
    asked = wire.decode(json.dumps(fields | {"type": kind}))
    if isinstance(asked, Failed):
        play(wire, asked)
    for event in wire.created():
        check(event)


@pytest.mark.parametrize(
    "session",
    [
        {"tracing": {"metadata": {"a": {"b": 1}}}},
        {"instructions": "x" * 200_000},
        {"audio": {"output": {"speed": 10**400}}},
    ],
)
def test_nothing_unbounded_is_kept(session: dict[str, Any]):
    assert refusal(codec(), "session.update", session=session).type == "invalid_request_error"


def test_an_append_over_the_limit_is_refused_before_it_is_decoded():
    assert refusal(codec(), "input_audio_buffer.append", audio="A" * 200_000).code == "too_large"


def test_a_refused_append_takes_nothing():
    wire = codec()
    refusal(wire, "input_audio_buffer.append", audio=b64(bytes(2401)))
    assert len(appended(decode(wire, "input_audio_buffer.commit"))) == 0


# --- the other client events ----------------------------------------------------------------------------


def test_plain_client_events():
    wire = codec()
    assert one(wire, "conversation.item.retrieve", item_id="a") == RetrieveItem("a", "mine")
    assert one(wire, "conversation.item.delete", item_id="a") == DeleteItem("a", "mine")
    assert one(wire, "response.cancel") == CancelResponse(None, "mine")
    assert one(wire, "response.cancel", response_id="r") == CancelResponse("r", "mine")
    assert one(wire, "response.create") == CreateResponse(event_id="mine")
    assert one(
        wire, "conversation.item.truncate", item_id="a", content_index=0, audio_end_ms=1250
    ) == TruncateItem("a", 0, 1.25, "mine")


def message(role: str, *content: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(content), **rest}


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        (message("user", {"type": "input_text", "text": "Hi"}),
         Item("", role="user", parts=(Part("input_text", "Hi"),))),
        (message("system", {"type": "input_text", "text": ""}, id="s1"),
         Item("s1", role="system", parts=(Part("input_text", ""),))),
        (message("user", {"type": "input_audio", "audio": "AAAA", "transcript": "Hi"},
                 object="realtime.item"),
         Item("", role="user", parts=(Part("input_audio", "Hi"),))),
        (message("assistant", {"type": "output_text", "text": "A"},
                 {"type": "output_audio", "transcript": "B"}, status="completed"),
         Item("", role="assistant", parts=(Part("output_text", "A"), Part("output_audio", "B")))),
        ({"type": "function_call", "name": "now", "arguments": "{}", "call_id": "c"},
         Item("", "function_call", name="now", arguments="{}", call_id="c")),
        ({"type": "function_call_output", "output": "12", "call_id": "c"},
         Item("", "function_call_output", output="12", call_id="c")),
    ],
)  # fmt: skip
def test_items_come_in(item: dict[str, Any], expected: Item):
    wire = codec()
    command = one(wire, "conversation.item.create", item=item, previous_item_id="root")
    assert command == CreateItem(expected, "root", "mine")
    as_input = one(wire, "response.create", response={"input": [item], "conversation": "none"})
    assert as_input == CreateResponse(input=[expected], in_conversation=False, event_id="mine")


@pytest.mark.parametrize(
    ("item", "code", "param"),
    [
        (message("user", {"type": "input_audio", "audio": "AAAA"}), "unsupported", "item.content[0].audio"),
        (message("user", {"type": "input_text"}), "missing_required_parameter", "item.content[0].text"),
        (message("user", {"type": "input_image", "image_url": "data:"}), "unsupported", "item.content[0]"),
        (message("user", {"type": "output_text", "text": "x"}), "invalid_value", "item.content[0].type"),
        (message("user", {"type": "text", "text": "x"}), "invalid_value", "item.content[0].type"),
        (message("tool"), "invalid_value", "item.role"),
        ({"type": "item_reference", "id": "a"}, "invalid_value", "item"),
        ({"type": "function_call_output", "output": {}, "call_id": "c"}, "invalid_type", "item.output"),
        (
            {"type": "function_call", "name": "now", "arguments": "{", "call_id": "c"},
            "invalid_value",
            "item.arguments",
        ),
        ({"role": "user"}, "invalid_value", "item"),
    ],
)
def test_items_that_cannot_be_had(item: dict[str, Any], code: str, param: str):
    error = refusal(codec(), "conversation.item.create", item=item)
    assert (error.code, error.param) == (code, param)


def test_a_response_may_differ_from_its_session():
    wire = codec()
    update(wire, max_output_tokens=100)
    asked = one(
        wire,
        "response.create",
        response={
            "instructions": "Sing.",
            "output_modalities": ["text"],
            "audio": {"output": {"voice": "alto", "format": {"type": "audio/pcm", "rate": 24000}}},
            "max_output_tokens": "inf",
            "metadata": {"topic": "song"},
            "tools": [],
            "tool_choice": "none",
        },
    )
    assert asked == CreateResponse(
        "Sing.", "text", "alto", 4096, {"topic": "song"}, tools=ToolUse(mode="none"), event_id="mine"
    )


def test_the_tools_of_a_response_are_its_own_or_the_sessions():
    wire = codec()
    assert one(wire, "response.create").tools is None
    update(wire, tools=[NOW], tool_choice="none", parallel_tool_calls=False)
    tools = (Tool("now", "Tells the time.", {"type": "object", "properties": {}}),)
    asked = one(wire, "response.create", response={"tool_choice": {"type": "function", "name": "now"}})
    assert asked.tools == ToolUse(tools, "required", "now", parallel=False)
    asked = one(wire, "response.create", response={"tools": [NOW | {"name": "then"}]})
    assert (asked.tools.tools[0].name, asked.tools.mode) == ("then", "auto")
    asked = one(wire, "response.create", response={"parallel_tool_calls": True})
    assert asked.tools == ToolUse(tools, "none", parallel=True)


def test_a_call_outside_the_conversation_is_no_item_of_it():
    call = OutputCall("resp_1", CALLED, None, 0, in_conversation=False)
    kinds = [event["type"] for event in play(codec(), call)]
    assert kinds == [
        "response.output_item.added", "response.function_call_arguments.delta",
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("response", "code", "param"),
    [
        ({"audio": {"output": {"format": {"type": "audio/pcmu"}}}}, "unsupported", "audio.output.format"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata"),
        ({"conversation": "conv_1"}, "invalid_value", "conversation"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "unsupported", "tools[0].type"),
        ({"tools": [{"type": "function", "name": "no spaces"}]}, "invalid_value", "tools[0].name"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "now"}}, "invalid_value", "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "then"}}, "invalid_value",
         "tool_choice.name"),
        ({"prompt": {"id": "pmpt_1"}}, "unsupported", "prompt"),
        ({"modalities": ["text"]}, "unknown_parameter", "modalities"),
    ],
)  # fmt: skip
def test_responses_that_cannot_be_had(response: dict[str, Any], code: str, param: str):
    error = refusal(codec(), "response.create", response=response)
    assert (error.code, error.param) == (code, f"response.{param}")


def test_a_failed_response_says_why():
    (event,) = play(codec(), ResponseDone(Response("r", "text", "failed", error=FAILURE)))
    assert event["response"]["status_details"] == {
        "type": "failed",
        "error": {"type": "server_error", "code": "engine_failed", "message": "the model failed"},
    }


def test_usage_adds_up():
    done = play(codec(), *VOICE_TURN)[-1]["response"]["usage"]
    assert (done["input_tokens"], done["output_tokens"], done["total_tokens"]) == (31, 31, 62)
    assert done["input_token_details"]["cached_tokens"] == 20
    assert done["output_token_details"] == {"text_tokens": 6, "audio_tokens": 25}


def test_pcm_is_little_endian():
    wire = codec()
    events = spoken(wire, np.array([1 / 32768] * 240, np.float32), 24_000)
    assert sent(events)[:2] == b"\x01\x00"
    assert pcm16_to_samples(b"\x01\x00")[0] == np.float32(1 / 32768)


def test_half_a_surrogate_pair_is_refused_with_the_clients_event_id() -> None:
    lone = '{"type":"session.update","event_id":"E","session":{"type":"realtime","instructions":"\\ud800"}}'
    refused = codec().decode(lone)
    assert isinstance(refused, Failed)
    assert (refused.event_id, refused.error.code) == ("E", "invalid_json")
    nameless = codec().decode('{"type":"x","event_id":"\\udfff"}')
    assert isinstance(nameless, Failed)
    assert nameless.event_id is None
