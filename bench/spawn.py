"""How many short runs a second: bare posix_spawn, and the keeper through its driver.

Run it as `python -m bench.spawn [runs]` on an otherwise idle machine.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

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


async def main(runs: int) -> None:
    print(f"bare posix_spawn, 1 at once    {bare(runs, 1):7.0f} runs/s")
    print(f"bare posix_spawn, 8 at once    {bare(runs, 8):7.0f} runs/s")
    for cgroups in ("off", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            driver = ProcessDriver(Path(folder), now=lambda: time.time_ns() // 1_000_000, cgroups=cgroups)
            await driver.open()
            for at_once in (1, 50):
                rate = await driven(driver, runs, at_once)
                print(f"keeper, cgroups {cgroups:4}, {at_once:2} at once {rate:7.0f} runs/s")
            pid = await driver.keeper_pid()
            await driver.close()
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
