"""Which JSON Schemas can be held to while a model writes, and what they are in the engine's language. Pure.

The engine's grammar library (llguidance) compiles a schema or says what it cannot do, but it passes over keywords
that it has never heard of. Here every keyword is one that is enforced, or one that asserts nothing, or the
schema is refused with the keyword and its place. What is refused beyond what the library refuses:

    unknown keywords           `nullable`, `discriminator`, `contentEncoding`, ... and misspellings
    format of a number         `int32`; nothing would hold to it
    items as a list, additionalItems, boolean exclusiveMinimum and exclusiveMaximum: of drafts before 2020-12
    references elsewhere       only "#" and "#/...", none that lead in a circle, no nested `$id`
    patterns that name a quotation mark, a backslash or a control character (see patterns)
    minProperties over the number of required properties, and over 1: names of further ones may repeat
    bounds, and numbers in `const` and `enum`, beyond 2^53 - 1, where floating point no longer counts
    multipleOf that is not positive
    counts of items or properties over 1000, schemas over 64 KiB of JSON or nested over 64 levels

Properties come in the order of `properties`; a model is not free in that. There is one space after each colon
and comma and no other, as a small model that may add whitespace may add it for ever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

from llguidance import LLMatcher

from ..pipeline.errors import BadRequest
from . import patterns
from .base import JsonSchema

MAX_BYTES = 65_536
MAX_DEPTH = 64
MAX_COUNT = 1000
MAX_NUMBER = 2**53 - 1
"""Beyond it neighbours are one number to the engine's library, which then lets through what does not fit."""

OPTIONS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_ENFORCED = """
    type enum const anyOf oneOf allOf $ref
    properties required additionalProperties patternProperties minProperties maxProperties
    items prefixItems minItems maxItems
    minLength maxLength pattern format
    minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
"""
_SILENT = """
    $schema $id $comment $defs definitions $anchor
    title description default examples example deprecated readOnly writeOnly
"""
ENFORCED = frozenset(_ENFORCED.split())
SILENT = frozenset(_SILENT.split())
"""Keywords that assert nothing about a value."""

FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"])

