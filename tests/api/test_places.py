"""Pools, slots and hosts."""

from pathlib import Path
from typing import Any

import pytest

from standby.api.views import time
from standby.control.apply import apply_config
from standby.core import places
from standby.core.model import OrderState, PoolSettings, Trigger
from standby.core.sighting import Exit, ImageState
from tests.api.house import House, house

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("noun", ["pools/default", "hosts/local"])
async def test_a_place_is_paused_drained_and_resumed_with_who_and_why(home: House, noun: str) -> None:
    for verb, mode in [("pause", "paused"), ("pause", "paused"), ("drain", "draining"), ("resume", "open")]:
        answer = await home.post(f"/{noun}/{verb}", {"reason": "upgrade"})
        assert answer.status_code == 200
        assert (answer.json()["mode"], answer.json()["mode_actor"]) == (mode, "tester")
        assert (await home.get(f"/{noun}")).json() == answer.json()
    without = await home.post(f"/{noun}/pause")
    assert (without.status_code, without.json()["mode_reason"]) == (200, None)


@pytest.mark.parametrize("path", ["/pools/nope", "/hosts/nope", "/nowhere"])
async def test_a_place_that_is_not_there_is_not_found(home: House, path: str) -> None:
    answer = await home.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


MODES = {"pool": "pools/default", "host": "hosts/local", "project": "projects/default"}


@pytest.mark.parametrize("noun", MODES)
async def test_the_gate_shown_is_the_true_one_and_changes_when_it_opens(home: House, noun: str) -> None:
    await home.lead()
    order = (await home.submit())["id"]
    await home.post(f"/{MODES[noun]}/pause", {"reason": "upgrade"})
    home.clock.at += 5_000
    await home.lead()
    why = (await home.get(f"/work-orders/{order}/why")).json()
    name = MODES[noun].partition("/")[2]
    text = f"{noun} {name} is paused by tester for 5 s (upgrade): resume it to go on"
    assert (why["gate"]["name"], why["gate"]["text"]) == (f"{noun}_mode", text)
    assert "when somebody resumes" in why["next"]
    await home.post(f"/{MODES[noun]}/drain", {"reason": "moving", "now": True})
    assert "is draining by tester for 0 s (moving)" in (await home.show(order))["gate"]["text"]
    await home.post(f"/{MODES[noun]}/resume")
    assert not (await home.show(order))["gate"]["name"].endswith("_mode")


@pytest.mark.parametrize("path", MODES.values())
async def test_draining_at_once_says_from_when_on_what_runs_is_stopped(home: House, path: str) -> None:
    await home.submit()
    slowly = (await home.post(f"/{path}/drain")).json()
    assert (slowly["mode"], slowly["mode_stop_at"]) == ("draining", None)
    at_once = (await home.post(f"/{path}/drain", {"now": True, "reason": "fire"})).json()
    assert (at_once["mode_stop_at"], at_once["mode_reason"]) == (time(home.clock.at), "fire")
    assert (await home.post(f"/{path}/pause", {"now": True})).status_code == 422
    assert (await home.post(f"/{path}/resume")).json()["mode_stop_at"] is None


async def test_projects_are_shown_with_who_closed_them_and_their_open_runs(home: House) -> None:
    assert (await home.get("/projects")).json() == {"projects": []}
    order = (await home.submit(project="reports"))["id"]
    assert (await home.get("/projects/reports")).json()["mode"] == "open"
    await home.walk(order, OrderState.RUNNING)
    paused = (await home.post("/projects/reports/pause", {"reason": "audit"})).json()
    assert (paused["mode_reason"], paused["mode_actor"], paused["open"]) == ("audit", "tester", 1)
    assert (await home.get("/projects")).json() == {"projects": [paused]}


