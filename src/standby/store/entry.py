"""A change made ready to be written: its rows with their new versions, its event, the keys it must have to itself."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from standby.core.model import Change, EventKind, Host, Json, Order, Place, Pool, Project, Schedule, Slot, Trigger
from standby.store.contract import SAVED, Verdict, Work
from standby.store.hot import CLAIM, END, ESCAPE, ESCAPED, MOVES, READY, SUBMIT, Hot, hot_move, is_submit
from standby.store.rows import told

Places = tuple[tuple[str, Place | None, Place | None], ...]
W = TypeVar("W", Order, Slot, Pool, Host, Project, Schedule)

_ASKED: Final = (Trigger.REQUEST, Trigger.CONFIG)


class Entry(Struct, gc=False, frozen=True):
    """One change on its way into a batch."""

    change: Change
    order: Order | None
    slot: Slot | None
    pool: Pool | None
    host: Host | None
    project: Project | None
    data: str
    """The event's data as JSON."""
    spec_body: str | None
    size: int
    """About how many bytes it writes."""
    writes: tuple[str, ...]
    """Keys no other change of the batch may touch: ids of orders, names of slots, and with a word before it what else
    there is."""
    relies_on: tuple[str, ...]
    """Keys no earlier change of the batch may have written."""
    opens: str | None
    """The project in which it opens a run."""
    asked_in: str | None
    """The pool that a request or the configuration touched with it."""
    hot: Hot | None
    """The narrow statement that writes it."""
    claims: str | None = None
    """The slot that it takes, where an end of the same batch may let it go."""
    lets_go: str | None = None
    """The slot that it lets go for a claim of the same batch."""
    schedule: Schedule | None = None

    @property
    def event(self) -> tuple[str | int | None, ...]:
        """Change, at, kind, subject, from_state, to_state, trigger, actor and data of its event."""
        change = self.change
        who, how = change.trigger, change.actor
        if self.hot in MOVES and change.order_was is not None and self.order is not None:
            was, now = change.order_was, self.order
            return change.id, change.at, change.kind, now.id, was.state, now.state, who, how, self.data
        return change.id, change.at, change.kind, change.subject, *change.states, who, how, self.data

    @property
    def of_schedule(self) -> bool:
        """Whether it writes a schedule."""
        return self.schedule is not None or self.change.schedule_was is not None

    @property
    def added(self) -> Work | None:
        """The order that it takes in."""
        new = self.order is not None and self.change.order_was is None and self.change.spec is not None
        return Work(self.order, self.change.spec) if new else None  # type: ignore[arg-type]

    @property
    def claimed(self) -> str | None:
        """The order for which it is a claim."""
        return self.writes[0] if self.change.kind is EventKind.ORDER_CLAIMED else None

    @property
    def handed(self) -> str | None:
        """The slot whose worker has got a run with it."""
        claimed = self.change.kind is EventKind.ORDER_CLAIMED and self.order is not None and self.order.boot is not None
        return self.order.slot if claimed else None  # type: ignore[union-attr]

    @property
    def guarded_pool(self) -> str | None:
        """The pool whose version is guarded."""
        return None if self.change.guards.pool_version is None else _pool_of(self.change)

    @property
    def guarded_host(self) -> str | None:
        """The host whose version is guarded."""
        lease = self.change.guards.lease
        return lease[0] if lease is not None and self.change.guards.host_version is not None else None

    @property
    def dedupe(self) -> str | None:
        """The dedupe key that must not be in use yet."""
        return self.order.dedupe_live if self.order is not None and self.change.order_was is None else None


Kinds = dict[Hot, list[Entry]]
"""Hot changes in the order in which they are written: claims may take what others of a batch let go, and orders that it
takes in."""


Prepared = tuple[Kinds, Sequence[Entry], Any]
"""A batch made ready for its engine: its hot changes, its others, and what is sent of them."""


def by_kind(batch: Sequence[Entry]) -> tuple[Kinds, Sequence[Entry]]:
    """The hot changes of a batch, and its others."""
    kinds: Kinds = {END: [], SUBMIT: [], CLAIM: [], READY: []}
    others: list[Entry] = []
    for one in batch:
        (others if one.hot is None else kinds[one.hot]).append(one)
    return kinds, others


