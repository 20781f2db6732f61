"""Hot changes as the column arrays of `save_hot`: what a batch sends when orders move.

A column travels as one text: an array of numbers as PostgreSQL writes it, texts joined by a control character. That is
several times faster than arrays of values, of which the client looks at each one.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec.json import encode

from standby.store.entry import Entry, Kinds, in_order
from standby.store.hot import NOTHING, SEPARATOR, Hot

_PARAMETERS: Final = {
    "groups": "g_host g_epoch# g_pool g_pool_version# g_host_version# g_trigger g_actor g_kind g_from g_to",
    "all": "v_g# v_change v_id v_at# v_data",
    Hot.END: "e_was# e_due# e_reason e_code# e_ended# e_slot e_slot_was# e_slot_state e_slot_since# e_number# "
    "e_incarnation e_handle e_commanded# e_ready# e_stop_asked# e_signal# e_error e_peak# e_cpu#",
    Hot.SUBMIT: "s_project s_pool s_memory# s_rank# s_due# s_queue_due# s_dedupe s_concurrency s_body s_sealed s_key "
    "s_fingerprint s_answer",
    Hot.CLAIM: "c_was# c_attempt# c_slot c_slot_was# c_incarnation c_until# c_deadline#",
    Hot.READY: "r_was# r_handle r_deadline#",
}
"""Those of `save_hot`: what many changes have in common, what each has, and what each kind has. A # marks numbers."""
_COLUMNS: Final = {
    kind: tuple((name.rstrip("#"), name.endswith("#")) for name in names.split()) for kind, names in _PARAMETERS.items()
}
_OTHERS: Final = "changes new_orders changed_orders slots_in runs_in specs_in replays_in pools_in hosts_in projects_in"
_NUMBERS: Final = "cast(${} as text)::bigint[]"
_TEXTS: Final = "string_to_array(${}, E'\\x1f', E'\\x1e')"

Row = tuple[Any, ...]


@lru_cache(64)
def _save_hot(kinds: tuple[Hot, ...], others: bool) -> str:
    """The call for a batch with such changes: what it does not have is not sent."""
    columns = [column for part in ("groups", "all", *kinds) for column in _COLUMNS[part]]
    given = [(name, _NUMBERS if numbers else _TEXTS) for name, numbers in columns]
    given += [(name, "${}") for name in (_OTHERS.split() if others else [])] + [("hint", "${}")]
    texts = [f"{name} => {text.format(place)}" for place, (name, text) in enumerate(given, 1)]
    return f"select * from save_hot({', '.join(texts)})"  # noqa: S608  no input is in it


def hot_call(kinds: Kinds, others: Sequence[Any], hint: str | None) -> tuple[str, Sequence[Any]]:
    """The statement that saves these hot changes, and others as `parameters` has them, with its values: the columns of
    what many changes have in common (guards, and what their events say), and of the changes."""
    hot = in_order(kinds)
    groups: dict[Row, int] = {}
    places = [groups.setdefault(group(one), len(groups) + 1) for one in hot]
    changes = [one.change for one in hot]
    ids = [one.order.id for one in hot if one.order is not None]
    every = places, [one.id for one in changes], ids, [one.at for one in changes], [one.data for one in hot]
    values = _texts(zip(*groups, strict=True), "groups") + _texts(every, "all")
    there = tuple(kind for kind, some in kinds.items() if some)
    for kind in there:
        values += _texts(zip(*map(_ROWS[kind], kinds[kind]), strict=True), kind)
    return _save_hot(there, bool(others)), [*values, *others, hint]


def _texts(columns: Iterable[Sequence[Any]], part: str) -> list[str | None]:
    named = zip(columns, _COLUMNS[part], strict=True)
    return [_numbers(column) if numbers else _words(column) for column, (_, numbers) in named]


def _numbers(column: Sequence[Any]) -> str | None:
    if column[0] is None and column.count(None) == len(column):
        return None
    return f"{{{encode(column).decode()[1:-1]}}}"  # but for its brackets JSON is what PostgreSQL reads


def _words(column: Sequence[Any]) -> str | None:
    if column[0] is None and column.count(None) == len(column):
        return None
    try:
        return SEPARATOR.join(column)
    except TypeError:  # some are not there
        return SEPARATOR.join([NOTHING if value is None else value for value in column])


def group(one: Entry) -> Row:
    """Host, epoch, pool, versions of pool and host; trigger, actor, kind and both states of the event."""
    change, order, guards = one.change, one.order, one.change.guards
    was, version = change.order_was, guards.pool_version
    assert order is not None
    host, epoch = guards.lease or (None, None)
    return (
        host,
        epoch,
        None if version is None else order.pool,
        version,
        guards.host_version,
        change.trigger,
        change.actor,
        change.kind,
        None if was is None else was.state,
        order.state,
    )


def _end(one: Entry) -> Row:
    change = one.change
    was, now, run, slot_was, slot = change.order_was, one.order, change.run, change.slot_was, one.slot
    assert was is not None and now is not None and run is not None
    return (
        was.version,
        now.due_at,
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


def claim_row(one: Entry) -> Row:
    """As its columns stand in `save_hot`."""
    was, now = one.change.order_was, one.order
    assert was is not None and now is not None
    slot_version = one.change.guards.slot_version
    return was.version, now.attempt, now.slot, slot_version, now.incarnation, now.command_until, now.deadline


def _ready(one: Entry) -> Row:
    was, now = one.change.order_was, one.order
    assert was is not None and now is not None
    return was.version, now.handle, now.deadline


def submit_row(one: Entry) -> Row:
    """As its columns stand in `save_hot`."""
    order, kept, sealed = one.order, one.change.idempotency, one.change.sealed_env
    assert order is not None
    return (
        order.project,
        order.pool,
        order.memory_mb,
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
    )


_ROWS: Final = {Hot.END: _end, Hot.SUBMIT: submit_row, Hot.CLAIM: claim_row, Hot.READY: _ready}
