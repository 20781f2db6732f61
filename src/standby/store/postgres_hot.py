"""Hot changes as the column arrays of `save_hot`: what a batch sends when orders move.

A column travels as one text: an array of numbers as PostgreSQL writes it, texts joined by a control character. That is
several times faster than arrays of values, of which the client looks at each one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from standby.store.entry import Entry
from standby.store.hot import NOTHING, SEPARATOR, Hot

# n: a number, t: a text
_GROUPS: Final = "tntnntt"
_COLUMNS: Final = {
    Hot.END: "nnttntntntnntntnnttnnnntnnt",
    Hot.CLAIM: "nnttnnntntnnt",
    Hot.READY: "nnttnntnt",
    Hot.SUBMIT: "nnttttnnnnntttttttt",
}
_TYPES: Final = {"n": "cast(${} as text)::bigint[]", "t": "string_to_array(${}, E'\\x1f', E'\\x1e')"}
_OTHERS: Final = 11


def _save_hot() -> str:
    kinds = _GROUPS + "".join(_COLUMNS.values())
    columns = [_TYPES[kind].format(place) for place, kind in enumerate(kinds, 1)]
    others = [f"${len(kinds) + place}" for place in range(1, _OTHERS + 1)]
    return f"select * from save_hot({', '.join([*columns, *others])})"  # noqa: S608  no input is in it


SAVE_HOT: Final = _save_hot()

Row = tuple[Any, ...]


def hot_parameters(batch: Sequence[Entry]) -> list[str | None]:
    """The columns of what many changes have in common (guards, trigger, actor), and of ends, claims, readies and
    submits, in the order of the parameters."""
    groups: dict[Row, int] = {}
    moves: dict[Hot, list[Row]] = {kind: [] for kind in _COLUMNS}
    for n, one in enumerate(batch, 1):
        assert one.hot is not None
        g = groups.setdefault(_group(one), len(groups) + 1)
        moves[one.hot].append(_ROWS[one.hot](n, g, one))
    columns = _texts(list(groups), _GROUPS)
    for kind, kinds in _COLUMNS.items():
        columns += _texts(moves[kind], kinds)
    return columns


def _texts(rows: Sequence[Row], kinds: str) -> list[str | None]:
    if not rows:
        return [None] * len(kinds)
    columns = zip(*rows, strict=True)
    return [_numbers(column) if kind == "n" else _words(column) for column, kind in zip(columns, kinds, strict=True)]


def _numbers(column: Iterable[int | None]) -> str:
    return "{" + ",".join(["null" if value is None else str(value) for value in column]) + "}"


def _words(column: Iterable[str | None]) -> str:
    return SEPARATOR.join([NOTHING if value is None else value for value in column])


def _group(one: Entry) -> Row:
    change, guards = one.change, one.change.guards
    host, epoch = guards.lease or (None, None)
    pool = None if guards.pool_version is None or one.order is None else one.order.pool
    return host, epoch, pool, guards.pool_version, guards.host_version, change.trigger, change.actor


def _end(n: int, g: int, one: Entry) -> Row:
    change = one.change
    was, now, run, slot_was, slot = change.order_was, one.order, change.run, change.slot_was, one.slot
    assert was is not None and now is not None and run is not None and slot_was is not None and slot is not None
    return (
        n,
        g,
        change.id,
        now.id,
        was.version,
        was.state,
        change.at,
        now.state,
        now.due_at,
        now.reason,
        now.exit_code,
        now.ended_at,
        slot.name,
        slot_was.version,
        slot.state,
        slot.state_since,
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
        one.data,
    )


def _claim(n: int, g: int, one: Entry) -> Row:
    was, now = one.change.order_was, one.order
    assert was is not None and now is not None
    return (
        n,
        g,
        one.change.id,
        now.id,
        was.version,
        one.change.at,
        now.attempt,
        now.slot,
        one.change.guards.slot_version,
        now.incarnation,
        now.command_until,
        now.deadline,
        one.data,
    )


def _ready(n: int, g: int, one: Entry) -> Row:
    was, now = one.change.order_was, one.order
    assert was is not None and now is not None
    return n, g, one.change.id, now.id, was.version, one.change.at, now.handle, now.deadline, one.data


def _submit(n: int, g: int, one: Entry) -> Row:
    order, kept, sealed = one.order, one.change.idempotency, one.change.sealed_env
    assert order is not None
    return (
        n,
        g,
        one.change.id,
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
        one.spec_body,
        None if sealed is None else sealed.hex(),
        None if kept is None else kept.key,
        None if kept is None else kept.fingerprint,
        None if kept is None else kept.answer,
        one.data,
    )


_ROWS: Final = {Hot.SUBMIT: _submit, Hot.CLAIM: _claim, Hot.READY: _ready, Hot.END: _end}