def in_order(kinds: Kinds) -> list[Entry]:
    """Hot changes as they are written."""
    return [one for some in kinds.values() for one in some]


def in_turn(batch: Sequence[Entry], written: Sequence[Entry], before: int) -> Sequence[Verdict]:
    """The verdicts of a batch of which all was written, in this order, behind event `before`."""
    saved = list(map(Verdict, repeat(SAVED), range(before + 1, before + len(written) + 1)))
    if written == batch:  # as a rule: a leader saves ends and then claims
        return saved
    seqs = dict(zip((one.change.id for one in written), saved, strict=True))
    return [seqs[one.change.id] for one in batch]


def entry(change: Change) -> Entry:
    """Make a change ready; raises ValueError for one that no store can write."""
    was, now = change.order_was, change.order
    if now is None:
        return _general(change)
    return (_submit(change, now) if was is None else _move(change, was, now)) or _general(change)


def _submit(change: Change, order: Order) -> Entry | None:
    """A new order that the narrow statement writes, made ready in the shortest way."""
    columns, spec, kept = told(None, order), change.spec, change.idempotency
    if spec is None or not is_submit(change, order, columns):
        return None
    data = encode({"order": columns, "note": change.note} if change.note else {"order": columns}).decode()
    if ESCAPED in data:
        return None
    body = encode(spec).decode()
    writes = [order.id]
    if order.dedupe_live is not None:
        writes.append(f"dedupe {order.dedupe_live}")
    if kept is not None:
        writes.append(f"idempotency {kept.project} {kept.key}")
    return Entry(
        change,
        order,
        None,
        None,
        None,
        None,
        data,
        body,
        size=len(data) + len(body) + len(change.sealed_env or b"") + 500,
        writes=tuple(writes),
        relies_on=(),
        opens=None,
        asked_in=order.pool if change.trigger in _ASKED else None,
        hot=SUBMIT,
    )


def _move(change: Change, was: Order, now: Order) -> Entry | None:
    """A change that a narrow statement writes, made ready in the shortest way: every order goes through several."""
    hot = hot_move(change)
    if hot is None:
        return None
    kind, told_of = hot
    data = encode(told_of).decode()
    if ESCAPE in data and ESCAPED in data:
        return None
    guards, claims = change.guards, now.slot if kind is CLAIM else None
    lets_go = was.slot if kind is END else None
    slot = claims or lets_go
    writes = (was.id,) if slot is None else (was.id, slot)
    if was.dedupe_live is not None and was.dedupe_live != now.dedupe_live:
        writes = (*writes, f"dedupe {was.dedupe_live}")
    if claims is not None and now.concurrency_key is not None:
        writes = (*writes, f"key {now.project} {now.concurrency_key}")
    return Entry(
        change,
        now,
        change.slot,
        None,
        None,
        None,
        data,
        None,
        len(data) + 500,
        writes,
        _relies_on(change) if kind is CLAIM or guards.pool_version or guards.host_version else (),
        None if claims is None else now.project,
        now.pool if change.trigger in _ASKED else None,
        kind,
        claims,
        lets_go,
    )


def _general(change: Change) -> Entry:
    _refuse_nonsense(change)
    # Most changes touch an order alone: the rest is skipped for them, this is on the hot path.
    places = tuple(place for place in _places(change) if place[1] is not None or place[2] is not None)
    order = _next(change.order_was, change.order)
    data = encode(_data(change, order, places)).decode()
    spec_body = None if change.spec is None else encode(change.spec).decode()
    return Entry(
        change,
        order,
        _next(change.slot_was, change.slot),
        _next(change.pool_was, change.pool),
        _next(change.host_was, change.host),
        _next(change.project_was, change.project),
        data,
        spec_body,
        size=len(data) + len(spec_body or "") + len(change.sealed_env or b"") + 500,
        writes=_writes(change, places),
        relies_on=_relies_on(change),
        opens=_opens(change),
        asked_in=_pool_of(change) if change.trigger in _ASKED else None,
        hot=None,
        schedule=_next(change.schedule_was, change.schedule),
    )


