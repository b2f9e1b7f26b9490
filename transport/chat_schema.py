"""The body of POST /v1/chat/completions, as pydantic models: types, ranges, and nothing of what they mean.

`chat_request` says what a body asks of the models. Members that OpenAI knows and that change nothing here
(`store`, `prediction`, `safety_identifier`, `prompt_cache_key`, ...) are not listed: they are taken, whatever
they hold, as all unknown ones are.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .generation import Generation, Strict

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
"""Of functions, tools and schemas."""

MOST_MESSAGES = 2048
MOST_TOOLS = 128
MOST_LOGPROBS = 20

# --- messages -------------------------------------------------------------------------------------------


class TextPart(Strict):
    type: Literal["text"]
    text: str


class RefusalPart(Strict):
    type: Literal["refusal"]
    refusal: str


class InputAudio(Strict):
    """data: base64. format: is not believed, the file says what it is."""

    data: Annotated[str, Field(min_length=1)]
    format: Literal["wav", "mp3"]


class AudioPart(Strict):
    type: Literal["input_audio"]
    input_audio: InputAudio


class ImagePart(Strict):
    type: Literal["image_url"]


class FilePart(Strict):
    type: Literal["file"]


UserPart = Annotated[TextPart | AudioPart | ImagePart | FilePart, Field(discriminator="type")]
AssistantPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]
Texts = str | Annotated[list[TextPart], Field(min_length=1)]


class SystemMessage(Strict):
    role: Literal["system", "developer"]
    content: Texts
    name: str | None = None


class UserMessage(Strict):
    role: Literal["user"]
    content: str | Annotated[list[UserPart], Field(min_length=1)]
    name: str | None = None


class FunctionText(Strict):
    name: str
    arguments: str


class CustomText(Strict):
    name: str
    input: str


class FunctionCall(Strict):
    type: Literal["function"]
    id: Annotated[str, Field(min_length=1)]
    function: FunctionText


class CustomCall(Strict):
    type: Literal["custom"]
    id: Annotated[str, Field(min_length=1)]
    custom: CustomText


Call = Annotated[FunctionCall | CustomCall, Field(discriminator="type")]


class AudioReference(Strict):
    """id: of an answer's audio."""

    id: str


class AssistantMessage(Strict):
    role: Literal["assistant"]
    content: str | Annotated[list[AssistantPart], Field(min_length=1)] | None = None
    refusal: str | None = None
    name: str | None = None
    audio: AudioReference | None = None
    tool_calls: Annotated[list[Call], Field(max_length=MOST_TOOLS)] | None = None
    function_call: FunctionText | None = None


class ToolMessage(Strict):
    role: Literal["tool"]
    content: Texts
    tool_call_id: str


class FunctionMessage(Strict):
    role: Literal["function"]
    content: str | None
    name: str


ChatMessage = Annotated[
    SystemMessage | UserMessage | AssistantMessage | ToolMessage | FunctionMessage,
    Field(discriminator="role"),
]


# --- tools ----------------------------------------------------------------------------------------------


class Function(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Strict):
    type: Literal["function"]
    function: Function


class Grammar(Strict):
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Field(min_length=1, max_length=65_536)]


class TextFormat(Strict):
    type: Literal["text"]


class GrammarFormat(Strict):
    type: Literal["grammar"]
    grammar: Grammar


class Custom(Strict):
    name: Name
    description: str | None = None
    format: Annotated[TextFormat | GrammarFormat, Field(discriminator="type")] | None = None


class CustomTool(Strict):
    type: Literal["custom"]
    custom: Custom


AnyTool = Annotated[FunctionTool | CustomTool, Field(discriminator="type")]


class Named(Strict):
    name: str


class NamedFunction(Strict):
    type: Literal["function"]
    function: Named


class NamedCustom(Strict):
    type: Literal["custom"]
    custom: Named


NamedTool = Annotated[NamedFunction | NamedCustom, Field(discriminator="type")]


class AllowedTools(Strict):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MOST_TOOLS)]


class Allowed(Strict):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[NamedFunction | NamedCustom | Allowed, Field(discriminator="type")]
)


# --- the form of the answer -----------------------------------------------------------------------------


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class NamedSchema(Strict):
    name: Name
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """vLLM's. Of its forms, those that a schema can say."""

    json_: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    json_object: bool | None = None
    regex: Any = None
    choice: Any = None
    grammar: Any = None
    structural_tag: Any = None


class VoiceId(Strict):
    id: str


class Audio(Strict):
    voice: str | VoiceId
    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]


class ChatBody(Generation):
    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[AnyTool], Field(max_length=MOST_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Function], Field(max_length=MOST_TOOLS)] | None = None
    function_call: Literal["none", "auto"] | Named | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1)] | None = None
    audio: Audio | None = None
    metadata: dict[str, str] | None = None
    service_tier: str | None = None
    web_search_options: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
