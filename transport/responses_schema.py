"""The bodies and queries of /v1/responses, as pydantic models: types, ranges, and nothing of what they mean.

`responses_request` says what a body asks of the models. Members that OpenAI knows and that change nothing here
(`moderation`, `context_management`, `access_programs`, `prompt_cache_options`, ...) are not listed: they are
taken, whatever they hold, as all unknown ones are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Discriminator, Field, Tag

from .chat_schema import MOST_LOGPROBS, MOST_TOOLS, Grammar, Name, TextFormat
from .generation import Generation, Strict

MOST_ITEMS = 2048
MOST_METADATA = 16

Id = Annotated[str, Field(min_length=1, max_length=256)]
Status = Literal["in_progress", "completed", "incomplete"]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# --- items ----------------------------------------------------------------------------------------------


class InputText(Strict):
    type: Literal["input_text"]
    text: str


class OutputText(Strict):
    type: Literal["output_text"]
    text: str


class Refusal(Strict):
    type: Literal["refusal"]
    refusal: str


class OtherPart(Strict):
    """What no model here can read."""

    type: Literal["input_image", "input_file", "input_audio"]


Part = Annotated[InputText | OutputText | Refusal | OtherPart, Field(discriminator="type")]
Content = str | list[Part]


class MessageItem(Strict):
    """OpenAI's messages, the easy ones (without a type) and those of an output."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: Id | None = None
    status: Status | None = None


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    arguments: str
    id: Id | None = None
    status: Status | None = None


class FunctionOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: Id
    output: Content
    id: Id | None = None
    status: Status | None = None


class CustomCallItem(Strict):
    type: Literal["custom_tool_call"]
    call_id: Id
    name: Annotated[str, Field(min_length=1)]
    input: str
    id: Id | None = None
    status: Status | None = None


class CustomOutputItem(Strict):
    type: Literal["custom_tool_call_output"]
    call_id: Id
    output: Content
    id: Id | None = None
    status: Status | None = None


class SummaryText(Strict):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    type: Literal["reasoning"]
    id: Id | None = None
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class ItemReference(Strict):
    type: Literal["item_reference"] | None = None
    id: Id


KINDS = (
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
    *("reasoning", "item_reference"),
)


def _kind(given: Any) -> str | None:
    """The type of an item, which messages and references may leave out."""
    if not isinstance(given, dict):
        return None
    item = cast("dict[str, Any]", given)
    kind = item.get("type")
    if kind is None:
        return "message" if "role" in item else "item_reference" if "id" in item else None
    return kind if kind in KINDS else None


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _kind,
        custom_error_type="item_kind",
        custom_error_message=f"Items of an input are of the types {', '.join(KINDS)}",
    ),
]


# --- tools ----------------------------------------------------------------------------------------------


class FunctionTool(Strict):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class GrammarFormat(Grammar):
    type: Literal["grammar"]


class CustomTool(Strict):
    type: Literal["custom"]
    name: Name
    description: str | None = None
    format: Annotated[TextFormat | GrammarFormat, Field(discriminator="type")] | None = None


class HostedTool(Strict):
    """What OpenAI runs itself. There is none of it here."""

    type: Literal[
        "web_search",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "mcp",
        "image_generation",
        "local_shell",
        "shell",
        "apply_patch",
    ]


AnyTool = Annotated[FunctionTool | CustomTool | HostedTool, Field(discriminator="type")]


class NamedFunction(Strict):
    type: Literal["function"]
    name: str


class NamedCustom(Strict):
    type: Literal["custom"]
    name: str


NamedTool = Annotated[NamedFunction | NamedCustom, Field(discriminator="type")]


class Allowed(Strict):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MOST_TOOLS)]


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedFunction | NamedCustom | Allowed, Field(discriminator="type")]
)


# --- the rest -------------------------------------------------------------------------------------------


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    name: Name
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Strict):
    format: (
        Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")] | None
    ) = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Strict):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


Include = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]

Key = Annotated[str, Field(max_length=64)]
Value = Annotated[str, Field(max_length=512)]


class ContextBody(Strict):
    """What a prompt is made of."""

    input: str | Annotated[list[Item], Field(max_length=MOST_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Any = None
    prompt: Any = None


class ResponsesBody(ContextBody, Generation):
    max_output_tokens: Annotated[int, Field(ge=16, lt=2**31)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    include: list[Include] | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Annotated[dict[Key, Value], Field(max_length=MOST_METADATA)] | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None


class CountBody(ContextBody):
    """Of POST /v1/responses/input_tokens."""

    model: str | None = None


class RetrieveQuery(BaseModel):
    """starting_after: the number of the last event that the client has."""

    include: list[str] | str | None = None
    include_obfuscation: bool | None = None
    starting_after: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    stream: bool | None = None


class ItemsQuery(BaseModel):
    """after: the id of the last item that the client has."""

    after: str | None = None
    include: list[str] | str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


# --- answers --------------------------------------------------------------------------------------------


class ResponseObject(BaseModel):
    """Of a response, for the document: the members that a client reads first."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "failed", "in_progress", "cancelled", "queued", "incomplete"]
    model: str
    output: list[dict[str, Any]]
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None
    usage: dict[str, Any] | None


class ItemList(BaseModel):
    """first_id, last_id: empty where there are no items."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class Deleted(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputTokens(BaseModel):
    object: Literal["response.input_tokens"]
    input_tokens: int


def tool_object(tool: FunctionTool | CustomTool) -> Mapping[str, Any]:
    """A tool as a response repeats it."""
    if isinstance(tool, FunctionTool):
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
    return tool.model_dump(exclude_none=True)
