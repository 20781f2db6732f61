"""Keys, the configuration as it is shown, and the server's own diagnosis."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from standby.api.auth import hashed
from standby.api.doctor import far_workers
from standby.api.views import time
from standby.config import Config
from standby.core import slots
from standby.core.model import Trigger
from standby.store.contract import Key
from tests.api.house import TOKEN, House, house

pytestmark = pytest.mark.anyio


async def checks(home: House) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in (await home.get("/doctor")).json()["checks"]}


async def test_a_second_key_can_be_added_and_removed_but_never_the_last(home: House) -> None:
    made = await home.post("/keys", {"name": "ci"})
    assert made.status_code == 201
    token = made.json()["key"]
    listed = (await home.get("/keys")).json()["keys"]
    assert [(key["name"], key["last4"]) for key in listed] == [("ci", token[-4:]), ("tester", None)]
    assert all("key" not in key for key in listed)
    theirs = {"Authorization": f"Bearer {token}"}
    assert (await home.get("/pools", headers=theirs)).status_code == 200
    assert (await home.post("/keys", {"name": "ci"})).status_code == 409
    assert (await home.http.delete("/api/v1/keys/nobody")).status_code == 404
    gone = await home.http.delete("/api/v1/keys/ci")
    assert (gone.status_code, gone.json()["name"]) == (200, "ci")
    last = await home.http.delete("/api/v1/keys/tester")
    assert (last.status_code, last.json()["code"]) == (409, "last_key")
    assert (await home.get("/pools", headers=theirs)).status_code == 401
    assert (await home.get("/pools", headers={"Authorization": f"Bearer {TOKEN}"})).status_code == 200


async def test_a_key_counts_at_once_where_it_was_made_and_no_more_where_it_was_removed(home: House) -> None:
    for name in ("one", "two"):
        await home.get("/pools", headers={"Authorization": "Bearer sb_unknown"})
        theirs = {"Authorization": f"Bearer {(await home.post('/keys', {'name': name})).json()['key']}"}
        assert (await home.get("/pools", headers=theirs)).status_code == 200
        await home.http.delete(f"/api/v1/keys/{name}")
        assert (await home.get("/pools", headers=theirs)).status_code == 401


async def test_unknown_keys_make_the_server_look_once_a_second_at_most(
    home: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, looks = home.store.keys, []

    async def count() -> Any:
        looks.append(1)
        return await keys()

    monkeypatch.setattr(home.store, "keys", count)
    monkeypatch.setattr(home.clock, "monotonic", lambda: home.clock.skipped_s)
    for _ in range(5):
        assert (await home.get("/pools", headers={"Authorization": "Bearer sb_unknown"})).status_code == 401
    assert len(looks) == 2, "the first reading, and one for the unknown key"
    home.clock.skipped_s += 1
    await home.get("/pools", headers={"Authorization": "Bearer sb_unknown"})
    assert len(looks) == 3


async def test_a_late_answer_of_the_store_brings_no_removed_key_back(home: House) -> None:
    keyring, store = home.app.state.keyring, home.store
    await store.add_key(Key(name="gone", hash=hashed("sb_gone"), created_at=1))
    keys, asked, go_on = store.keys, asyncio.Event(), asyncio.Event()

    async def late() -> Any:
        found = await keys()
        asked.set()
        await go_on.wait()
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "keys", late)
        reading = asyncio.create_task(keyring.read())
        await asked.wait()
    await home.http.delete("/api/v1/keys/gone")
    go_on.set()
    await reading
    assert await keyring.holder("sb_gone") is None


@pytest.mark.parametrize("body", [{}, {"name": ""}, {"name": "A b"}, {"name": "x" * 64}, {"name": "a", "key": "b"}])
async def test_a_key_needs_a_plain_name(home: House, body: Any) -> None:
    assert (await home.post("/keys", body)).status_code == 422


async def test_the_configuration_is_shown_without_its_secrets(tmp_path: Path) -> None:
    secrets: dict[str, Any] = {"seal_key": "ab" * 32, "database": "postgresql://me:xyzzy@db/x?password=plugh"}
    async with house(tmp_path, **secrets) as home:
        answer = await home.get("/config")
        found = {each["name"]: each for each in answer.json()["settings"]}
    for secret in ("abab", "xyzzy", "plugh"):
        assert secret not in answer.text
    assert found["database"]["value"] == "postgresql://me@db/x"
    assert found["seal_key"]["value"] == "(secret)"
    assert (found["port"]["value"], found["port"]["default"], found["port"]["from"]) == (8377, 8377, "default")
    assert {"poll", "hosts.local.driver", "pools.default.slots_max", "pools.default.run_timeout"} <= set(found)


async def test_the_doctor_finds_a_healthy_server_healthy(home: House) -> None:
    await home.lead()
    found = await checks(home)
    well = {"store", "migrations", "host local: lease", "host local: pressure", "host local: slots", "pool default"}
    assert well | {"clock", "host local: platform", "disk", "history"} == set(found)
    assert {name: found[name]["ok"] for name in well} == dict.fromkeys(well, True)
    assert all(found[name]["do"] is None for name in well)


async def test_the_doctor_says_what_is_wrong_and_what_to_do(home: House) -> None:
    found = await checks(home)
    assert "start a server" in found["host local: lease"]["do"]
    await home.lead()
    pool = await home.store.pool("default")
    assert pool is not None
    cause = home.world.cause(Trigger.SIZE, "test")
    await home.store.save([slots.create(cause, "s-1", pool)])
    (slot,) = await home.store.slots()
    await home.store.save([slots.failed(home.world.cause(Trigger.SIZE, "test"), slot, "no such image")])
    home.clock.steady = False
    home.clock.at += 60_000
    found = await checks(home)
    ill = ("host local: slots", "clock", "host local: lease")
    assert [found[name]["ok"] for name in ill] == [False] * 3
    assert "no such image" in found["host local: slots"]["says"]
    assert all(found[name]["do"] for name in ill)


async def test_the_doctor_finds_a_place_that_somebody_shut_while_orders_wait(home: House) -> None:
    since = time(home.clock.at)
    await home.post("/pools/default/drain", {"reason": "upgrade"})
    assert (await checks(home))["pool default"]["ok"] is True, "nobody waits for it"
    for _ in range(2):
        await home.submit()
    found = (await checks(home))["pool default"]
    assert (found["ok"], found["do"]) == (None, "standby pools resume default")
    assert found["says"] == f"2 orders wait, and it is draining by tester since {since} (upgrade)"
    await home.post("/pools/default/resume")
    assert (await checks(home))["pool default"]["ok"] is True
    await home.post("/hosts/local/pause")
    found = (await checks(home))["pool default"]
    assert (found["ok"], found["do"]) == (None, "standby hosts resume local")
    assert found["says"] == f"2 orders wait, and its host local is paused by tester since {since}"


async def test_the_doctor_finds_a_project_that_somebody_shut_while_orders_wait(home: House) -> None:
    since = time(home.clock.at)
    await home.submit(project="reports")
    assert "project reports" not in await checks(home), "nobody shut it"
    await home.post("/projects/reports/pause", {"reason": "audit"})
    found = (await checks(home))["project reports"]
    assert (found["ok"], found["do"]) == (None, "standby projects resume reports")
    assert found["says"] == f"1 order waits, and it is paused by tester since {since} (audit)"
    await home.post("/projects/reports/resume")
    assert "project reports" not in await checks(home)
    await home.http.patch("/api/v1/projects/reports", json={"set": {"running_max": 0}})
    found = (await checks(home))["project reports"]
    assert (found["ok"], found["do"]) == (False, "standby projects set reports running_max=N")
    assert found["says"] == "1 order waits, and running_max is 0: nothing starts"
    await home.post("/projects/empty/pause")
    assert "project empty" not in await checks(home), "nobody waits for it"


async def test_the_doctor_finds_a_schedule_that_makes_no_orders(home: House) -> None:
    since = time(home.clock.at)
    await home.post("/schedules", {"name": "nightly", "cron": "@daily", "order": {"command": ["true"]}})
    assert "schedule nightly" not in await checks(home)
    await home.post("/schedules/nightly/pause", {"reason": "audit"})
    found = (await checks(home))["schedule nightly"]
    assert (found["ok"], found["do"]) == (None, "standby schedules resume nightly")
    assert found["says"] == f"it makes no orders: it is paused by tester since {since} (audit)"


async def test_the_doctor_finds_a_pool_without_slots_while_orders_wait(home: House) -> None:
    await home.http.patch("/api/v1/pools/default", json={"set": {"slots_max": 0}})
    assert (await checks(home))["pool default"]["ok"] is True, "nobody waits for it"
    await home.submit()
    found = (await checks(home))["pool default"]
    assert (found["ok"], found["do"]) == (False, "standby pools set default slots_max=N")
    assert found["says"] == "1 order waits, and slots_max is 0: nothing starts"


@pytest.mark.parametrize(("url", "found"), [("http://127.0.0.1:8377", 1), ("http://10.0.0.5:8377", 0)])
async def test_the_doctor_finds_far_workers_that_are_told_an_address_of_this_machine(
    home: House, url: str, found: int
) -> None:
    cloud = {"driver": "coolify", "url": "https://coolify.example", "token": "t", "project": "p", "server": "s"}
    config = Config.of(hosts={"cloud": cloud}, pools={"bots": {"image": "bot:1", "worker": True}})
    checks = far_workers(dataclasses.replace(home.world, config=config, reach={"STANDBY_URL": url}))
    assert [(check.ok, check.do) for check in checks] == [
        (None, "set worker_url to an address that they can reach")
    ] * found
    assert far_workers(dataclasses.replace(home.world, reach={"STANDBY_URL": url})) == []
