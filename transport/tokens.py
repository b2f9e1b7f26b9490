"""POST /tokenize and /detokenize: how the language model reads a text, in vLLM's shapes.

A prompt is read as it stands, names of special tokens (`<|im_end|>`) as these; messages are read as a chat
completion of them would be. `add_special_tokens` has no effect: what a text begins with is its template's to
say, and the count is that of what the model would be given.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from ..llm.base import TextModel
from ..pipeline.errors import BadRequest, NotFound
from .chat_request import read, sounds
from .chat_schema import ChatBody
from .http import Endpoint, Services, answer, connected, read_json, validated

MOST_TOKENS = 2**17

Asked = TypeVar("Asked", bound=BaseModel)


class TokenizeRequest(BaseModel):
    """Either `prompt` or `messages`, these with what else of a chat completion the prompt is made of."""

    model_config = ConfigDict(strict=True)

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(BaseModel):
    """token_strs: each token's text, half a character as U+FFFD; null unless asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(strict=True)

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True, max_length=MOST_TOKENS)]


class DetokenizeAnswer(BaseModel):
    prompt: str


def endpoints(services: Services) -> list[Endpoint]:
    tokens = Tokens(services)
    return [
        Endpoint(
            "POST",
            "/tokenize",
            tokens.tokenize,
            "The tokens of a text",
            body=TokenizeRequest,
            answer=TokenizeAnswer,
        ),
        Endpoint(
            "POST",
            "/detokenize",
            tokens.detokenize,
            "The text of tokens",
            body=DetokenizeRequest,
            answer=DetokenizeAnswer,
        ),
    ]


class Tokens:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def tokenize(self, request: Request) -> Response:
        asked = await self._read(request, TokenizeRequest)
        if asked.prompt is None and asked.messages is None:
            raise BadRequest(
                "Missing required parameter: 'prompt', or 'messages'.",
                param="prompt",
                code="missing_required_parameter",
            )
        if asked.prompt is not None and asked.messages is not None:
            raise BadRequest(
                "Either 'prompt' or 'messages', not both.", param="messages", code="invalid_value"
            )
        text = self._model(asked.model)
        return answer(await connected(request, self._tokenized(text, asked)))

    async def detokenize(self, request: Request) -> Response:
        asked = await self._read(request, DetokenizeRequest)
        text = self._model(asked.model)
        for number, token in enumerate(asked.tokens):
            if not 0 <= token < text.vocabulary:
                raise BadRequest(
                    f"The model has the tokens 0 to {text.vocabulary - 1}.",
                    param=f"tokens[{number}]",
                    code="invalid_value",
                )
        prompt = await connected(request, text.detokenize(asked.tokens)) if asked.tokens else ""
        return answer(DetokenizeAnswer(prompt=prompt))

    async def _read(self, request: Request, model: type[Asked]) -> Asked:
        return await read_json(request, model, limit=self._services.settings.http.max_body_bytes)

    def _model(self, name: str | None) -> TextModel:
        """Raises NotFound."""
        if name is not None:
            self._services.models.resolve(name, "chat")
        if self._services.engines.text is None:
            raise NotFound("The language model of this server does not show its tokens.", code="unsupported")
        return self._services.engines.text

    async def _tokenized(self, text: TextModel, asked: TokenizeRequest) -> TokenizeAnswer:
        prompt = asked.prompt if asked.prompt is not None else await _rendered(text, asked)
        strings: list[str] | None = None
        try:
            if asked.return_token_strs:
                pieces = await text.pieces(prompt) if prompt else []
                tokens, strings = [token for token, _ in pieces], [piece for _, piece in pieces]
            else:
                tokens = await text.tokenize(prompt) if prompt else []
        except BadRequest as error:
            if asked.prompt is None:
                error.param = "messages"  # which the prompt was made of
            raise
        return TokenizeAnswer(
            count=len(tokens), max_model_len=text.context, tokens=tokens, token_strs=strings
        )


async def _rendered(text: TextModel, asked: TokenizeRequest) -> str:
    for name, wanted in (("add_generation_prompt", True), ("continue_final_message", False)):
        if getattr(asked, name) not in (None, wanted):
            raise BadRequest(
                f"Messages are read as the prompt of their answer: '{name}' can only be {str(wanted).lower()}.",
                param=name,
                code="unsupported",
            )
    members = {"messages": asked.messages, "tools": asked.tools}
    given = {name: value for name, value in members.items() if value is not None}
    body = validated(
        {"model": asked.model or "", **given, "chat_template_kwargs": asked.chat_template_kwargs}, ChatBody
    )
    if heard := sounds(body):
        raise BadRequest(
            "Recordings have no tokens before they are heard.", param=heard[0].param, code="unsupported"
        )
    return await text.render(
        read(body, vocabulary=text.vocabulary, heard={}, recalled=lambda id: None).request
    )
