"""The crash that Standby was made against, played again with real processes that really take memory, 32 times smaller
(as it was with STANDBY_TEST_ORDER_MB=1024, on a machine with 16 GB).

The house lives in a control group of its own, which is its machine: what is more than its limit would be killed.
"""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.group import Group, make_group
from tests.e2e.house import Answer, House, house, passed, until

ORDER_MB = int(os.environ.get("STANDBY_TEST_ORDER_MB", "32"))
"""1 GB, 32 times smaller."""
BUDGET_MB = 4 * ORDER_MB
TAKEN_MB = ORDER_MB * 5 // 8
"""What an honest one takes beside what its interpreter does."""
TOML = """
[hosts.local]
memory_mb = {budget}
pressure_calm = "1s"
{host}
[pools.default]
slots_max = 100
memory_mb = {declared}
queue_timeout_max = "none"
queue_timeout = "none"
"""
GAP_S = max(1, ORDER_MB // 256)
"""Pressure is what was taken already: it comes too late unless a start took its memory before the next one."""
HONEST = f"""
import time
taken = bytearray(b"x") * ({TAKEN_MB} << 20)
time.sleep(0.2)
"""
LIAR = f"""
import os, sys, time
taken = bytearray(b"x") * ({ORDER_MB} << 20)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""


@pytest.fixture
def machine() -> Iterator[Group]:
    """A machine of our own, as far as memory goes."""
    made = make_group()
    if made is None:
        pytest.skip("this machine lets us make no group that limits memory")
    yield made
    made.remove()


def started(home: House, machine: Group) -> int:
    """Start it; returns what its server and its keeper take, in MB."""
    home.start()
    home.ended(home.submit("true"))
    return machine.used_mb()


class Watch:
    """What was seen of a machine, each time somebody looked."""

    def __init__(self, machine: Group) -> None:
        self._machine, self.most_mb = machine, 0

    def look(self) -> int:
        now = self._machine.used_mb()
        self.most_mb = max(self.most_mb, now)
        return now


def most_declared_mb(events: list[Answer], declared_mb: int) -> int:
    """The most memory that open runs had declared at once."""
    opened = most = 0
    for event in events:
        opened += (event["kind"] == "order.claimed") - (event["kind"] in ("order.completed", "order.failed"))
        most = max(most, opened * declared_mb)
    return most


def test_eight_then_eighty_orders_of_a_gigabyte_stay_within_the_budget_and_all_end(
    tmp_path: Path, machine: Group, figure: Callable[[str], None]
) -> None:
    toml = TOML.format(budget=BUDGET_MB, declared=ORDER_MB, host="")
    with house(tmp_path / "house", toml=toml, group=machine.path) as home:
        own_mb = started(home, machine)
        limit_mb = int((own_mb + BUDGET_MB) / 0.75)
        machine.limit(limit_mb)
        watch, ids = Watch(machine), []
        for count in (8, 80):
            home.call("POST", "/pools/default/pause", {"reason": "until all are there"})
            ids += [home.submit(sys.executable, "-S", "-E", "-c", HONEST) for _ in range(count)]
            home.call("POST", "/pools/default/resume", {})
            until(lambda: watch.look() and home.get("/pools/default")["orders"] == {}, f"{count} orders end", 120)
        assert {home.order(order_id)["state"] for order_id in ids} == {"completed"}
        declared_mb = most_declared_mb(home.events(), ORDER_MB)
        assert declared_mb == BUDGET_MB, "the budget is used, and never exceeded"
        assert machine.oom_kills() == 0
        assert limit_mb - watch.most_mb >= 0.05 * limit_mb
        peak_kb = home.get(f"/work-orders/{ids[-1]}/runs")["runs"][-1]["peak_memory_kb"]
        assert TAKEN_MB << 10 < peak_kb <= ORDER_MB << 10, "they really took it"
    figure(
        f"8 + 80 orders of {ORDER_MB} MB on a budget of {BUDGET_MB} MB: all ended, at most {declared_mb} MB declared "
        f"at once; the machine ({limit_mb} MB, {own_mb} MB of them Standby) was at most {watch.most_mb / limit_mb:.0%} "
        "full, nothing was killed"
    )


def test_processes_that_lie_are_stopped_by_pressure_before_the_machine_is_full(
    tmp_path: Path, machine: Group, figure: Callable[[str], None]
) -> None:
    orders, release = 16, tmp_path / "release"
    toml = TOML.format(budget=BUDGET_MB, declared=1, host=f'start_gap = "{GAP_S}s"')
    with house(tmp_path / "house", toml=toml, group=machine.path) as home:
        own_mb = started(home, machine)
        limit_mb = own_mb + 12 * ORDER_MB
        machine.limit(limit_mb)
        watch = Watch(machine)
        ids = [home.submit(sys.executable, "-S", "-E", "-c", LIAR, str(release)) for _ in range(orders)]
        until(
            lambda: watch.look() and home.get("/hosts/local")["pressure"] == "critical",
            "the machine is full",
            60 * GAP_S,
        )
        opened = home.get("/pools/default")["open"]
        over = passed(3)
        until(lambda: watch.look() and over(), "some more readings")
        assert home.get("/pools/default")["open"] <= opened + 1, "one may have been on its way"
        waits = [order for order_id in ids if (order := home.order(order_id))["state"] == "pending"]
        assert len(waits) >= orders - 12 and {order["gate"]["name"] for order in waits} == {"pressure"}
        most, lied_mb = opened * 1, opened * ORDER_MB
        release.touch()
        assert {home.ended(order_id, 120)["state"] for order_id in ids} == {"completed"}
        assert machine.oom_kills() == 0 and watch.most_mb < limit_mb
    figure(
        f"{orders} orders that declare 1 MB and take {ORDER_MB}: {opened} of them ({most} of {BUDGET_MB} MB declared, "
        f"{lied_mb} MB taken) when pressure stopped the claims; the machine ({limit_mb} MB) was at most "
        f"{watch.most_mb / limit_mb:.0%} full, nothing was killed, all ended"
    )
