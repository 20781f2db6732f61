"""What must hold of slots, of what they are made of, and of the deploy gate."""

from collections.abc import Callable, Mapping

from sim.book import Book
from sim.place import SimHost
from sim.readings import allowed
from standby.core import warm
from standby.core.model import Order, Pool, Slot, SlotState
from standby.core.sighting import Place


class PlaceTruths:
    """Follows claims, slots and sweeps; `broken` is told what does not hold."""

    def __init__(self, book: Book, hosts: Mapping[str, SimHost], broken: Callable[[str], None]) -> None:
        self._book, self._hosts, self._broken = book, hosts, broken
        self.tainted: set[str] = set()
        """Incarnations that a lost run was in, or that failed one: they may not serve again."""

    def claimed(self, name: str, order: Order, slot: Slot, pool: Pool) -> None:
        """A claim: of a slot that is good, made of what its pool wants, and within the gate."""
        shape = self._hosts[slot.host].shape
        if slot.error is not None:
            self._broken(f"{name} was claimed for {slot.name}, which is in error: {slot.error}")
        if slot.template != warm.made_of(pool, shape.seats):
            self._broken(f"{name} was claimed for {slot.name}, which is of another template")
        self.fresh(name, slot, pool)
        if not warm.hands_over(pool, shape.seats):
            self.gate(slot.host, name)
        self.memory(slot.host, name)
        self.cpus(slot.host, name)

    def fresh(self, name: str, slot: Slot, pool: Pool) -> None:
        """A place where something ran serves again only where that is allowed, and never after a lost run."""
        host = self._hosts[slot.host]
        if warm.is_seat(pool, host.shape.seats) or slot.incarnation is None:
            return
        if slot.incarnation in self.tainted:
            self._broken(f"{name}: {slot.incarnation} serves again after a run that was lost, or that it failed")
        elif not warm.stays(pool, host.shape.seats) and slot.incarnation in host.used:
            self._broken(f"{name}: {slot.incarnation}, where something ran before, serves again")

    def making(self, slot: Slot) -> None:
        """A slot is being made: within the gate and the memory."""
        pool = self._book.pools[slot.pool]
        if not warm.is_seat(pool, self._hosts[slot.host].shape.seats):
            self.gate(slot.host, slot.name)
            self.memory(slot.host, slot.name)

    def gate(self, host: str, name: str) -> None:
        """No more platform starts are in flight than the host allows."""
        most, seats = allowed(self._book.hosts[host]), self._hosts[host].shape.seats
        if most is None:
            return
        pools = {pool.name: pool for pool in self._book.pools.values() if pool.host == host}
        orders = [self._book.orders[order_id] for order_id in self._book.holder.values()]
        flying = sum(
            order.pool in pools and order.ready_at is None and not warm.hands_over(pools[order.pool], seats)
            for order in orders
        )
        flying += sum(
            slot.pool in pools and slot.state is SlotState.CREATING and not warm.is_seat(pools[slot.pool], seats)
            for slot in self._book.slots.values()
        )
        if flying > most:
            self._broken(f"{name} brings {host} to {flying} starts in flight of {most}")

    def memory(self, host: str, name: str) -> None:
        """Open runs and live places, each once, fit the host's budget."""
        row = self._book.hosts[host]
        used = self.used_mb(host)
        if row.memory_mb is not None and used > row.memory_mb:
            self._broken(f"{name} brings {host} to {used} of {row.memory_mb} MB")

    def cpus(self, host: str, name: str) -> None:
        """Open runs fit the host's processors."""
        book, most = self._book, self._book.hosts[host].cpus
        runs = [book.orders[each] for each in book.holder.values()]
        used = sum(self._cpus_of(run) for run in runs if book.pools[run.pool].host == host)
        if most is not None and used > most:
            self._broken(f"{name} brings {host} to {used} of {most} processors")

    def _cpus_of(self, run: Order) -> float:
        """What its run takes: its own need, in a live place no less than that has, else its pool's."""
        pool = self._book.pools[run.pool]
        own = pool.settings.template.cpus or 0.0
        alive = warm.hands_over(pool, self._hosts[pool.host].shape.seats)
        return own if run.cpus is None else max(own, run.cpus) if alive else run.cpus

    def used_mb(self, host: str) -> int:
        """What counts on a host."""
        book, seats, used = self._book, self._hosts[host].shape.seats, 0
        for slot in book.slots.values():
            if slot.host != host:
                continue
            pool = book.pools[slot.pool]
            order = book.orders.get(book.holder.get(slot.name, ""))
            own = 0 if order is None else order.memory_mb
            there = slot.state is SlotState.CREATING or slot.incarnation is not None
            if warm.hands_over(pool, seats) and there:
                own = max(own, pool.settings.memory_mb)
            used += own
        return used

    def swept(self, host: SimHost, place: Place) -> None:
        """A stray goes: seen twice, and nobody's."""
        if host.sightings[place.incarnation] < 2:
            self._broken(f"{place.incarnation} is swept at first sight")
        if any(slot.incarnation == place.incarnation for slot in self._book.slots.values()):
            self._broken(f"{place.incarnation} is swept, but it is a slot's")
        orders = [self._book.orders[order_id] for order_id in self._book.holder.values()]
        if any(order.incarnation == place.incarnation for order in orders):
            self._broken(f"{place.incarnation} is swept, but a run is open in it")

    def unsettled(self) -> str | None:
        """What is still to be done about slots and places once nobody waits; null when all is as it should be."""
        for slot in self._book.slots.values():
            stuck = slot.state is SlotState.ERROR and not self._fits(self._book.pools[slot.pool])
            if slot.state is not SlotState.IDLE and not stuck:
                return f"{slot.name} is {slot.state}"
        for host in self._hosts.values():
            made = set(host.driver.platform.yard.made)
            known = {slot.incarnation for slot in self._book.slots.values() if slot.host == host.name}
            if made - known:
                return f"{sorted(made - known)} is left on {host.name}"
            things = [slot for slot in self._book.slots.values() if slot.host == host.name and not self._seat(slot)]
            idle = [slot for slot in things if slot.state is SlotState.IDLE]
            gone = [slot.name for slot in idle if slot.incarnation not in made]
            if gone:
                return f"{gone} have no place on {host.name}"
        return self._uneven()

    def _uneven(self) -> str | None:
        """Without demand a pool has its warm slots, and those that were idle for less than its `idle_ttl`."""
        for pool in self._book.pools.values():
            seats = self._hosts[pool.host].shape.seats
            mine = [slot for slot in self._book.slots.values() if slot.pool == pool.name]
            if warm.is_seat(pool, seats):
                continue
            if any(slot.template != warm.made_of(pool, seats) for slot in mine):
                return f"{pool.name} has slots of another template"
            ttl = pool.settings.idle_ttl_ms
            if ttl is not None and len(mine) > pool.settings.slots_warm:
                return f"{pool.name} has {len(mine)} idle slots for {pool.settings.slots_warm} warm ones"
            if len(mine) < pool.settings.slots_warm and self._fits(pool):
                return f"{pool.name} has {len(mine)} of {pool.settings.slots_warm} warm slots"
        return None

    def _fits(self, pool: Pool) -> bool:
        most = self._book.hosts[pool.host].memory_mb
        alive = warm.hands_over(pool, self._hosts[pool.host].shape.seats)
        return most is None or not alive or self.used_mb(pool.host) + pool.settings.memory_mb <= most

    def _seat(self, slot: Slot) -> bool:
        return warm.is_seat(self._book.pools[slot.pool], self._hosts[slot.host].shape.seats)
