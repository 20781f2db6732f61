"""The routes of workers: their tokens, what they may say, and how soon who waits is answered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from standby.api.app import WorkersOnly
from standby.core import lifecycle, slots
from standby.core.model import Reason, Slot, Trigger
from standby.core.sighting import Exit
from standby.store.contract import Work
from standby.store.sqlite import SqliteStore
from tests.api.house import House, house, until
from tests.workers import Played

pytestmark = pytest.mark.anyio
SLOT = "standby-pool-default-001"
POOL = {"worker": True, "warmth": "running"}


class Home:
    """A house whose pool has one slot with a resident worker."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.seal = house.world.seal

    async def furnish(self) -> None:
        self.slot_token = self.seal.slot_token(SLOT, (await self.house.new_slot()).generation)

    def worker(self, nonce: str = "nonce-one") -> Played:
        return Played(self.house.http, self.slot_token, nonce)

    async def booted(self, nonce: str = "nonce-one") -> Played:
        worker = self.worker(nonce)
        assert (await worker.boot()).status_code == 200
        return worker

    async def seat(self) -> tuple[Slot, Work | None]:
        found = await self.house.store.seat(SLOT)
        assert found is not None
        return found

    async def claim(self, **body: Any) -> tuple[str, str]:
        """An order that is claimed for the worker: its id and its run's."""
        order_id = (await self.house.submit(**body))["id"]
        work, (slot, _) = await self.house._work(order_id), await self.seat()
        pool, host = await self.house.store.pool("default"), await self.house.store.host("local")
        assert pool is not None and host is not None
        lease = await self.house.lead()
        cause = self.house.world.cause(Trigger.ADMIT, "test", (lease.host, lease.epoch))
        change = lifecycle.claim(cause, work.order, work.spec, slot, pool, host, 2_000)
        await self.house._save(change)
        return order_id, f"{order_id}-1"


@asynccontextmanager
async def opened(directory: Path, **settings: Any) -> AsyncIterator[Home]:
    async with house(directory, pools={"default": {**POOL, **settings}}) as found:
        home = Home(found)
        await home.furnish()
        yield home


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with opened(tmp_path) as found:
        yield found


