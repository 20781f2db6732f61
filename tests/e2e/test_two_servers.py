"""Several instances on one PostgreSQL: one leads, another takes over, and nothing ever runs twice."""

import asyncio
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg

from standby.store.postgres_session import WRITE_LOCK
from tests.e2e.house import House, until
from tests.e2e.test_kill import ORDERS, POOL, WORK, _lives


def _pair(tmp_path: Path, database: str) -> tuple[House, House]:
    """Two servers with state of their own, one database and one process host between them."""
    shared = tmp_path / "shared"
    toml = f'[hosts.local]\ndirectory = "{shared}"\n{POOL}'

    def one(name: str) -> House:
        return House(
            tmp_path / name, toml=toml, database=database, lease="2s", command_window="500ms", seal_key="5a" * 32
        )

    return one("a"), one("b")


def test_two_servers_share_a_database_and_one_is_killed_now_and_then(tmp_path: Path, postgres_url: str) -> None:
    chance = random.Random(7)
    marks = tmp_path / "marks"
    marks.touch()
    first, second = _pair(tmp_path, postgres_url)
    try:
        first.start()
        second.key = first.key
        second.start()
        env = {"MARKS": str(marks), "CODE": "0"}
        orders = [chance.choice([first, second]).submit(script=WORK, env=env) for _ in range(ORDERS)]
        for _ in range(6):
            seen = len(marks.read_text().splitlines())
            until(lambda: len(marks.read_text().splitlines()) >= min(seen + 20, ORDERS * 2), "work goes on")  # noqa: B023
            unlucky = chance.choice([first, second])
            unlucky.kill()
            unlucky.start()
        states = {first.ended(order_id, 120)["state"] for order_id in orders}
        lived = _lives(marks)
        assert states == {"completed"}
        assert {order_id: len(lives) for order_id, lives in lived.items()} == dict.fromkeys(orders, 1)
    finally:
        second.close()
        first.state = tmp_path / "shared"
        first.close()


def test_a_leader_that_was_frozen_wakes_up_deposed_and_does_no_harm(tmp_path: Path, postgres_url: str) -> None:
    marks = tmp_path / "marks"
    marks.touch()
    first, second = _pair(tmp_path, postgres_url)
    try:
        first.start()
        alone = until(lambda: first.get("/hosts/local")["lease"], "it leads")
        env = {"MARKS": str(marks), "CODE": "0"}
        orders = [first.submit(script=WORK, env=env) for _ in range(60)]
        second.key = first.key
        second.start()
        until(lambda: len(marks.read_text().splitlines()) >= 10, "work is under way")
        lease = second.get("/hosts/local")["lease"]
        leader, other = (first, second) if lease["owner"] == alone["owner"] else (second, first)
        leader.send(signal.SIGSTOP)
        until(lambda: other.get("/hosts/local")["lease"]["owner"] != lease["owner"], "the other one leads")
        until(lambda: len(marks.read_text().splitlines()) >= 60, "work goes on")
        leader.send(signal.SIGCONT)
        states = {other.ended(order_id, 120)["state"] for order_id in orders}
        assert states == {"completed"}
        assert {order_id: len(lives) for order_id, lives in _lives(marks).items()} == dict.fromkeys(orders, 1)
        assert leader.get("/hosts/local")["lease"]["epoch"] > lease["epoch"]
    finally:
        second.close()
        first.state = tmp_path / "shared"
        first.close()


def test_a_server_that_stops_while_the_database_hangs_says_that_it_is_to_be_asked_again(
    tmp_path: Path, postgres_url: str
) -> None:
    first, _ = _pair(tmp_path, postgres_url)
    with asyncio.Runner() as runner, ThreadPoolExecutor() as pool:
        try:
            first.start()
            first.ended(first.submit("true"))  # from now on it has nothing to write but what is asked
            rival = runner.run(asyncpg.connect(postgres_url))
            runner.run(rival.execute("select pg_advisory_lock($1)", WRITE_LOCK))
            body = {"command": ["true"]}
            asked = pool.submit(first.call, "POST", "/work-orders", body, Idempotency_Key="once")
            here = "database = (select oid from pg_database where datname = current_database())"
            waits = f"select count(*) from pg_locks where locktype = 'advisory' and not granted and {here}"
            until(lambda: runner.run(rival.fetchval(waits)) > 0, "the submit waits for the lock")
            first.send(signal.SIGTERM)
            answer = asked.result()
            assert (answer.status_code, answer.json()["code"]) == (503, "stopping"), answer.text
            assert answer.headers["Retry-After"] == "2"
            runner.run(rival.close())
            assert first.process is not None and first.process.wait(timeout=60) == 0
            assert "Traceback" not in first.tail()
            first.start()
            again = first.call("POST", "/work-orders", body, Idempotency_Key="once").json()["id"]
            assert first.ended(again)["state"] == "completed"
            assert len(first.get("/work-orders")["orders"]) == 2
        finally:
            first.state = tmp_path / "shared"
            first.close()
