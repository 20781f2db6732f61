"""Rows about the whole server: what it takes from HTTP, what it weighs, what it asks of its database while idle."""

import time
from collections.abc import Callable
from functools import partial
from typing import Final

from bench.rounds import Better, Figures, Target, turns
from bench.run import Run
from bench.server import SCRIPTED, Server, server
from tests.e2e.house import until

SETTLE_S: Final = 3
"""After its start, and after its work: leases, first looks, the log of the last run."""
CALLERS: Final = 32


def http(run: Run, engine: str) -> list[Figures]:
    """Submits over HTTP to a server that only takes them in: its pool has no slots."""
    folder = run.file().parent
    with server(folder, run.database(engine), toml=SCRIPTED.format(slots=0)) as here:
        here.submit(100, CALLERS)
        one, many = turns(
            run.scale.rounds,
            partial(here.submit, run.scale.calls // 4, 1),
            partial(here.submit, run.scale.calls, CALLERS),
        )
    return [
        _figure("submit over HTTP, one caller", engine, "orders/s", one, better="higher"),
        _figure(f"submit over HTTP, {CALLERS} callers at once", engine, "orders/s", many, better="higher"),
    ]


def idle(run: Run, engine: str) -> list[Figures]:
    """A server with API, page and a process host that has nothing to do."""
    url, folder = run.database(engine), run.file().parent
    if engine == "postgresql":
        run.postgres.log_statements(url)
    with server(folder, url, traced=engine == "sqlite") as here:
        here.get("/")
        here.get("/api/v1/work-orders")
        _pass(SETTLE_S)
        weight = here.memory_mb()
        asked = _asked_a_minute(run, here.statements if engine == "sqlite" else run.postgres.statements)
    return [
        _figure("idle server, RSS", engine, "MB", [weight["Rss"]], Target("at most", 80, "ours")),
        _figure("idle server, PSS", engine, "MB", [weight["Pss"]]),
        _figure("its keeper, PSS", engine, "MB", [weight["keeper"]]),
        _figure("queries while idle", engine, "a minute", [asked], Target("at most", 60, "ours")),
    ]


def memory(run: Run) -> list[Figures]:
    """A server's memory after some orders and after many, each submitted over HTTP and run to its end."""
    few, many = run.scale.served
    folder = run.file().parent
    with server(folder, run.database("sqlite"), toml=SCRIPTED.format(slots=100)) as here:
        early = _after(here, few)
        began = time.monotonic()
        late = _after(here, many - few)
        served = (many - few) / (time.monotonic() - began - SETTLE_S)
        assert here.completed() == many, f"only {here.completed():,.0f} of {many:,} orders ended well"
    return [
        Figures(
            name=f"memory after {many:,} orders, {kind.upper()}",
            engine="sqlite",
            unit="MB",
            better="lower",
            ours=[late[kind]],
            peer_name=f"itself after {few:,}",
            peer=[early[kind]],
            target=Target("at most", 1.2) if kind == "Rss" else None,
        )
        for kind in ("Rss", "Pss")
    ] + [_figure("HTTP submit to end, whole server", "sqlite", "orders/s", [served], better="higher")]


def _after(here: Server, orders: int) -> dict[str, float]:
    here.submit(orders, CALLERS)
    until(here.quiet, "every order has ended", 600)
    _pass(SETTLE_S)
    return here.memory_mb()


def _asked_a_minute(run: Run, statements: Callable[[], int]) -> float:
    before, began = statements(), time.monotonic()
    _pass(run.scale.idle_s)
    return (statements() - before) * 60 / (time.monotonic() - began)


def _pass(seconds: float) -> None:
    """Let time pass where it is the time that is measured."""
    time.sleep(seconds)


def _figure(
    name: str, engine: str, unit: str, ours: list[float], target: Target | None = None, better: Better = "lower"
) -> Figures:
    return Figures(name=name, engine=engine, unit=unit, better=better, ours=ours, target=target)
