"""The rows as the events tell them, kept up event by event."""

from typing import Any

from msgspec import convert

from standby.core.model import ENDED, Event, Host, Json, Order, Pool, Project, Run, Slot

NOUNS = {"order": Order, "slot": Slot, "pool": Pool, "host": Host, "project": Project}


class Book:
    """Every row that changes write, with what it was before the last event that touched it."""

    def __init__(self) -> None:
        self.orders: dict[str, Order] = {}
        self.slots: dict[str, Slot] = {}
        self.pools: dict[str, Pool] = {}
        self.hosts: dict[str, Host] = {}
        self.projects: dict[str, Project] = {}
        self.runs: dict[str, list[Run]] = {}
        self.holder: dict[str, str] = {}
        """Slot -> the order that holds it."""
        self.unfinished: set[str] = set()
        self.short: dict[str, str] = {}
        """Order id -> what it is called in a history."""
        self._tables: dict[str, dict[str, Any]] = {
            "order": self.orders,
            "slot": self.slots,
            "pool": self.pools,
            "host": self.hosts,
            "project": self.projects,
        }
        self._columns: dict[tuple[str, str], dict[str, Json]] = {}

    def enter(self, event: Event) -> Order | None:
        """Take an event in; returns the order as it was before, if it is about one."""
        before = self.orders.get(event.subject)
        for noun, columns in event.data.items():
            if noun == "run":
                run = convert(columns, Run)
                self.runs.setdefault(run.order_id, []).append(run)
            elif noun in NOUNS:
                self._row(noun, "id" if noun == "order" else "name", event.subject, columns)
        if event.subject in self.orders:
            self._order(before, self.orders[event.subject])
        return before

    def name(self, subject: str) -> str:
        return self.short.get(subject, subject)

    def _row(self, noun: str, key: str, subject: str, columns: dict[str, Json] | None) -> None:
        if columns is None:
            del self._tables[noun][subject], self._columns[noun, subject]
            return
        name = columns.get(key, subject)
        row = self._columns.setdefault((noun, name), {key: name})
        row.update(columns)
        self._tables[noun][name] = convert(row, NOUNS[noun])

    def _order(self, before: Order | None, order: Order) -> None:
        if before is None:
            self.short[order.id] = f"o{len(self.short) + 1}"
        if order.state in ENDED:
            self.unfinished.discard(order.id)
        else:
            self.unfinished.add(order.id)
        if before is not None and before.slot is not None and self.holder.get(before.slot) == order.id:
            del self.holder[before.slot]
        if order.slot is not None:
            self.holder[order.slot] = order.id

    def open_of(self, project: str) -> int:
        """How many open runs a project has."""
        return sum(self.orders[order_id].project == project for order_id in self.holder.values())