async def test_a_project_that_nobody_used_is_not_found(home: House) -> None:
    for method, path in (("GET", ""), ("POST", "/pause")):
        answer = await home.http.request(method, f"/api/v1/projects/nope{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "no_such_project")


async def test_an_order_in_a_paused_pool_says_who_paused_it(home: House) -> None:
    await home.lead()
    await home.post("/pools/default/pause", {"reason": "upgrade"})
    order = await home.show((await home.submit())["id"])
    assert order["gate"]["name"] == "pool_mode"
    assert "tester" in order["gate"]["text"]
    assert "upgrade" in order["gate"]["text"]


async def test_pools_slots_and_hosts_are_counted_in_the_words_people_use(home: House) -> None:
    waiting, starting, busy = [(await home.submit())["id"] for _ in range(3)]
    await home.walk(starting, OrderState.PREPARING)
    await home.walk(busy, OrderState.RUNNING)
    (pool,) = (await home.get("/pools")).json()["pools"]
    assert (pool["pending"], pool["open"], pool["slots"]) == (1, 2, {"deploying": 1, "busy": 1})
    assert pool["orders"] == {"pending": 1, "preparing": 1, "running": 1}
    slots = (await home.get("/slots?pool=default")).json()["slots"]
    assert {slot["order"]: slot["state"] for slot in slots} == {starting: "deploying", busy: "busy"}
    assert waiting not in {slot["order"] for slot in slots}
    (host,) = (await home.get("/hosts")).json()["hosts"]
    assert (host["memory_used_mb"], host["memory_mb"]) == (512, 1024)
    assert (host["lease"]["owner"], host["lease"]["live"]) == ("leader", True)
    home.clock.at += 60_000
    assert (await home.get("/hosts/local")).json()["lease"]["live"] is False
    assert (await home.get("/slots?pool=other")).json()["slots"] == []


@pytest.mark.parametrize(
    "body", [{}, {"reason": "x"}, {"reason": "", "confirm": "local"}, {"reason": "x", "confirm": "b"}]
)
async def test_a_host_is_not_declared_dead_without_a_reason_and_its_name_once_more(home: House, body: Any) -> None:
    assert (await home.post("/hosts/local/declare-dead", body)).status_code == 422
    assert (await home.get("/hosts/local")).json()["dead_at"] is None


async def test_a_host_is_declared_dead_by_an_operators_word(home: House) -> None:
    answer = await home.post("/hosts/local/declare-dead", {"reason": "burnt", "confirm": "local"})
    assert answer.status_code == 200
    assert answer.json()["dead_at"] == "2023-11-14T22:13:20.000Z"


async def test_a_mode_is_set_although_the_pool_changes_at_the_same_time(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, store = home.store.save, home.store
    contested = False

    async def contest(changes: Any) -> Any:
        nonlocal contested
        if not contested:
            contested = True
            pool = await store.pool("default")
            assert pool is not None
            cause = home.world.cause(changes[0].trigger, "rival")
            rival = places.apply_pool(cause, pool, "default", "local", PoolSettings(slots_max=7))
            assert rival is not None
            await save([rival])
        return await save(changes)

    monkeypatch.setattr(store, "save", contest)
    assert (await home.post("/pools/default/pause")).json()["mode"] == "paused"


async def patch(home: House, body: Any, pool: str = "default") -> Any:
    return await home.http.patch(f"/api/v1/pools/{pool}", json=body)


async def test_settings_of_a_pool_can_be_set_over_the_configuration_and_given_back(home: House) -> None:
    configured = (await home.get("/pools/default")).json()
    given = {"slots_max": 5, "run_timeout_s": None, "retry_base_s": 0.5, "retry_on": ["exit"]}
    pool = (await patch(home, {"set": given, "reason": "busy"})).json()
    assert (pool["slots_max"], pool["settings"]["run_timeout_s"]) == (5, None)
    assert {**pool["settings"], "slots_max": pool["slots_max"]}.items() >= {**given, "retries": 3}.items()
    assert set(pool["settings"]) | {"slots_max"} == set(places.OVERRIDABLE), "shown by the names that can be set"
    by_hand = {"value": 5, "actor": "tester", "at": time(home.clock.at), "reason": "busy"}
    assert pool["overrides"]["slots_max"] == by_hand
    assert set(pool["overrides"]) == set(given)
    assert (await home.submit())["run_timeout_s"] is None
    events = (await home.get("/events?kind=pool.overridden")).json()["events"]
    assert [(event["subject"], event["actor"]) for event in events] == [("default", "tester")]
    back = (await patch(home, {"unset": list(given)})).json()
    assert back == {**configured, "orders": {"pending": 1}, "pending": 1}
    assert back["overrides"] == {}


async def test_what_was_set_by_hand_wins_over_the_configuration_after_a_restart(home: House) -> None:
    await patch(home, {"set": {"slots_max": 5}})
    await apply_config(home.world)
    assert (await home.get("/pools/default")).json()["slots_max"] == 5
    settings = {each["name"]: each for each in (await home.get("/config")).json()["settings"]}
    found = settings["pools.default.slots_max"]
    assert (found["value"], found["from"], found["default"]) == (5, "override", 100)
    assert found["where"] == f"by tester at {time(home.clock.at)}"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"set": {}},
        {"set": {"slots": 1}},
        {"set": {"slots_max": -1}},
        {"set": {"slots_max": None}},
        {"set": {"retry_on": ["cancelled"]}},
        {"unset": ["host"]},
        {"set": {"slots_max": 1}, "unset": ["slots_max"]},
        {"set": {"queue_timeout_s": 99_999}},
        {"set": {"queue_timeout_s": None}},
    ],
)
async def test_a_setting_that_cannot_be_is_refused(home: House, body: Any) -> None:
    answer = await patch(home, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await home.get("/pools/default")).json()["overrides"] == {}


