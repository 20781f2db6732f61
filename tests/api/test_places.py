"""Pools, slots and hosts."""

from typing import Any

import pytest

from standby.core import places
from standby.core.model import OrderState, PoolSettings
from tests.api.house import House

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
