"""Hot changes as one statement of SQLite: a whole batch of them is written by one call, which leaves Python alone.

The statement inserts into a view, whose trigger does the work; it is a transaction of its own, and all or nothing. What
is not as it was makes it fail, by a check or by a constraint of the schema, with nothing written: then the batch goes
the general way (`sqlite_commit`), where each change gets its verdict. It answers nothing: for each row of an answer the
writing thread would wait for the interpreter once more, before the commit.

Reading values out of JSON costs as much as writing them. So changes travel in groups: what those of a group have in
common once, then what each has of its own. Long texts lie end to end beside them, and a change tells where its own are.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, Final

import apsw
from msgspec.json import encode

from standby.store.commit import Unsure
from standby.store.entry import Entry, Kinds
from standby.store.queries import LAST_SEQ

Values = tuple[str | bytes | None, ...]
Row = tuple[Any, ...]
Place = tuple[int, int]
"""Where a text begins, and how many bytes it has."""

SAVE_HOT: Final = """
insert into hot values (?, ?, jsonb(?), ?, jsonb(?), jsonb(?), jsonb(?), ?, ?)
"""

_GROUPS: Final = {
    "ended": (
        (
            "trigger actor at kind from_state was state due_at dedupe_live reason exit_code ended_at number incarnation"
            " ready_at stop_asked_at signal error peak_memory_kb cpu_ms"
        ),
        "id change first length slot handle commanded_at",
    ),
    "submitted": (
        "trigger actor at project pool memory_mb rank due_at queue_due",
        (
            "id change first length dedupe_live concurrency_key behind body_first body_length sealed key fingerprint"
            " answer"
        ),
    ),
    "readied": ("trigger actor at was", "id change first length handle deadline"),
    "claimed": (
        "trigger actor at was attempt incarnation command_until deadline",
        "id change first length slot slot_was",
    ),
}
"""What changes of a kind have in common, and what each has of its own."""

_MOVES: Final = {
    "ending": (
        "id was at state due_at dedupe_live reason exit_code ended_at",
        """
update orders set version = version + 1, state = new.state, state_since = new.at, due_at = new.due_at,
    dedupe_live = new.dedupe_live, slot = null, incarnation = null, handle = null, commanded_at = null,
    command_until = null, ready_at = null, deadline = null, stop_reason = null, reason = new.reason,
    exit_code = new.exit_code, ended_at = new.ended_at
where id = new.id and version = new.was;
select raise(abort, 'an order has changed') where changes() <> 1;
""",
    ),
    "noting": (
        "name was state state_since at",
        """
update slots set version = version + 1, state = new.state, state_since = new.state_since, uses = uses + 1,
    last_used_at = new.at
where name = new.name and version = new.was;
select raise(abort, 'a slot has changed') where changes() <> 1;
""",
    ),
    "readying": (
        "id was at handle deadline",
        """
update orders set version = version + 1, state = 'running', state_since = new.at, ready_at = new.at,
    handle = new.handle, deadline = new.deadline
where id = new.id and version = new.was;
select raise(abort, 'an order has changed') where changes() <> 1;
""",
    ),
    "claiming": (
        "id was at attempt slot slot_was incarnation command_until deadline",
        """
update orders set version = version + 1, state = 'preparing', state_since = new.at, attempt = new.attempt, rank = null,
    queue_due = null, slot = new.slot, incarnation = new.incarnation, commanded_at = new.at,
    command_until = new.command_until, deadline = new.deadline
where id = new.id and version = new.was
    and exists (select 1 from slots where name = new.slot and version = new.slot_was and state = 'idle');
select raise(abort, 'an order or a slot has changed') where changes() <> 1;
""",
    ),
}
"""Rows that are there already change by views of their own, so that each one can be told from one that has changed."""

_WRITES: Final = {
    "ended": """
insert into ending select {ending} from {ended};
insert into runs (order_id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, ended_at, reason,
    exit_code, signal, error, peak_memory_kb, cpu_ms)
select id, number, slot, incarnation, handle, commanded_at, ready_at, stop_asked_at, at, reason, exit_code, signal,
    error, peak_memory_kb, cpu_ms
from {ended};
insert into events {event} select change, at, kind, id, from_state, state, trigger, actor, {data} from {ended};
""",
    "submitted": """
insert into orders (id, version, project, pool, memory_mb, submitted_at, state, state_since, attempt, rank, due_at,
    queue_due, dedupe_live, concurrency_key)
