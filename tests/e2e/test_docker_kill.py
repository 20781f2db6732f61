"""Whatever is killed, the server or the engine, no order in a container is lost and none has two live copies.

Everything is counted from marks that the work itself writes into a mounted directory. A lock that lives as long as any
process of a run does tells whether two copies of an order were alive at once.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.engine import RunningEngine, own_engine

from .boxes import Boxes, machine, resident
from .house import Answer, passed, until

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

KILLS = 10
LINES = 3
RETRIES = 5
TIMINGS = {"lease": "2s", "command_window": "500ms"}
WORK = f"""
cd /marks
exec 9>>$STANDBY_ORDER_ID.lock
/usr/bin/flock -n 9 || echo "double $STANDBY_ORDER_ID $STANDBY_ATTEMPT" >>marks
echo "begin $STANDBY_ORDER_ID $STANDBY_ATTEMPT" >>marks
i=0
while [ $i -lt {LINES} ]; do
  echo "line $i"
  i=$((i+1))
  sleep 0.5
done
echo "end $STANDBY_ORDER_ID $STANDBY_ATTEMPT" >>marks
exit $CODE
"""


@pytest.fixture
def engine(short_path: Path) -> Iterator[RunningEngine]:
    with own_engine(short_path / "e") as made:
        yield made


class Trial:
    """Orders in containers of one kind, and the marks they leave."""

    def __init__(self, directory: Path, engine: RunningEngine, warmth: str, orders: int) -> None:
        self._count, self._engine = orders, engine
        self._alone: set[tuple[str, str]] = set()
        """Runs that ended while their engine was away: what it had not read of their output is gone with them."""
        self.seed = int(os.environ.get("STANDBY_TEST_SEED", random.randrange(10**6)))
        self._chance = random.Random(self.seed)
        self._marks = directory / "m" / "marks"
        self._marks.parent.mkdir()
        self._marks.touch()
        keys = resident(directory) if warmth == "resident" else {}
        mounts = [*keys.pop("mounts", machine()), f"{self._marks.parent}:/marks"]
        policy = {"retries": RETRIES, "retry_base": "200ms", "queue_timeout": "10m", "slots_max": 12}
        self.logged = warmth != "resident"
        tier = warmth if self.logged else "running"
        self.boxes = Boxes(directory / "h", engine, tier, TIMINGS, **{**keys, "mounts": mounts, **policy})

    def marks(self) -> list[list[str]]:
        """What the work wrote so far: begin, end or double, the order, the attempt."""
        return [line.split() for line in self._marks.read_text().splitlines()]

    def run(self) -> dict[str, Answer]:
        """Submit all of it, kill at chosen moments, and wait for the ends."""
        house = self.boxes.house.start()
        codes = {self._submit(index % 3): index % 3 for index in range(self._count)}
        first, second = sorted(self._chance.sample(range(KILLS), 2))
        for kill in range(KILLS):
            self._go_on()
            if kill == first:
                self._restart()  # its containers die with it, and those to come will not
            elif kill == second:
                before = self._ended()
                self._restart()
                self._alone = self._ended() - before
            else:
                house.kill()
                house.start()
        for _ in range(2):
            self._go_on()
            house.kill()
            house.start()
        orders = {each: house.ended(each, seconds=150) for each in codes}
        self._check(orders, codes)
        return orders

    def _submit(self, code: int) -> str:
        return self.boxes.submit(script=WORK, env={"CODE": str(code)})

    def _go_on(self) -> None:
        """Until some more was marked, and a moment that falls anywhere."""
        enough = min(len(self.marks()) + self._chance.randrange(1, 7), 2 * self._count - 1)
        until(lambda: len(self.marks()) >= enough, f"seed {self.seed}: work goes on\n{self.boxes.house.tail()}")
        until(passed(self._chance.random() * 0.3), "a moment passes")

    def _restart(self) -> None:
        """Stop the engine as a service manager would, and start it so that its containers will outlive it."""
        self._engine.stop()
        self._engine.flags = ("--live-restore",)
        until(passed(self._chance.random() * 2), "a moment passes")
        self._engine.start()

    def _ended(self) -> set[tuple[str, str]]:
        return {(order, attempt) for word, order, attempt in self.marks() if word == "end"}

    def _check(self, orders: dict[str, Answer], codes: dict[str, int]) -> None:
        marks, seed = self.marks(), f"seed {self.seed}"
        assert [mark for mark in marks if mark[0] == "double"] == [], f"{seed}: two live copies"
        begun = [(order, attempt) for word, order, attempt in marks if word == "begin"]
        assert len(set(begun)) == len(begun), f"{seed}: a run was started twice"
        assert {order for order, _ in begun} == set(codes), f"{seed}: an order never ran"
        ended = self._ended()
        for each, code in codes.items():
            order = orders[each]
            outcome = (order["state"], order["exit_code"])
            assert outcome == ("failed" if code else "completed", code), f"{seed}: {order}"
            assert order["attempt"] <= 1 + RETRIES
            # an earlier run may have been killed with its engine between its last mark and its end
            assert (each, str(order["attempt"])) in ended, f"{seed}: {order}"
            if self.logged:
                lines = self.boxes.house.log_lines(each)
                least = 0 if (each, str(order["attempt"])) in self._alone else LINES
                whole = [f"line {number}" for number in range(LINES)]
                assert lines == whole[: max(len(lines), least)], f"{seed}: {each}"


@pytest.mark.parametrize(
    ("warmth", "orders"), [("created", 50), ("running", 50), ("cold", 50), ("resident", 20)], ids=lambda each: str(each)
)
def test_orders_in_containers_survive_kills_of_the_server_and_restarts_of_the_engine(
    short_path: Path, engine: RunningEngine, warmth: str, orders: int, figure: Callable[[str], None]
) -> None:
    began = time.monotonic()
    trial = Trial(short_path, engine, warmth, orders)
    try:
        ended = trial.run()
        trial.boxes.drain()
    finally:
        trial.boxes.close()
    again = sum(order["attempt"] > 1 for order in ended.values())
    figure(
        f"kill test on Docker, {warmth}, seed {trial.seed}: {orders} orders, {KILLS} kills of the server and "
        f"2 restarts of the engine in {time.monotonic() - began:.0f} s, true outcomes, {again} ran again"
    )


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


def test_what_an_engine_was_removing_when_it_died_holds_up_no_output_and_no_drain(
    engine: RunningEngine, tmp_path: Path
) -> None:
    boxes = Boxes(tmp_path / "h", engine, "created")
    try:
        boxes.house.start()
        order = boxes.submit("sleep", "1000", retry={"retries": 0})
        boxes.house.in_state(order, "running")
        (container,) = [each["Id"] for each in boxes.containers() if each["State"] == "running"]
        engine.kill()
        engine.killed_while_it_removed(container)
        engine.start()
        assert boxes.house.ended(order)["reason"] == "lost"
        assert boxes.house.log_lines(order) == []
        after = boxes.submit("echo", "after")
        assert boxes.house.ended(after)["state"] == "completed"
        assert boxes.house.log_lines(after) == ["after"]
        boxes.drain()
    finally:
        boxes.close()


def test_a_container_that_its_engine_cannot_remove_says_why_and_goes_when_it_can(
    engine: RunningEngine, tmp_path: Path
) -> None:
    boxes = Boxes(tmp_path / "h", engine, "running", slots_warm=1)
    try:
        boxes.house.start()
        (container,) = until(boxes.containers, "a container is made")
        until(lambda: boxes.slots()[0]["state"] == "idle", "it is noted")
        with engine.kept_busy(container["Id"]):
            boxes.house.call("POST", "/pools/boxes/drain", {"reason": "enough"})
            why = until(lambda: boxes.slots()[0]["error"], "the slot says why it is still there")
            assert "cannot be removed" in why and "device or resource busy" in why
            assert "slot.stuck" in [event["kind"] for event in boxes.house.events()]
            boxes.drain()  # which helps the engine, as docs/drivers.md says
        until(lambda: boxes.slots() == [], "the slot is gone")
    finally:
        boxes.close()


def unreachable(boxes: Boxes) -> str | None:
    try:
        since: str | None = boxes.house.get("/hosts/engine")["unreachable_since"]
    except httpx2.TransportError:
        return None
    return since