async def test_a_pool_that_is_not_in_this_servers_configuration_cannot_be_overridden_here(home: House) -> None:
    assert (await patch(home, {"set": {"slots_max": 1}}, "nowhere")).status_code == 404
    cause = home.world.cause(Trigger.CONFIG, "config")
    change = places.apply_pool(cause, None, "elsewhere", "local", PoolSettings())
    assert change is not None
    await home.store.save([change])
    answer = await patch(home, {"set": {"slots_max": 1}}, "elsewhere")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_configured_here")


async def test_a_host_is_shown_with_its_reading_its_slots_and_its_queue(home: House) -> None:
    await home.walk((await home.submit())["id"], OrderState.PREPARING)
    await home.submit()
    view = (await home.get("/hosts/local")).json()
    assert view["reading"] is None
    assert (view["slots"], view["slots_max"]) == ({"deploying": 1}, 100)
    assert (view["queue_depth"], view["pools"]) == (1, ["default"])
    await home.store.put_reading("local", home.clock.at, '{"memory_total_mb":5,"pressure":{"io_some_avg10":0.5}}')
    reading = (await home.get("/hosts/local")).json()["reading"]
    assert (reading["at"], reading["memory_total_mb"], reading["cpu_used"]) == (time(home.clock.at), 5, None)
    assert reading["pressure"]["io_some_avg10"] == 0.5


GATED: dict[str, Any] = {
    "hosts": {"local": {"driver": "scripted", "memory_mb": 1024, "seats": False, "starts_max": 2}},
    "pools": {"default": {"image": "bot:1", "slots_max": 3, "memory_mb": 1}},
}


async def gated(home: House, orders: int) -> list[str]:
    """So many orders in a pool with three slots; the first two are being started, the third slot is idle."""
    ids = [(await home.submit())["id"] for _ in range(orders)]
    for order_id in ids[:2]:
        await home.walk(order_id, OrderState.PREPARING)
    pool = await home.store.pool("default")
    assert pool is not None
    await home.new_slot(template=places.fingerprint(pool.settings))
    return ids


