"""How a measured process is driven: one JSON line in is a verb with its arguments, one JSON line out is what it found.

Standard library only: it is also imported where nothing but one peer is installed.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Verb = Callable[..., Awaitable[Mapping[str, Any]]]


async def answer(verbs: Mapping[str, Verb]) -> None:
    """Answer each line on stdin, in turn, until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        found = await verbs[asked.pop("do")](**asked)
        out.write(json.dumps(found) + "\n")
        out.flush()


async def rate(calls: int, callers: int, call: Callable[[], Awaitable[object]]) -> float:
    """Calls a second of so many callers at once, each one waiting for its answer before it calls again."""
    numbers = iter(range(calls))

    async def caller() -> None:
        for _ in numbers:
            await call()

    began = time.monotonic()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return calls / (time.monotonic() - began)


async def paced(calls: int, per_second: float, call: Callable[[str], Awaitable[object]]) -> None:
    """Call at a steady pace, whether or not earlier calls have returned, each time with the present moment."""
    began, under_way = time.monotonic(), set[asyncio.Future[object]]()
    for number in range(calls):
        await asyncio.sleep(max(0.0, began + number / per_second - time.monotonic()))
        under_way.add(asyncio.ensure_future(call(repr(time.monotonic()))))
    await asyncio.gather(*under_way)


async def until(done: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so; raises TimeoutError when it never is."""
    async with asyncio.timeout(seconds):
        while not done():
            await asyncio.sleep(0.005)


def waits_ms(began: list[tuple[float, str]]) -> list[float]:
    """From the moment each call was made (its payload) to the moment its work began."""
    return [(at - float(sent)) * 1000 for at, sent in began]
