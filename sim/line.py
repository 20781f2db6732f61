"""The store as the simulator has it, and each instance's own line to it, which can fail before or after the deed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import apsw

from standby.core.model import Lease
from standby.store.commit import Unsure, Violated
from standby.store.contract import StoreDown, Verdict
from standby.store.entry import Entry, Prepared
from standby.store.migrate import migrate_sqlite
from standby.store.sqlite import SqliteStore
from standby.store.sqlite_lines import Inline


class Watcher(Protocol):
    """Who checks every commit and every lease."""

    def committed(self) -> None: ...
    def led_until(self, host: str, until: int) -> None: ...
    def broken(self, truth: str) -> None: ...


class SimStore(SqliteStore):
    """The real store in memory. `unsure` holds what the next commits and lookups suffer."""

    unsure: list[str]
    watcher: Watcher

    @classmethod
    def made(cls, clock: Callable[[], int], watcher: Watcher, *, hints: bool) -> "SimStore":
        """A new, empty one."""
        main, logs = Inline(), Inline()
        _copy_schema(main.writer, clock())
        store = cls(main, logs, "sim", clock=clock, hints=hints)
        store.unsure, store.watcher = [], watcher
        return store

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        """Commit; or not; or commit and not know it."""
        fault = self.unsure.pop(0) if self.unsure else ""
        if fault == "before":
            raise Unsure("the connection broke before the commit")
        try:
            verdicts = await super().commit(batch, together=together, prepared=prepared)
        except Violated as error:
            self.watcher.broken(f"the database had to refuse a change: {error}")
            raise
        self.watcher.committed()
        if fault == "after":
            raise Unsure("the connection broke after the commit")
        return verdicts

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        """Look up; or fail."""
        if self.unsure and self.unsure[0] == "find":
            self.unsure.pop(0)
            raise StoreDown("the connection is still broken")
        return await super().find(batch)

    async def take_lease(self, host: str, owner: str, ttl_ms: int) -> tuple[Lease, Lease | None] | None:
        """Take it, and tell the watcher."""
        taken = await super().take_lease(host, owner, ttl_ms)
        if taken is not None:
            self.watcher.led_until(host, taken[0].until)
        return taken

    async def renew_leases(self, owner: str, hosts: Sequence[str], ttl_ms: int) -> Sequence[Lease]:
        """Renew them, and tell the watcher."""
        renewed = await super().renew_leases(owner, hosts, ttl_ms)
        for lease in renewed:
            self.watcher.led_until(lease.host, lease.until)
        return renewed


_template: list[bytes] = []


def _copy_schema(connection: apsw.Connection, now: int) -> None:
    """The schema is made once a process; every house gets a copy."""
    if not _template:
        migrate_sqlite(connection, now, path=None)
        _template.append(connection.serialize("main"))
    connection.deserialize("main", _template[0])


class Owner(Protocol):
    """The instance at one end of a line."""

    async def pass_gate(self) -> None:
        """Wait while it is frozen; the dead do not come through."""

    async def suffer(self, *, store: bool) -> None:
        """What befalls it at this point of its step, if anything does."""

    def cut_off(self) -> bool:
        """Whether it cannot reach the store now."""

    async def dawdle(self) -> None:
        """Wait before a save reaches the store, if it is a slow one: others may write meanwhile."""


class Line:
    """All that an instance has of the store; each call can be stopped before and after its effect."""

    def __init__(self, store: SimStore, owner: Owner) -> None:
        self._store, self._owner = store, owner
        self.incarnation = store.incarnation
        self.listen = store.listen

    def __getattr__(self, name: str) -> Any:
        call, owner = getattr(self._store, name), self._owner

        async def over_the_line(*args: Any, **keys: Any) -> Any:
            await owner.pass_gate()
            await owner.suffer(store=True)
            if name == "save":
                await owner.dawdle()
            if owner.cut_off():
                raise StoreDown("the line to the store is cut")
            answer = await call(*args, **keys)
            await owner.suffer(store=True)
            return answer

        setattr(self, name, over_the_line)
        return over_the_line
