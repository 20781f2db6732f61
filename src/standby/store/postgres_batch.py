"""A batch as the parameters of the one statement that commits it (`save_changes` in the schema), and its answer."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import astuple

from standby.core.model import Host, Pool, Project, Trigger
from standby.store.contract import Answer, Heard, Verdict
from standby.store.entry import Entry

SAVE: Final = "select * from save_changes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"

HINT_BYTES: Final = 7_900
"""PostgreSQL refuses longer notifications."""

HANDED: Final = "@"
REPORTED: Final = "#"

_ANSWERS: Final = (Answer.SAVED, Answer.CONFLICT, Answer.DEPOSED, Answer.FULL, Answer.DUPLICATE)

Tuples = list[tuple[Any, ...]]


class Parts(Struct, frozen=True, kw_only=True):
    """The rows of a batch by table, each with the number of its change; fields in the order of the parameters."""

    changes: Tuples = []
    new_orders: Tuples = []
    changed_orders: Tuples = []
    slots: Tuples = []
    runs: Tuples = []
    specs: Tuples = []
    replays: Tuples = []
    pools: Tuples = []
    hosts: Tuples = []
    projects: Tuples = []


def parameters(batch: Sequence[Entry]) -> tuple[Any, ...]:
    """What `save_changes` is called with, but for the hint."""
    parts = Parts()
    for n, one in enumerate(batch, 1):
        _add(parts, n, one)
    return astuple(parts)


def verdicts(answers: Sequence[int], seqs: Sequence[int], others: Sequence[str | None]) -> Sequence[Verdict]:
    """What became of each change, from the three arrays that come back."""
    return [
        Verdict(_ANSWERS[answer], seq or None, other if answer == 4 else None)
        for answer, seq, other in zip(answers, seqs, others, strict=True)
    ]


def hint_text(batch: Sequence[Entry]) -> str | None:
    """The pools that requests or the configuration touched, and the slots whose workers have got a run (marked), as the
    text of a notification; null when there are none."""
    others = [one for one in batch if one.hot is None or one.asked_in is not None]
    asked = [one for one in others if one.change.trigger in (Trigger.REQUEST, Trigger.CONFIG)]
    handed = [HANDED + slot for one in others if (slot := one.handed) is not None]
    if not asked and not handed:
        return None
    text = encode([*sorted({one.asked_in for one in asked if one.asked_in is not None}), *handed]).decode()
    return text if len(text.encode()) <= HINT_BYTES else "[]"


def report_text(run_id: str) -> str:
    """The same for news of a run."""
    return encode([REPORTED + run_id]).decode()


def heard_of(names: Sequence[str]) -> Heard:
    """What a notification of another instance says."""
    marked = (HANDED, REPORTED)
    handed, reported = (frozenset(name[1:] for name in names if name.startswith(mark)) for mark in marked)
    return Heard(frozenset(name for name in names if not name.startswith(marked)), handed=handed, reported=reported)


def _add(parts: Parts, n: int, one: Entry) -> None:
    change = one.change
    parts.changes.append(_change(n, one))
    if one.order is not None:
        (parts.new_orders if change.order_was is None else parts.changed_orders).append((n, *astuple(one.order)))
    if change.spec is not None and one.order is not None:
        spec = (n, change.spec.order_id, one.order.pool, one.order.project, one.spec_body, change.sealed_env)
        parts.specs.append(spec)
    if change.run is not None:
        parts.runs.append((n, *astuple(change.run)))
    if change.idempotency is not None:
        parts.replays.append((n, *astuple(change.idempotency)))
    slot = one.slot or change.slot_was
    if slot is not None:
        was = None if change.slot_was is None else change.slot_was.version
        parts.slots.append((n, was, one.slot is None, *astuple(slot)))
    _add_rare(parts.pools, n, change.pool_was, one.pool)
    _add_rare(parts.hosts, n, change.host_was, one.host)
    _add_rare(parts.projects, n, change.project_was, one.project)


def _change(n: int, one: Entry) -> tuple[Any, ...]:
    change, guards = one.change, one.change.guards
    replay = change.idempotency
    host, epoch = guards.lease or (None, None)
    return (
        n,
        *one.event,
        None if one.order is None else one.order.id,
        None if change.order_was is None else change.order_was.version,
        one.dedupe,
        None if replay is None else replay.project,
        None if replay is None else replay.key,
        host,
        epoch,
        one.guarded_pool,
        guards.pool_version,
        one.guarded_host,
        guards.host_version,
        guards.slot_free,
        guards.slot_version,
        one.opens,
        guards.project_limit,
        one.order.concurrency_key if one.order is not None and one.opens and guards.project_limit else None,
    )


def _add_rare(into: Tuples, n: int, was: Pool | Host | Project | None, now: Pool | Host | Project | None) -> None:
    row = now or was
    if row is not None:
        into.append((n, None if was is None else was.version, now is None, row.name, encode(row).decode()))
