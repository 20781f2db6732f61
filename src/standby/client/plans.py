"""What can be asked of a server: each function says what is sent and how the answer is read."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, Unpack

from msgspec.structs import replace

from standby.client.answers import (
    Answer,
    Bulk,
    Check,
    Event,
    Host,
    Key,
    Order,
    OrderPage,
    Pool,
    Run,
    Setting,
    Slot,
    Starts,
    Verdicts,
    Why,
)
from standby.client.errors import ConfigError
from standby.client.talk import Call, Plan, ask, get, post, read, reply_to, rows

Params = list[tuple[str, str]]


class NewOrder(TypedDict, total=False):
    """A work order to hand in. What is left out is the pool's default or the server's; a time limit of null is none."""

    command: Sequence[str] | None
    script: str | None
    pool: str
    project: str
    env: Mapping[str, str]
    payload: Any
    labels: Mapping[str, str]
    priority: int
    memory_mb: int | None
    cpus: float | None
    queue_timeout_s: float | timedelta | None
    start_timeout_s: float | timedelta
    run_timeout_s: float | timedelta | None
    stop_grace_s: float | timedelta
    retry: Mapping[str, Any]
    not_before: datetime | str | int | None
    dedupe_key: str | None
    concurrency_key: str | None
    on_conflict: str
    urgent: bool
    rerun_of: str | None


class Which(TypedDict, total=False):
    """Which orders: all that is given must match."""

    state: str | Sequence[str]
    pool: str
    project: str
    labels: Mapping[str, str]
    id_prefix: str


class Meant(Which, total=False):
    """Which orders something is done to: by a filter, or by their ids."""

    ids: Sequence[str]


class _Events(Answer, frozen=True, kw_only=True):
    events: tuple[Event, ...]
    next: str | None = None


# orders


def submit(*, idempotency_key: str | None = None, **order: Unpack[NewOrder]) -> Plan[Order]:
    """Hand in an order; repeated under one idempotency key when the answer is lost, so that it is taken in once."""
    reply = yield from reply_to(_once(post("work-orders", body=sent_alone(order)), idempotency_key))
    taken = read(Order, reply)
    known = idempotency_key is not None and "idempotent-replayed" in reply.headers
    return replace(taken, replayed=True) if known else taken


def submit_many(
    orders: Iterable[NewOrder], *, together: bool = False, idempotency_key: str | None = None
) -> Plan[Verdicts]:
    """Hand in up to 1,000 orders: each by itself, or all together or none. A wrong one is refused in its verdict."""
    call = post("work-orders", "bulk", body={"orders": [sent(each) for each in orders], "together": together})
    return (yield from ask(_once(call, idempotency_key), Verdicts))


def sent(order: Mapping[str, Any]) -> dict[str, Any]:
    """An order as it is sent: times as text, lengths as seconds, in its `retry` too."""
    retry = {"retry": sent(order["retry"])} if isinstance(order.get("retry"), Mapping) else {}
    return {**{name: _plain(name, value) for name, value in order.items()}, **retry}


def sent_alone(order: Mapping[str, Any]) -> dict[str, Any]:
    """A single order as it is sent; TypeError for a command that is one text."""
    if isinstance(order.get("command"), str | bytes):
        line = '["sh", "-c", "echo hi | wc"] for a line of the shell'
        raise TypeError(f'command: give a list like ["echo", "hi"], or {line}')
    return sent(order)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{name}: give it a timezone, as in datetime.now(UTC)")
        return value.isoformat()
    return value


def _once(call: Call, key: str | None) -> Call:
    if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        raise ConfigError("the idempotency key cannot be used: write 1 to 255 ASCII characters")
    return replace(call, headers={**call.headers, "Idempotency-Key": key or secrets.token_hex(16)}, safe=True)


def order(order_id: str) -> Plan[Order]:
    """One order as it is now."""
    return ask(get("work-orders", order_id), Order)


def orders_page(*, limit: int | None = None, cursor: str | None = None, **which: Unpack[Which]) -> Plan[OrderPage]:
    """Some orders, newest first, and the cursor of those that follow."""
    return ask(get("work-orders", params=_filter(which) + given(limit=limit, cursor=cursor)), OrderPage)


def _filter(which: Which) -> Params:
    if unknown := [name for name in which if name not in Which.__annotations__]:
        raise TypeError(f"orders are not listed by {unknown[0]}; there is {', '.join(Which.__annotations__)}")
    states = which.get("state") or ()
    names = {name: which.get(name) for name in ("pool", "project", "id_prefix")}
    return [
        *(("state", each) for each in ([states] if isinstance(states, str) else states)),
        *(("label", f"{name}={value}") for name, value in (which.get("labels") or {}).items()),
        *given(**names),
    ]


def given(**values: Any) -> Params:
    """What is not null, as a query."""
    return [(name.rstrip("_"), str(value)) for name, value in values.items() if value is not None]


def why(order_id: str) -> Plan[Why]:
    """Why it waits, how long that may take, and what happens next."""
    return ask(get("work-orders", order_id, "why"), Why)


def runs(order_id: str) -> Plan[tuple[Run, ...]]:
    """Its runs, oldest first."""
    return rows(get("work-orders", order_id, "runs"), "runs", Run)


def order_events(order_id: str) -> Plan[tuple[Event, ...]]:
    """What happened to it, oldest first (the first thousand)."""
    call = get("work-orders", order_id, "events", params=[("limit", "1000")])
    return (yield from ask(call, _Events)).events


def cancel(order_id: str, reason: str | None = None) -> Plan[Order]:
    """Ask for its end. Safe to repeat."""
    return ask(post("work-orders", order_id, "cancel", body=why_body(reason), safe=True), Order)


def rerun(order_id: str, reason: str | None = None) -> Plan[Order]:
    """A new order that repeats an ended one. Never repeated by itself: each call makes one."""
    return ask(post("work-orders", order_id, "rerun", body=why_body(reason)), Order)


def cancel_many(
    *, dry_run: bool = False, reason: str | None = None, cursor: str | None = None, **which: Unpack[Meant]
) -> Plan[Bulk]:
    """Ask for the end of all unfinished orders that match, up to 1,000; go on with `cursor=answer.next`."""
    return _bulk("cancel", which, reason, cursor, dry_run=dry_run)


def rerun_many(
    *, dry_run: bool = False, reason: str | None = None, cursor: str | None = None, **which: Unpack[Meant]
) -> Plan[Bulk]:
    """Repeat all ended orders that match, up to 1,000; go on with `cursor=answer.next`. Never repeated by itself."""
    return _bulk("rerun", which, reason, cursor, dry_run=dry_run)


def purge_many(
    *, dry_run: bool = False, reason: str | None = None, cursor: str | None = None, **which: Unpack[Meant]
) -> Plan[Bulk]:
    """Remove all ended orders that match and all that is known of them, up to 1,000; go on with `cursor=answer.next`.
    Never repeated by itself."""
    return _bulk("purge", which, reason, cursor, dry_run=dry_run)


def _bulk(verb: str, which: Meant, reason: str | None, cursor: str | None, *, dry_run: bool) -> Plan[Bulk]:
    states = which.get("state")
    only = {**which, **({"state": [states]} if isinstance(states, str) else {})}
    body = {"filter": only, "dry_run": dry_run, "reason": reason, **({"cursor": cursor} if cursor else {})}
    return ask(post("work-orders", verb, body=body, safe=dry_run or verb == "cancel"), Bulk)


def why_body(reason: str | None) -> dict[str, str]:
    """The body that says why somebody asks."""
    return {} if reason is None else {"reason": reason}


# places


def pools() -> Plan[tuple[Pool, ...]]:
    """All pools."""
    return rows(get("pools"), "pools", Pool)


def pool(name: str) -> Plan[Pool]:
    """One pool, with what was changed by hand."""
    return ask(get("pools", name), Pool)


def patch_pool(
    name: str,
    set: Mapping[str, Any] | None = None,  # noqa: A002 (as it is sent)
    unset: Iterable[str] = (),
    reason: str | None = None,
) -> Plan[Pool]:
    """Change settings of a pool; they win over its configuration until they are unset."""
    body = {"set": dict(set or {}), "unset": list(unset), "reason": reason}
    return ask(post("pools", name, body=body, method="PATCH"), Pool)


def hosts() -> Plan[tuple[Host, ...]]:
    """All hosts."""
    return rows(get("hosts"), "hosts", Host)


def host(name: str) -> Plan[Host]:
    """One host, with its last reading and its slots."""
    return ask(get("hosts", name), Host)


def starts(host: str) -> Plan[Starts]:
    """The starts on a host that are under way, and those that wait."""
    return ask(get("hosts", host, "starts"), Starts)


def slots(*, pool: str | None = None, host: str | None = None) -> Plan[tuple[Slot, ...]]:
    """All slots, or those of a pool or a host."""
    return rows(get("slots", params=given(pool=pool, host=host)), "slots", Slot)


def set_pool_mode(name: str, verb: str, reason: str | None = None, *, now: bool = False) -> Plan[Pool]:
    """pause, resume or drain a pool; with `now` what runs is stopped."""
    return ask(post("pools", name, verb, body={**why_body(reason), **({"now": True} if now else {})}), Pool)


def reset_breaker(name: str, reason: str | None = None) -> Plan[Pool]:
    """Let a pool make slots again, although too many of them failed."""
    return ask(post("pools", name, "reset-breaker", body=why_body(reason)), Pool)


def set_host_mode(name: str, verb: str, reason: str | None = None, *, now: bool = False) -> Plan[Host]:
    """pause, resume or drain a host; with `now` what runs is stopped."""
    return ask(post("hosts", name, verb, body={**why_body(reason), **({"now": True} if now else {})}), Host)


def declare_dead(host: str, reason: str) -> Plan[Host]:
    """An operator's word that nothing commanded on the host so far is alive."""
    return ask(post("hosts", host, "declare-dead", body={"reason": reason, "confirm": host}), Host)


# the server


def doctor() -> Plan[tuple[Check, ...]]:
    """What the server finds when it looks at itself."""
    return rows(get("doctor"), "checks", Check)


def config() -> Plan[tuple[Setting, ...]]:
    """Every setting of the server, and where its value comes from."""
    return rows(get("config"), "settings", Setting)


def keys() -> Plan[tuple[Key, ...]]:
    """All API keys by their names."""
    return rows(get("keys"), "keys", Key)


def add_key(name: str) -> Plan[Key]:
    """A new API key; it is in this answer and nowhere else."""
    return ask(post("keys", body={"name": name}), Key)


def remove_key(name: str) -> Plan[Key]:
    """Take a key away: whoever has it is no longer let in."""
    return ask(post("keys", name, method="DELETE"), Key)
