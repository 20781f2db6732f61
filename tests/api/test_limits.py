"""Concurrency keys, urgent orders, full queues and the limits of projects, as a client sees them."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from standby.core.model import EventKind, OrderState
from standby.core.sighting import Exit as Ending
from tests.api.house import House, house

pytestmark = pytest.mark.anyio
S = OrderState


async def _patch(home: House, path: str, body: Any) -> httpx2.Response:
    return await home.http.patch(f"/api/v1{path}", json=body)


async def _states(home: House, *orders: dict[str, Any]) -> list[str]:
    return [(await home.show(order["id"]))["state"] for order in orders]


# concurrency keys


async def test_an_order_that_gives_way_is_cancelled_when_another_has_its_key(home: House) -> None:
    first = await home.submit(concurrency_key="k", on_conflict="cancel_new")
    second = await home.submit(concurrency_key="k", on_conflict="cancel_new")
    elsewhere = await home.submit(concurrency_key="k", on_conflict="cancel_new", project="b")
    assert (first["state"], second["state"], elsewhere["state"]) == ("pending", "cancelled", "pending")
    events = await home.store.events(0, 99, subject=second["id"])
    assert events[-1].data["note"]["said"] == f"order {first['id']} has concurrency key k"
    await home.walk(first["id"], S.COMPLETED)
    assert (await home.submit(concurrency_key="k", on_conflict="cancel_new"))["state"] == "pending"


async def test_an_order_can_end_those_that_had_its_key_before(home: House) -> None:
    running, waiting = await home.submit(concurrency_key="k"), await home.submit(concurrency_key="k")
    other = await home.submit(concurrency_key="l")
    await home.walk(running["id"], S.RUNNING)
    new = await home.submit(concurrency_key="k", on_conflict="cancel_old")
    assert await _states(home, running, waiting, other, new) == ["stopping", "cancelled", "pending", "pending"]


async def test_unless_said_an_order_waits_for_its_key_and_says_who_has_it(home: House) -> None:
    await home.lead()
    first, second = await home.submit(concurrency_key="k"), await home.submit(concurrency_key="k")
    why = (await home.get(f"/work-orders/{second['id']}/why")).json()
    assert why["gate"]["name"] == "concurrency_key" and f"order {first['id']} is before it" in why["gate"]["text"]
    await home.walk(first["id"], S.RUNNING)
    why = (await home.get(f"/work-orders/{second['id']}/why")).json()
    assert why["gate"]["name"] == "concurrency_key" and f"order {first['id']} runs" in why["gate"]["text"]
    listed = (await home.get("/work-orders")).json()["orders"]
    assert listed[0]["gate"]["name"] == "concurrency_key"
    await home.finish(first["id"], Ending(code=0))
    why = (await home.get(f"/work-orders/{second['id']}/why")).json()
    assert why["gate"]["name"] == "turn"


async def test_what_to_do_about_a_key_needs_one(home: House) -> None:
    answer = await home.post("/work-orders", {"command": ["true"], "on_conflict": "cancel_old"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "on_conflict")


# urgent


async def test_only_the_admin_key_puts_an_order_before_all_others(home: House, tmp_path: Path) -> None:
    refused = await home.post("/work-orders", {"command": ["true"], "urgent": True})
    assert (refused.status_code, refused.json()["code"]) == (403, "admin_needed")
    async with house(tmp_path, auth=False, bind="127.0.0.1") as open_house:
        waiting = await open_house.submit()
        urgent = await open_house.submit(urgent=True)
        assert (urgent["urgent"], urgent["queue_position"]) == (True, 1)
        assert (await open_house.show(waiting["id"]))["queue_position"] == 2
        await open_house.walk(urgent["id"], S.COMPLETED)
        again = await open_house.post(f"/work-orders/{urgent['id']}/rerun")
        assert again.json()["urgent"] is False


# queues


async def test_a_full_pool_refuses_with_a_time_to_come_again_and_takes_in_what_came_before(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"queue_max": 2}, "other": {}}) as home:
        first, _ = await home.submit(), await home.submit()
        refused = await home.post("/work-orders", {"command": ["true"]})
        assert (refused.status_code, refused.json()["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) > 0 and "queue_max" in refused.json()["detail"]
        await home.submit(pool="other")
        await home.walk(first["id"], S.COMPLETED)
        home.world.shared.forget(("queue", "pool", "default", 2))
        assert (await home.submit())["state"] == "pending"


async def test_orders_that_start_at_once_do_not_fill_a_queue(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"pools": {"default": {"queue_max": 2}}, "projects": {"a": {"queue_max": 2}}}
    async with house(tmp_path, **limits) as home:
        leave = home.world.arrivals.join(lambda _: True)
        for _ in range(5):
            await home.submit(project="a")
        leave()
        home.world.shared.forget(("queue", "pool", "default", 2))
        assert (await home.post("/work-orders", {"command": ["true"]})).status_code == 429, "here nobody claimed them"


async def test_orders_of_a_bulk_beyond_a_limit_are_refused_one_by_one(tmp_path: Path) -> None:
    async with house(tmp_path, projects={"a": {"queue_max": 3}}) as home:
        orders = [{"command": ["true"], "project": project} for project in "aababa"]
        answer = (await home.post("/work-orders/bulk", {"orders": orders})).json()
        assert [each["answer"] for each in answer["verdicts"]] == [*["submitted"] * 5, "refused"]
        assert answer["verdicts"][-1]["problem"]["code"] == "queue_full"
        together = await home.post("/work-orders/bulk", {"orders": orders[:1], "together": True})
        assert together.status_code == 429 and "retry-after" in together.headers


async def test_a_repeated_submit_gets_its_first_answer_also_when_the_queue_is_full(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"queue_max": 1}}) as home:
        body = {"orders": [{"command": ["true"]}]}
        first = await home.post("/work-orders/bulk", body, Idempotency_Key="one")
        again = await home.post("/work-orders/bulk", body, Idempotency_Key="one")
        assert again.json()["verdicts"][0]["order"]["id"] == first.json()["verdicts"][0]["order"]["id"]


async def test_refusals_are_told_once_and_not_for_each_request(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"queue_max": 0}}, projects={"a": {"queue_max": 0}}) as home:
        await home.post("/pools/default/resume")
        for _ in range(5):
            assert (await home.post("/work-orders", {"command": ["true"]})).status_code == 429
        kinds = [event.kind for event in await home.store.events(0, 99)]
        assert kinds.count(EventKind.POOL_BACKPRESSURE) == 1
    async with house(tmp_path / "b", projects={"a": {"queue_max": 0}}) as home:
        for _ in range(5):
            assert (await home.post("/work-orders", {"command": ["true"], "project": "a"})).status_code == 429
        told = [event for event in await home.store.events(0, 99) if event.kind is EventKind.PROJECT_BACKPRESSURE]
        assert [(event.subject, event.data["note"]) for event in told] == [("a", {"queue_max": 0})]


# projects


async def test_a_projects_limits_and_weight_can_be_set_and_given_back(tmp_path: Path) -> None:
    async with house(tmp_path, projects={"a": {"running_max": 2}}) as home:
        set_ = {"set": {"running_max": None, "weight": 5}, "reason": "release day"}
        shown = (await _patch(home, "/projects/a", set_)).json()
        assert (shown["running_max"], shown["weight"], shown["queue_max"]) == (None, 5, None)
        assert shown["overrides"]["weight"]["actor"] == "tester"
        assert shown["overrides"]["weight"]["reason"] == "release day"
        back = (await _patch(home, "/projects/a", {"unset": ["running_max"]})).json()
        assert (back["running_max"], list(back["overrides"])) == (2, ["weight"])
        new = (await _patch(home, "/projects/new", {"set": {"queue_max": 7}})).json()
        assert (new["queue_max"], new["open"], new["pending"]) == (7, 0, 0)
        await home.submit(project="new")
        listed = (await home.get("/projects")).json()["projects"]
        assert [(each["name"], each["pending"]) for each in listed] == [("a", 0), ("new", 1)]
        assert (await home.get("/projects/nobody")).status_code == 404


async def test_there_is_nothing_to_unset_of_a_project_that_nobody_ever_used_and_that_answer_is_described(
    home: House,
) -> None:
    answer = await _patch(home, "/projects/nobodys", {"unset": ["weight"]})
    assert answer.status_code == 404, answer.text
    described = (await home.http.get("/api/v1/openapi.json")).json()
    assert "404" in described["paths"]["/api/v1/projects/{name}"]["patch"]["responses"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "set"),
        ({"set": {"weight": 0}}, "set.weight"),
        ({"set": {"running_max": -1}}, "set.running_max"),
        ({"set": {"wait": 3}}, "set.wait"),
        ({"set": {"weight": 2}, "unset": ["weight"]}, "unset"),
        ({"unset": ["name"]}, "unset.0"),
    ],
)
async def test_what_cannot_be_set_of_a_project_is_said(home: House, body: Any, field: str) -> None:
    answer = await _patch(home, "/projects/a", body)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)
