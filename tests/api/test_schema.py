"""The description of the API says what the API does."""

import json
import re
from typing import Any

import msgspec
import pytest

from standby.api.schema import SAYS
from standby.core.model import OrderState
from tests.api.house import House

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


async def test_the_description_tells_no_secret_and_needs_a_key(home: House) -> None:
    assert (await home.get("/openapi.json", headers={"Authorization": ""})).status_code == 401
    found = await described(home)
    assert found["security"] == [{"key": []}]
    assert found["paths"]["/healthz"]["get"]["security"] == []