def _refuse_nonsense(change: Change) -> None:
    was, now, guards = change.order_was, change.order, change.guards
    if now is None:
        if was is not None:
            raise ValueError(f"change {change.id}: an order is never deleted")
        if change.spec is not None or guards.project_limit:
            raise ValueError(f"change {change.id}: a spec or a project limit needs an order")
    elif was is not None and (was.id != now.id or was.project != now.project or was.pool != now.pool):
        raise ValueError(f"change {change.id}: an order keeps its id, project and pool")
    if change.sealed_env is not None and change.spec is None and change.schedule is None:
        raise ValueError(f"change {change.id}: an environment comes with its spec")
    if guards.host_version is not None and guards.lease is None:
        raise ValueError(f"change {change.id}: host_version needs a lease that names the host")


def _places(change: Change) -> Places:
    return (
        ("slot", change.slot_was, change.slot),
        ("pool", change.pool_was, change.pool),
        ("host", change.host_was, change.host),
        ("project", change.project_was, change.project),
        ("schedule", change.schedule_was, change.schedule),
    )


def _next(was: W | None, now: W | None) -> W | None:
    if was is None or now is None or now.version == was.version + 1:
        return now
    return replace(now, version=was.version + 1)


def _data(change: Change, order: Order | None, places: Places) -> dict[str, Json]:
    noun = change.noun
    data: dict[str, Json] = {}
    if order is not None:
        columns = told(change.order_was, order)
        data["order"] = columns if noun == "order" else {**columns, "id": order.id}
    for name, was, given in places:
        now = given if was is None or given is None else replace(given, version=was.version + 1)
        if now is not None:
            columns = told(was, now)
            data[name] = columns if name == noun else {**columns, "name": now.name}
        elif name == noun:
            data[name] = None
        else:
            raise ValueError(f"change {change.id}: only the subject of a change can be deleted, not its {name}")
    if change.run is not None:
        data["run"] = told(None, change.run)
    if change.note:
        data["note"] = change.note
    return data


def _writes(change: Change, places: Places) -> tuple[str, ...]:
    was, now, keys = change.order_was, change.order, []
    if now is not None:
        keys.append(now.id)
        old_slot, old_dedupe = (None, None) if was is None else (was.slot, was.dedupe_live)
        if old_slot != now.slot:
            keys += [slot for slot in (old_slot, now.slot) if slot is not None]
        if old_dedupe != now.dedupe_live:
            keys += [f"dedupe {key}" for key in (old_dedupe, now.dedupe_live) if key is not None]
    if change.run is not None and now is None:
        keys.append(change.run.order_id)
    if change.guards.slot_free is not None:
        keys.append(change.guards.slot_free)
    for name, old, new in places:
        row = new or old
        if row is not None:
            keys.append(row.name if name == "slot" else f"{name} {row.name}")
    if change.idempotency is not None:
        keys.append(f"idempotency {change.idempotency.project} {change.idempotency.key}")
    return tuple(keys)


def _relies_on(change: Change) -> tuple[str, ...]:
    guards, order = change.guards, change.order
    if guards.pool_version is None and guards.host_version is None and not guards.project_limit:
        return ()
    return _guarded(
        None if guards.pool_version is None else _pool_of(change),
        guards.lease[0] if guards.host_version is not None and guards.lease is not None else None,
        order.project if guards.project_limit and order is not None else None,
    )


@lru_cache(1_000)
def _guarded(pool: str | None, host: str | None, project: str | None) -> tuple[str, ...]:
    """The keys of what many claims have in common."""
    rows = (("pool", pool), ("host", host), ("project", project))
    return tuple(f"{noun} {name}" for noun, name in rows if name is not None)


def _opens(change: Change) -> str | None:
    if change.order is None or change.order.slot is None:
        return None
    was_open = change.order_was is not None and change.order_was.slot is not None
    return None if was_open else change.order.project


def _pool_of(change: Change) -> str | None:
    row = change.order or change.slot or change.slot_was
    if row is not None:
        return row.pool
    pool = change.pool or change.pool_was
    return None if pool is None else pool.name
