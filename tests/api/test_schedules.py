"""Schedules over HTTP: made, shown, changed, paused, run and removed, and refused with what to do."""

from dataclasses import replace
from typing import Any

import pytest

from standby.config import Config
from standby.control.apply import apply_config
from standby.core.model import OrderState
from standby.ticking import sealed_for
from tests.api.house import House, View

pytestmark = pytest.mark.anyio
NIGHTLY = {"name": "nightly", "cron": "30 2 * * mon-fri", "zone": "Europe/Berlin", "order": {"command": ["true"]}}
DAY = 86_400_000


async def add(home: House, **more: Any) -> View:
    answer = await home.post("/schedules", {**NIGHTLY, **more})
    assert answer.status_code == 201, answer.text
    view: View = answer.json()
    return view


async def show(home: House, name: str = "nightly") -> View:
    view: View = (await home.get(f"/schedules/{name}")).json()
    return view


async def patch(home: House, body: Any) -> Any:
    return await home.http.patch("/api/v1/schedules/nightly", json=body)


async def test_a_new_schedule_shows_its_next_three_ticks_and_never_an_env_value(home: House) -> None:
    order = {"script": "echo hi", "env": {"TOKEN": "secret-value"}, "payload": {"n": 1.0}, "labels": {"a": "b"}}
    answer = await home.post("/schedules", {**NIGHTLY, "order": {**order, "project": "reports"}})
    assert answer.headers["location"] == "/api/v1/schedules/nightly"
    view = answer.json()
    # the clock stands on Tuesday, 2023-11-14, 22:13 UTC
    assert view["next_ticks"] == ["2023-11-15T01:30:00.000Z", "2023-11-16T01:30:00.000Z", "2023-11-17T01:30:00.000Z"]
    assert (view["next_at"], view["last_at"], view["last_order"]) == (view["next_ticks"][0], None, None)
    assert (view["project"], view["pool"], view["missed"], view["mode"]) == ("reports", "default", "once", "open")
    assert (view["order"]["script"], view["order"]["env_names"], view["order"]["labels"]) == (
        "echo hi",
        ["TOKEN"],
        {"a": "b"},
    )
    assert '"payload":{"n":1.0}' in answer.text.replace(" ", "")
    events = (await home.get("/events?after=0&kind=schedule.added")).text
    assert "secret-value" not in answer.text + events + (await home.get("/schedules/nightly")).text
    assert await show(home) == {**view, "ticks": []}
    assert (await home.get("/schedules")).json() == {"schedules": [view]}


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        ({"cron": "61 * * * *"}, "cron", "minute: '61' is not a value; use 0 to 59"),
        ({"cron": "* * *"}, "cron", "needs five"),
        ({"cron": "0 0 31 feb *"}, "cron", "never comes"),
        ({"zone": "Europe/Berln"}, "zone", "did you mean Europe/Berlin"),
        ({"zone": "../../etc/passwd"}, "zone", "there is no time zone"),
        ({"zone": "Europe"}, "zone", "there is no time zone"),
        ({"missed": "skipp"}, "missed", "did you mean skip?"),
        ({"order": {"command": ["true"], "not_before": 5}}, "order.not_before", "the schedule says when"),
        ({"order": {"command": ["true"], "rerun_of": "x"}}, "order.rerun_of", "cannot have rerun_of"),
        ({"order": {}}, "command", "exactly one of command and script"),
        ({"order": {"command": ["true"], "pool": "nope"}}, "pool", "there is no pool 'nope'"),
        ({"order": {"command": ["true"], "prority": 1}}, "order.prority", "did you mean priority"),
        ({"name": "No Name"}, "name", "characters that are not allowed"),
        ({"every": "day"}, "every", "unknown field"),
    ],
)
async def test_what_cannot_be_meant_is_refused_with_what_to_do(home: House, body: Any, field: str, said: str) -> None:
    answer = await home.post("/schedules", {**NIGHTLY, **body})
    assert answer.status_code == 422
    problem = answer.json()
    assert (problem["errors"][0]["field"], problem["what_to_do"] != "") == (field, True)
    assert said in problem["detail"]
    assert (await home.get("/schedules")).json() == {"schedules": []}


