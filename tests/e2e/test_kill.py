"""Whatever is killed, no order is lost, none runs twice at once, every outcome is the true one, every log is whole.

Everything is counted from marks that the work itself writes, not from what the server says.
"""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.e2e.house import House, house, until

ORDERS = 200
KILLS = 10
LINES = 30
POOL = '[pools.default]\nslots_max = 25\nmemory_mb = 10\nretry_base = "200ms"\nqueue_timeout = "10m"\n'

WORK = f"""
echo "begin $STANDBY_ORDER_ID $STANDBY_ATTEMPT" >> "$MARKS"
i=0
while [ $i -lt {LINES} ]; do
  echo "line $i"
  i=$((i+1))
  [ $((i % 10)) -eq 0 ] && sleep 0.3
done
echo "end $STANDBY_ORDER_ID $STANDBY_ATTEMPT" >> "$MARKS"
exit $CODE
"""


def test_two_hundred_orders_survive_ten_kills_of_the_server_and_one_of_the_keeper(
    tmp_path: Path, engine: str | None, figure: Callable[[str], None]
) -> None:
    seed = int(os.environ.get("STANDBY_TEST_SEED", random.randrange(10**6)))
    chance = random.Random(seed)
    marks = tmp_path / "marks"
    marks.touch()
    keys = {"database": engine} if engine else {}
    with house(tmp_path / "house", toml=POOL, lease="2s", command_window="500ms", **keys) as home:
        home.start()
        codes = {_submit(home, marks, index % 3): index % 3 for index in range(ORDERS)}
        with_keeper = chance.randrange(KILLS)
        for kill in range(KILLS + 1):
            seen = len(marks.read_text().splitlines())
            more = chance.randrange(1, 30)
            until(lambda: len(marks.read_text().splitlines()) >= min(seen + more, ORDERS * 2), "work goes on")  # noqa: B023
            keeper = home.keeper_pid() if kill == with_keeper else None
            home.kill()
            if keeper is not None:
                os.kill(keeper, signal.SIGKILL)
            home.start()
        orders = {order_id: home.ended(order_id, seconds=120) for order_id in codes}
        lived = _lives(marks)
        attempts = {order_id: order["attempt"] for order_id, order in orders.items()}
        wrong = {i: orders[i] for i, code in codes.items() if orders[i]["exit_code"] != code}
        assert wrong == {}, f"seed {seed}"
        assert {i: o["state"] for i, o in orders.items()} == {
            i: "completed" if code == 0 else "failed" for i, code in codes.items()
        }
        assert set(lived) == set(codes), f"seed {seed}: an order never ran"
        assert all(len(lives) <= attempts[i] for i, lives in lived.items()), f"seed {seed}: a run was started twice"
        whole = [f"line {n}" for n in range(LINES)]
        torn = {i: lines for i in codes if (lines := home.log_lines(i)) != whole}
        assert torn == {}, f"seed {seed}"
        until(lambda: not home.left_over(), "no process is left over")
        again = sum(len(lives) > 1 for lives in lived.values())
    figure(
        f"kill test on {'PostgreSQL' if engine else 'SQLite'}, seed {seed}: {ORDERS} orders, {KILLS + 1} kills, "
        f"all ended once with their true outcome, {again} ran a second time"
    )


def _submit(home: House, marks: Path, code: int) -> str:
    return home.submit(script=WORK, env={"MARKS": str(marks), "CODE": str(code)})


def _lives(marks: Path) -> dict[str, list[str]]:
    """The attempts of each order, in order; fails when two of one order were ever alive at once."""
    alive: dict[str, str] = {}
    lives: dict[str, list[str]] = {}
    for line in marks.read_text().splitlines():
        what, order_id, attempt = line.split()
        if what == "begin":
            assert order_id not in alive, f"two live copies of {order_id}"
            alive[order_id] = attempt
            lives.setdefault(order_id, []).append(attempt)
        else:
            assert alive.pop(order_id) == attempt
    assert alive == {}, "a copy never ended"
    for order_id, attempts in lives.items():
        assert len(set(attempts)) == len(attempts), f"a run of {order_id} was started twice"
    return lives
