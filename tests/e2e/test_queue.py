"""The queue as a person meets it: limits hold, first come is first served, and an outage costs nobody their place."""

import os
import signal
import statistics
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.e2e.house import House, house, passed, until

TWO_SLOTS = "[pools.default]\nslots_max = 2\nmemory_mb = 10\n"
MARK = 'echo "begin $STANDBY_ORDER_ID" >> "$MARKS"; sleep 0.03; echo "end $STANDBY_ORDER_ID" >> "$MARKS"'


def test_a_hundred_orders_on_two_slots_run_two_at_a_time_first_come_first_served(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    marks = tmp_path / "marks"
    with house(tmp_path / "house", toml=TWO_SLOTS) as home:
        home.start()
        home.call("POST", "/pools/default/pause", {"reason": "until all are there"})
        env = {"MARKS": str(marks)}
        late = [home.submit(script=MARK, env=env, priority=300) for _ in range(50)]
        early = [home.submit(script=MARK, env=env, priority=0) for _ in range(50)]
        home.call("POST", "/pools/default/resume", {})
        orders = {order_id: home.ended(order_id) for order_id in early + late}
        assert {order["state"] for order in orders.values()} == {"completed"}
        alive, most, begun = set(), 0, []
        for line in marks.read_text().splitlines():
            what, order_id = line.split()
            if what == "begin":
                alive.add(order_id)
                begun.append(order_id)
            else:
                alive.discard(order_id)
            most = max(most, len(alive))
        assert most <= 2
        claimed = [event["subject"] for event in home.events() if event["kind"] == "order.claimed"]
        assert claimed == early + late
        assert sorted(begun) == sorted(early + late)
        waits = sorted(_claim_waits(home))
    middle = statistics.median(waits)
    figure(f"100 orders on 2 slots, queue latency: p50 {middle} ms, p99 {waits[98]} ms, max {waits[-1]} ms")


def _claim_waits(home: House) -> list[int]:
    began: dict[str, int] = {}
    waits = []
    for event in home.events():
        stamp = _ms(event["at"])
        if event["kind"] == "pool.mode" and event["to"] == "open":
            began = dict.fromkeys(began, stamp)
        if event["kind"] == "order.submitted":
            began[event["subject"]] = stamp
        if event["kind"] == "order.claimed":
            waits.append(stamp - began[event["subject"]])
    return waits


def _ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def test_nobody_times_out_in_the_queue_because_the_server_was_down(tmp_path: Path, engine: str | None) -> None:
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml="[pools.default]\nslots_max = 1\nmemory_mb = 10\n", **keys) as home:
        home.start()
        gate = tmp_path / "gate"
        first = home.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        home.in_state(first, "running")
        second = home.submit("true", queue_timeout_s=2)
        home.kill()
        until(passed(4), "longer than the queue timeout")
        gate.touch()
        home.start()
        assert home.ended(first)["state"] == "completed"
        assert home.ended(second)["state"] == "completed"


def test_nobody_times_out_in_the_queue_because_the_host_cannot_be_reached(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml="[pools.default]\nslots_max = 1\nmemory_mb = 10\n") as home:
        home.start()
        gate = tmp_path / "gate"
        first = home.submit("sh", "-c", f"until [ -e {gate} ]; do sleep 0.05; done")
        home.in_state(first, "running")
        second = home.submit("true", queue_timeout_s=3)
        keeper = home.keeper_pid()
        os.kill(keeper, signal.SIGSTOP)
        try:
            until(lambda: home.get("/hosts/local")["unreachable_since"], "the host is seen to be unreachable", 30)
            until(lambda: home.order(second)["gate"]["name"] == "host_unreachable", "the order says why it waits")
            until(passed(4), "longer than the queue timeout")
            assert home.order(second)["state"] == "pending"
        finally:
            os.kill(keeper, signal.SIGCONT)
        gate.touch()
        assert home.ended(first)["state"] == "completed"
        assert home.ended(second)["state"] == "completed"


def test_an_order_that_waits_longer_than_it_wanted_fails_with_queue_timeout(tmp_path: Path) -> None:
    with house(tmp_path / "house", toml="[pools.default]\nslots_max = 1\nmemory_mb = 10\n") as home:
        home.start()
        home.submit("sleep", "30")
        second = home.submit("true", queue_timeout_s=1)
        order = home.ended(second)
        assert (order["state"], order["reason"], order["attempt"]) == ("failed", "queue_timeout", 0)
