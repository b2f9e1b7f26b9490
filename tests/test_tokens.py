"""Tokens over HTTP, in vLLM's shapes."""

from dataclasses import replace
from typing import Any

import httpx
import pytest
from exchange import Exchange, ask
from fakes import fake_engines

from antiphon.llm.base import ChatRequest
from antiphon.pipeline.errors import AntiphonError, BadRequest
from antiphon.pipeline.settings import Settings, load
from antiphon.transport.server import Application, running

HELLO = [{"role": "user", "content": "Hello"}]


class Letters:
    """A model whose tokens are letters, as their code points; it is asked for a chat's prompt in `requests`."""

    vocabulary = 0x3000
    context = 512

    def __init__(self) -> None:
        self.requests: list[ChatRequest] = []

    async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(letter) for letter in text]

    async def pieces(self, text: str) -> list[tuple[int, str]]:
        return [(ord(letter), letter) for letter in text]

    async def detokenize(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))

    async def render(self, request: ChatRequest) -> str:
        self.requests.append(request)
        return "|".join(f"{message.role}:{message.content}" for message in request.messages)


async def asked(path: str, body: dict[str, Any], model: Letters | None = None) -> Exchange:
    async with fake_engines() as engines:
        app = Application(Settings(), replace(engines, text=model or Letters()))  # type: ignore[arg-type]
        return await ask(app, "POST", path, body)


async def test_a_prompt() -> None:
    answer = await asked("/tokenize", {"prompt": "hé!", "add_special_tokens": False})
    assert answer.json == {"count": 3, "max_model_len": 512, "tokens": [104, 233, 33], "token_strs": None}
    answer = await asked(
        "/tokenize", {"prompt": "hé!", "return_token_strs": True, "model": Settings().llm.model}
    )
    assert answer.json["token_strs"] == ["h", "é", "!"]
    assert (await asked("/tokenize", {"prompt": ""})).json["count"] == 0


async def test_messages_are_read_as_a_chat_would() -> None:
    model = Letters()
    body = {
        "messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "now"}}],
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": True,
    }
    answer = await asked("/tokenize", body, model)
    assert answer.json["count"] == len("system:Be kind.|user:Hi")
    (request,) = model.requests
    assert request.tools.tools[0].name == "now"
    assert request.template == {"enable_thinking": False}


async def test_there_and_back() -> None:
    tokens = (await asked("/tokenize", {"prompt": "Grüße"})).json["tokens"]
    assert (await asked("/detokenize", {"tokens": tokens})).json == {"prompt": "Grüße"}
    assert (await asked("/detokenize", {"tokens": []})).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, 400, "messages"),
        ("/tokenize", {"prompt": ["x"]}, 400, "prompt"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}]}, 400, "messages[0].content"),
        ("/tokenize", {"messages": HELLO, "add_generation_prompt": False}, 400, "add_generation_prompt"),
        ("/tokenize", {"messages": HELLO, "continue_final_message": True}, 400, "continue_final_message"),
        ("/tokenize", {"prompt": "x", "model": "nobody"}, 404, "model"),
        ("/tokenize", {"prompt": "x", "model": "hibari"}, 400, "model"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": "x"}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, "x"]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [1, 0x3000]}, 400, "tokens[1]"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens[0]"),
    ],
)  # fmt: skip
async def test_refusals(path: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = await asked(path, body)
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_recordings_have_no_tokens() -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    answer = await asked("/tokenize", {"messages": [{"role": "user", "content": [sound]}]})
    assert (answer.status, answer.error["param"]) == (400, "messages[0].content[0]")


async def test_a_backend_without_tokens_says_so() -> None:
    async with fake_engines() as engines:
        answer = await ask(Application(Settings(), engines), "POST", "/tokenize", {"prompt": "x"})
    assert (answer.status, answer.error["code"]) == (404, "unsupported")


async def test_an_error_of_the_model_is_told() -> None:
    class Broken(Letters):
        async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
            raise AntiphonError("It broke.")

    assert (await asked("/tokenize", {"prompt": "x"}, Broken())).status == 500


@pytest.mark.parametrize("strings", [False, True])
@pytest.mark.parametrize(("body", "param"), [({"prompt": "x"}, "prompt"), ({"messages": HELLO}, "messages")])
async def test_a_refusal_of_the_model_names_what_was_sent(
    strings: bool, body: dict[str, Any], param: str
) -> None:
    class Small(Letters):
        async def tokenize(self, text: str, *, special: bool = True) -> list[int]:
            raise BadRequest("Too long.", param="prompt", code="string_above_max_length")

        async def pieces(self, text: str) -> list[tuple[int, str]]:
            return [(token, "") for token in await self.tokenize(text)]

    answer = await asked("/tokenize", {**body, "return_token_strs": strings}, Small())
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.model
@pytest.mark.server
async def test_the_real_tokens_are_those_of_the_prompt() -> None:
    messages = [{"role": "user", "content": "Say hello 🙂"}]
    async with (
        running(load(environ={}, overrides=[])) as url,
        httpx.AsyncClient(base_url=url.replace("ws", "http", 1), timeout=120) as http,
    ):
        text = "Grüße, 你好 🙂 <|im_end|>"
        told = (await http.post("/tokenize", json={"prompt": text, "return_token_strs": True})).json()
        assert (await http.post("/detokenize", json={"tokens": told["tokens"]})).json() == {"prompt": text}
        assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
        assert told["token_strs"][-1] == "<|im_end|>"
        assert told["max_model_len"] == Settings().llm.context
        count = (await http.post("/tokenize", json={"messages": messages})).json()["count"]
        body = {"model": Settings().llm.model, "messages": messages, "max_tokens": 1}
        answer = (await http.post("/v1/chat/completions", json=body)).json()
        assert answer["usage"]["prompt_tokens"] == count
