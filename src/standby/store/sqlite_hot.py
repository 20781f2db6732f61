"""Hot changes as one statement of SQLite: a whole batch of them is written by one call, which leaves Python alone.

The statement inserts into a view, whose trigger does the work; it is a transaction of its own, and all or nothing. What
is not as it was makes it fail, by a check or by a constraint of the schema, with nothing written: then the batch goes
the general way (`sqlite_commit`), where each change gets its verdict.
"""

from collections.abc import Sequence
from typing import Any, Final

import apsw
from msgspec.json import encode

from standby.store.commit import Unsure
from standby.store.contract import Answer, Verdict
from standby.store.entry import Entry
from standby.store.hot import Hot
from standby.store.queries import LAST_SEQ

Kinds = dict[Hot, list[Entry]]
Values = tuple[str | None, ...]
Row = tuple[Any, ...]

SAVE_HOT: Final = "insert into hot values (?, ?, ?, ?, ?, ?, ?)"

_ORDER: Final = (Hot.END, Hot.SUBMIT, Hot.READY, Hot.CLAIM)

_ENDED: Final = (
    "id was at state due_at dedupe_live reason exit_code ended_at slot slot_was slot_state slot_since number"
    " incarnation handle commanded_at ready_at stop_asked_at signal error peak_memory_kb cpu_ms"
)
_END: Final = """
update orders set version = version + 1, state = new.state, state_since = new.at, due_at = new.due_at,
    dedupe_live = new.dedupe_live, slot = null, incarnation = null, handle = null, commanded_at = null,
    command_until = null, ready_at = null, deadline = null, stop_reason = null, reason = new.reason,
    exit_code = new.exit_code, ended_at = new.ended_at
where id = new.id and version = new.was;
select raise(abort, 'an order has changed') where changes() <> 1;
insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at, reason,
    exit_code, signal, error, peak_memory_kb, cpu_ms)
values (new.id, new.number, new.slot, new.incarnation, new.handle, new.commanded_at, new.ready_at, new.stop_asked_at,
    new.at, new.reason, new.exit_code, new.signal, new.error, new.peak_memory_kb, new.cpu_ms);
update slots set version = version + 1, state = new.slot_state, state_since = new.slot_since, uses = uses + 1,
    last_used_at = new.at
where name = new.slot and version = new.slot_was;
select raise(abort, 'a slot has changed') where changes() <> (new.slot_was is not null);
"""
_SUBMITTED: Final = (
    "id project pool memory_mb at rank due_at queue_due dedupe_live concurrency_key place body sealed key fingerprint"
    " answer"
)
_SUBMIT: Final = """
insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
    queue_due, dedupe_live, concurrency_key)
values (new.id, 1, new.project, new.pool, new.memory_mb, new.at, 'pending', new.at, 0, new.rank, new.due_at,
    new.queue_due, new.dedupe_live, new.concurrency_key);
insert into specs (seq, order_id, pool, project, body)
select coalesce(max(seq), 0) + new.place, new.id, new.pool, new.project, new.body from events;
insert into envs (order_id, sealed) select new.id, unhex(new.sealed) where new.sealed is not null;
insert into idempotency (project, key, fingerprint, order_id, answer, at)
select new.project, new.key, new.fingerprint, new.id, new.answer, new.at where new.key is not null;
"""
_READIED: Final = "id was at handle deadline"
_READY: Final = """
update orders set version = version + 1, state = 'running', state_since = new.at, ready_at = new.at,
    handle = new.handle, deadline = new.deadline
where id = new.id and version = new.was;
select raise(abort, 'an order has changed') where changes() <> 1;
"""
_CLAIMED: Final = "id was at attempt slot slot_was incarnation command_until deadline"
_CLAIM: Final = """
update orders set version = version + 1, state = 'preparing', state_since = new.at, attempt = new.attempt, rank = null,
    queue_due = null, slot = new.slot, incarnation = new.incarnation, commanded_at = new.at,
    command_until = new.command_until, deadline = new.deadline
where id = new.id and version = new.was
    and exists (select 1 from slots where name = new.slot and version = new.slot_was and state = 'idle');
select raise(abort, 'an order or a slot has changed') where changes() <> 1;
"""
# Nobody looks who has a slot, a concurrency key or a dedupe key: unique indexes refuse a second one.
_SAVE: Final = """
select raise(abort, 'a guard does not hold') from jsonb_each(new.guards)
where not exists (select 1 from leases where host = value ->> 0 and epoch = value ->> 1)
    or value ->> 3 is not null and not exists (select 1 from pools where name = value ->> 2 and version = value ->> 3)
    or value ->> 4 is not null and not exists (select 1 from hosts where name = value ->> 0 and version = value ->> 4);
{moves}
select case when exists (
    select 1 from projects where running_max is not null and name in (select value from json_each(new.claimed_in)))
then (
    select raise(abort, 'a project is full')
    from (select project, count(*) as runs from orders where slot is not null group by project)
        join projects on name = project
    where runs > running_max and name in (select value from json_each(new.claimed_in)))
end;
insert into events (seq, change, at, kind, subject, from_state, to_state, trigger, actor, data)
select coalesce((select max(seq) from events), 0) + key + 1, {event} from jsonb_each(new.events);
"""