select id, 1, project, pool, memory_mb, at, 'pending', at, 0, rank, due_at, queue_due, dedupe_live, concurrency_key
from {submitted};
insert into events {event}
select change, at, 'order.submitted', id, null, 'pending', trigger, actor, {data} from {submitted};
insert into specs (seq, order_id, pool, project, body)
select (select max(seq) from events) - behind, id, pool, project,
    cast(substr(new.texts, body_first, body_length) as text)
from {submitted};
insert into envs (order_id, sealed) select id, unhex(sealed) from {submitted} where sealed is not null;
insert into idempotency (project, key, fingerprint, order_id, answer, at)
select project, key, fingerprint, id, answer, at from {submitted} where key is not null;
""",
    "readied": """
insert into readying select {readying} from {readied};
insert into events {event}
select change, at, 'order.ready', id, 'preparing', 'running', trigger, actor, {data} from {readied};
""",
    "claimed": """
insert into claiming select {claiming} from {claimed};
insert into events {event}
select change, at, 'order.claimed', id, 'pending', 'preparing', trigger, actor, {data} from {claimed};
""",
}
"""A trigger for each kind: what one has open is closed at its end, and makes no writing of the next one slower."""

# Nobody looks who has a slot, a concurrency key or a dedupe key: unique indexes refuse a second one.
_SAVE: Final = """
select raise(abort, 'the history has gone on') where new.before <> (select coalesce(max(seq), 0) from events);
select raise(abort, 'a guard does not hold') from jsonb_each(new.guards)
where not exists (select 1 from leases where host = value ->> 0 and epoch = value ->> 1)
    or value ->> 3 is not null and not exists (select 1 from pools where name = value ->> 2 and version = value ->> 3)
    or value ->> 4 is not null and not exists (select 1 from hosts where name = value ->> 0 and version = value ->> 4);
insert into ended values (new.ended, new.texts);
insert into noting select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4 from jsonb_each(new.noted);
insert into submitted values (new.submitted, new.texts);
insert into claimed values (new.claimed, new.texts);
insert into readied values (new.readied, new.texts);
select case when exists (
    select 1 from projects where running_max is not null and name in (select value from json_each(new.claimed_in)))
then (
    select raise(abort, 'a project is full')
    from (select project, count(*) as runs from orders where slot is not null group by project)
        join projects on name = project
    where runs > running_max and name in (select value from json_each(new.claimed_in)))
