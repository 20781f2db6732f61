"""Schedules of a real server: run now, kills between ticks and in the midst of many, and what is stopped by a drain."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from standby.core import ticks
from standby.core.lifecycle import Cause
from standby.core.model import Schedule, Trigger
from standby.store.contract import OrderFilter, Store
from standby.store.store import open_store
from tests.e2e.house import Answer, House, house, until

HOUR = 3_600_000
SMALL = '[pools.default]\nslots_max = 2\nmemory_mb = 10\nretry_base = "50ms"\n'


def cron_far_from_now() -> str:
    """Hourly, half an hour from now: no tick comes while a test runs."""
    return f"{(datetime.now(UTC).minute + 30) % 60} * * * *"


def add(home: House, name: str, missed: str = "once", **order: object) -> None:
    body = {"name": name, "cron": cron_far_from_now(), "missed": missed, "order": {"command": ["true"], **order}}
    answer = home.call("POST", "/schedules", body)
    assert answer.status_code == 201, answer.text
    assert len(answer.json()["next_ticks"]) == 3


def url_of(home: House, engine: str | None) -> str:
    return engine or f"sqlite:///{home.state / 'standby.db'}"


async def _put_back(store: Store, hours: int) -> None:
    """As if the last server had ended so long ago."""
    for n, row in enumerate(await store.schedules()):
        assert row.next_at is not None
        cause = Cause(id=f"back-{n}", at=await store.now(), trigger=Trigger.REQUEST, actor="test")
        change = ticks.alter(cause, row, replace(row, next_at=row.next_at - hours * HOUR), None)
        assert change is not None and (await store.save([change], together=True))[0].saved


def put_back(home: House, engine: str | None, hours: int) -> None:
    async def edit() -> None:
        async with open_store(url_of(home, engine)) as store:
            await _put_back(store, hours)

    asyncio.run(edit())


def rows(home: House, engine: str | None) -> tuple[Mapping[str, Schedule], Counter[tuple[str | None, int | None]]]:
    """The schedules, and how many orders each tick has, read from the database of a server that is dead."""

    async def read() -> tuple[Mapping[str, Schedule], Counter[tuple[str | None, int | None]]]:
        async with open_store(url_of(home, engine)) as store:
            found = {row.name: row for row in await store.schedules()}
            listed = (await store.orders(OrderFilter(), None, 100_000)).orders
            return found, Counter((each.spec.schedule, each.spec.tick_at) for each in listed)

    return asyncio.run(read())


def test_a_schedule_is_run_now_paused_and_survives_a_kill(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        add(home, "hello", command=["sh", "-c", 'test "$WORD" = secret && echo hello'], env={"WORD": "secret"})
        answer = home.call("POST", "/schedules/hello/run")
        assert answer.status_code == 201, answer.text
        first = home.ended(answer.json()["id"])
        assert (first["state"], first["schedule"]) == ("completed", "hello")
        home.call("POST", "/schedules/hello/pause", {"reason": "night"})
        home.kill()
        home.start()
        shown = home.get("/schedules/hello")
        assert (shown["mode"], shown["mode_reason"], shown["mode_actor"]) == ("paused", "night", "admin")
        assert [each["order"] for each in shown["ticks"]] == [first["id"]]
        again = home.call("POST", "/schedules/hello/run").json()
        assert home.ended(again["id"])["state"] == "completed"
        assert "secret" not in (home.directory / "server.log").read_text()
        metrics = until(lambda: _made(home), "the ticks are counted")
        assert 'standby_ticks_made_total{pool="default"} 1.0' in metrics


def _made(home: House) -> str | None:
    import httpx2

    text = httpx2.get(f"{home.url}/metrics", headers={"Authorization": f"Bearer {home.key}"}, timeout=10).text
    return text if "standby_ticks_made_total{" in text else None


def test_ticks_missed_while_nothing_ran_are_made_as_their_policies_say(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=SMALL, **keys) as home:
        home.start()
        for missed in ("skip", "once", "all"):
            add(home, missed, missed)
        next_at = {each["name"]: each["next_at"] for each in home.get("/schedules")["schedules"]}
        home.kill()
        put_back(home, engine, 3)
        home.start()
        until(lambda: _settled(home) == next_at, "every schedule waits for its next tick again")
        home.kill()
        schedules, made = rows(home, engine)
        last = {name: (row.next_at or 0) - HOUR for name, row in schedules.items()}
        expected = [("once", last["once"]), *(("all", last["all"] - hour * HOUR) for hour in range(3))]
        assert made == Counter(expected)


def _settled(home: House) -> dict[str, str]:
    return {each["name"]: each["next_at"] for each in home.get("/schedules")["schedules"]}


def test_a_server_killed_again_and_again_neither_loses_nor_doubles_a_tick(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    hours, names = 60, [f"all-{n}" for n in range(5)]
    with house(tmp_path / "house", toml=SMALL, lease="1s", renew="300ms", command_window="300ms", **keys) as home:
        home.start()
        for name in names:
            add(home, name, "all")
        home.call("POST", "/pools/default/pause")
        ahead = _settled(home)
        home.kill()
        put_back(home, engine, hours)
        kills = 0
        while True:
            before = len(rows(home, engine)[1])
            home.start()
            until(lambda: _settled(home) == ahead or _ticks(home) > before + 20, "ticks are made")  # noqa: B023
            done = _settled(home) == ahead
            home.kill()
            if done:
                break
            kills += 1
        schedules, made = rows(home, engine)
        expected = {(row.name, (row.next_at or 0) - (n + 1) * HOUR) for row in schedules.values() for n in range(hours)}
        assert set(made) == expected
        assert set(made.values()) == {1}
        assert kills


def _ticks(home: House) -> int:
    pools: int = home.get("/pools/default")["pending"]
    return pools


def _held_by(home: House, order: str, name: str) -> Answer | None:
    gate: Answer | None = home.get(f"/work-orders/{order}/why")["gate"]
    return gate if gate is not None and gate["name"] == name else None


def test_draining_a_project_at_once_stops_its_run_which_runs_again_when_it_is_resumed(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml=SMALL) as home:
        home.start()
        gate = tmp_path / "gate"
        script = f"until [ -e {gate} ]; do sleep 0.05; done"
        order = home.submit(script=script, project="reports", stop_grace_s=1)
        other = home.submit(script=script, project="other")
        home.in_state(order, "running")
        home.in_state(other, "running")
        drained = home.call("POST", "/projects/reports/drain", {"now": True, "reason": "audit"})
        assert drained.status_code == 200, drained.text
        home.in_state(order, "pending")
        home.kill()
        home.start()
        held = until(lambda: _held_by(home, order, "project_mode"), "only its project holds it")
        assert "project reports is draining by admin" in held["text"] and "(audit)" in held["text"]
        assert home.order(other)["state"] == "running"
        assert [run["reason"] for run in home.get(f"/work-orders/{order}/runs")["runs"]] == ["drained"]
        home.call("POST", "/projects/reports/resume")
        home.in_state(order, "running")
        gate.touch()
        assert (home.ended(order)["state"], home.ended(other)["state"]) == ("completed", "completed")
