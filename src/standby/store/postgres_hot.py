"""Hot changes as the column arrays of `save_hot`: what a batch sends when orders move.

A column travels as one text: an array of numbers as PostgreSQL writes it, texts joined by a control character. That is
several times faster than arrays of values, of which the client looks at each one.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec.json import encode

from standby.store.entry import Entry
from standby.store.hot import NOTHING, SEPARATOR, Hot

_PARAMETERS: Final = {
    None: "g_host g_epoch# g_pool g_pool_version# g_host_version# g_trigger g_actor",
    Hot.END: "e_n# e_g# e_change e_id e_was# e_from e_at# e_state e_due# e_reason e_code# e_ended# e_slot e_slot_was# "
    "e_slot_state e_slot_since# e_number# e_incarnation e_handle e_commanded# e_ready# e_stop_asked# e_signal# e_error "
    "e_peak# e_cpu# e_data",
    Hot.CLAIM: "c_n# c_g# c_change c_id c_was# c_at# c_attempt# c_slot c_slot_was# c_incarnation c_until# c_deadline# "
    "c_data",
    Hot.READY: "r_n# r_g# r_change r_id r_was# r_at# r_handle r_deadline# r_data",
    Hot.SUBMIT: "s_n# s_g# s_change s_id s_project s_pool s_memory# s_at# s_rank# s_due# s_queue_due# s_dedupe "
    "s_concurrency s_body s_sealed s_key s_fingerprint s_answer s_data",
}
"""Those of `save_hot`: what all have in common, then each kind. A # marks numbers."""
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
    columns = [column for kind in (None, *kinds) for column in _COLUMNS[kind]]
    given = [(name, _NUMBERS if numbers else _TEXTS) for name, numbers in columns]
    given += [(name, "${}") for name in (_OTHERS.split() if others else [])] + [("hint", "${}")]
    texts = [f"{name} => {text.format(place)}" for place, (name, text) in enumerate(given, 1)]
    return f"select * from save_hot({', '.join(texts)})"  # noqa: S608  no input is in it


def hot_call(batch: Sequence[Entry], others: Sequence[Any], hint: str | None) -> tuple[str, Sequence[Any]]:
    """The statement that saves these hot changes, and others as `parameters` has them, with its values: the columns of
    what many changes have in common (guards, trigger, actor), and of ends, claims, readies and submits."""
    groups: dict[Row, int] = {}
    moves: dict[Hot, list[Row]] = {}
    for n, one in enumerate(batch, 1):
        assert one.hot is not None
        g = groups.setdefault(group(one), len(groups) + 1)
        moves.setdefault(one.hot, []).append(_ROWS[one.hot](n, g, one))
    kinds = tuple([kind for kind in _ROWS if kind in moves])
    values: list[Any] = _texts(list(groups), None)
    for kind in kinds:
        values += _texts(moves[kind], kind)
    return _save_hot(kinds, bool(others)), [*values, *others, hint]


def _texts(rows: Sequence[Row], kind: Hot | None) -> list[str | None]:
    columns = zip(zip(*rows, strict=True), _COLUMNS[kind], strict=True)
    return [_numbers(column) if numbers else _words(column) for column, (_, numbers) in columns]


def _numbers(column: Row) -> str | None:
    if column[0] is None and column.count(None) == len(column):
        return None
    return f"{{{encode(column).decode()[1:-1]}}}"  # but for its brackets JSON is what PostgreSQL reads


def _words(column: Row) -> str | None:
    if column[0] is None and column.count(None) == len(column):
        return None
    try:
        return SEPARATOR.join(column)
    except TypeError:  # some are not there
        return SEPARATOR.join([NOTHING if value is None else value for value in column])


def group(one: Entry) -> Row:
    """Host, epoch, pool, versions of pool and host, trigger and actor."""
    change, guards = one.change, one.change.guards
    host, epoch = guards.lease or (None, None)
    pool = None if guards.pool_version is None or one.order is None else one.order.pool
    return host, epoch, pool, guards.pool_version, guards.host_version, change.trigger, change.actor


def _end(n: int, g: int, one: Entry) -> Row:
    change = one.change
    was, now, run, slot_was, slot = change.order_was, one.order, change.run, change.slot_was, one.slot
    assert was is not None and now is not None and run is not None
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
        one.data,
    )


def claim_row(n: int, g: int, one: Entry) -> Row:
    """As its columns stand in `save_hot`."""
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


def submit_row(n: int, g: int, one: Entry) -> Row:
    """As its columns stand in `save_hot`."""
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


_ROWS: Final = {Hot.SUBMIT: submit_row, Hot.CLAIM: claim_row, Hot.READY: _ready, Hot.END: _end}