async def test_a_name_that_is_taken_is_refused(home: House) -> None:
    await add(home)
    answer = await home.post("/schedules", {**NIGHTLY, "cron": "@daily"})
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert (await show(home))["cron"] == NIGHTLY["cron"]


async def test_a_schedule_that_is_not_there_is_not_found_and_those_that_are_are_named(home: House) -> None:
    await add(home)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run"), ("POST", "/pause"), ("POST", "/resume")):
        answer = await home.http.request(method, f"/api/v1/schedules/nope{path}")
        assert (answer.status_code, answer.json()["what_to_do"]) == (404, "there are: nightly"), path


async def test_what_is_changed_is_changed_and_the_rest_stays(home: House) -> None:
    before = await add(home, order={"command": ["true"], "env": {"TOKEN": "secret"}})
    sealed = await home.store.schedule_env("nightly")
    answer = await patch(home, {"missed": "all"})
    assert answer.json() == {**before, "missed": "all"}
    answer = await patch(home, {"cron": "@hourly", "zone": "UTC"})
    assert answer.json()["next_at"] == "2023-11-14T23:00:00.000Z"
    assert await home.store.schedule_env("nightly") == sealed is not None
    answer = await patch(home, {"order": {"command": ["date"], "priority": 7}})
    assert (answer.json()["order"]["command"], answer.json()["order"]["env_names"]) == (["date"], [])
    assert await home.store.schedule_env("nightly") is None
    kinds = [event["kind"] for event in (await home.get("/events?after=0&subject=nightly")).json()["events"]]
    assert kinds == ["schedule.added", *["schedule.changed"] * 3]


@pytest.mark.parametrize("body", [{}, {"cron": "x"}, {"zone": "x"}, {"name": "other"}, {"cron": None}])
async def test_a_change_that_cannot_be_meant_changes_nothing(home: House, body: Any) -> None:
    before = await add(home)
    answer = await patch(home, body)
    assert answer.status_code == 422
    assert await show(home) == {**before, "ticks": []}


async def test_paused_it_has_no_next_tick_and_says_who_and_why(home: House) -> None:
    before = await add(home)
    paused = (await home.post("/schedules/nightly/pause", {"reason": "audit"})).json()
    assert (paused["mode"], paused["mode_reason"], paused["mode_actor"]) == ("paused", "audit", "tester")
    assert (paused["next_at"], paused["next_ticks"]) == (None, [])
    moved = (await patch(home, {"cron": "@daily"})).json()
    assert (moved["mode"], moved["next_at"]) == ("paused", None)
    home.clock.at += 30 * DAY
    resumed = (await home.post("/schedules/nightly/resume")).json()
    assert (resumed["mode"], resumed["mode_reason"], resumed["next_at"]) == ("open", None, "2023-12-14T23:00:00.000Z")
    assert resumed["next_at"] > before["next_at"]


async def test_run_now_makes_an_order_that_names_its_schedule_and_leaves_the_next_tick(home: House) -> None:
    before = await add(home, order={"command": ["true"], "env": {"TOKEN": "secret"}, "project": "reports"})
    answer = await home.post("/schedules/nightly/run")
    order = answer.json()
    assert (answer.status_code, order["schedule"], order["tick_at"]) == (201, "nightly", "2023-11-14T22:13:20.000Z")
    assert (order["state"], order["project"], order["queue_position"]) == ("pending", "reports", 1)
    sealed = await home.store.sealed_env([order["id"]])
    assert home.world.seal.open(order["id"], sealed[order["id"]]) == {"TOKEN": "secret"}
    after = await show(home)
    assert (after["next_at"], after["last_order"]) == (before["next_at"], order["id"])
    assert after["ticks"] == [{"at": order["tick_at"], "order": order["id"]}]
    await home.post("/schedules/nightly/pause")
    home.clock.at += 1
    assert (await home.post("/schedules/nightly/run")).status_code == 201
    assert (await show(home))["mode"] == "paused"