def code(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


# tokens


@pytest.mark.parametrize(
    "token",
    [
        "",
        "x",
        f"slot.{SLOT}.{'a' * 43}",
        f"slot.nowhere.{'a' * 43}",
        f"boot.{SLOT}.nonce-one.{'a' * 43}",
        f"run.order-1.{'a' * 43}",
        "sb_" + "t" * 43,
    ],
)
async def test_a_token_that_is_not_right_is_refused_by_every_route(home: Home, token: str) -> None:
    worker = home.worker()
    for method, route in (("POST", "boot"), ("GET", "assignment"), ("POST", "heartbeat"), ("POST", "result")):
        assert code(await worker.ask(method, route, token, {} if method == "POST" else None)) == (401, "token_unknown")


async def test_a_token_is_good_for_its_own_thing_only(home: Home) -> None:
    worker = await home.booted()
    _, run = await home.claim()
    slot_token, run_token = home.slot_token, home.seal.run_token(run)
    for method, route, token in (
        ("POST", "boot", worker.boot_token),
        ("POST", "boot", run_token),
        ("GET", "assignment", slot_token),
        ("GET", "assignment", run_token),
        ("POST", "heartbeat", slot_token),
        ("POST", "result", slot_token),
    ):
        body = {"nonce": "nonce-two"} if method == "POST" else None
        assert code(await worker.ask(method, route, token, body)) == (401, "token_unknown")
    assert (await home.house.http.get("/api/v1/work-orders", headers=_shown(run_token))).status_code == 401


def _shown(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_the_tokens_of_an_earlier_generation_are_good_for_nothing(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim()
    work, cause = await home.house._work(order_id), home.house.world.cause(Trigger.LOOK, "test")
    used, _ = await home.seat()
    lost = lifecycle.finish(cause, work.order, work.spec, used, Exit(lost=True), handle=None, seats=False, chance=0.5)
    await home.house._save(lost)
    cleaned, _ = await home.seat()
    await home.house._save(slots.recreate(home.house.world.cause(Trigger.SIZE, "test"), cleaned))
    assert code(await worker.boot()) == (401, "token_unknown")
    assert code(await worker.fetch()) == (401, "token_unknown")
    assert code(await worker.tell(run)) == (401, "token_unknown")
    made, _ = await home.seat()
    home.slot_token = home.seal.slot_token(SLOT, made.generation)
    assert (await home.worker("nonce-two").boot()).status_code == 200


async def test_no_token_is_told_to_anybody_else(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim(env={"A": "b"})
    await worker.beat(run)
    secrets = [each.rpartition(".")[2] for each in (home.slot_token, worker.boot_token)]
    for path in (f"/work-orders/{order_id}", f"/work-orders/{order_id}/events", "/slots", "/events?after=0"):
        text = (await home.house.get(path)).text
        assert not any(secret in text for secret in secrets)


# booting


async def test_a_boot_may_be_repeated_and_tells_how_often_to_beat(home: Home) -> None:
    worker = home.worker()
    first, again = await worker.boot(), await worker.boot()
    assert first.json() == again.json()
    assert (first.json()["slot"], first.json()["heartbeat_s"], first.json()["silence_s"]) == (SLOT, 5, None)
    kinds = [event.kind for event in await home.house.store.events(0, 100, SLOT)]
    assert kinds == ["slot.creating", "slot.idle", "slot.booted"]


async def test_a_worker_that_fences_itself_is_heard_four_times_before_it_would_end(tmp_path: Path) -> None:
    async with opened(tmp_path, silence=8) as home:
        said = (await home.worker().boot()).json()
        assert (said["heartbeat_s"], said["silence_s"]) == (2, 8)


async def test_nobody_boots_where_there_are_no_workers_and_who_boots_in_a_slot_that_is_given_up_leaves(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, worker=False) as home:
        assert code(await home.worker().boot()) == (409, "no_workers")
    async with opened(tmp_path) as home:
        slot, _ = await home.seat()
        await home.house._save(slots.remove(home.house.world.cause(Trigger.SIZE, "test"), slot))
        assert code(await (await home.booted()).fetch()) == (409, "leave")


# asking for work


async def test_the_whole_order_is_handed_over_with_its_env(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim(
        command=["a", "b"], env={"SECRET": "s"}, payload={"n": [1.50]}, labels={"x": "y"}, run_timeout_s=9
    )
    said = (await worker.fetch()).json()
    assert said == {
        "run_id": run,
        "order_id": order_id,
        "attempt": 1,
        "project": "default",
        "pool": "default",
        "command": ["a", "b"],
        "script": None,
        "env": {"SECRET": "s"},
        "payload": {"n": [1.5]},
        "labels": {"x": "y"},
        "run_timeout_s": 9,
        "stop_grace_s": 30,
    }


async def test_who_waits_is_answered_when_the_run_is_claimed(home: Home) -> None:
    worker = await home.booted()
    waiting = asyncio.ensure_future(worker.fetch(wait_s=30))
    await until(lambda: home.house.app.state.desk._bells, "it waits")
    _, run = await home.claim()
    answer = await asyncio.wait_for(waiting, 5)
    assert answer.json()["run_id"] == run
    assert home.house.app.state.desk._bells == {}


async def test_who_waits_in_vain_is_sent_away_and_all_are_when_the_server_stops(home: Home) -> None:
    worker = await home.booted()
    assert (await worker.fetch(wait_s=0.01)).status_code == 204
    waiting = asyncio.ensure_future(worker.fetch(wait_s=30))
    await until(lambda: home.house.app.state.desk._bells, "it waits")
    home.house.app.state.stopping.set()
    assert (await asyncio.wait_for(waiting, 5)).status_code == 204


async def test_without_hints_who_waits_is_answered_at_the_next_poll(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": POOL}, hints=False, store=SqliteStore.in_memory(hints=False)) as found:
        home = Home(found)
        await home.furnish()
        worker = await home.booted()
        waiting = asyncio.ensure_future(worker.fetch(wait_s=30))
        await until(lambda: found.app.state.desk._bells, "it waits")
        _, run = await home.claim()
        assert (await asyncio.wait_for(waiting, 5)).json()["run_id"] == run


async def test_an_env_that_cannot_be_opened_ends_the_run_in_words(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim(env={"A": "b"})
    home.seal._cipher = type(home.seal)(b"o" * 32)._cipher
    assert (await worker.fetch()).status_code == 204
    report = (await home.house.store.reports([run]))[run]
    assert (report.error_name, report.retryable) == ("SealBroken", False)
    assert order_id in (report.error or "")


# heartbeats and results


async def test_a_stopping_run_is_told_how_long_it_may_take(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim()
    work = await home.house._work(order_id)
    cause = home.house.world.cause(Trigger.REQUEST, "test")
    await home.house._save(lifecycle.stop(cause, work.order, work.spec, Reason.CANCELLED))
    home.house.clock.at += 10_000
    said = (await worker.ask("POST", "heartbeat", worker.boot_token, {"run_id": run})).json()
    assert said == {"do": "stop", "stop_by": "2023-11-14T22:13:50.000Z", "stop_in_s": 20}


async def test_the_order_shows_what_its_worker_said(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim()
    assert (await home.house.show(order_id))["worker"] is None
    await worker.beat(run, progress=0.25, text="a quarter")
    await worker.tell(run, result={"a": [1]}, progress=1)
    said = (await home.house.show(order_id))["worker"]
    assert (said["progress"], said["text"], said["result"], said["error"]) == (1, "a quarter", {"a": [1]}, None)
    assert said["begun_at"] == said["heartbeat_at"] == "2023-11-14T22:13:20.000Z"
    (listed,) = (await home.house.get("/work-orders")).json()["orders"]
    assert listed["worker"] is None


async def test_the_result_is_kept_as_it_was_sent(home: Home) -> None:
    worker = await home.booted()
    _, run = await home.claim()
    raw = b'{"run_id": "%s", "result": {"n": 1.50, "t": "\\u00e9"}}' % run.encode()
    headers = {**_shown(worker.boot_token), "Content-Type": "application/json"}
    answer = await home.house.http.post("/api/v1/worker/result", content=raw, headers=headers)
    assert answer.json() == {"run_id": run}
    assert (await home.house.store.reports([run]))[run].result == '{"n": 1.50, "t": "\\u00e9"}'


async def test_the_first_result_counts_and_may_be_told_again(home: Home) -> None:
    worker = await home.booted()
    _, run = await home.claim()
    assert (await worker.tell(run, exit_code=3)).status_code == 200
    assert (await worker.tell(run, exit_code=0)).status_code == 200
    assert (await home.house.store.reports([run]))[run].exit_code == 3
    assert (await worker.fetch()).status_code == 204


async def test_output_is_kept_once_whoever_repeats_it(home: Home) -> None:
    worker = await home.booted()
    order_id, run = await home.claim()
    lines = [{"text": "one"}, {"text": "two", "stream": "stderr"}]
    for _ in range(2):
        answer = await worker.say(run, first=0, lines=lines)
        assert (answer.status_code, answer.json()) == (200, {"next": 2})
    assert (await worker.say(run, first=5, lines=[{"text": "six"}])).json() == {"next": 2}
    assert (await worker.say(run, first=2, lines=[{"text": "three"}], closed=True)).json() == {"next": 3}
    log = (await home.house.get(f"/work-orders/{order_id}/logs")).json()
    assert [(line["stream"], line["text"]) for line in log["lines"]] == [
        ("stdout", "one"),
        ("stderr", "two"),
        ("stdout", "three"),
    ]
    assert log["closed"]


async def test_output_of_a_run_that_is_over_or_somebody_elses_is_refused(home: Home) -> None:
    worker = await home.booted()
    await home.claim()
    assert code(await worker.say("another-1", first=0, lines=[{"text": "x"}])) == (409, "run_over")
    assert await home.house.store.log_tails(["another-1"]) == {}


async def test_output_that_is_read_from_its_place_is_not_taken_twice(tmp_path: Path) -> None:
    async with opened(tmp_path, worker=False) as home:
        _, run = await home.claim()
        worker = home.worker()
        body = {"first": 0, "lines": [{"text": "x"}]}
        answer = await worker.ask("POST", "output", home.seal.run_token(run), body)
        assert code(answer) == (409, "output_is_read")


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("boot", {}, 422),
        ("boot", {"nonce": "short"}, 422),
        ("boot", {"nonce": "nonce.with.dots"}, 422),
        ("boot", {"nonce": "n" * 65}, 422),
        ("heartbeat", {}, 422),
        ("heartbeat", {"run_id": "r", "progress": 1.01}, 422),
        ("heartbeat", {"run_id": "r", "progress": -0.01}, 422),
        ("heartbeat", {"run_id": "r", "text": "t" * 1_001}, 422),
        ("heartbeat", {"run_id": "r", "text": "\0"}, 422),
        ("heartbeat", {"run_id": "r", "extra": 1}, 422),
        ("output", {"run_id": "r", "first": -1, "lines": []}, 422),
        ("output", {"run_id": "r", "lines": []}, 422),
        ("output", {"run_id": "r", "first": 0, "lines": [{"text": "a\0"}]}, 422),
        ("output", {"run_id": "r", "first": 0, "lines": [{"text": "a", "stream": "other"}]}, 422),
        ("output", {"first": 0, "lines": []}, 422),
        ("result", {"run_id": "r", "exit_code": 256}, 422),
        ("result", {"run_id": "r", "error": {}}, 422),
        ("result", {"run_id": "r", "error": {"name": ""}}, 422),
        ("result", {"run_id": "r", "error": {"name": "n", "text": "t" * 4_001}}, 422),
        ("result", {"result": 1}, 422),
    ],
)
async def test_what_cannot_be_meant_is_refused(home: Home, route: str, body: Any, status: int) -> None:
    worker = await home.booted()
    token = home.slot_token if route == "boot" else worker.boot_token
    assert (await worker.ask("POST", route, token, body)).status_code == status


async def test_a_result_that_is_too_large_is_refused_and_the_run_goes_on(home: Home) -> None:
    worker = await home.booted()
    _, run = await home.claim()
    assert code(await worker.tell(run, result="r" * 65_536)) == (413, "result_too_large")
    assert await worker.beat(run) == "go_on"
    assert (await worker.tell(run, result="r" * 65_534)).status_code == 200


async def test_a_run_that_is_not_the_slots_is_nobodys_business(home: Home) -> None:
    worker = await home.booted()
    await home.claim()
    assert await worker.beat("another-1") == "exit"
    assert code(await worker.tell("another-1")) == (409, "run_over")
    assert await home.house.store.reports(["another-1"]) == {}


async def test_workers_need_no_key_and_no_loopback_address_where_there_are_no_keys(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": POOL}, auth=False, bind="127.0.0.1") as found:
        home = Home(found)
        await home.furnish()
        headers = {**_shown(home.slot_token), "Host": "standby"}
        body = {"nonce": "nonce-one"}
        answer = await found.http.post("/api/v1/worker/boot", json=body, headers=headers)
        assert answer.status_code == 200


async def test_an_order_of_its_own_retry_policy_keeps_the_pools_names_of_errors(tmp_path: Path) -> None:
    async with house(tmp_path, pools={"default": {"fatal_errors": ["Broken"], "retry_errors": ["Busy"]}}) as found:
        kept = (await found.submit(retry={"retries": 1}))["retry"]
        assert (kept["retry_errors"], kept["fatal_errors"]) == (["Busy"], ["Broken"])
        own = (await found.submit(retry={"fatal_errors": [], "retry_errors": ["Slow"]}))["retry"]
        assert (own["retry_errors"], own["fatal_errors"]) == (["Slow"], [])


async def test_the_socket_of_workers_names_only_what_it_serves(home: Home) -> None:
    transport = httpx2.ASGITransport(app=WorkersOnly(home.house.app))
    async with httpx2.AsyncClient(transport=transport, base_url="http://standby") as http:
        answer = await http.get("/api/v1/pools")
    refused = answer.json()
    assert (answer.status_code, refused["code"]) == (404, "no_such_worker_route")
    assert "/api/v1/worker/" in refused["what_to_do"] and "worker-routes" not in refused["what_to_do"]
