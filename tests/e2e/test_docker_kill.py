"""Servers killed and engines restarted under container orders: none lost, never two copies, nothing left."""

import random
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.engine import RunningEngine, own_engine

from .boxes import Boxes
from .house import Answer, passed, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

ORDERS = 50
KILLS = 10
WORK = """
echo "begin $STANDBY_RUN_ID" >>/marks/log
for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; echo "alive $STANDBY_RUN_ID" >>/marks/log; done
echo "end $STANDBY_RUN_ID" >>/marks/log
"""


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with own_engine(tmp_path_factory.mktemp("e")) as made:
        yield made


def restart(engine: RunningEngine, *flags: str) -> None:
    engine.stop()
    engine.flags = flags
    engine.start()


@pytest.mark.parametrize("warmth", ["created", "running", "cold"])
def test_no_order_is_lost_or_doubled_whatever_is_killed(engine: RunningEngine, tmp_path: Path, warmth: str) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    chance = random.Random(warmth)
    boxes = Boxes(tmp_path / "h", engine, warmth, mounts=[f"{marks}:/marks"], slots_max=10, retry_base="100ms")
    try:
        boxes.house.start()
        orders = [boxes.submit(script=WORK, queue_timeout_s=600) for _ in range(ORDERS)]
        for kill in range(KILLS):
            until(passed(chance.uniform(0.2, 2)), "a moment passes")
            boxes.house.kill()
            if kill == KILLS // 3:
                restart(engine, "--live-restore")  # what runs dies with the engine
            elif kill == 2 * KILLS // 3:
                restart(engine, "--live-restore")  # what runs lives on
            boxes.house.start()
        ended = [boxes.house.ended(order, 300) for order in orders]
        check(ended, (marks / "log").read_text().splitlines())
        boxes.drain()
    finally:
        boxes.close()


def check(ended: list[Answer], marks: list[str]) -> None:
    """Marks say what really happened, orders what was recorded of it."""
    begun = [line.removeprefix("begin ") for line in marks if line.startswith("begin ")]
    assert len(begun) == len(set(begun)), "a run began twice"
    last: dict[str, int] = {}
    for line in marks:
        order_id, _, attempt = line.split()[1].rpartition("-")
        assert last.setdefault(order_id, 1) <= int(attempt), "an earlier copy was alive beside a later one"
        last[order_id] = int(attempt)
    for order in ended:
        runs = [run for run in begun if run.rpartition("-")[0] == order["id"]]
        assert order["state"] == "completed", order
        assert 1 <= len(runs) <= order["attempt"] <= 4
        assert f"end {order['id']}-{order['attempt']}" in marks, "it never came to its end"


def test_a_house_without_its_engine_says_so_and_goes_on_when_it_is_back(engine: RunningEngine, tmp_path: Path) -> None:
    boxes = Boxes(tmp_path / "h", engine, "created")
    try:
        boxes.house.start()
        assert boxes.house.ended(boxes.submit("true"))["state"] == "completed"
        engine.kill()
        until(lambda: unreachable(boxes) is not None, "the host is unreachable")
        order = boxes.submit("true")
        engine.start()
        assert boxes.house.ended(order)["state"] == "completed"
        assert unreachable(boxes) is None
        assert [event["kind"] for event in boxes.house.events() if event["kind"] == "order.failed"] == []
        boxes.drain()
    finally:
        boxes.close()


def unreachable(boxes: Boxes) -> str | None:
    try:
        since: str | None = boxes.house.get("/hosts/engine")["unreachable_since"]
    except httpx2.TransportError:
        return None
    return since
