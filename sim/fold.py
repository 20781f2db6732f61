"""The events fold back to the rows: what the history says the tables must hold."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, convert

from standby.core.model import Event, Host, Json, Order, Pool, Project, Run, Schedule, Slot


class Rows(Struct, frozen=True, kw_only=True):
    """Every row that changes write, by its key."""

    orders: dict[str, Order]
    slots: dict[str, Slot]
    pools: dict[str, Pool]
    hosts: dict[str, Host]
    projects: dict[str, Project]
    runs: dict[tuple[str, int], Run]
    schedules: dict[str, Schedule] = {}


def fold(events: Iterable[Event]) -> Rows:
    """The rows after these events, which must be all there are, oldest first."""
    nouns = ("order", "slot", "pool", "host", "project", "schedule")
    tables: dict[str, dict[str, dict[str, Json]]] = {noun: {} for noun in nouns}
    runs: dict[tuple[str, int], Run] = {}
    for event in events:
        for noun, columns in event.data.items():
            if noun == "run":
                run = convert(columns, Run)
                runs[run.order_id, run.number] = run
            elif noun in tables:
                _apply(tables[noun], "id" if noun == "order" else "name", event.subject, columns)
    return Rows(
        orders=_values(tables["order"], Order),
        slots=_values(tables["slot"], Slot),
        pools=_values(tables["pool"], Pool),
        hosts=_values(tables["host"], Host),
        projects=_values(tables["project"], Project),
        runs=runs,
        schedules=_values(tables["schedule"], Schedule),
    )


def _apply(table: dict[str, dict[str, Json]], key: str, subject: str, columns: dict[str, Json] | None) -> None:
    if columns is None:
        table.pop(subject, None)  # a purge leaves nothing but its own event
        return
    name = columns.get(key, subject)
    table.setdefault(name, {key: name}).update(columns)


def _values(table: dict[str, dict[str, Json]], kind: type[Any]) -> dict[str, Any]:
    return {name: convert(columns, kind) for name, columns in table.items()}
