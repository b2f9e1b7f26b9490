"""instructor, on the openai package that it asks for itself."""

from typing import Literal

import checking
import instructor
from checking import BASE_URL, KEY
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field

MODEL = checking.chat_model()
ASKED = [{"role": "user", "content": "Ada is 36 years old and likes the colour blue."}]
MEMBERS = {"model": MODEL, "messages": ASKED, "temperature": 0, "max_tokens": 80, "max_retries": 1}


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    colour: Literal["red", "green", "blue"]


def client(mode: instructor.Mode) -> instructor.Instructor:
    return instructor.from_openai(OpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0), mode=mode)


def check_chat() -> None:
    answer = client(instructor.Mode.TOOLS).create(response_model=None, **MEMBERS)
    assert answer.choices[0].message.content


def check_tools() -> None:
    assert client(instructor.Mode.TOOLS).create(response_model=Person, **MEMBERS).colour == "blue"


def check_structured_output() -> None:
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        assert isinstance(client(mode).create(response_model=Person, **MEMBERS), Person), mode


def check_stream() -> None:
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        partials = list(client(mode).create_partial(response_model=Person, **MEMBERS))
        assert len(partials) > 1, mode
        Person.model_validate(partials[-1].model_dump())


async def check_async() -> None:
    asynchronous = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    person = await instructor.from_openai(asynchronous).create(response_model=Person, **MEMBERS)
    assert isinstance(person, Person)


def check_usage() -> None:
    person, answer = client(instructor.Mode.TOOLS).create_with_completion(response_model=Person, **MEMBERS)
    assert isinstance(person, Person)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


checking.run(globals())
