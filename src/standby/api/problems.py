"""Every refusal in one shape: application/problem+json that says what is wrong and what to do."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

import msgspec
import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import UNSET, Struct, UnsetType
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from standby.config.values import did_you_mean, nearest
from standby.core.errors import Refused, StandbyError
from standby.store.contract import StoreDown

TEXT_MAX: Final = 1_200
WORDS: Final = {"unset": "setting", "retry_on": "reason", "no_retry_on": "reason"}
"""What is listed in a field, where its name does not say it."""

log = structlog.get_logger()


class WrongField(Struct, frozen=True):
    """One part of a request that cannot be used."""

    field: str
    message: str


class ProblemView(Struct, frozen=True):
    """What is wrong and what to do (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str
    """For programs: stays the same."""
    detail: str
    what_to_do: str
    errors: Sequence[WrongField] | UnsetType = UNSET


class Problem(StandbyError):
    """A request that is refused, with everything its sender needs to know."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        what_to_do: str,
        *,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.what_to_do = status, code, detail, what_to_do
        self.errors, self.headers = errors, dict(headers or {})

    def view(self) -> ProblemView:
        """The problem as it is shown."""
        return ProblemView(
            type=f"urn:standby:problem:{self.code}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            what_to_do=self.what_to_do,
            errors=[WrongField(each["field"], each["message"]) for each in self.errors] or UNSET,
        )

    def response(self) -> Response:
        """The problem as an answer."""
        body = msgspec.json.encode(self.view())
        return Response(body, self.status, self.headers, media_type="application/problem+json")


def not_found(noun: str, name: str, known: Sequence[str] = ()) -> Problem:
    """404 for a row that is not there."""
    hint = f"there are: {', '.join(known)}" if known else f"list what there is with GET /api/v1/{noun}s"
    text = f"there is no {noun.removeprefix('work-')} {name[:80]!r}"
    return Problem(404, f"no_such_{noun.replace('-', '_')}", text, hint)


def invalid(detail: str, what_to_do: str, field: str | None = None) -> Problem:
    """422 for a body that is well formed and cannot be meant."""
    errors = [] if field is None else [{"field": field, "message": detail}]
    return Problem(422, "invalid_request", detail, what_to_do, errors=errors)


def from_validation(error: ValidationError | RequestValidationError, model: type[BaseModel] | None = None) -> Problem:
    """422 naming each wrong field and what was probably meant; never a value that is near nothing known, because any
    value may be a secret. `model` is what the body should have been."""
    found = [_field(each, model) for each in error.errors()[:20]]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in found)
    return Problem(422, "invalid_request", detail, "correct the named fields and send it again", errors=found)


def _field(error: Mapping[str, Any], model: type[BaseModel] | None) -> dict[str, str]:
    loc = [part for part in error["loc"] if part not in ("body", "query", "path", "[key]")]
    if error["loc"][:1] == ("query",):
        loc = loc[:1]  # that it could be repeated is no news to somebody who wrote it once
    limits = error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            message = _unknown_field([str(part) for part in loc], model)
        case "enum" | "literal_error":
            message = _unknown_word([str(part) for part in loc if isinstance(part, str)][-1], error)
        case "string_pattern_mismatch":
            message = "has characters that are not allowed here, or is too long"
        case "less_than_equal":
            message = f"{limits['le']} at most"
        case "greater_than_equal":
            message = f"{limits['ge']} at least"
        case _:
            message = error["msg"].removeprefix("Value error, ")
    return {"field": ".".join(str(part) for part in loc)[:200] or "body", "message": cut(message, TEXT_MAX)}


def _unknown_field(loc: Sequence[str], model: type[BaseModel] | None) -> str:
    """Also a field that is one level deeper counts as near: `retry.retries` for `retries`."""
    for part in loc[:-1]:
        model = _inner(model, part)
    if model is None:
        return "unknown field"
    deeper = {name: each for name in model.model_fields if (each := _inner(model, name)) is not None}
    paths = {field: f"{name}.{field}" for name, each in deeper.items() for field in each.model_fields}
    paths |= {name: name for name in model.model_fields}
    meant = nearest(loc[-1], paths)
    hint = did_you_mean(loc[-1], model.model_fields) if meant is None else f"did you mean {paths[meant]}?"
    return f"unknown {'setting' if loc[:-1] == ['set'] else 'field'}; {hint}"


def _inner(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    field = None if model is None else model.model_fields.get(name)
    kind = None if field is None else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _unknown_word(noun: str, error: Mapping[str, Any]) -> str:
    noun, said = WORDS.get(noun, noun), str(error["input"])
    known = re.findall(r"'([^']+)'", error["ctx"]["expected"])
    meant = nearest(said, known)
    return f"there is no {f'such {noun}' if meant is None else f'{noun} {said!r}'}; {did_you_mean(said, known)}"


def cut(text: str, most: int) -> str:
    """The text, or as many whole words of it as there is room for."""
    if len(text) <= most:
        return text
    return (text[: most + 1].rpartition(" ")[0] or text[:most]) + " …"


def store_down() -> Problem:
    """503: the truth cannot be asked."""
    return Problem(
        503, "store_down", "the database does not answer", "try again in a few seconds", headers={"Retry-After": "2"}
    )


def stopping() -> Problem:
    """503: the server stops, and waits for the answer no longer."""
    text = "the server stopped before it had an answer; what was asked may have been done"
    what_to_do = "ask again, with the same Idempotency-Key where there was one"
    return Problem(503, "stopping", text, what_to_do, headers={"Retry-After": "2"})


def install(app: FastAPI) -> None:
    """Answer every error as a problem."""
    for kind in (StandbyError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    match error:
        case Problem():
            problem = error
        case RequestValidationError():
            problem = from_validation(error)
        case HTTPException():
            problem = _of_http(request, error)
        case StoreDown():
            log.warning("store_down", path=request.url.path)
            problem = store_down()
        case Refused():
            problem = Problem(409, "refused", str(error), "read the row again and decide again")
        case _:
            about = {"path": request.url.path, "method": request.method, "error": type(error).__name__}
            log.error("request_failed", **about, exc_info=error)
            text = "something went wrong inside the server"
            problem = Problem(500, "internal_error", text, "look at the server's log; repeating the request is safe")
    return problem.response()


def _of_http(request: Request, error: HTTPException) -> Problem:
    code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
    detail = f"{request.method} {request.url.path[:200]}: {HTTPStatus(error.status_code).phrase.lower()}"
    what_to_do = "see /api/v1/openapi.json for the routes there are"
    allow = _allowed(request) if error.status_code == 405 else ""
    headers = {"Allow": allow} if allow else error.headers
    return Problem(error.status_code, code, detail, what_to_do, headers=headers)


def _allowed(request: Request) -> str:
    """The methods that are described for this path: the router names only those of the first route that fits."""
    path, described = request.url.path, request.app.openapi()["paths"]
    alike = (each for each in described if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", each), path))
    found: Mapping[str, object] = described.get(path) or next((described[each] for each in alike), {})
    return ", ".join(sorted(found)).upper()
