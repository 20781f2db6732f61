"""What only SQLite has: a file, its copy before a migration, one server, a store in memory."""

from collections.abc import Sequence
from pathlib import Path

import apsw
import pytest

from standby.core.errors import Refused
from standby.store import queries
from standby.store.commit import Unsure
from standby.store.contract import Answer, StoreDown, Verdict
from standby.store.entry import Entry
from standby.store.migrate import WrongSchema, known
from standby.store.sqlite import SqliteStore
from standby.store.store import migrate, open_store, schema_status
from tests import make

pytestmark = pytest.mark.anyio


def url_of(path: Path) -> str:
    return f"sqlite:///{path}"


async def test_a_store_is_made_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "standby.db"
    async with open_store(url_of(path)) as store:
        incarnation = store.incarnation
        await store.save([make.submit()])
    async with open_store(url_of(path)) as store:
        assert (store.incarnation, await store.last_seq()) == (incarnation, 1)
    assert (path.parent / "logs.db").exists()


async def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path) -> None:
    url = url_of(tmp_path / "standby.db")
    async with open_store(url):
        with pytest.raises(Refused, match=r"another Standby server \(pid \d+\)"):
            async with open_store(url):
                pass
        assert (await schema_status(url)).refusal is None
    async with open_store(url):
        pass


@pytest.mark.parametrize("url", ["mysql://x", "sqlite:///", "standby.db"])
async def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="not a store"):
        async with open_store(url):
            pass


async def test_the_clock_is_the_one_given() -> None:
    store = SqliteStore.in_memory(clock=lambda: 42)
    assert await store.now() == 42
    await store.close()


async def test_a_closed_store_is_down(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "standby.db")
    await store.close()
    await store.close()
    with pytest.raises(StoreDown):
        await store.save([make.submit()])
    with pytest.raises(StoreDown):
        await store.pools()


async def test_the_schema_can_be_asked_for_before_there_is_a_file(tmp_path: Path) -> None:
    url = url_of(tmp_path / "standby.db")
    status = await schema_status(url)
    assert [step.name for step in status.pending] == [step.name for step in known("sqlite")]
    assert "create table orders" in status.sql
    assert "pending" in (status.refusal or "")
    assert not (tmp_path / "standby.db").exists()
    await migrate(url)
    assert [step.name for step in (await schema_status(url)).applied] == [step.name for step in known("sqlite")]


async def test_a_file_with_an_unknown_past_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    async with open_store(url_of(path)) as store:
        await store.save([make.submit()])
    connection = apsw.Connection(str(path))
    connection.execute("delete from migrations")
    connection.execute("insert into migrations values (0, '0000_old', 'x', 1)")
    connection.close()
    with pytest.raises(WrongSchema, match="newer"):
        SqliteStore.open(path)
    assert not path.with_name("standby.db.before-0001").exists()


async def test_a_file_with_content_is_copied_before_it_is_migrated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "standby.db"
    async with open_store(url_of(path)) as store:
        await store.save([make.submit()])
    from standby.store import migrate as module

    step = module.Migration(9, "0009_more", "create table more (x integer)", "c")
    monkeypatch.setattr(module, "known", lambda kind: [*known(kind), step] if kind == "sqlite" else known(kind))
    async with open_store(url_of(path)) as store:
        assert await store.last_seq() == 1
    copy = apsw.Connection(str(path.with_name("standby.db.before-0009")))
    assert copy.execute("select count(*) from events").get == 1
    assert not copy.table_exists(None, "more")
    copy.close()


async def test_orders_keep_their_rows_and_indexes_when_their_checks_are_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standby.store import migrate as module

    def found() -> list[tuple[object, ...]]:
        connection = apsw.Connection(str(path))
        texts = (
            "select * from orders order by id",
            "select name, sql from sqlite_schema where type = 'index' order by 1",
        )
        rows = [row for text in texts for row in connection.execute(text)]
        connection.close()
        return rows

    path = tmp_path / "standby.db"
    with monkeypatch.context() as patched:
        patched.setattr(module, "known", lambda kind: [step for step in known(kind) if step.number < 15])
        async with open_store(url_of(path)) as store:
            await store.save([make.submit(make.order(dedupe_live="d", concurrency_key="k", cpus=0.5)), make.submit()])
    before = found()
    await migrate(url_of(path))
    assert found() == before


