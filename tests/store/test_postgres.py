"""What only PostgreSQL has: other instances, sessions that end, plans that could go wrong."""

import asyncio
import re
import socket
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec.structs import replace

from standby.core.errors import Refused
from standby.core.model import Change, EventKind, OrderState
from standby.core.wear import NOTED_MS
from standby.store import postgres_session as session
from standby.store import queries
from standby.store.commit import Violated
from standby.store.contract import Answer, StoreDown
from standby.store.migrate import WrongSchema, known
from standby.store.postgres import PostgresStore
from standby.store.postgres_batch import SAVE
from standby.store.store import migrate, open_store, schema_status
from tests import make, rows
from tests.postgres import bare_database, fresh_database
from tests.store.test_handover import House
from tests.store.test_hints import Ear

pytestmark = pytest.mark.anyio


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with fresh_database() as fresh:
        yield fresh


@pytest.fixture
async def admin(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def listening(admin: Any, count: int, besides: frozenset[int] = frozenset()) -> frozenset[int]:
    """Wait until so many instances listen, in other sessions than these; the sessions they listen in."""
    text = """select pid from pg_stat_activity
        where datname = current_database() and query ilike 'listen%' and state = 'idle'"""  # else it only begins to
    async with asyncio.timeout(60):
        while len(pids := {row[0] for row in await admin.fetch(text)} - besides) < count:
            pass
    return frozenset(pids)


async def test_a_request_is_heard_by_other_instances(url: str, admin: Any) -> None:
    async with open_store(url) as one, open_store(url) as two:
        ear = Ear()
        two.listen(ear)
        await listening(admin, 2)
        await one.save([make.submit(pool="p"), make.submit(pool="with, comma")])
        assert (await ear.wait()).pools == {"p", "with, comma"}


async def test_a_lost_listener_comes_back_and_saves_never_needed_it(url: str, admin: Any) -> None:
    async with open_store(url) as one, open_store(url) as two:
        old = await listening(admin, 2)
        await admin.execute("select pg_terminate_backend(pid) from unnest($1::int[]) as pid", list(old))
        assert [verdict.saved for verdict in await one.save([make.submit()])] == [True]
        await listening(admin, 2, besides=old)
        later = Ear()
        two.listen(later)
        await one.save([make.submit(pool="again")])
        assert (await later.wait()).pools == {"again"}


async def test_a_writer_whose_session_was_ended_looks_up_and_goes_on(url: str, admin: Any) -> None:
    store = await PostgresStore.open(url, hints=False)
    try:
        await admin.execute("select pg_terminate_backend($1)", (await store._session()).get_server_pid())
        assert [verdict.saved for verdict in await store.save([make.submit(), make.submit()])] == [True, True]
        assert await store.last_seq() == 2
    finally:
        await store.close()


async def test_a_commit_whose_answer_was_lost_is_found_again(url: str) -> None:
    store = await PostgresStore.open(url, hints=False)
    made = [make.submit(), make.submit()]
    try:
        store._writer = Losing(await store._session())
        verdicts = await store.save(made)
        assert [(verdict.answer, verdict.seq) for verdict in verdicts] == [(Answer.SAVED, 1), (Answer.SAVED, 2)]
        assert [event.change for event in await store.events(0, 10)] == [one.id for one in made]
    finally:
        await store.close()


class Losing:
    """A session whose next commit is done, but its answer never comes."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    async def fetchrow(self, *args: Any) -> None:
        await self._writer.fetchrow(*args)
        raise ConnectionResetError("the answer was lost")


async def test_a_server_that_is_gone_is_store_down(url: str) -> None:
    store = await PostgresStore.open(url, hints=False)
    try:
        store._url = "postgresql://nobody@127.0.0.1:1/none"
        store._drop_writer()
        with pytest.raises(StoreDown):
            await store.save([make.submit()])
    finally:
        await store.close()


async def test_a_server_that_says_nothing_is_told_apart_from_one_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://nobody@127.0.0.1:{silent.getsockname()[1]}/none"
        with pytest.raises(StoreDown, match=r"could not be reached: no answer within 0.1 s"):
            await session.connect(url, session.READER)
    with pytest.raises(StoreDown, match=r"could not be reached: \[Errno \d+\]"):
        await session.connect(url, session.READER)


async def test_a_session_that_sits_on_the_lock_is_ended_and_blocks_nobody_for_long(url: str) -> None:
    frozen = await session.connect(url, session.WRITER)
    await frozen.execute("begin")
    await frozen.execute("select pg_advisory_xact_lock($1)", session.WRITE_LOCK)
    await frozen.execute("insert into leases values ('half', 'frozen', 1, 1, 1)")
    async with open_store(url) as store:
        async with asyncio.timeout(6):
            assert [verdict.saved for verdict in await store.save([make.submit()])] == [True]
        assert await store.leases() == []
    frozen.terminate()


async def test_a_database_without_a_schema_is_refused_with_the_remedy() -> None:
    async with bare_database() as url:
        with pytest.raises(WrongSchema, match=r"0001_begin.*standby db migrate"):
            async with open_store(url):
                pass
        status = await schema_status(url)
        assert [step.name for step in status.pending] == [step.name for step in known("postgres")]
        assert "create table orders" in status.sql
        await migrate(url)
        assert (await schema_status(url)).refusal is None
        assert (await migrate(url)).pending == []
        async with open_store(url) as store:
            assert len(store.incarnation) == 32


async def test_whoever_may_create_in_the_schema_and_nothing_else_can_migrate() -> None:
    role = f"plain_{uuid.uuid4().hex}"
    async with bare_database() as url:
        admin = await asyncpg.connect(url)
        server = urlsplit(url)
        await admin.execute(f"create role {role} login password 'x'; grant create, usage on schema public to {role}")
        await admin.execute(f"revoke temp on database {server.path[1:]} from public")
        try:
            place = server.netloc.rpartition("@")[2]
            as_plain = server._replace(netloc=f"{role}:x@{place}").geturl()
            await migrate(as_plain)
            assert (await migrate(as_plain)).pending == []
        finally:
            await admin.execute(f"drop owned by {role}; drop role {role}")
            await admin.close()


async def test_a_database_of_a_newer_version_is_refused(url: str, admin: Any) -> None:
    await admin.execute("insert into migrations values (9999, '9999_future', 'x', 1)")
    with pytest.raises(WrongSchema, match=r"9999_future.*newer"):
        async with open_store(url):
            pass
    with pytest.raises(WrongSchema, match="newer"):
        await migrate(url)


HOT = {
    "candidates": (queries.CANDIDATES_POSTGRES, ("p", 10, 999, 9.0)),
    "expired": (queries.EXPIRED, ("p", 5, 10, None)),
    "due": (queries.DUE, ("p", 5, 10)),
    "queues": (queries.QUEUES, ("p", 10, 100)),
    "position": (queries.POSITION, ("p", "a", 5, "x", 100)),
    "position at": (queries.POSITION_AT, ("p", "a", 5, "z", 100)),
    "waiting": (queries.WAITING, (["p"],)),
    "order": (queries.ORDER, ("x",)),
    "newest": (queries.NEWEST, (9, None, None, 10, 0, None)),
    "newest of project": (queries.NEWEST_OF_PROJECT, (9, None, None, 10, 0, None, "a")),
    "newest by id": (queries.NEWEST_BY_ID, (9, None, None, 10, "a", "b", None)),
    "window": (queries.WINDOW, (9, 10)),
    "named": (queries.NAMED_POSTGRES, (["x"], 9)),
    "open by project": (queries.OPEN_BY_PROJECT, ()),
    "events": (queries.EVENTS, (0, 10)),
    "events of": (queries.EVENTS_OF, (0, 10, "x")),
    "events before": (queries.EVENTS_BEFORE, (10, 10)),
    "events before of": (queries.EVENTS_BEFORE_OF, (10, 10, "x")),
    "found": (queries.FOUND, (["x"], ["y"], 0)),
}


async def test_hot_reads_walk_an_index_even_if_analysed_while_empty(url: str, admin: Any) -> None:
    await admin.execute("analyze")
    reader = await session.connect(url, session.READER)
    plans = {
        name: "\n".join(row[0] for row in await reader.fetch(f"explain {sql}", *params))
        for name, (sql, params) in HOT.items()
    }
    await reader.close()
    assert [name for name, plan in plans.items() if "Seq Scan" in plan] == []
    for name in ("candidates", "queues", "position", "position at"):
        assert "orders_ready" in plans[name]
    for name in ("newest", "newest of project", "events", "events of", "expired", "due"):
        assert re.search(r"(?<!Incremental )Sort  ", plans[name]) is None, plans[name]


async def test_writes_go_by_primary_key_even_if_analysed_while_empty(url: str, admin: Any) -> None:
    await admin.execute("analyze")
    async with open_store(url) as store:
        made = [make.submit() for _ in range(400)]
        places = [make.slot(f"s-{number}") for number in range(400)]
        await store.save([*made, *map(make.add_slot, places)])
        orders = [one.order for one in made if one.order is not None]
        claims = [make.claim(order, place) for order, place in zip(orders, places, strict=True)]
        assert all(verdict.saved for verdict in await store.save(claims))
    found = await scans(admin)
    assert all(walked == 0 for walked, _ in found.values()), found
    # By primary key a row is fetched a few times; by a wrong index each of 400 would be fetched for each of 400.
    assert found["orders"][1] < 10 * 400


async def test_submits_look_for_each_row_alone_even_if_analysed_while_empty(url: str, admin: Any) -> None:
    await admin.execute("analyze")
    async with open_store(url) as store:
        for half in ("first", "second"):
            made = [make.submit(dedupe_live=f"{half}:{n}", key=f"{half}-{n}") for n in range(400)]
            assert all(verdict.saved for verdict in await store.save(made))
    text = """
    select sum(idx_tup_read) filter (where relname = 'orders'),
        sum(idx_tup_read) filter (where relname = 'idempotency'),
        sum(idx_scan) from pg_stat_user_indexes
    """
    async with asyncio.timeout(10):
        while (counted := await admin.fetchrow(text))[2] < 800:
            pass
    # None of them is there yet: an index that is walked for each one tells of the 400 before them.
    assert counted[0] < 400 and counted[1] < 400, counted


async def scans(admin: Any) -> dict[str, tuple[int, int]]:
    """Table -> (rows read by walking it, rows fetched by index), once the sessions have reported theirs."""
    text = """
    select relname, seq_tup_read, coalesce(idx_tup_fetch, 0), n_tup_upd from pg_stat_user_tables
    where relname in ('orders', 'slots')
    """
    async with asyncio.timeout(10):
        while True:
            rows = await admin.fetch(text)
            if any(row[0] == "orders" and row[3] == 400 for row in rows):
                return {row[0]: (row[1], row[2]) for row in rows}


async def test_ready_is_a_heap_only_update(url: str, admin: Any) -> None:
    async with open_store(url) as store:
        made, place = make.submit(), make.slot()
        assert made.order is not None
        claimed = make.claim(made.order, place)
        await store.save([made, make.add_slot(place), claimed])
        await store.save([make.ready(make.saved_order(claimed))])
    async with asyncio.timeout(10):
        text = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'orders'"
        while (counted := await admin.fetchrow(text))[0] < 2:
            pass
    assert counted[1] == 1


@pytest.mark.parametrize("claimed", [False, True])
async def test_an_order_that_comes_alone_is_written_like_one_among_others(url: str, admin: Any, claimed: bool) -> None:
    tables = {"orders": "id", "specs": "order_id", "envs": "order_id", "idempotency": "order_id", "events": "subject"}
    written: list[dict[str, list[dict[str, Any]]]] = []
    async with open_store(url) as store:
        house = House(store)
        slots, _ = await house.open(2, 0)
        for slot, others in zip(slots, ([], [make.submit()]), strict=True):
            order = make.order(project="default", pool="default", rank=5, queue_due=7, dedupe_live=f"d-{slot.name}")
            changes = [make.submit(order, env=b"sealed", key=f"k-{slot.name}"), *others]
            changes += [house.claim(order, slot)] if claimed else []
            assert all(verdict.saved for verdict in await store.save(changes))
            own = {order.id: "id", slot.name: "slot", changes[-1].id: "claim", changes[0].id: "submit"}
            rows_of = {
                table: await admin.fetch(f"select * from {table} where {column} = $1 order by 1", order.id)
                for table, column in tables.items()
            }
            written.append({table: [_told(row, own) for row in found] for table, found in rows_of.items()})
    alone, among = written
    assert alone == among
    assert [len(found) for found in alone.values()] == [1, 1, 1, 1, 1 + claimed]


def _told(row: Any, own: dict[str, str]) -> dict[str, Any]:
    """A row with the names of its own kind, and without its place in the history."""
    told = {column: value for column, value in row.items() if column != "seq"}
    for name, kind in own.items():
        told = {
            column: value.replace(name, kind) if isinstance(value, str) else value for column, value in told.items()
        }
    return told


async def test_an_order_that_comes_alone_takes_one_plain_call(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = PostgresStore._call

    async def noted(self: PostgresStore, sql: str, *values: Any, **keys: Any) -> Any:
        asked.append(sql.partition("(")[0])
        return await call(self, sql, *values, **keys)

    async with open_store(url) as store:
        house = House(store)
        (slot,), _ = await house.open(1, 0)
        order = make.order(project="default", pool="default")
        monkeypatch.setattr(PostgresStore, "_call", noted)
        await store.save([make.submit()])
        await store.save([make.submit(order), house.claim(order, slot)])
    assert asked == ["select save_lone"] * 2


async def test_a_slot_of_many_short_runs_is_claimed_without_walking_through_them_while_a_snapshot_is_held(
    url: str, admin: Any
) -> None:
    """Nothing of them can be taken away meanwhile, so whoever looks for the slot's holder finds them all again."""
    runs, each_ms = 300, 50
    async with open_store(url) as store:
        house = House(store)
        (slot,), orders = await house.open(1, runs)
        snapshot = admin.transaction(isolation="repeatable_read")
        await snapshot.start()
        await admin.fetch("select count(*) from orders")
        changes: list[Change] = []
        for number, order in enumerate(orders):
            house.now = rows.NOW + number * each_ms
            claim = house.claim(order, slot)
            verdicts = await store.save([*changes, claim])
            assert all(verdict.saved for verdict in verdicts)
            end = house.end(claim, slot, counts=False)
            changes, slot = [end], end.slot or slot
        assert (await store.save(changes))[0].saved
        noted = await store.slots()
    walked = "select idx_tup_read, idx_scan from pg_stat_user_indexes where indexrelname = 'orders_slot'"
    await snapshot.rollback()
    async with asyncio.timeout(10):
        while (counted := await admin.fetchrow(walked))[1] < runs:
            pass
    assert noted[0].uses == runs * each_ms / NOTED_MS
    assert counted[0] < runs * NOTED_MS / each_ms  # 300 * 300 / 2 if each walked through all before it


async def test_nothing_but_an_end_moves_the_time_by_which_open_runs_of_a_slot_are_told_apart(url: str) -> None:
    async with open_store(url) as store:
        place = make.slot()
        await store.save([make.add_slot(place)])
        on_a_guess = replace(place, boot="b", last_used_at=9)
        await store.save([make.change(EventKind.SLOT_BOOTED, slot_was=place, slot=on_a_guess)])
        (slot,) = await store.slots()
    assert (slot.boot, slot.last_used_at) == ("b", None)


async def test_a_missing_driver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "asyncpg", None)
    with pytest.raises(Refused, match=r"standby\[postgres\]"):
        async with open_store("postgresql://localhost/none"):
            pass


