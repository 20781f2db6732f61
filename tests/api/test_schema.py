"""The description of the API says what the API does."""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from standby.api.schema import SAYS
from standby.core.model import OrderState
from standby.world import Ids
from tests.api.house import House, house

pytestmark = pytest.mark.anyio


def references(part: Any) -> set[str]:
    return set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(part)))


async def described(home: House) -> dict[str, Any]:
    found: dict[str, Any] = (await home.get("/openapi.json")).json()
    return found


async def test_every_route_says_what_it_takes_and_answers(home: House) -> None:
    found = await described(home)
    operations = [each for path in found["paths"].values() for each in path.values()]
    assert {each["operationId"] for each in operations} == set(SAYS)
    assert all(each.get("summary") and each.get("description") for each in operations)
    for each in operations:
        for status, answer in each["responses"].items():
            kinds = set(answer.get("content", {}))
            assert kinds or status in ("204", "304")
            assert (kinds == {"application/problem+json"}) == (status >= "400")


async def test_every_shape_is_there_and_used(home: House) -> None:
    found = await described(home)
    assert references(found) == set(found["components"]["schemas"])


async def test_answers_have_the_shape_that_is_described(home: House) -> None:
    order_id = (await home.submit(payload={"a": [1]}, not_before="2100-01-01T00:00:00Z"))["id"]
    ended = (await home.submit(run_timeout_s=None))["id"]
    await home.walk(ended, OrderState.FAILED)
    running = (await home.submit(env={"A": "b"}))["id"]
    await home.walk(running, OrderState.RUNNING)
    await home.log(running, "hello")
    await home.store.put_reading("local", 1, '{"pressure":{}}')
    await home.http.patch("/api/v1/pools/default", json={"set": {"slots_max": 3}})
    nightly = {"name": "default", "cron": "@daily", "order": {"command": ["true"]}}
    assert (await home.post("/schedules", nightly)).status_code == 201
    await home.post("/schedules/default/run")
    found = await described(home)
    asked = 0
    for path, operations in found["paths"].items():
        says = SAYS[operations["get"]["operationId"]] if "get" in operations else None
        if says is None or says.view is None or "/worker/" in path:
            continue  # workers show tokens, see test_worker.py
        for order in (order_id, ended, running) if "{order_id}" in path else (order_id,):
            name = "local" if "hosts" in path else "default"
            answer = await home.http.get(path.replace("{order_id}", order).replace("{name}", name))
            assert answer.status_code == 200, (path, answer.text)
            again = msgspec.json.decode(answer.content, type=says.view, strict=True)
            assert msgspec.json.decode(msgspec.json.encode(again)) == answer.json()
            asked += 1
    assert asked > 20


async def test_acts_answer_in_the_shape_that_is_described(home: House) -> None:
    order_id = (await home.submit())["id"]
    calls: dict[str, tuple[str, Any]] = {
        "submit": ("/work-orders", {"command": ["true"]}),
        "submit_bulk": ("/work-orders/bulk", {"orders": [{"command": ["true"]}, {}]}),
        "cancel_order": (f"/work-orders/{order_id}/cancel", {}),
        "rerun_order": (f"/work-orders/{order_id}/rerun", {}),
        "cancel_many": ("/work-orders/cancel", {"filter": {"pool": "default"}}),
        "pause_host": ("/hosts/local/pause", None),
        "add_key": ("/keys", {"name": "k"}),
    }
    for name, (path, body) in calls.items():
        answer = await home.post(path, body) if body is not None else await home.http.post(f"/api/v1{path}")
        assert answer.status_code in SAYS[name].status, answer.text
        assert msgspec.json.decode(answer.content, type=SAYS[name].view, strict=True)


PAGE = Path(__file__).parents[2] / "docs" / "api.md"
ORDER = {"command": ["true"], "retry": {"retries": 1}}
SCHEDULE = {"name": "nightly", "cron": "@daily", "order": ORDER}
REASON = {"reason": "why"}
ACTS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "submit": ("POST", "/work-orders", ORDER),
    "submit_bulk": ("POST", "/work-orders/bulk", {"orders": [ORDER, ORDER]}),
    **{
        f"{verb}_many": ("POST", f"/work-orders/{verb}", {"filter": {"id_prefix": "0"}})
        for verb in ("cancel", "rerun", "purge")
    },
    "rerun_order": ("POST", "/work-orders/{ended}/rerun", REASON),
    "cancel_order": ("POST", "/work-orders/{waiting}/cancel", REASON),
    "add_schedule": ("POST", "/schedules", {**SCHEDULE, "name": "weekly"}),
    "change_schedule": ("PATCH", "/schedules/nightly", {"order": ORDER}),
    "pause_schedule": ("POST", "/schedules/nightly/pause", REASON),
    "resume_schedule": ("POST", "/schedules/nightly/resume", REASON),
    "override_pool": ("PATCH", "/pools/default", {"set": {"slots_max": 3}}),
    "reset_breaker": ("POST", "/pools/default/reset-breaker", REASON),
    "override_project": ("PATCH", "/projects/default", {"set": {"running_max": 3}}),
    "declare_dead": ("POST", "/hosts/local/declare-dead", {**REASON, "confirm": "local"}),
    "add_key": ("POST", "/keys", {"name": "spare"}),
    **{
        f"{verb}_{noun}": ("POST", f"/{noun}s/{name}/{verb}", REASON)
        for noun, name in (("pool", "default"), ("host", "local"), ("project", "default"))
        for verb in ("pause", "resume", "drain")
    },
}
"""A body for every route that takes one, but for those of workers, who show tokens."""
WORKERS = {"boot_worker", "beat", "tell_output", "tell_result"}


