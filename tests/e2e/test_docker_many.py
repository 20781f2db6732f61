"""Many orders at once on an empty pool of containers: as many as it may have, no more, and each in its own."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine import shared_engine

from .boxes import Boxes
from .house import Answer, until

pytestmark = pytest.mark.docker

SLOTS = 20
STARTS = 4
"""What a host of containers has unless it is told otherwise."""
LIVE = ("created", "running")


class Watcher:
    """Counts on the engine, as fast as it answers, what there is at once."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes, self._over = boxes, threading.Event()
        self.most_places = self.most_starting = self.looks = 0

    def watch(self) -> None:
        while not self._over.is_set():
            there = [each for each in self._boxes.containers() if each["State"] in LIVE]
            # one that is bound to a run has its name, and was not started yet
            bound = [each for each in there if each["State"] == "created" and each["Names"][0].count(".") == 2]
            self.most_places = max(self.most_places, len(there))
            self.most_starting = max(self.most_starting, len(bound))
            self.looks += 1

    def end(self) -> None:
        self._over.set()


@contextmanager
def watched(boxes: Boxes) -> Iterator[Watcher]:
    watcher = Watcher(boxes)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watcher.watch)
        try:
            yield watcher
        finally:
            watcher.end()
    watching.result()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("warmth", ["created", "cold"])
def test_ten_and_then_fifty_orders_at_once_never_exceed_the_pool_or_the_gate(tmp_path: Path, warmth: str) -> None:
    gates = tmp_path / "gates"
    gates.mkdir()
    keys: dict[str, Any] = {"slots_max": SLOTS, "queue_timeout": "10m", "mounts": [f"{gates}:/gates:ro"]}
    boxes = Boxes(tmp_path / "house", shared_engine(), warmth, **keys)
    try:
        boxes.house.start()
        with watched(boxes) as watcher:
            for count in (10, 50):
                _at_once(boxes, gates / str(count), count)
        assert watcher.looks > 20
        assert watcher.most_places == SLOTS
        assert watcher.most_starting <= STARTS
        boxes.drain()
        most_slots, most_starting = counted(boxes.house.events(), seats=warmth == "cold", alive=warmth == "running")
        assert most_slots == SLOTS
        assert most_starting == STARTS
    finally:
        boxes.close()


def _at_once(boxes: Boxes, gate: Path, count: int) -> None:
    """Submit so many at the same moment; those that run wait for each other at a gate."""
    script = f"while [ ! -e /gates/{gate.name} ]; do sleep 0.1; done"
    with ThreadPoolExecutor(count) as callers:
        orders = list(callers.map(lambda _: boxes.submit(script=script), range(count)))
    running = until(lambda: _running(boxes, orders, min(count, SLOTS)), f"{min(count, SLOTS)} run at once", 180)
    assert len({order["slot"] for order in running}) == len(running)
    if count > SLOTS:
        assert {boxes.house.order(each)["state"] for each in orders} == {"running", "pending"}
    gate.touch()
    assert [boxes.house.ended(each, seconds=120)["state"] for each in orders] == ["completed"] * count


def _running(boxes: Boxes, orders: list[str], count: int) -> list[Answer] | None:
    found = [order for each in orders if (order := boxes.house.order(each))["state"] == "running"]
    assert len(found) <= SLOTS
    return found if len(found) == count else None


def counted(events: list[Answer], *, seats: bool, alive: bool) -> tuple[int, int]:
    """The most slots there ever were at once, and the most starts in flight, by the history alone."""
    slots: dict[str, str | None] = {}
    orders: dict[str, str | None] = {}
    most_slots = most_starting = 0
    for event in events:
        noun = event["kind"].partition(".")[0]
        if noun == "slot":
            slots[event["subject"]] = event["to"]
        elif noun == "order":
            orders[event["subject"]] = event["to"]
        made = 0 if seats else sum(state == "creating" for state in slots.values())
        begun = 0 if alive else sum(state == "preparing" for state in orders.values())
        most_slots = max(most_slots, sum(state is not None for state in slots.values()))
        most_starting = max(most_starting, made + begun)
    return most_slots, most_starting
