"""Resident workers of the simulated world: they speak with servers through the routes of the API, as they can."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response
from starlette.types import Message

from sim.instance import Instance
from sim.loop import VirtualLoop
from sim.place import SimHost
from sim.plan import WORKER_FAULTS
from standby.api import worker as routes
from standby.api.problems import Problem
from standby.core import work
from standby.core.model import Order, run_id
from standby.drivers.contract import Exit
from standby.drivers.scripted_places import Made
from standby.drivers.scripted_run import Script, parse
from standby.store.contract import StoreDown

TIMEOUT_S = 10.0
PAUSE_S = 1.0
NO_ANSWER = 599


class Town(Protocol):
    """What a worker stands on."""

    loop: VirtualLoop
    chance: Random
    instances: list[Instance]

    def fault(self, *names: str) -> str | None: ...
    def say(self, text: Any) -> None: ...
    def worker_got(self, worker: "SimWorker", run: str) -> None: ...
    def worker_begins(self, worker: "SimWorker", run: str) -> None: ...
    def worker_told(self, run: str) -> None: ...
    def settle_in(self, host: SimHost, place: Made) -> None: ...


class Gone(Exception):
    """The worker is no more."""


class SimWorker:
    """One life of a worker in a place."""

    def __init__(self, town: Town, host: SimHost, place: Made, nonce: str) -> None:
        self._town, self.host, self.place, self.nonce = town, host, place, nonce
        self._platform, self._loop = host.driver.platform, town.loop
        self._token = place.making.env[work.SLOT_TOKEN]
        self._silence_ms: int | None = None
        self._beat_s, self._answered_at = 5.0, town.loop.ms
        self.dead = False
        self.working: str | None = None
        """The run that it works on, as far as it is alive."""
        self.parted_until = 0

    @property
    def alive(self) -> bool:
        there = self.host.driver.platform is self._platform and self.place.incarnation in self._platform.yard.made
        return there and self.place.sound and not self.dead

    @property
    def fenced(self) -> bool:
        """Whether nobody answered it for so long that it has ended everything."""
        return self._silence_ms is not None and self._loop.ms >= self._answered_at + self._silence_ms

    @property
    def at_work(self) -> str | None:
        """The run that it really works on now."""
        return self.working if self.alive and not self.fenced else None

    async def live(self) -> None:
        """Boot, then fetch and work, until its end."""
        try:
            said = await self._insist("boot", {"nonce": self.nonce})
            self._token, self._beat_s = said["boot_token"], said["heartbeat_s"]
            self._silence_ms = None if said["silence_s"] is None else round(said["silence_s"] * 1000)
            while True:
                said = await self._insist("assignment")
                if said:
                    await self._work_on(str(said["run_id"]), parse(msgspec.json.encode(said["payload"]).decode()))
        except Gone:
            self.working = None

    async def _work_on(self, run: str, script: Script) -> None:
        self._town.worker_got(self, run)
        await self._pass(script.start_ms)
        told = await self._insist("heartbeat", {"run_id": run})
        self._obey(told)
        self.working = run
        self._town.worker_begins(self, run)
        end = await self._labour(run, script, told)
        self.working = None
        await self._insist("result", {"run_id": run, **end}, over_is_fine=True)

    async def _labour(self, run: str, script: Script, told: Mapping[str, Any]) -> dict[str, Any]:
        """Work until its end, or until it is stopped; returns what there is to tell."""
        begun = self._loop.ms
        ends_at = None if script.run_ms is None else begun + script.run_ms
        dies_at = None if script.vanish_after_ms is None else begun + script.vanish_after_ms
        beats_at, stopped_at = begun + round(self._beat_s * 1000), None
        while True:
            if told.get("do") == "stop" and stopped_at is None and not script.ignore_stop:
                stopped_at = self._loop.ms + script.stop_ms
            points = [at for at in (ends_at, dies_at, stopped_at, beats_at) if at is not None]
            await self._pass(max(0, min(points) - self._loop.ms))
            now = self._loop.ms
            if dies_at is not None and dies_at <= now:
                self.die(again=self._town.chance.random() < 0.5)
                raise Gone
            if ends_at is not None and ends_at <= now:
                return self._natural(script)
            if stopped_at is not None and stopped_at <= now:
                return {"exit_code": 143}
            status, told = await self._ask("heartbeat", {"run_id": run}, self._patience())
            if status == 401:
                self._leave()
            self._obey(told)
            beats_at = self._loop.ms + (round(self._beat_s * 1000) if status == 200 else 1_000)

    def _natural(self, script: Script) -> dict[str, Any]:
        if script.start_error is not None:
            return {"error": {"name": "CannotStart", "text": script.start_error, "retryable": False}}
        if script.oom or script.signal is not None:
            self.host.end_place(self.place, Exit(signal=script.signal or 9, oom=script.oom))
            raise Gone
        return {"exit_code": script.exit}

    def die(self, *, again: bool) -> None:
        """Its process is gone; the platform starts another one in the same place, or notices nothing."""
        self.dead = True
        if again:
            self._loop.call_later(0.5, self._town.settle_in, self.host, self.place)

    def _leave(self) -> None:
        """It ends by itself: the platform starts it again, or sees its place ended."""
        if self._town.chance.random() < 0.5:
            self.die(again=True)
        else:
            self.dead = True
            self.host.end_place(self.place, Exit(code=0))
        raise Gone

    def _obey(self, told: Mapping[str, Any]) -> None:
        if told.get("do") == "exit":
            self.working = None
            self._leave()

    # its line to the servers

    def _patience(self) -> float:
        """How long it waits for the answer to a heartbeat."""
        if self._silence_ms is None:
            return TIMEOUT_S
        return min(TIMEOUT_S, max(0.001, (self._answered_at + self._silence_ms - self._loop.ms) / 1000))

    async def _insist(self, route: str, body: Any = None, *, over_is_fine: bool = False) -> Mapping[str, Any]:
        while True:
            status, said = await self._ask(route, body, TIMEOUT_S)
            if status < 400 or (status < 500 and over_is_fine):
                return said
            if status < 500:
                self._leave()
            await self._pass(round(PAUSE_S * 1000))

    async def _pass(self, ms: int) -> None:
        if ms:
            await asyncio.sleep(ms / 1000)
        self._check()

    def _check(self) -> None:
        if self.fenced and self.working is not None:
            self.working = None
            self._leave()
        if not self.alive:
            raise Gone

    async def _ask(self, route: str, body: Any, timeout_s: float) -> tuple[int, Mapping[str, Any]]:
        """One question, and the status of its answer."""
        asked_at, town, chance = self._loop.ms, self._town, self._town.chance
        fault = town.fault(*WORKER_FAULTS)
        if fault == "lost question" or self._parted or not town.instances:
            await self._pass(round(min(PAUSE_S, timeout_s) * 1000))
            return NO_ANSWER, {}
        delay_s = chance.choice([0.3, 2.0, 6.0, 12.0, 25.0]) if fault == "late question" else 0.0
        asking = partial(self._deliver, chance.choice(town.instances), route, self._token, body)
        asked = self._loop.create_task(asking(delay_s))
        if fault == "question twice":
            for again_s in chance.sample([0.1, 1.0, 2.0, 4.0, 7.0, 15.0], 3):
                self._loop.create_task(asking(again_s))
        if fault != "lost reply":
            await asyncio.wait({asked}, timeout=timeout_s)
        else:
            await asyncio.sleep(min(PAUSE_S, timeout_s))
        self._check()
        if fault == "lost reply" or not asked.done() or self._parted:
            return NO_ANSWER, {}
        status, said = asked.result()
        if status < 400:
            self._answered_at = asked_at
        return status, said

    @property
    def _parted(self) -> bool:
        return self._loop.ms < self.parted_until

    async def _deliver(
        self, instance: Instance, route: str, token: str, body: Any, delay_s: float
    ) -> tuple[int, Mapping[str, Any]]:
        """The question arrives, whatever has become of the worker."""
        if delay_s:
            await asyncio.sleep(delay_s)
        try:
            answer = await _served(instance, route, token, body, 0.0 if delay_s else 5.0)
        except Problem as problem:
            return problem.status, {"code": problem.code}
        except StoreDown:
            return 503, {}
        except asyncio.CancelledError:
            return NO_ANSWER, {}  # the server died
        self._town.say(lambda: f"    {self.nonce} of {self.place.incarnation}: {route} {answer.status_code}")
        if route == "result" and self.alive and not self.fenced:
            self._town.worker_told(body["run_id"])
        said: Mapping[str, Any] = msgspec.json.decode(answer.body) if answer.body else {}
        return answer.status_code, said


def _request(token: str, body: Any) -> Request:
    """What a server makes of what a worker sends."""

    async def receive() -> Message:
        return {"type": "http.request", "body": b"" if body is None else msgspec.json.encode(body), "more_body": False}

    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
    return Request({"type": "http", "headers": headers}, receive)


async def _served(instance: Instance, route: str, token: str, body: Any, wait_s: float) -> Response:
    """What a server answers."""
    request = _request(token, body)
    badge, world = await routes._badge(request), instance.world
    match route:
        case "boot":
            return await routes.boot_worker(request, world, badge)
        case "assignment":
            return await routes.fetch_assignment(world, badge, instance.desk, asyncio.Event(), wait_s)
        case "heartbeat":
            return await routes.beat(request, world, badge)
        case _:
            return await routes.tell_result(request, world, badge)


class WorkerTruths:
    """What must hold of workers and their runs."""

    def __init__(self, town: Any) -> None:
        self._town = town
        self.all: list[SimWorker] = []
        self._told: set[str] = set()
        """Runs whose result was taken from a worker that lived."""
        self.fetched: dict[str, SimWorker] = {}
        """Run -> who got it last."""

    def at_work(self) -> Sequence[SimWorker]:
        """Workers that work on something now."""
        return [worker for worker in self.all if worker.at_work is not None]

    def got(self, worker: SimWorker, run: str) -> None:
        """A run was handed over: to the boot that has it."""
        order = self._town.truths.book.orders[run.rpartition("-")[0]]
        if run_id(order) == run and order.boot not in (None, worker.nonce):
            self._broken(f"{worker.nonce} gets run {run[-2:]} of {self._name(run)}, which is {order.boot}'s")
        self.fetched[run] = worker

    def begins(self, worker: SimWorker, run: str) -> None:
        """Somebody begins to work."""
        worker.host.used.add(worker.place.incarnation)
        self.living()

    def told(self, run: str) -> None:
        self._told.add(run)

    def unheard(self, order: Order) -> None:
        """A run is stopped because of its worker's silence: one that fences itself, and has."""
        book = self._town.truths.book
        at_work = [worker.nonce for worker in self.at_work() if worker.at_work == run_id(order)]
        if at_work or book.pools[order.pool].settings.silence_ms is None:
            self._broken(f"{book.name(order.id)} is stopped for a silence that means nothing: {at_work} at work")

    def living(self) -> None:
        """At most one works on an order, and only on its open run."""
        busy: dict[str, str] = {}
        for worker in self.at_work():
            run = worker.at_work or ""
            order = self._town.truths.book.orders[run.rpartition("-")[0]]
            if order.id in busy:
                self._broken(f"{worker.nonce} and {busy[order.id]} both work on {self._name(run)}")
            busy[order.id] = worker.nonce
            if order.slot is None or run_id(order) != run:
                self._broken(f"{worker.nonce} works on {self._name(run)} (run {run[-2:]}), but the run is over")
                worker.working = None

    def ends(self, run: str, incarnation: str, report: work.Report | None, silence_ms: int | None) -> Sequence[Exit]:
        """How a run that was handed to a worker may be recorded; nothing where it may not be settled."""
        host = next(host for host in self._town.hosts.values() if incarnation.startswith(f"{host.name}#"))
        told = [] if report is None or report.ended_at is None else [work._exit(report)]
        if told and run in self._told:
            return told
        place = host.driver.platform.yard.made.get(incarnation)
        if place is not None and place.sound and silence_ms is None:
            return told
        ended = host.ended_places.get(incarnation)
        return [*told, Exit(lost=True), *([] if ended is None else [ended])]

    def _name(self, run: str) -> str:
        return str(self._town.truths.book.name(run.rpartition("-")[0]))

    def _broken(self, truth: str) -> None:
        self._town.truths.broken(truth)
