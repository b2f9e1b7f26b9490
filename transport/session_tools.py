"""Tools as a Realtime client names them, and what the language model is told of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ..pipeline.errors import BadRequest
from ..pipeline.tools import Tool, ToolUse
from . import schema


def tool_use(
    tools: Sequence[schema.FunctionTool | schema.McpTool],
    choice: schema.ToolChoice,
    parallel: bool | None,
    at: str,
) -> ToolUse:
    """at: where they stand, for errors. parallel: None is the default, yes. Raises BadRequest."""
    functions: list[Tool] = []
    for number, tool in enumerate(tools):
        if isinstance(tool, schema.McpTool):
            raise _no_mcp(f"{at}.tools[{number}].type")
        functions.append(Tool(tool.name, tool.description or "", tool.parameters or {}))
    if isinstance(choice, schema.McpTool):
        raise _no_mcp(f"{at}.tool_choice.type")
    if isinstance(choice, schema.NamedFunction):
        if all(tool.name != choice.name for tool in functions):
            raise BadRequest(
                f"No function in 'tools' has the name {choice.name!r:.80}.",
                code="invalid_value",
                param=f"{at}.tool_choice.name",
            )
        return ToolUse(tuple(functions), "required", choice.name, parallel is not False)
    if choice == "required" and not functions:
        raise BadRequest(
            "A tool call can be required only when there are tools.",
            code="invalid_value",
            param=f"{at}.tool_choice",
        )
    return ToolUse(tuple(functions), choice, parallel=parallel is not False)


def _no_mcp(param: str) -> BadRequest:
    return BadRequest(
        "MCP servers are not called by this server; give their tools as functions and call them yourself.",
        code="unsupported",
        param=param,
    )
