"""The API's own description: every parameter, body, answer and refusal of every route."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from standby.api import (
    doctor,
    keys,
    logs,
    many,
    pool_views,
    projects,
    run_views,
    schedules,
    settings,
    submit,
    system,
    views,
    wire,
    worker,
)
from standby.api import place_views as places
from standby.api.problems import ProblemView

Json = dict[str, Any]
EVERYWHERE: Final = (401, 403, 422, 500, 503)
"""Refusals that any route may answer: no key, a foreign page, a parameter, a fault, no database."""
BODY: Final = (413, 415)
DESCRIPTION: Final = """\
Every refusal is `application/problem+json` with a `code` for programs and `what_to_do` for people. Times are RFC 3339
in UTC, lengths are seconds. Send `Authorization: Bearer KEY`."""
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"Idempotency-Key": {**_TEXT, "pattern": "^[ -~]{1,255}$"}}
_CONTENT: Final[Mapping[str, Json]] = {"application/x-ndjson": {}, "text/event-stream": {}}
"""Streams have no shape as a whole."""
_HEADERS: Final = {
    "Idempotency-Key": "Safe to repeat: the same key and body within a day give the first answer again.",
    "If-None-Match": "The ETag of an earlier answer: 304 when nothing changed.",
}
_PARAMETERS: Final = {
    "order_id": "Id of the order.",
    "name": "Its name.",
    "pool": "Only of this pool.",
    "project": "Only of this project.",
    "host": "Only of this host.",
    "newest": "The newest ones instead of those that follow.",
    "id_prefix": "Only those whose id begins with this.",
    "limit": "How many at most.",
    "cursor": "The `next` of the page before.",
    "subject": "Only of this one, by its id or name.",
    "after": "Only what came after this place: the `next` or `id` of an earlier answer; 0 is the beginning.",
    "last-event-id": "The id of the last event that was read, to go on from there; wins over the other places.",
    "run": "Number of the run; the last one unless said.",
    "from": "Number of the first line.",
    "tail": "Only so many lines, the last ones; wins over `from`.",
    "follow": "Go on until the log is closed.",
    "wait_s": "How long to wait for work.",
}
"""What a parameter means whose route does not say it."""


class Says(Struct, frozen=True, kw_only=True):
    """What one route takes and answers."""

    view: Any = None
    status: Sequence[int] = (200,)
    problems: Sequence[int] = ()
    body: type[wire.Body] | None = None
    body_needed: bool = True
    kinds: Sequence[str] = ("application/json",)
    headers: Sequence[str] = ()


def _tagged(view: Any, *problems: int) -> Says:
    return Says(view=view, status=(200, 304), problems=problems, headers=["If-None-Match"])


def _acts(
    view: Any, body: type[wire.Body], *problems: int, status: Sequence[int] = (200,), needed: bool = False
) -> Says:
    return Says(view=view, body=body, body_needed=needed, problems=(*BODY, *problems), status=status)


_MODE: Final = {"pool": pool_views.PoolView, "host": places.FullHostView, "project": projects.ProjectView}
SAYS: Final[Mapping[str, Says]] = {
    "submit": Says(
        view=views.OrderView,
        status=(200, 201),
        body=wire.SubmitBody,
        problems=(409, 429, *BODY),
        headers=["Idempotency-Key"],
    ),
    "submit_bulk": Says(
        view=submit.BulkView,
        status=(200, 201),
        body=wire.BulkBody,
        problems=(429, *BODY),
        headers=["Idempotency-Key"],
    ),
    "rerun_order": _acts(views.OrderView, wire.ReasonBody, 404, 409, 429, status=(200, 201)),
    "cancel_many": _acts(many.ManyView, wire.ManyBody, 410, needed=True),
    "rerun_many": _acts(many.ManyView, wire.ManyBody, 410, needed=True),
    "purge_many": _acts(many.ManyView, wire.ManyBody, 410, needed=True),
    "list_orders": _tagged(views.OrdersView, 410),
    "show_order": _tagged(views.OrderView, 404),
    "explain_order": Says(view=views.WhyView, problems=(404,)),
    "list_runs": Says(view=run_views.RunsView, problems=(404,)),
    "list_order_events": Says(view=views.EventsView, problems=(404, 410)),
    "cancel_order": _acts(views.OrderView, wire.ReasonBody, 404, 409),
    "read_logs": Says(
        view=logs.LogView,
        problems=(404,),
        kinds=("application/json", "application/x-ndjson", "text/event-stream"),
    ),
    "list_pools": _tagged(pool_views.PoolsView),
    "show_pool": _tagged(pool_views.PoolView, 404),
    "override_pool": _acts(pool_views.PoolView, wire.PatchPoolBody, 404, 409, needed=True),
    "reset_breaker": _acts(pool_views.PoolView, wire.ReasonBody, 404, 409),
    "override_project": _acts(projects.ProjectView, wire.PatchProjectBody, 404, 409, needed=True),
    "list_slots": _tagged(places.SlotsView),
    "list_hosts": _tagged(places.HostsView),
    "show_host": _tagged(places.FullHostView, 404),
    "list_starts": Says(view=places.StartsView, problems=(404,)),
    "declare_dead": _acts(places.FullHostView, wire.DeadBody, 404, 409, needed=True),
    **{
        f"{verb}_{noun}": _acts(view, body, 404, 409)
        for noun, view in _MODE.items()
        for verb, body in (("pause", wire.ReasonBody), ("resume", wire.ReasonBody), ("drain", wire.DrainBody))
    },
    "list_projects": _tagged(projects.ProjectsView),
    "show_project": _tagged(projects.ProjectView, 404),
    "list_schedules": _tagged(schedules.SchedulesView),
    "add_schedule": _acts(schedules.ScheduleView, wire.ScheduleBody, 409, status=(201,), needed=True),
    "show_schedule": _tagged(schedules.FullScheduleView, 404),
    "change_schedule": _acts(schedules.ScheduleView, wire.PatchScheduleBody, 404, 409, needed=True),
    "remove_schedule": Says(view=schedules.ScheduleView, problems=(404, 409)),
    "pause_schedule": _acts(schedules.ScheduleView, wire.ReasonBody, 404, 409),
    "resume_schedule": _acts(schedules.ScheduleView, wire.ReasonBody, 404, 409),
    "run_schedule": Says(view=views.OrderView, status=(200, 201), problems=(404, 409)),
    "boot_worker": _acts(worker.BootView, wire.BootBody, 409, needed=True),
    "fetch_assignment": Says(view=worker.AssignmentView, status=(200, 204), problems=(409,)),
    "beat": _acts(worker.BeatView, wire.BeatBody),
    "tell_output": _acts(worker.StoredView, wire.OutputBody, 409, needed=True),
    "tell_result": _acts(worker.TakenView, wire.ResultBody, 409),
    "list_events": Says(view=views.EventsView, problems=(410,)),
    "stream_events": Says(problems=(410,), kinds=("text/event-stream",)),
    "list_keys": Says(view=keys.KeysView),
    "add_key": _acts(keys.KeyView, wire.KeyBody, 409, status=(201,), needed=True),
    "remove_key": Says(view=keys.KeyView, problems=(404, 409)),
    "show_config": Says(view=settings.SettingsListView),
    "examine": Says(view=doctor.DoctorView),
    "alive": Says(view=system.StatusView),
    "ready": Says(view=system.StatusView),
    "metrics": Says(kinds=("text/plain",)),
}
OPEN: Final = frozenset({"alive", "ready"})
"""Routes that need no key."""
TOKENS: Final[Mapping[str, Sequence[str]]] = {
    "boot_worker": ["slot_token"],
    "fetch_assignment": ["boot_token"],
    "beat": ["boot_token", "run_token"],
    "tell_output": ["boot_token", "run_token"],
    "tell_result": ["boot_token", "run_token"],
}
"""Routes of workers, and what they show instead of a key."""


class Api(FastAPI):
    """An app whose description says what each route answers."""

    def openapi(self) -> Json:
        """The whole description, put together once."""
        if not self.openapi_schema:
            self.openapi_schema = _described(self)
        return self.openapi_schema


def _described(app: FastAPI) -> Json:
    found = get_openapi(
        title=app.title,
        version=app.version,
        routes=app.routes,
        description=DESCRIPTION,
    )
    types = list({id(says.view): says.view for says in SAYS.values() if says.view is not None}.values())
    refs, components = msgspec.json.schema_components([*types, ProblemView], ref_template="#/components/schemas/{name}")
    shapes = dict(zip((id(kind) for kind in [*types, ProblemView]), refs, strict=True))
    schemas: Json = dict(components)
    for operations in found["paths"].values():
        for operation in operations.values():
            _complete(operation, SAYS[operation["operationId"]], shapes, schemas)
    security = {
        name: {"type": "http", "scheme": "bearer", "description": text}
        for name, text in (
            ("key", "An API key."),
            ("slot_token", "Of a slot, from its environment."),
            ("boot_token", "Of one life of a worker, from its boot."),
            ("run_token", "Of one run, from its environment."),
        )
    }
    found["components"] = {"schemas": schemas, "securitySchemes": security}
    found["security"] = [{"key": []}]
    plain: Json = json.loads(_short_names(json.dumps(found)))
    return plain


def _complete(operation: Json, says: Says, shapes: Mapping[int, Json], schemas: Json) -> None:
    if operation["operationId"] in OPEN:
        operation["security"] = []
    if operation["operationId"] in TOKENS:
        operation["security"] = [{name: []} for name in TOKENS[operation["operationId"]]]
    for parameter in operation.setdefault("parameters", []):
        parameter.setdefault("description", _PARAMETERS.get(parameter["name"], ""))
    operation["parameters"].extend(
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": _HEADERS[name],
            "schema": _TEXTS.get(name, _TEXT),
        }
        for name in says.headers
    )
    if says.body is not None:
        schema = says.body.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schemas[says.body.__name__] = schema
        reference = {"$ref": f"#/components/schemas/{says.body.__name__}"}
        content = {"application/json": {"schema": reference}}
        operation["requestBody"] = {"required": says.body_needed, "content": content}
    operation["responses"] = {
        **{str(status): _answer(status, says, shapes) for status in says.status},
        **{str(status): _refusal(status, shapes) for status in sorted({*EVERYWHERE, *says.problems})},
    }


def _answer(status: int, says: Says, shapes: Mapping[int, Json]) -> Json:
    if status in (204, 304):
        return {"description": "Nothing changed." if status == 304 else "There is none yet: ask again."}
    shape = shapes.get(id(says.view), _TEXT)
    content = {kind: _CONTENT.get(kind, {"schema": shape}) for kind in says.kinds}
    return {"description": "Made." if status == 201 else "Done.", "content": content}


def _refusal(status: int, shapes: Mapping[int, Json]) -> Json:
    words = {
        401: "A key is needed.",
        403: "Asked by a page of somebody else.",
        404: "There is no such thing.",
        409: "Not possible as things stand.",
        410: "The cursor is from before what is kept, or from another database.",
        413: "The body is too large.",
        415: "The body is not JSON.",
        422: "Something in the request cannot be used.",
        429: "Too many wait already; try again later.",
        500: "A fault in the server.",
        503: "The database does not answer, or the server stops; try again.",
    }
    content = {"application/problem+json": {"schema": shapes[id(ProblemView)]}}
    return {"description": words[status], "content": content}


def _short_names(text: str) -> str:
    """`OrderView` is a name for the code; to others it is an `Order`."""
    return re.sub(r'(#/components/schemas/|")([A-Z][A-Za-z]+?)View"', r'\1\2"', text)