def with_defaults(shapes: Mapping[str, Any], schema: Any, value: Any) -> Any:
    """The same with every default said that is described for what it leaves out."""
    schema = shapes[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        return [with_defaults(shapes, schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    fields = schema["properties"]
    defaults = {name: each["default"] for name, each in fields.items() if "default" in each}
    return defaults | {name: with_defaults(shapes, fields[name], each) for name, each in value.items()}


async def acted(directory: Path, name: str, shapes: Mapping[str, Any] | None) -> Any:
    """What a route answers in a house that is the same each time, without the key that it makes up."""
    async with house(directory, ids=Ids(random.Random(0).randbytes)) as home:
        ended = (await home.submit())["id"]
        await home.walk(ended, OrderState.FAILED)
        waiting = (await home.submit(project="default"))["id"]
        assert (await home.post("/schedules", SCHEDULE)).status_code == 201
        home.clock.at += 60_000  # nobody leads the host any more
        method, path, body = ACTS[name]
        if shapes is not None:
            body = with_defaults(shapes, {"$ref": f"/{SAYS[name].body.__name__}"}, body)  # type: ignore[union-attr]
        answer = await home.http.request(method, f"/api/v1{path.format(ended=ended, waiting=waiting)}", json=body)
        return answer.status_code, {name: each for name, each in answer.json().items() if name not in ("key", "last4")}


@pytest.mark.parametrize("name", ACTS)
async def test_a_default_that_is_described_does_what_leaving_it_out_does(
    home: House, tmp_path: Path, name: str
) -> None:
    shapes = (await described(home))["components"]["schemas"]
    left_out = await acted(tmp_path, name, None)
    assert left_out[0] in SAYS[name].status
    assert await acted(tmp_path, name, shapes) == left_out


def test_every_body_is_tried_with_its_defaults() -> None:
    assert {name for name, says in SAYS.items() if says.body is not None} == set(ACTS) | WORKERS


async def test_a_command_and_a_script_have_no_default_because_one_of_them_is_sent_at_all(home: House) -> None:
    shape = (await described(home))["components"]["schemas"]["SubmitBody"]
    assert shape["oneOf"] == [{"required": ["command"]}, {"required": ["script"]}]
    assert [name for name in ("command", "script") if "default" in shape["properties"][name]] == []


async def test_nothing_that_a_pool_decides_has_a_default(home: House) -> None:
    shapes = (await described(home))["components"]["schemas"]
    fields = {
        (shape, name): each
        for shape in ("SubmitBody", "RetryBody")
        for name, each in shapes[shape]["properties"].items()
        if "the pool's" in each.get("description", "")
    }
    assert {name for shape, name in fields if shape == "RetryBody"} == set(shapes["RetryBody"]["properties"])
    times = {"queue_timeout_s", "start_timeout_s", "run_timeout_s", "stop_grace_s"}
    assert {name for shape, name in fields if shape == "SubmitBody"} == {*times, "memory_mb", "cpus", "retry"}
    assert [name for name, each in fields.items() if "default" in each] == []


@pytest.mark.parametrize("shape", ["PatchScheduleBody", "SettingsBody", "ProjectSettingsBody"])
async def test_nothing_that_stays_as_it_is_when_left_out_has_a_default(home: House, shape: str) -> None:
    fields = (await described(home))["components"]["schemas"][shape]["properties"]
    assert [name for name, each in fields.items() if "default" in each] == []


@pytest.mark.parametrize("shape", ["SubmitBody", "RetryBody", "BulkBody", "FilterBody", "ManyBody", "ScheduleBody"])
async def test_every_field_says_what_it_is(home: House, shape: str) -> None:
    fields = (await described(home))["components"]["schemas"][shape]["properties"]
    assert [name for name, each in fields.items() if not each.get("description", "").endswith(".")] == []


@pytest.mark.parametrize("shape", ["SubmitBody", "RetryBody"])
async def test_every_field_of_an_order_is_in_the_page_about_the_api(home: House, shape: str) -> None:
    fields = (await described(home))["components"]["schemas"][shape]["properties"]
    rows = PAGE.read_text(encoding="utf-8").split(f"<!-- make docs: {shape} -->")[1].split("<!-- end -->")[0]
    assert re.findall(r"^\| `(\w+)` ", rows, re.MULTILINE) == list(fields)


async def test_every_parameter_says_what_it_is(home: House) -> None:
    found = await described(home)
    operations = [each for path in found["paths"].values() for each in path.values()]
    silent = [
        f"{each['operationId']}: {parameter['name']}"
        for each in operations
        for parameter in each["parameters"]
        if not parameter.get("description", "").endswith(".")
    ]
    assert silent == []


async def test_the_description_tells_no_secret_and_needs_a_key(home: House) -> None:
    assert (await home.get("/openapi.json", headers={"Authorization": ""})).status_code == 401
    found = await described(home)
    assert found["security"] == [{"key": []}]
    assert found["paths"]["/healthz"]["get"]["security"] == []