_BOUNDS = (
    ("minimum", "maximum"),
    ("minLength", "maxLength"),
    ("minItems", "maxItems"),
    ("minProperties", "maxProperties"),
)
_TYPES = frozenset(["string", "number", "integer", "boolean", "object", "array", "null"])
_COUNTS = tuple(key for pair in _BOUNDS[1:] for key in pair)
_NUMBERS = (*sum(_BOUNDS, ()), "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_ONE = ("additionalProperties", "items")
_LIST = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_STRINGS = ("$id", "$schema", "$anchor")


def check(schema: JsonSchema, *, subject: str = "response_format", param: str = "response_format") -> None:
    """Raises BadRequest, which names the keyword and its place, for a schema that cannot be held to.

    subject: what the schema is of, for the message. Takes milliseconds, for the largest schemas tens of them.
    """
    fault = _fault(schema) or refusal("start: " + rule(schema))
    if fault:
        raise BadRequest(f"Invalid schema for {subject}: {fault}.", param=param)


def rule(schema: JsonSchema) -> str:
    """The schema as a term of a Lark rule; {} and True are any JSON object."""
    if schema is True or schema == {}:
        schema = {"type": "object"}
    if schema is False:
        return "%json false"
    return "%json " + json.dumps({**schema, "x-guidance": OPTIONS}, ensure_ascii=False)


def refusal(lark: str) -> str:
    """Why the engine could not compile a grammar; empty where it can."""
    try:
        failed, messages = LLMatcher.validate_grammar_with_warnings("%llguidance {}\n" + lark)
    except BaseException as error:
        # The library's panics come as a BaseException of a module that cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        return "it cannot be compiled"
    if not failed and not messages:
        return ""
    # The first line says what; the rest quotes the grammar.
    return reason(messages[0] if messages else "it cannot be compiled")


def reason(message: str) -> str:
    """The library's message without what it quotes of the grammar and of itself."""
    message = message.partition("\n   1 |")[0]
    said = " ".join((message.rpartition("failed to compile JSON schema: ")[2] or message).split())
    if "panic" in said or "too big" in said:
        return "it is too large to compile"
    if said.startswith("oneOf"):
        return "the keyword 'oneOf' is supported only where no value can fit two of its schemas"
    if "Failed to generate regex" in said:
        return "the range of the keywords 'minimum' and 'maximum' is too large to enforce"
    return said.rstrip(".").replace('Unimplemented keys: ["', "unsupported keyword '").replace('"]', "'")


def _fault(schema: JsonSchema) -> str:
    """What is wrong with a schema before the library sees it."""
    try:
        size = len(json.dumps(schema, ensure_ascii=False, allow_nan=False).encode())
    except (ValueError, TypeError, RecursionError):
        return "it is not JSON, or nested too deeply"
    if size > MAX_BYTES:
        return f"it has {size} bytes; at most {MAX_BYTES} are compiled"
    return next(_faults(schema), "")


def _faults(root: Any) -> Iterator[str]:
    todo: list[tuple[Any, str, int]] = [(root, "", 0)]
    seen: set[str] = set()
    while todo:
        schema, path, depth = todo.pop()
        at = path or "/"
        if isinstance(schema, bool):
            continue
        if not isinstance(schema, dict):
            yield f"at {at} there must be an object or a boolean"
            continue
        if depth > MAX_DEPTH:
            yield f"at {at} it is nested over {MAX_DEPTH} levels"
            return
        known = cast("dict[str, Any]", schema)
        yield from (f"{fault} (at {at})" for fault in _keywords(known, nested=depth > 0))
        for key in _ONE:
            if key in known:
                todo.append((known[key], f"{path}/{key}", depth + 1))
        for key in _LIST:
            for number, value in enumerate(known.get(key, ())):
                todo.append((value, f"{path}/{key}/{number}", depth + 1))
        for key in _NAMED[:2]:
            for name, value in known.get(key, {}).items():
                todo.append((value, f"{path}/{key}/{name}", depth + 1))
        if (pointer := known.get("$ref")) is not None and pointer not in seen:
            seen.add(pointer)
            chain = {pointer}
            target = resolve(root, pointer)
            while isinstance(target, dict) and "$ref" in target:
                following = cast("dict[str, Any]", target)["$ref"]
                if not isinstance(following, str):
                    yield f"the keyword '$ref' takes a string, not {following!r} (at {pointer})"
                    return
                if following in chain:
                    yield f"the keyword '$ref' leads in a circle (at {at})"
                    return
                chain.add(following)
                target = resolve(root, following)
            if target is _NOWHERE:
                yield f"the keyword '$ref' leads nowhere: {pointer!r} (at {at})"
                return
            todo.append((resolve(root, pointer), pointer.removeprefix("#"), depth + 1))


def _keywords(schema: Mapping[str, Any], *, nested: bool) -> Iterator[str]:
    """What is wrong with the keywords of one level, and the shapes that walking on relies on."""
    for key in schema:
        if key not in ENFORCED and key not in SILENT and (key == "x-guidance" or not key.startswith("x-")):
            yield f"the keyword '{key}' is not supported"
    if nested and "$id" in schema:
        yield "the keyword '$id' is supported at the root only"
    pointer = schema.get("$ref", "#")
    if not isinstance(pointer, str) or not (pointer == "#" or pointer.startswith("#/")):
        yield f"the keyword '$ref' may only refer to '#' and '#/...', not {pointer!r}"
    for key in _LIST:
        if key in schema and not (isinstance(schema[key], list) and schema[key]):
            yield f"the keyword '{key}' takes a list of schemas"
    for key in _NAMED:
        if key in schema and not isinstance(schema[key], dict):
            yield f"the keyword '{key}' takes an object of schemas"
    if isinstance(schema.get("items"), list):
        yield "the keyword 'items' takes one schema; a list of them is 'prefixItems'"
    # The library would say so as well, or panic where it quotes a long value.
    for key in _STRINGS:
        if key in schema and not isinstance(schema[key], str):
            yield f"the keyword '{key}' takes a string"
    for key in _NUMBERS:
        if key not in schema:
            continue
        number = schema[key]
        if isinstance(number, bool) or not isinstance(number, int | float):
            yield f"the keyword '{key}' takes a number"
        elif key in _COUNTS and (number < 0 or number % 1):
            yield f"the keyword '{key}' takes a whole number, 0 or more"
        elif not _exact(number):
            yield f"the keyword '{key}' is supported to {MAX_NUMBER}, not for {number!r}"
        elif key == "multipleOf" and number <= 0:
            yield f"the keyword '{key}' takes a number over 0"
    kinds = schema.get("type", [])
    if not all(isinstance(kind, str) and kind in _TYPES for kind in _listed(kinds)):
        yield f"the keyword 'type' takes one of {', '.join(sorted(_TYPES))}, or a list of these"
    if not isinstance(schema.get("enum", []), list):
        yield "the keyword 'enum' takes a list of values"
    required = schema.get("required", [])
    if not (isinstance(required, list) and all(isinstance(name, str) for name in _listed(required))):
        yield "the keyword 'required' takes a list of names"
    for low, high in _BOUNDS:
        least, most = schema.get(low), schema.get(high)
        if isinstance(least, int | float) and isinstance(most, int | float) and least > most:
            yield f"the keywords '{low}' and '{high}' contradict each other"
    for key in ("minItems", "maxItems", "minProperties", "maxProperties"):
        # The grammar grows by each.
        if isinstance(count := schema.get(key), int | float) and count > MAX_COUNT:
            yield f"the keyword '{key}' is supported up to {MAX_COUNT}"
    for key in ("const", "enum"):
        if key in schema and not all(map(_exact, _leaves(schema[key]))):
            yield f"the keyword '{key}' is supported for numbers to {MAX_NUMBER}, none beyond"
    if "format" in schema:
        form = schema["format"]
        kinds = schema.get("type", "string")
        if not isinstance(form, str) or form not in FORMATS:
            yield f"the keyword 'format' is not supported for {form!r}, only for {', '.join(sorted(FORMATS))}"
        elif "string" not in _listed(kinds):
            yield "the keyword 'format' is supported for strings only"
    pattern = schema.get("pattern", "")
    said = patterns.refusal(pattern) if isinstance(pattern, str) else "it takes a string"
    if said:
        yield f"the keyword 'pattern' cannot be enforced: {said}"
    for name in schema.get("patternProperties", ()):
        if said := patterns.refusal(name):
            yield f"the keyword 'patternProperties' cannot be enforced: {said}"
    fewest = schema.get("minProperties", 0)
    if isinstance(fewest, int | float) and fewest > max(1, len(set(map(str, _listed(required))))):
        yield "the keyword 'minProperties' cannot be enforced beyond the required properties"


def _listed(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else [value]


def _exact(value: Any) -> bool:
    return not isinstance(value, int | float) or abs(value) <= MAX_NUMBER


def _leaves(value: Any) -> Iterator[Any]:
    todo: list[Any] = [value]
    while todo:
        leaf = todo.pop()
        if isinstance(leaf, dict):
            todo.extend(cast("dict[str, Any]", leaf).values())
        elif isinstance(leaf, list):
            todo.extend(cast("list[Any]", leaf))
        else:
            yield leaf


_NOWHERE: Any = object()
MOST_DIGITS = 9
"""Of a list's index in a pointer; no list is longer, and Python refuses to read some thousands of digits."""


def resolve(root: Any, pointer: str) -> Any:
    """What a JSON pointer ("#/$defs/x") leads to."""
    value = root
    for step in pointer.split("/")[1:]:
        step = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and step in value:
            value = cast("dict[str, Any]", value)[step]
        elif (
            isinstance(value, list)
            and step.isdecimal()
            and len(step) <= MOST_DIGITS
            and int(step) < len(cast("list[Any]", value))
        ):
            value = cast("list[Any]", value)[int(step)]
        else:
            return _NOWHERE
    return value