async def test_run_now_with_a_dedupe_key_means_the_order_that_is_unfinished(home: House) -> None:
    await add(home, order={"command": ["true"], "dedupe_key": "one"})
    first = (await home.post("/schedules/nightly/run")).json()
    home.clock.at += 1
    again = await home.post("/schedules/nightly/run")
    assert (again.status_code, again.json()["id"], again.json()["deduplicated"]) == (200, first["id"], True)
    await home.walk(first["id"], OrderState.COMPLETED)
    home.clock.at += 1
    assert (await home.post("/schedules/nightly/run")).status_code == 201


async def test_run_now_of_what_cannot_be_opened_is_refused_without_a_value(home: House) -> None:
    await add(home, order={"command": ["true"], "env": {"TOKEN": "secret-value"}})
    foreign = home.world.seal.close("another", {"TOKEN": "secret-value"})
    row = await home.store.schedule("nightly")
    assert row is not None and foreign is not None
    from standby.core import ticks
    from standby.core.model import Trigger

    change = ticks.alter(home.world.cause(Trigger.REQUEST, "t"), row, row, foreign)
    assert change is not None and (await home.store.save([change], together=True))[0].saved
    answer = await home.post("/schedules/nightly/run")
    assert (answer.status_code, answer.json()["code"]) == (409, "cannot_run")
    assert "secret-value" not in answer.text and sealed_for("nightly") in answer.text


async def test_a_removed_schedule_is_gone_and_its_name_is_free(home: House) -> None:
    await add(home)
    assert (await home.http.delete("/api/v1/schedules/nightly")).json()["name"] == "nightly"
    assert (await home.get("/schedules/nightly")).status_code == 404
    await add(home)


async def test_an_order_that_waits_for_its_time_says_until_when(home: House) -> None:
    await home.lead()
    order = await home.submit(not_before="2030-01-31T12:00:00Z")
    assert (order["schedule"], order["tick_at"]) == (None, None)
    why = (await home.get(f"/work-orders/{order['id']}/why")).json()
    assert (why["gate"]["name"], why["gate"]["opens_at"]) == ("not_before", "2030-01-31T12:00:00.000Z")
    assert (why["gives_up_in_ms"], "2030-01-31T12:00:00.000Z" in why["gate"]["text"]) == (None, True)


async def test_a_rerun_of_its_order_is_no_tick(home: House) -> None:
    await add(home)
    order = (await home.post("/schedules/nightly/run")).json()["id"]
    await home.walk(order, OrderState.COMPLETED)
    again = (await home.post(f"/work-orders/{order}/rerun")).json()
    assert (again["rerun_of"], again["schedule"], again["tick_at"]) == (order, None, None)


async def test_what_was_there_before_its_pool_became_another_projects_runs_there_no_more(home: House) -> None:
    await add(home)
    ended = await home.submit()
    await home.walk(ended["id"], OrderState.COMPLETED)
    pools = {"default": {"project": "reports"}}
    config = Config.of(hosts={"local": {"driver": "scripted", "memory_mb": 1024}}, pools=pools)
    await apply_config(replace(home.world, config=config))
    home.world.shared.forget(("pool", "default"))
    said = "pool default takes only orders of project reports, not of default"
    again, now = await home.post(f"/work-orders/{ended['id']}/rerun"), await home.post("/schedules/nightly/run")
    assert (again.status_code, again.json()["detail"]) == (422, said)
    assert (now.status_code, now.json()["code"]) == (409, "cannot_run") and said in now.json()["detail"]