end;
"""


def _view(name: str, columns: str, statements: str, when: str = "true") -> str:
    nothing = ", ".join(f"null as {column}" for column in columns.split())
    return (
        f"create temp view {name} as select {nothing};"
        f"create temp trigger save_{name} instead of insert on {name} when {when} begin {statements} end;"
    )


def _each(kind: str) -> str:
    """The changes of a kind as rows, in their order. The limit keeps SQLite from reading what a group has in common for
    each of its changes."""
    common, own = (columns.split() for columns in _GROUPS[kind])
    group = ", ".join(f"value ->> {place} as {column}" for place, column in enumerate(common))
    change = ", ".join(f"change.value ->> {place} as {column}" for place, column in enumerate(own))
    return (
        f"(select {', '.join(common)}, {change} from ("  # noqa: S608  no input is in it
        f"select {group}, jsonb_extract(value, '$[{len(common)}]') as changes from jsonb_each(new.groups) limit -1"
        ") as one cross join jsonb_each(one.changes) as change)"
    )


def _schema() -> str:
    parts = {
        "event": "(change, at, kind, subject, from_state, to_state, trigger, actor, data)",
        "data": "cast(substr(new.texts, first, length) as text)",
        **{kind: _each(kind) for kind in _GROUPS},
        **{name: ", ".join(columns.split()) for name, (columns, _) in _MOVES.items()},
    }
    begin = "pragma temp_store = memory;"  # a batch fits, and no folder for temporary files is needed
    moves = [_view(name, columns, statements) for name, (columns, statements) in _MOVES.items()]
    writes = [
        _view(kind, "groups texts", text.format_map(parts), "new.groups is not null") for kind, text in _WRITES.items()
    ]
    hot = _view("hot", "before guards ended noted submitted claimed readied claimed_in texts", _SAVE)
    return "".join([begin, *moves, *writes, hot])


SCHEMA: Final = _schema()
"""What a writing connection needs for `SAVE_HOT`; it is gone with the connection."""


def hot_parameters(kinds: Kinds) -> Values:
    """What `SAVE_HOT` is called with, behind the number of the last event."""
    ends, submits, claims, readies = kinds.values()
    texts = [one.data.encode() for some in kinds.values() for one in some]
    changes = len(texts)
    texts += [(one.spec_body or "").encode() for one in submits]
    places = list(zip(accumulate(map(len, texts), initial=1), map(len, texts), strict=False))
    data, bodies = iter(places), iter(places[changes:])
    lists: tuple[Sequence[Any], ...] = (
        _guards((*ends, *readies, *claims)),
        _grouped([_end(one, next(data)) for one in ends]),
        [_noted(one) for one in ends if one.slot is not None],
        _grouped([_submit(one, next(data), next(bodies), len(submits) - n) for n, one in enumerate(submits, 1)]),
        _grouped([_claim(one, next(data)) for one in claims]),
        _grouped([_ready(one, next(data)) for one in readies]),
        list({one.opens for one in claims}),
    )
    return *[encode(rows).decode() if rows else None for rows in lists], b"".join(texts)


class HotLine:
    """Writes whole batches, and knows the number of the last event as long as nobody else writes."""

    def __init__(self, connection: apsw.Connection) -> None:
        connection.execute(SCHEMA)
        self._connection = connection
        self._last: int | None = None

    def save(self, values: Values, changes: int) -> int | None:
        """Write a whole batch: the number of the event before its first one, or null when nothing was written because
        something is not as it was. Raises Unsure."""
        before, self._last = self._last, None
        try:
            if before is None:
                before = int(self._connection.execute(LAST_SEQ).get)
            self._connection.execute(SAVE_HOT, (before, *values))
        except (apsw.ConstraintError, apsw.TooBigError):
            return None
        except apsw.Error as error:
            raise Unsure(str(error)) from error
        self._last = before + changes
        return before

    def forget(self) -> None:
        """Somebody else writes events; the statement would find out, and write nothing."""
        self._last = None


def _guards(moves: Iterable[Entry]) -> list[Row]:
    """What has to be as it was thought, each once: as a rule the same for all of them."""
    places = {
        (guards.lease, order.pool, guards.pool_version, guards.host_version)
        for one in moves
        if (order := one.order) is not None and (guards := one.change.guards).lease is not None
    }
    return [(*lease, *versions) for lease, *versions in places]


def _grouped(changes: Iterable[tuple[Row, Row]]) -> list[Row]:
    """What neighbours have in common, and then what each of them has of its own."""
    return [(*common, [own for _, own in group]) for common, group in groupby(changes, itemgetter(0))]


def _end(one: Entry, data: Place) -> tuple[Row, Row]:
    change, now = one.change, one.order
    was, run = change.order_was, change.run
    assert was is not None and now is not None and run is not None
    common = (
        change.trigger,
        change.actor,
        change.at,
        change.kind,
        was.state,
        was.version,
        now.state,
        now.due_at,
        now.dedupe_live,
        now.reason,
        now.exit_code,
        now.ended_at,
        run.number,
        run.incarnation,
        run.ready_at,
        run.stop_asked_at,
        run.signal,
        run.error,
        run.peak_memory_kb,
        run.cpu_ms,
    )
    return common, (now.id, change.id, *data, run.slot, run.handle, run.commanded_at)


def _noted(one: Entry) -> Row:
    was, now = one.change.slot_was, one.slot
    assert was is not None and now is not None
    return now.name, was.version, now.state, now.state_since, one.change.at


def _submit(one: Entry, data: Place, body: Place, behind: int) -> tuple[Row, Row]:
    change, order, kept, sealed = one.change, one.order, one.change.idempotency, one.change.sealed_env
    assert order is not None
    common = (
        change.trigger,
        change.actor,
        change.at,
        order.project,
        order.pool,
        order.memory_mb,
        order.rank,
        order.due_at,
        order.queue_due,
    )
    own = (
        order.id,
        change.id,
        *data,
        order.dedupe_live,
        order.concurrency_key,
        behind,
        *body,
        None if sealed is None else sealed.hex(),
        None if kept is None else kept.key,
        None if kept is None else kept.fingerprint,
        None if kept is None else kept.answer,
    )
    return common, own


def _ready(one: Entry, data: Place) -> tuple[Row, Row]:
    change, was, now = one.change, one.change.order_was, one.order
    assert was is not None and now is not None
    common = (change.trigger, change.actor, change.at, was.version)
    return common, (now.id, change.id, *data, now.handle, now.deadline)


def _claim(one: Entry, data: Place) -> tuple[Row, Row]:
    change, was, now = one.change, one.change.order_was, one.order
    assert was is not None and now is not None
    common = (
        change.trigger,
        change.actor,
        change.at,
        was.version,
        now.attempt,
        now.incarnation,
        now.command_until,
        now.deadline,
    )
    return common, (now.id, change.id, *data, now.slot, change.guards.slot_version)