async def test_starts_in_flight_are_told_with_those_that_wait_for_one_in_their_order(tmp_path: Path) -> None:
    async with house(tmp_path, **GATED) as home:
        ids = await gated(home, 4)
        view = (await home.get("/hosts/local/starts")).json()
        assert (view["active"], view["maximum"], view["queued"]) == (2, 2, 1)
        assert [(each["order"], each["run"]) for each in view["holders"]] == [(one, f"{one}-1") for one in ids[:2]]
        (waiter,) = view["waiters"]  # the fourth waits for a slot
        assert (waiter["order"], waiter["position"], waiter["pool"]) == (ids[2], 1, "default")
        assert (waiter["gives_up_in_s"], waiter["last_time"]) == (300, False)
        host = (await home.get("/hosts/local")).json()
        assert (host["starting"], host["starts_max"]) == (2, 2)
        text = (await home.http.get("/metrics")).text
        assert 'standby_starts_in_flight{host="local"} 2.0' in text
        assert 'standby_starts_waiting{host="local"} 1.0' in text


async def test_an_order_that_waits_for_a_start_says_who_has_the_permits_and_its_place(tmp_path: Path) -> None:
    async with house(tmp_path, **GATED) as home:
        ids = await gated(home, 3)
        gate = (await home.get(f"/work-orders/{ids[2]}")).json()["gate"]
        assert gate["name"] == "starts"
        assert "2 of 2 starts on host local are in flight" in gate["text"]
        assert f"order {ids[0]}" in gate["text"] and "number 1 of 1" in gate["text"]
        await home.finish(ids[0], Exit(code=0))
        assert (await home.get(f"/work-orders/{ids[2]}")).json()["gate"]["name"] == "turn"


async def test_a_run_that_was_commanded_is_a_start_until_it_is_at_work(home: House) -> None:
    starting = (await home.submit())["id"]
    await home.walk(starting, OrderState.PREPARING)
    await home.walk((await home.submit())["id"], OrderState.RUNNING)
    view = (await home.get("/hosts/local/starts")).json()
    assert (view["active"], view["queued"], view["maximum"], view["waiters"]) == (1, 0, None, [])
    (holder,) = view["holders"]
    assert (holder["order"], holder["run"], holder["pool"]) == (starting, f"{starting}-1", "default")
    assert (holder["slot"], holder["since"]) == ("standby-pool-default-001", time(home.clock.at))
    assert (await home.get("/hosts/nowhere/starts")).status_code == 404


async def test_the_breaker_of_a_pool_is_shown_and_can_be_reset(home: House) -> None:
    pool = await home.store.pool("default")
    assert pool is not None
    broken = places.count_failures(home.world.cause(Trigger.LOOK, "test"), pool, 5, "no such image")
    await home.store.save([broken])
    view = (await home.get("/pools/default")).json()
    assert (view["failures"], view["broken_since"]) == (5, time(home.clock.at))
    order = await home.submit()
    await home.lead()
    gate = (await home.get(f"/work-orders/{order['id']}")).json()["gate"]
    assert gate["name"] == "breaker"
    view = (await home.post("/pools/default/reset-breaker", {"reason": "mended"})).json()
    assert (view["failures"], view["broken_since"]) == (0, None)
    again = await home.post("/pools/default/reset-breaker")
    assert again.status_code == 200
    assert (await home.post("/pools/nowhere/reset-breaker")).status_code == 404


async def test_what_is_known_of_an_image_is_seen_on_its_host(home: House) -> None:
    pulling = ImageState(
        host="local", image="bot:1", at=home.clock.at, present=False, pulling_since=home.clock.at, progress="3 of 9 MB"
    )
    await home.store.put_image(pulling)
    (image,) = (await home.get("/hosts/local")).json()["images"]
    assert (image["image"], image["present"], image["progress"]) == ("bot:1", False, "3 of 9 MB")


async def test_what_did_not_change_is_not_sent_again(home: House) -> None:
    order_id = (await home.submit())["id"]
    orders = ["/work-orders", f"/work-orders/{order_id}"]
    for path in [*orders, "/pools", "/pools/default", "/hosts", "/hosts/local", "/slots"]:
        tag = (await home.get(path)).headers["etag"]
        same = await home.get(path, headers={"If-None-Match": f'"other", W/{tag}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        assert (await home.get(path, headers={"If-None-Match": '"other"'})).status_code == 200
    tag = (await home.get("/pools")).headers["etag"]
    await home.submit()
    assert (await home.get("/pools", headers={"If-None-Match": tag})).status_code == 200
