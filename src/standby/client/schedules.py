"""Schedules: what is answered about them, and what can be asked."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from standby.client.answers import Answer, Order
from standby.client.plans import NewOrder, sent_alone, why_body
from standby.client.talk import Plan, ask, get, post, rows


class Tick(Answer, frozen=True, kw_only=True):
    """A tick, and the order that was made for it."""

    at: datetime
    order: str


class Schedule(Answer, frozen=True, kw_only=True):
    """A schedule, when it ticks, and the order of each tick; `ticks` is only in a single one's answer."""

    name: str
    project: str
    pool: str
    cron: str
    zone: str
    missed: str
    mode: str
    mode_since: datetime
    mode_reason: str | None = None
    mode_actor: str
    next_at: datetime | None = None
    next_ticks: tuple[datetime, ...] = ()
    last_at: datetime | None = None
    last_order: str | None = None
    order: Mapping[str, Any]
    ticks: tuple[Tick, ...] = ()


def schedules() -> Plan[tuple[Schedule, ...]]:
    """All schedules."""
    return rows(get("schedules"), "schedules", Schedule)


def schedule(name: str) -> Plan[Schedule]:
    """One schedule, with its last ticks and their orders."""
    return ask(get("schedules", name), Schedule)


def add_schedule(name: str, cron: str, order: NewOrder, *, zone: str = "UTC", missed: str = "once") -> Plan[Schedule]:
    """A new schedule; the answer shows its next three ticks."""
    body = {"name": name, "cron": cron, "zone": zone, "missed": missed, "order": sent_alone(order)}
    return ask(post("schedules", body=body), Schedule)


def change_schedule(
    name: str,
    *,
    cron: str | None = None,
    zone: str | None = None,
    missed: str | None = None,
    order: NewOrder | None = None,
) -> Plan[Schedule]:
    """Change when it ticks, what becomes of missed ticks, or its order as a whole."""
    given = {"cron": cron, "zone": zone, "missed": missed, "order": None if order is None else sent_alone(order)}
    body = {key: value for key, value in given.items() if value is not None}
    return ask(post("schedules", name, body=body, method="PATCH"), Schedule)


def set_schedule_mode(name: str, verb: str, reason: str | None = None) -> Plan[Schedule]:
    """pause or resume a schedule."""
    return ask(post("schedules", name, verb, body=why_body(reason)), Schedule)


def run_schedule(name: str) -> Plan[Order]:
    """Its order, made now. Never repeated by itself: each call makes one."""
    return ask(post("schedules", name, "run"), Order)


def remove_schedule(name: str) -> Plan[Schedule]:
    """It ticks no more; its orders stay."""
    return ask(post("schedules", name, method="DELETE"), Schedule)
