"""Runs that take more memory than they declare are pointed out; what can never fit is refused with the figures."""

from pathlib import Path
from typing import Any

import pytest

from standby.core.model import OrderState
from standby.core.sighting import Exit
from tests.api.house import House, house

pytestmark = pytest.mark.anyio


async def ran(home: House, peak_mb: int | None) -> None:
    order_id = (await home.submit())["id"]
    await home.walk(order_id, OrderState.RUNNING)
    await home.finish(order_id, Exit(code=0, peak_memory_kb=None if peak_mb is None else peak_mb * 1024))


async def test_a_pool_whose_runs_take_more_than_they_declare_is_pointed_out(home: House) -> None:
    assert (await home.get("/pools/default")).json()["peaks"] is None
    home.world.shared.forget("peaks")
    declared: int = (await home.get("/pools/default")).json()["settings"]["memory_mb"]
    home.world.shared.forget("peaks")
    for peak_mb in (declared, declared + 1, declared + 300, None):
        await ran(home, peak_mb)
    (pool,) = (await home.get("/pools")).json()["pools"]
    assert pool["peaks"] == {"runs": 3, "above": 2, "most_mb": declared + 300}
    assert 'standby_pool_runs_above_memory{pool="default"} 2.0' in (await home.http.get("/metrics")).text


async def test_the_question_is_asked_once_in_a_while_however_many_ask(home: House) -> None:
    asked = 0
    real = home.store.peaks

    async def peaks() -> Any:
        nonlocal asked
        asked += 1
        return await real()

    home.store.peaks = peaks  # type: ignore[method-assign]
    for _ in range(5):
        await home.get("/pools/default")
    assert asked == 1


SMALL: dict[str, Any] = {
    "hosts": {"local": {"driver": "scripted", "memory_mb": 100}},
    "pools": {"default": {"memory_mb": 101}},
}


async def test_an_order_that_can_never_fit_is_refused_also_when_the_pool_says_how_much_it_takes(tmp_path: Path) -> None:
    async with house(tmp_path, **SMALL) as home:
        answer = await home.post("/work-orders", {"command": ["a"]})
        assert answer.status_code == 422
        assert "memory_mb 101 is more than the 100 MB that host local has in all" in answer.json()["detail"]
        assert (await home.post("/work-orders", {"command": ["a"], "memory_mb": 100})).status_code == 201


async def test_a_live_place_needs_what_its_pool_says_whatever_the_order_does(tmp_path: Path) -> None:
    live = {"default": {"memory_mb": 101, "image": "app:1", "warmth": "running"}}
    hosts = {"local": {**SMALL["hosts"]["local"], "seats": False}}
    async with house(tmp_path, hosts=hosts, pools=live) as home:
        assert (await home.post("/work-orders", {"command": ["a"], "memory_mb": 1})).status_code == 422


async def test_a_host_tells_its_processors_and_how_many_are_taken(tmp_path: Path) -> None:
    hosts = {"local": {"driver": "scripted", "cpus": 4}}
    async with house(tmp_path, hosts=hosts, pools={"default": {"cpus": 1.5}}) as home:
        await home.walk((await home.submit())["id"], OrderState.RUNNING)
        host = (await home.get("/hosts/local")).json()
        assert (host["cpus_used"], host["cpus"]) == (1.5, 4.0)


async def test_the_memory_of_an_idle_live_slot_is_told_as_taken(tmp_path: Path) -> None:
    hosts = {"local": {"driver": "scripted", "seats": False, "memory_mb": 500}}
    live = {"default": {"memory_mb": 101, "image": "app:1", "warmth": "running"}}
    async with house(tmp_path, hosts=hosts, pools=live) as home:
        await home.new_slot()
        assert (await home.get("/hosts/local")).json()["memory_used_mb"] == 101


async def test_an_order_asks_for_processors_of_its_own_and_keeps_them_when_it_is_run_again(tmp_path: Path) -> None:
    hosts = {"local": {"driver": "scripted", "cpus": 4}}
    async with house(tmp_path, hosts=hosts, pools={"default": {"cpus": 1.5}}) as home:
        usual, own = await home.submit(), await home.submit(cpus=0.75)
        assert (usual["cpus"], own["cpus"]) == (None, 0.75)
        await home.walk(own["id"], OrderState.RUNNING)
        assert (await home.get("/hosts/local")).json()["cpus_used"] == 0.75
        await home.finish(own["id"], Exit(code=0))
        assert (await home.post(f"/work-orders/{own['id']}/rerun", {})).json()["cpus"] == 0.75
        schedule = {"name": "s", "cron": "0 0 * * *", "order": {"command": ["true"], "cpus": 2}}
        assert (await home.post("/schedules", schedule)).json()["order"]["cpus"] == 2
        assert (await home.post("/schedules/s/run", {})).json()["cpus"] == 2


async def test_more_processors_than_the_host_has_are_refused_with_the_figures(tmp_path: Path) -> None:
    hosts = {"local": {"driver": "scripted", "cpus": 4}}
    async with house(tmp_path, hosts=hosts) as home:
        refused = (await home.post("/work-orders", {"command": ["a"], "cpus": 4.5})).json()
        assert (refused["status"], refused["errors"][0]["field"]) == (422, "cpus")
        assert refused["detail"] == "cpus 4.5 is more than the 4 that host local has in all"
        for wrong in (0, -1, 0.0004, "many"):
            assert (await home.post("/work-orders", {"command": ["a"], "cpus": wrong})).status_code == 422
