"""Items in order, and an agent's item cut to what was heard."""

import pytest

from antiphon.llm.base import Message
from antiphon.pipeline.conversation import Conversation
from antiphon.pipeline.errors import BadRequest, NotFound
from antiphon.pipeline.events import Item, Part
from antiphon.pipeline.playback import Spoken


def user(item_id: str, text: str | None = "hello") -> Item:
    return Item(item_id, role="user", parts=(Part("input_text", text),))


def agent(item_id: str, text: str) -> Item:
    return Item(item_id, role="assistant", parts=(Part("output_audio", text),))


def test_insertion_and_previous_ids():
    talk = Conversation()
    assert talk.add(user("a")) is None
    assert talk.add(user("b")) == "a"
    assert talk.add(user("c"), "a") == "a"
    assert talk.add(user("d"), "root") is None
    assert [item.id for item in talk.items] == ["d", "a", "c", "b"]


def test_faults_are_named():
    talk = Conversation(max_items=2)
    talk.add(user("a"))
    with pytest.raises(BadRequest, match="already"):
        talk.add(user("a"))
    with pytest.raises(NotFound) as unknown:
        talk.add(user("b"), "nowhere")
    assert unknown.value.param == "previous_item_id"
    talk.add(user("b"))
    with pytest.raises(BadRequest, match="max_items"):
        talk.add(user("c"))
    with pytest.raises(NotFound):
        talk.delete("c")


def test_messages_leave_out_what_has_no_words():
    talk = Conversation()
    talk.add(user("a", None))
    talk.add(user("b", " hi "))
    talk.add(agent("c", "Hello."))
    assert talk.messages("Be kind.") == [
        Message("system", "Be kind."),
        Message("user", "hi"),
        Message("assistant", "Hello."),
    ]
    assert talk.messages("") == [Message("user", "hi"), Message("assistant", "Hello.")]


@pytest.fixture
def spoken() -> Conversation:
    talk = Conversation()
    text = "One two three. Four five six."
    talk.add(agent("a", ""))
    talk.update(agent("a", text), [Spoken("One two three.", 0.0, 1.0), Spoken(" Four five six.", 1.0, 2.0)])
    return talk


def text_of(talk: Conversation) -> str | None:
    return talk.get("a").parts[0].text


@pytest.mark.parametrize(
    ("at", "kept", "text"),
    [
        (0.0, 0.0, ""),
        (0.74, 0.74, "One two"),
        (1.0, 1.0, "One two three."),
        (1.5, 1.5, "One two three. Four"),
        (99.0, 2.0, "One two three. Four five six."),
    ],
)
def test_truncate_keeps_the_heard_prefix_and_clamps(spoken: Conversation, at: float, kept: float, text: str):
    assert spoken.truncate("a", at) == kept
    assert text_of(spoken) == text


def test_truncating_twice_keeps_the_shorter(spoken: Conversation):
    spoken.truncate("a", 1.5)
    assert spoken.truncate("a", 1.9) == 1.5
    assert text_of(spoken) == "One two three. Four"
    spoken.truncate("a", 0.74)
    assert text_of(spoken) == "One two"
    spoken.truncate("a", 0.0)
    assert text_of(spoken) == ""


def test_only_the_agents_audio_is_truncated():
    talk = Conversation()
    talk.add(user("a"))
    with pytest.raises(BadRequest, match="agent's audio"):
        talk.truncate("a", 1.0)


def test_a_deleted_item_stays_deleted(spoken: Conversation):
    spoken.delete("a")
    spoken.update(agent("a", "late"))
    assert len(spoken) == 0


def test_what_never_left_is_not_counted_as_heard(spoken: Conversation):
    spoken.update(spoken.get("a"), [Spoken("One two three. Four five six.", 0.0, 2.0)], sent=0.9)
    assert spoken.truncate("a", 5.0) == 0.9
    assert text_of(spoken) == "One two"


def test_content_other_than_the_audio_is_not_truncated(spoken: Conversation):
    with pytest.raises(BadRequest, match="content_index 0"):
        spoken.truncatable("a", 1)
