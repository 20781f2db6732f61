"""One batch in one SQLite transaction: each change is checked, then written, or left out with its verdict."""

from collections import Counter
from collections.abc import Sequence
from typing import Final, cast

import apsw
from msgspec.json import encode
from msgspec.structs import asdict, astuple

from standby.store.commit import Unsure, Violated, held_back
from standby.store.contract import Answer, StoreDown, Verdict
from standby.store.entry import Entry
from standby.store.hot import Hot
from standby.store.queries import OPEN_BY_PROJECT
from standby.store.schedules import put_schedule

INSERT_ORDER: Final = """
insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
    queue_due, dedupe_live, slot, incarnation, handle, commanded_at, command_until, ready_at, deadline, stop_reason,
    reason, exit_code, ended_at, boot, deploy_since, concurrency_key, cpus)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) on conflict (id) do nothing
"""
UPDATE_ORDER: Final = """
update orders set version = ?2, state = ?7, state_since = ?8, attempt = ?9, rank = ?10, due_at = ?11, queue_due = ?12,
    dedupe_live = ?13, slot = ?14, incarnation = ?15, handle = ?16, commanded_at = ?17, command_until = ?18,
    ready_at = ?19, deadline = ?20, stop_reason = ?21, reason = ?22, exit_code = ?23, ended_at = ?24,
    boot = ?25, deploy_since = ?26
where id = ?1 and version = ?29
"""
KEY_HELD: Final = """
select version, slot is null and concurrency_key is not null and exists (
    select 1 from orders k where k.project = o.project and k.concurrency_key = o.concurrency_key and k.slot is not null)
from orders o where id = ? -- as which it is there, and whether another has its key
"""
INSERT_SPEC: Final = "insert into specs (seq, order_id, pool, project, body) values (?, ?, ?, ?, ?)"
INSERT_ENV: Final = "insert into envs (order_id, sealed) values (?, ?)"
INSERT_RUN: Final = """
insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at, reason,
    exit_code, signal, error, peak_memory_kb, cpu_ms, boot, error_name)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_SLOT: Final = """
insert or replace into slots (name, version, host, pool, state, state_since, incarnation, uses, created_at,
    last_used_at, error, failures, retry_at, generation, template, boot)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_POOL: Final = """
insert or replace into pools (name, version, host, settings, mode, mode_since, mode_reason, mode_actor, blocked_ms,
    blocked_since, overrides, failures, broken_at, mode_stop_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_HOST: Final = """
insert or replace into hosts (name, version, driver, memory_mb, identity, mode, mode_since, mode_reason, mode_actor,
    unreachable_since, error, dead_at, starts_max, start_gap_ms, cpus, limits, pressure, pressure_since, pressure_cause,
    calm_since, mode_stop_at)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
PUT_PROJECT: Final = """
insert or replace into projects (name, version, running_max, weight, queue_max, overrides, mode, mode_since,
    mode_reason, mode_actor, mode_stop_at, configured_max)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_REPLAY: Final = (
    "insert into idempotency (project, key, fingerprint, order_id, answer, at) values (?, ?, ?, ?, ?, ?)"
)
INSERT_EVENT: Final = """
insert into events (seq, change, at, kind, subject, from_state, to_state, trigger, actor, data)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SLOT_VERSION: Final = "select version from slots where name = ?"
FREE_SLOT_VERSION: Final = """
select version from slots where name = ?1 and state = 'idle' and not exists (select 1 from orders where slot = ?1)
"""
POOL_VERSION: Final = "select version from pools where name = ?"
HOST_VERSION: Final = "select version from hosts where name = ?"
SCHEDULE_VERSION: Final = "select version from schedules where name = ?"
PROJECT_VERSION: Final = "select version from projects where name = ?"

Value = None | int | float | bytes | str

CONFLICT: Final = Verdict(Answer.CONFLICT)
DEPOSED: Final = Verdict(Answer.DEPOSED)
FULL: Final = Verdict(Answer.FULL)