@pytest.mark.parametrize(
    "nonsense",
    [
        "state = 'lost'",
        "rank = null",
        "due_at = 1",
        "slot = 's'",
        "slot = 's', incarnation = 'i', commanded_at = 1",
        "state = 'preparing', rank = null",
        "state = 'preparing', rank = null, slot = 's', incarnation = 'i'",
        "state = 'preparing', slot = 's', incarnation = 'i', commanded_at = 1",
        "state = 'running', rank = null, slot = 's', incarnation = 'i', commanded_at = 1",
        "state = 'waiting_retry', rank = null",
        "state = 'completed', rank = null",
        "state = 'failed', ended_at = 1",
        "state = 'cancelled', rank = null, ended_at = 1, due_at = 1",
        "state = 'cancelled', rank = null, ended_at = 1, dedupe_live = 'd'",
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_by_the_database(nonsense: str) -> None:
    store = SqliteStore.in_memory()
    await store.save([make.submit()])
    with pytest.raises(apsw.ConstraintError, match="CHECK"):
        store._main.writer.execute(f"update orders set {nonsense}")
    await store.close()


async def test_a_file_of_a_newer_version_or_with_other_texts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    await migrate(url_of(path))
    for damage, word in (
        ("update migrations set checksum = 'other'", "other texts of 0001_begin, 0002_history"),
        ("insert into migrations values (9999, '9999_future', 'x', 1)", "9999_future.*newer"),
    ):
        connection = apsw.Connection(str(path))
        connection.execute(damage)
        connection.close()
        with pytest.raises(WrongSchema, match=word):
            SqliteStore.open(path)


@pytest.mark.parametrize("together", [False, True])
async def test_a_commit_whose_answer_was_lost_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    store = SqliteStore.open(tmp_path / "standby.db")
    real = store.commit

    async def lost(batch: Sequence[Entry], *, together: bool = False, prepared: object = None) -> Sequence[Verdict]:
        monkeypatch.setattr(store, "commit", real)
        await real(batch, together=together)
        raise Unsure("the answer was lost")

    monkeypatch.setattr(store, "commit", lost)
    verdicts = await store.save([make.submit(), make.submit()], together=together)

    assert [(verdict.answer, verdict.seq) for verdict in verdicts] == [(Answer.SAVED, 1), (Answer.SAVED, 2)]
    assert await store.last_seq() == 2
    await store.close()


@pytest.mark.parametrize("together", [False, True])
async def test_a_commit_that_failed_is_tried_once_more_and_then_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    store = SqliteStore.open(tmp_path / "standby.db")
    tries: list[int] = []

    async def fails(batch: Sequence[Entry], *, together: bool = False, prepared: object = None) -> Sequence[Verdict]:
        tries.append(1)
        raise Unsure("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", fails)
        with pytest.raises(StoreDown, match="the disk is full"):
            await store.save([make.submit()], together=together)
    assert len(tries) == 2
    assert [verdict.seq for verdict in await store.save([make.submit()])] == [1]
    await store.close()


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (queries.CANDIDATES_SQLITE, "orders_ready"),
        (queries.EXPIRED, "orders_queue_due"),
        (queries.DUE, "orders_due"),
        (queries.QUEUES, "orders_ready"),
        (queries.POSITION, "orders_ready"),
        (queries.POSITION_AT, "orders_ready"),
        (queries.WAITING, "orders_ready"),
        (queries.WAITING, "orders_due"),
        (queries.OPEN_BY_PROJECT, "orders_slot"),
        (queries.EVENTS_OF, "events_subject"),
        (queries.EVENTS_BEFORE_OF, "events_subject"),
        (queries.NEWEST_OF_PROJECT, "specs_project"),
        (queries.WINDOW_OF_PROJECT, "specs_project"),
        (queries.NEWEST_BY_ID, "PRIMARY KEY"),
    ],
)
async def test_a_hot_read_walks_its_index(sql: str, index: str) -> None:
    store = SqliteStore.in_memory()
    values: list[str | int] = ["p", 1, 1, 1, 1, 1, 1]
    params = values[: sum(f"${n}" in sql for n in range(1, 8))]
    plan = "\n".join(str(row[3]) for row in await store.fetch(f"explain query plan {sql}", *params))
    assert index in plan
    assert "SCAN o\n" not in plan + "\n"
    assert "SCAN orders\n" not in plan + "\n"
    await store.close()


async def test_candidates_cost_the_same_whatever_waits_behind_them() -> None:
    store = SqliteStore.in_memory()
    steps = []
    for _ in range(3):
        await store.save([make.submit(project=lane) for lane in "abcd" for _ in range(1000)])
        main = store._main
        cursor = main.writer.cursor()
        cursor.execute(queries.CANDIDATES_SQLITE.replace("$", "?"), ("p", 5, 9_999, 9.0)).fetchall()
        before = main.writer.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)[0]
        cursor.execute(queries.CANDIDATES_SQLITE.replace("$", "?"), ("p", 5, 9_999, 9.0)).fetchall()
        steps.append(main.writer.status(apsw.SQLITE_DBSTATUS_CACHE_HIT)[0] - before)
    assert steps[-1] < 2 * steps[0] + 50
    await store.close()


async def test_nothing_is_left_open_when_a_file_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    path.write_bytes(b"this is no database, and it is longer than a header" * 100)
    with pytest.raises(StoreDown, match="could not be opened"):
        SqliteStore.open(path)
