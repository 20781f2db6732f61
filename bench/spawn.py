"""How many short runs a second: bare posix_spawn, and the keeper through its driver."""

import asyncio
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.rounds import Figures, turns
from bench.run import Run
from standby.core.model import Order, OrderState, Slot, SlotState, Spec
from standby.drivers.contract import OpenRun, Seen, Start
from standby.drivers.process import ProcessDriver

TRUE = "/bin/true"


def bare(runs: int, at_once: int) -> float:
    """Runs a second of nothing but spawning and waiting."""
    began, alive = time.perf_counter(), 0
    for _ in range(runs):
        os.posix_spawn(TRUE, [TRUE], {}, setsid=True)
        alive += 1
        if alive >= at_once:
            os.wait()
            alive -= 1
    for _ in range(alive):
        os.wait()
    return runs / (time.perf_counter() - began)


async def driven(driver: ProcessDriver, runs: int, at_once: int) -> float:
    """Runs a second from the first start until the last one was seen stopped."""
    identity = await driver.identity()
    slot = Slot(
        name="seat", host="h", pool="p", state=SlotState.IDLE, state_since=0, created_at=0, incarnation=identity
    )
    starts = [_start(f"b{at_once}x{number}", identity) for number in range(runs)]
    waiting = iter(starts)

    async def feed() -> None:
        for start in waiting:
            await driver.start(slot, start)

    began = time.perf_counter()
    await asyncio.gather(*(feed() for _ in range(at_once)))
    await _all_stopped(
        driver, [OpenRun(run_id=s.run_id, slot="seat", incarnation=identity, payload="") for s in starts]
    )
    rate = runs / (time.perf_counter() - began)
    await driver.forget([start.run_id for start in starts])
    return rate


async def _all_stopped(driver: ProcessDriver, runs: Sequence[OpenRun]) -> None:
    changes = driver.changes()
    while any(sighting.seen is not Seen.STOPPED for sighting in await driver.observe(runs)):
        await anext(changes)
    await changes.aclose()


def _start(order_id: str, identity: str) -> Start:
    order = Order(
        id=order_id,
        project="bench",
        pool="p",
        memory_mb=1,
        submitted_at=0,
        state=OrderState.PREPARING,
        state_since=0,
        attempt=1,
        incarnation=identity,
    )
    spec = Spec(order_id=order_id, command=(TRUE,))
    return Start(run_id=f"{order_id}-1", order=order, spec=spec, env={}, epoch=1, valid_for_ms=30_000)


def measure(run: Run) -> list[Figures]:
    """The rows: the keeper's runs a second, with and without control groups, against bare spawns."""
    found: list[Figures] = []
    for cgroups, at_once in itertools.product(("off", "auto"), (1, 50)):
        count = run.scale.spawns
        ours, limits = turns(
            min(3, run.scale.rounds),
            lambda: asyncio.run(_kept(cgroups, count, at_once)),  # noqa: B023 (called before the next one)
            lambda: bare(count, min(at_once, 8)),  # noqa: B023
        )
        found.append(
            Figures(
                name=f"keeper, control groups {cgroups}, {at_once} at once",
                engine="none",
                unit="runs/s",
                better="higher",
                ours=ours,
                peer_name="bare posix_spawn",
                peer=limits,
            )
        )
    return found


async def _kept(cgroups: str, runs: int, at_once: int) -> float:
    """Runs a second of a keeper of its own."""
    with tempfile.TemporaryDirectory() as folder:
        driver = ProcessDriver(Path(folder), now=lambda: time.time_ns() // 1_000_000, cgroups=cgroups)
        await driver.open()
        pid = await driver.keeper_pid()
        try:
            return await driven(driver, runs, at_once)
        finally:
            await driver.close()
            os.kill(pid, signal.SIGKILL)
