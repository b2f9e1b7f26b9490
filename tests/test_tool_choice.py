"""Tools as the model is given them, and the schemas that were asked to be held to strictly."""

import re

import pytest

from antiphon.llm import structured
from antiphon.pipeline.errors import BadRequest
from antiphon.transport.tool_choice import Check, custom_tool, function_tool


def test_a_function_is_checked_when_it_is_strict() -> None:
    parameters = {"properties": {"a": {"type": "integer"}}}
    tool, checks = function_tool("f", None, parameters, strict=True, at="tools[0]")
    assert (tool.name, tool.description, tool.parameters) == ("f", "", parameters)
    [check] = checks
    assert check.param == "tools[0].parameters"
    assert check.schema == {"type": "object", **parameters}
    assert function_tool("f", "x", parameters, strict=False, at="")[1] == []
    assert function_tool("f", "x", None, strict=True, at="x")[1][0].schema == {"type": "object"}


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    tool, checks = custom_tool("sql", "Asks.", None, at="tools[0].format")
    assert tool.parameters["properties"] == {"input": {"type": "string"}}
    assert tool.parameters["required"] == ["input"]
    assert checks == []


def test_its_grammar_is_a_pattern_of_the_whole_text() -> None:
    tool, checks = custom_tool("n", None, ("regex", "[0-9]+|x"), at="at")
    [check] = checks
    assert isinstance(check, Check)
    assert check.param == "at.definition"
    pattern = tool.parameters["properties"]["input"]["pattern"]
    assert re.search(pattern, "12")
    assert not re.search(pattern, "12a")
    assert "[0-9]+|x" in tool.description
    structured.check(check.schema, subject=check.subject, param=check.param)


def test_other_grammars_are_refused_with_their_place() -> None:
    with pytest.raises(BadRequest) as caught:
        custom_tool("n", None, ("lark", "start: /a/"), at="tools[1].format")
    assert (caught.value.param, caught.value.code) == ("tools[1].format.syntax", "unsupported")