@pytest.mark.parametrize("fault", [Violated, StoreDown])
async def test_what_was_saved_is_told_although_the_verdict_of_another_could_not_be_had(
    url: str, fault: type[Exception]
) -> None:
    store = await PostgresStore.open(url)
    try:
        first = make.submit(dedupe_live="a:k")
        await store.save([first])
        real, failed = store._call, list[str]()

        async def call(
            sql: str, values: Sequence[Any], schedules: Any = (), *, together: bool = False
        ) -> Sequence[Any]:
            if sql == SAVE and not failed:
                failed.append(sql)
                raise fault("once")
            return await real(sql, values, schedules, together=together)

        store._call = call  # type: ignore[method-assign]
        good, again = await store.save([make.submit(), make.submit(dedupe_live="a:k")])
        assert failed
        assert (good.answer, again.answer, again.order_id) == (Answer.SAVED, Answer.DUPLICATE, first.subject)
    finally:
        await store.close()


RULES = """
    state in ('pending', 'preparing', 'running', 'stopping', 'waiting_retry', 'completed', 'failed', 'cancelled')
    and (state in ('preparing', 'running', 'stopping')) = (slot is not null)
    and (slot is null or (incarnation is not null and commanded_at is not null))
    and (state <> 'running' or ready_at is not null)
    and (rank is null or state = 'pending')
    and (due_at is null or state in ('pending', 'waiting_retry'))
    and (state not in ('pending', 'waiting_retry') or (rank is null) <> (due_at is null))
    and (state in ('completed', 'failed', 'cancelled')) = (ended_at is not null)
    and (dedupe_live is null or ended_at is null)
"""


async def test_the_one_check_of_orders_proves_every_rule_about_states_and_columns(admin: Any) -> None:
    (check,) = await admin.fetch("""select pg_get_expr(conbin, conrelid) from pg_constraint
        where conrelid = 'orders'::regclass and contype = 'c' and convalidated""")
    columns = ["slot", "incarnation", "commanded_at", "ready_at", "rank", "due_at", "ended_at", "dedupe_live"]
    each = ", ".join(f"(values (null), (1)) {column} ({column})" for column in columns)
    possible = f"select * from unnest($1::text[]) s (state), {each}"
    both = f"select ({RULES}), ({check[0]}), count(*) from ({possible}) o group by 1, 2 order by 1"
    found = await admin.fetch(both, [*OrderState, "another", ""])
    assert [tuple(row) for row in found] == [(False, False, 2478), (True, True, 82)]  # never one without the other
