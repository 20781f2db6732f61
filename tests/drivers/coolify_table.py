"""The table of Coolify's API (coolify_api.toml): which requests it allows, and whether Coolify describes them so."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

PATH: Final = Path(__file__).with_name("coolify_api.toml")
Fields = Mapping[str, str]
_KINDS: Final[Mapping[str, type]] = {"string": str, "boolean": bool, "integer": int, "array": list}


class Call(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request that the driver may send."""

    method: str
    path: str
    query: Fields = {}
    body: Fields = {}
    items: Mapping[str, Fields] = {}
    required: tuple[str, ...] = ()
    undocumented: tuple[str, ...] = ()
    waived: tuple[str, ...] = ()

    @property
    def pattern(self) -> str:
        return "/api/v1" + re.sub(r"\{[a-z]+\}", "[A-Za-z0-9]+", self.path)


def read_table() -> tuple[Call, ...]:
    """Every request that the driver may send."""
    return msgspec.convert(tomllib.loads(PATH.read_text())["call"], tuple[Call, ...])


def violations(calls: tuple[Call, ...], method: str, path: str, query: Fields, body: Any) -> Iterator[str]:
    """Why the table does not allow a request."""
    call = next((each for each in calls if each.method == method and re.fullmatch(each.pattern, path)), None)
    if call is None:
        yield f"{method} {path} is not in the table"
        return
    yield from _query(call, query)
    if call.body and not isinstance(body, dict):
        yield f"{method} {call.path}: needs a JSON object"
    elif not call.body and body is not None:
        yield f"{method} {call.path}: takes no body"
    else:
        yield from _fields(call, call.body, body or {}, "")
        yield from (f"{call.path}: {name} is missing" for name in call.required if name not in (body or {}))


def _query(call: Call, query: Fields) -> Iterator[str]:
    for name, text in query.items():
        match call.query.get(name):
            case None:
                yield f"{call.path}: there is no parameter {name}"
            case "boolean" if text not in ("true", "false"):
                yield f"{call.path}: {name} is no boolean: {text}"
            case "integer" if not text.isdigit():
                yield f"{call.path}: {name} is no integer: {text}"


def _fields(call: Call, known: Fields, given: Mapping[str, Any], at: str) -> Iterator[str]:
    for name, value in given.items():
        if name not in known:
            yield f"{call.path}: {at}{name} is not allowed"
        elif type(value) is not _KINDS[known[name]]:
            yield f"{call.path}: {at}{name} is no {known[name]}"
        elif isinstance(value, list) and name in call.items:
            for item in value:
                yield from _fields(call, call.items[name], item, f"{name}.")


def disagreements(calls: tuple[Call, ...], document: Any) -> Iterator[str]:
    """Where the table and Coolify's own description (an OpenAPI document) differ."""
    for call in calls:
        said = document["paths"].get(call.path, {}).get(call.method.lower())
        if said is None:
            yield f"{call.method} {call.path} is not described"
            continue
        parameters = {
            each["name"]: each["schema"]["type"] for each in said.get("parameters", []) if each["in"] == "query"
        }
        yield from _compare(call, call.query, parameters, "")
        content = said.get("requestBody", {}).get("content", {}).get("application/json", {})
        schema = content.get("schema", {})
        fields = schema.get("properties", {})
        yield from _compare(call, call.body, {name: each.get("type") for name, each in fields.items()}, "")
        for name, items in call.items.items():
            inner = fields.get(name, {}).get("items", {}).get("properties", {})
            yield from _compare(call, items, {key: each.get("type") for key, each in inner.items()}, f"{name}.")
        missing = set(schema.get("required", [])) - set(call.required) - set(call.waived)
        yield from (f"{call.method} {call.path}: {name} is required" for name in sorted(missing))


def _compare(call: Call, ours: Fields, theirs: Mapping[str, Any], at: str) -> Iterator[str]:
    for name, kind in ours.items():
        documented = f"{at}{name}" not in call.undocumented
        if documented and theirs.get(name) != kind:
            yield f"{call.method} {call.path}: {at}{name} is {theirs.get(name)}, not {kind}"
        if not documented and name in theirs:
            yield f"{call.method} {call.path}: {at}{name} is described by now"