def _view(name: str, columns: str) -> str:
    return f"create temp view {name} as select {', '.join(f'null as {column}' for column in columns.split())};"


def _trigger(view: str, statements: str) -> str:
    return f"create temp trigger save_{view} instead of insert on {view} begin {statements} end;"


def _values(columns: int) -> str:
    return ", ".join(f"value ->> {place}" for place in range(columns))


def _schema() -> str:
    kinds = {
        "ended": (_ENDED, _END),
        "submitted": (_SUBMITTED, _SUBMIT),
        "readied": (_READIED, _READY),
        "claimed": (_CLAIMED, _CLAIM),
    }
    made = [_view(name, columns) + _trigger(name, statements) for name, (columns, statements) in kinds.items()]
    moves = [
        f"insert into {name} select {_values(len(columns.split()))} from jsonb_each(new.{name});"  # noqa: S608
        for name, (columns, _) in kinds.items()
    ]
    save = _SAVE.format(moves="\n".join(moves), event=_values(9))
    begin = "pragma temp_store = memory;"  # a batch fits, and no folder for temporary files is needed
    return "".join([begin, *made, _view("hot", f"guards {' '.join(kinds)} claimed_in events"), _trigger("hot", save)])


SCHEMA: Final = _schema()
"""What a writing connection needs for `SAVE_HOT`; it is gone with the connection."""


def by_kind(batch: Sequence[Entry]) -> Kinds | None:
    """The changes of a batch in the order in which they are written, or null when not all are hot. Claims go last: they
    may take what others of the batch let go, and orders that it takes in."""
    kinds: Kinds = {kind: [] for kind in _ORDER}
    for one in batch:
        if one.hot is None:
            return None
        kinds[one.hot].append(one)
    return kinds


def hot_parameters(kinds: Kinds) -> Values:
    """What `SAVE_HOT` is called with."""
    ends, submits, readies, claims = kinds.values()
    lists: tuple[Sequence[Any], ...] = (
        list({_guard(one) for moves in (ends, readies, claims) for one in moves}),
        [_end(one) for one in ends],
        [_submit(one, place) for place, one in enumerate(submits, len(ends) + 1)],
        [_ready(one) for one in readies],
        [_claim(one) for one in claims],
        list({one.opens for one in claims}),
        [one.event for some in kinds.values() for one in some],
    )
    return tuple([encode(rows).decode() if rows else None for rows in lists])


def save_hot(connection: apsw.Connection, values: Values) -> int | None:
    """Write a whole batch: the number of its last event, or null when nothing was written because something is not as
    it was. Raises Unsure."""
    try:
        connection.execute(SAVE_HOT, values)
        return int(connection.execute(LAST_SEQ).get)  # still that of this batch: there is one writer
    except (apsw.ConstraintError, apsw.TooBigError):
        return None
    except apsw.Error as error:
        raise Unsure(str(error)) from error


def hot_verdicts(batch: Sequence[Entry], kinds: Kinds, last_seq: int) -> Sequence[Verdict]:
    """What became of each change of a batch that was written."""
    written = [one.change.id for some in kinds.values() for one in some]
    seqs = dict(zip(written, range(last_seq - len(written) + 1, last_seq + 1), strict=True))
    return [Verdict(Answer.SAVED, seqs[one.change.id]) for one in batch]


def _guard(one: Entry) -> Row:
    guards, order = one.change.guards, one.order
    assert guards.lease is not None and order is not None
    return *guards.lease, order.pool, guards.pool_version, guards.host_version


def _end(one: Entry) -> Row:
    change, now, slot = one.change, one.order, one.slot
    was, run, slot_was = change.order_was, change.run, change.slot_was
    assert was is not None and now is not None and run is not None
    return (
        now.id,
        was.version,
        change.at,
        now.state,
        now.due_at,
        now.dedupe_live,
        now.reason,
        now.exit_code,
        now.ended_at,
        run.slot,
        None if slot_was is None else slot_was.version,
        None if slot is None else slot.state,
        None if slot is None else slot.state_since,
        run.number,
        run.incarnation,
        run.handle,
        run.commanded_at,
        run.ready_at,
        run.stop_asked_at,
        run.signal,
        run.error,
        run.peak_memory_kb,
        run.cpu_ms,
    )


def _submit(one: Entry, place: int) -> Row:
    order, kept, sealed = one.order, one.change.idempotency, one.change.sealed_env
    assert order is not None
    return (
        order.id,
        order.project,
        order.pool,
        order.memory_mb,
        one.change.at,
        order.rank,
        order.due_at,
        order.queue_due,
        order.dedupe_live,
        order.concurrency_key,
        place,
        one.spec_body,
        None if sealed is None else sealed.hex(),
        None if kept is None else kept.key,
        None if kept is None else kept.fingerprint,
        None if kept is None else kept.answer,
    )


def _ready(one: Entry) -> Row:
    was, now = one.change.order_was, one.order
    assert was is not None and now is not None
    return now.id, was.version, one.change.at, now.handle, now.deadline


def _claim(one: Entry) -> Row:
    was, now, change = one.change.order_was, one.order, one.change
    assert was is not None and now is not None
    slot_was = change.guards.slot_version
    return (
        now.id,
        was.version,
        change.at,
        now.attempt,
        now.slot,
        slot_was,
        now.incarnation,
        now.command_until,
        now.deadline,
    )