def commit(connection: apsw.Connection, batch: Sequence[Entry], *, together: bool = False) -> Sequence[Verdict]:
    """Write the batch in one transaction, with `together` all of it or nothing; raises Violated (nothing written),
    StoreDown (the same) or Unsure."""
    try:
        connection.execute("begin immediate")
    except apsw.Error as error:
        raise StoreDown(f"the database could not be locked: {error}") from error
    try:
        verdicts = Batch(connection).write(batch)
        if together and not all(verdict.saved for verdict in verdicts):
            connection.execute("rollback")
            return held_back(verdicts)
        connection.execute("commit")
    except (apsw.ConstraintError, apsw.TooBigError, OverflowError) as error:
        _roll_back(connection)
        raise Violated(str(error)) from error
    except apsw.Error as error:
        _roll_back(connection)
        raise Unsure(str(error)) from error
    except BaseException:
        _roll_back(connection)
        raise
    return verdicts


def _roll_back(connection: apsw.Connection) -> None:
    # A full disk or a broken file rolls back by itself.
    if connection.in_transaction:
        connection.execute("rollback")


class Batch:
    """The writes of one open transaction."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._seq = int(self._get("select coalesce(max(seq), 0) from events") or 0)
        self._events: list[tuple[Value, ...]] = []
        # What guards look at is read once: a change that relies on a row written by the batch waits for the next one.
        self._epochs: dict[str, int | None] = {}
        self._versions: dict[tuple[str, str], Value] = {}
        self._running_max: dict[str, Value] = {}
        self._open: Counter[str] | None = None
        """Open runs by project, once somebody asked."""

    def write(self, batch: Sequence[Entry]) -> Sequence[Verdict]:
        """Check and write every change, then all their events. Claims go last: they may take the slots that others of
        the batch let go, and orders that it takes in."""
        verdicts: dict[str, Verdict] = {}
        for part in (
            [one for one in batch if one.hot is not Hot.CLAIM],
            [one for one in batch if one.hot is Hot.CLAIM],
        ):
            for one in part:
                verdicts[one.change.id] = self._refusal(one) or self._write(one)
            self._open = None  # what the ends of this part let go counts no more
        self._cursor.executemany(INSERT_EVENT, self._events)
        return [verdicts[one.change.id] for one in batch]

    def _get(self, sql: str, *params: Value) -> Value:
        return cast(Value, self._cursor.execute(sql, params).get)

    def _refusal(self, one: Entry) -> Verdict | None:
        guards = one.change.guards
        if guards.lease is not None and self._epoch(guards.lease[0]) != guards.lease[1]:
            return DEPOSED
        first = self._first_of_its_kind(one)
        if first is not None:
            return Verdict(Answer.DUPLICATE, order_id=first)
        if self._guard_broken(one) or self._stale(one):
            return CONFLICT
        if not guards.project_limit:
            return None
        found, was = self._cursor.execute(KEY_HELD, (one.change.subject,)).fetchall(), one.change.order_was
        if was is not None and (not found or found[0][0] != was.version):
            return CONFLICT
        return FULL if not self._has_room(one) or any(row[1] for row in found) else None

    def _epoch(self, host: str) -> int | None:
        if host not in self._epochs:
            self._epochs[host] = cast(int | None, self._get("select epoch from leases where host = ?", host))
        return self._epochs[host]

    def _version(self, sql: str, name: str) -> Value:
        if (sql, name) not in self._versions:
            self._versions[sql, name] = self._get(sql, name)
        return self._versions[sql, name]

    def _first_of_its_kind(self, one: Entry) -> str | None:
        replay, dedupe, found = one.change.idempotency, one.dedupe, None
        if replay is not None:
            text = "select order_id from idempotency where project = ? and key = ?"
            found = self._get(text, replay.project, replay.key)
        if found is None and dedupe is not None:
            found = self._get("select id from orders where dedupe_live = ?", dedupe)
        return cast(str | None, found)

    def _guard_broken(self, one: Entry) -> bool:
        guards = one.change.guards
        pool, host, slot = one.guarded_pool, one.guarded_host, guards.slot_free
        if pool is not None and self._version(POOL_VERSION, pool) != guards.pool_version:
            return True
        if host is not None and self._version(HOST_VERSION, host) != guards.host_version:
            return True
        return slot is not None and not self._slot_free(slot, guards.slot_version)

    def _slot_free(self, slot: str, version: int | None) -> bool:
        found = self._get(FREE_SLOT_VERSION, slot)
        return found is not None and (version is None or found == version)

    def _stale(self, one: Entry) -> bool:
        change = one.change
        for text, was, now in (
            (SLOT_VERSION, change.slot_was, change.slot),
            (POOL_VERSION, change.pool_was, change.pool),
            (HOST_VERSION, change.host_was, change.host),
            (PROJECT_VERSION, change.project_was, change.project),
            (SCHEDULE_VERSION, change.schedule_was, change.schedule),
        ):
            row = was or now
            if row is not None and self._get(text, row.name) != (None if was is None else was.version):
                return True
        run, spec = change.run, change.spec
        if run is not None:
            text = "select 1 from runs where order_id = ? and number = ?"
            if self._get(text, run.order_id, run.number) is not None:
                return True
        return spec is not None and self._get("select 1 from specs where order_id = ?", spec.order_id) is not None

    def _has_room(self, one: Entry) -> bool:
        """Whether the project may open one more run."""
        project = "" if one.order is None else one.order.project
        if project not in self._running_max:
            self._running_max[project] = self._get("select running_max from projects where name = ?", project)
        most = self._running_max[project]
        if most is None:
            return True
        if self._open is None:
            self._open = Counter(dict(self._cursor.execute(OPEN_BY_PROJECT)))
        return self._open[project] < cast(int, most)

    def _write(self, one: Entry) -> Verdict:
        # The order goes first: when it is not as it was, nothing of the change has been written yet.
        if one.order is not None and not self._write_order(one):
            return CONFLICT
        self._seq += 1
        if one.opens is not None and self._open is not None:
            self._open[one.opens] += 1
        self._write_rest(one)
        self._events.append((self._seq, *one.event))
        return Verdict(Answer.SAVED, self._seq)

    def _write_rest(self, one: Entry) -> None:
        """Everything but the order itself."""
        change = one.change
        if change.spec is not None and one.order is not None:
            spec = (self._seq, change.spec.order_id, one.order.pool, one.order.project, one.spec_body)
            self._cursor.execute(INSERT_SPEC, spec)
            if change.sealed_env is not None:
                self._cursor.execute(INSERT_ENV, (change.spec.order_id, change.sealed_env))
        if change.run is not None:
            self._cursor.execute(INSERT_RUN, astuple(change.run))
        if change.idempotency is not None:
            self._cursor.execute(INSERT_REPLAY, astuple(change.idempotency))
        self._write_places(one)

    def _write_order(self, one: Entry) -> bool:
        assert one.order is not None
        was = one.change.order_was
        if was is None:
            self._cursor.execute(INSERT_ORDER, astuple(one.order))
        else:
            self._cursor.execute(UPDATE_ORDER, (*astuple(one.order), was.version))
        return self._connection.changes() == 1

    def _write_places(self, one: Entry) -> None:
        change = one.change
        if one.slot is not None:
            self._cursor.execute(PUT_SLOT, astuple(one.slot))
        elif change.slot_was is not None:
            self._cursor.execute("delete from slots where name = ?", (change.slot_was.name,))
        if one.pool is not None:
            texts = {"settings": encode(one.pool.settings).decode(), "overrides": encode(one.pool.overrides).decode()}
            self._cursor.execute(PUT_POOL, tuple({**asdict(one.pool), **texts}.values()))
        elif change.pool_was is not None:
            self._cursor.execute("delete from pools where name = ?", (change.pool_was.name,))
        if one.host is not None:
            limits = {"limits": encode(one.host.limits).decode()}
            self._cursor.execute(PUT_HOST, tuple({**asdict(one.host), **limits}.values()))
        elif change.host_was is not None:
            self._cursor.execute("delete from hosts where name = ?", (change.host_was.name,))
        if one.project is not None:
            values = asdict(one.project) | {"overrides": encode(one.project.overrides).decode()}
            self._cursor.execute(PUT_PROJECT, tuple(values.values()))
        elif change.project_was is not None:
            self._cursor.execute("delete from projects where name = ?", (change.project_was.name,))
        if one.of_schedule:
            put_schedule(self._cursor, one)
