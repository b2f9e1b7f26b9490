"""Chat templates: rendered as their authors expect, the beginning of a conversation always the same."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from antiphon.llm.base import Message, Tool, ToolCall
from antiphon.llm.templates import ChatTemplate
from antiphon.pipeline.errors import BadRequest, WeightsError

CHATML = """
{%- if tools %}
    {{- '[tools]' }}
    {%- for tool in tools %}
        {{- tool | tojson }}
    {%- endfor %}
{%- endif %}
{%- for message in messages %}
    {{- '[' + message.role + ']' + message.content }}
    {%- for call in message.tool_calls %}
        {{- '[call ' + call.function.name + ' ' + (call.function.arguments | tojson) + ']' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '[assistant]' }}
{%- endif %}
"""
USER = Message("user", 'Is "a" < b & <|end|>?')


def template(source: str, **more: Any) -> ChatTemplate:
    return ChatTemplate(source, now=lambda: datetime(2026, 12, 1, 9, 30), **more)


def test_messages_become_one_text_that_the_reply_continues() -> None:
    assert template(CHATML).render([USER]) == '[user]Is "a" < b & <|end|>?[assistant]'


def test_calls_and_their_results_are_rendered() -> None:
    call = ToolCall("call_1", "get_weather", '{"city":"Åbo <&>"}')
    messages = [
        USER,
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "3 °C", tool_call_id="call_1"),
    ]
    rendered = template(CHATML).render(messages)
    assert '[assistant][call get_weather {"city": "Åbo <&>"}][tool]3 °C[assistant]' in rendered


def test_a_tool_is_shown_in_the_form_that_models_know() -> None:
    rendered = template(CHATML).render([USER], [Tool("now", "The time.")])
    shown = (
        '[tools]{"type": "function", "function": {"name": "now", "description": "The time.", '
        '"parameters": {"type": "object", "properties": {}}}}'
    )
    assert rendered.startswith(shown)
    assert "[tools]" not in template(CHATML).render([USER], [])


def test_a_conversation_begins_with_what_it_was_before() -> None:
    history = [Message("system", "Be brief."), USER]
    first = template(CHATML).render(history)
    more = [*history, Message("assistant", "Yes."), Message("user", "Why?")]
    assert template(CHATML).render(more).startswith(first + "Yes.")


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Dec 2026"),
        ("{% if true %}\n  {% if true %}\na{% endif %}\n{% endif %}", "a"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}!", "!"),
        ("{% generation %}{{ messages[0].role }}{% endgeneration %}", "user"),
        ("{{ enable_thinking }}", "False"),
        ("{{ messages | tojson(indent=1) | length > 9 }}", "True"),
    ],
)
def test_templates_find_what_transformers_gives_them(source: str, rendered: str) -> None:
    made = template(source, bos="<s>", eos="</s>")
    assert made.render([USER], variables={"enable_thinking": False}) == rendered


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('Roles must alternate.') }}", "Roles must alternate."),
        ("{{ messages[7].content }}", "cannot render"),
        ("{{ messages[0].content + 3 }}", "cannot render"),
        ("{{ messages.append(1) }}", "cannot render"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot render"),
        ("{% for x in range(10**9) %}{% endfor %}", "cannot render"),
    ],
)
def test_what_a_template_refuses_is_the_clients_error(source: str, said: str) -> None:
    with pytest.raises(BadRequest, match=said) as raised:
        template(source).render([USER])
    assert raised.value.param == "messages"


@pytest.mark.parametrize("arguments", ["[1]", "{", "3"])
def test_arguments_that_are_no_object_are_refused(arguments: str) -> None:
    call = ToolCall("call_1", "now", arguments)
    with pytest.raises(BadRequest, match="JSON object"):
        template(CHATML).render([USER, Message("assistant", "", tool_calls=(call,))])


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_a_caller_cannot_set_what_is_not_theirs(name: str) -> None:
    with pytest.raises(BadRequest, match=name) as raised:
        template(CHATML).render([USER], variables={name: []})
    assert raised.value.param == "chat_template_kwargs"


def test_a_source_that_is_no_template_is_the_operators_error() -> None:
    with pytest.raises(WeightsError, match="chat template"):
        template("{% if %}")


def test_a_thinking_model_is_known_by_its_template() -> None:
    assert template("{{ '<think>\n' }}").thinks
    assert not template(CHATML).thinks
