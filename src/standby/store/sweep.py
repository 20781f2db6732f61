"""What is written without a version: purged and old orders, old events, readings, keys. The same for both engines."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from msgspec.json import encode
from msgspec.structs import astuple

from standby.core.model import Change
from standby.core.sighting import ImageState
from standby.core.work import Report
from standby.store import rows
from standby.store.contract import Answer, Heard, Key, Verdict
from standby.store.queries import ENDED_NUMBERS
from standby.store.reads import Param, Reads
from standby.store.rows import Row

Step = tuple[str, *tuple[Param, ...]]
PURGE_BATCH: Final = 200
"""Orders whose purge is one transaction, so that other writers wait for no more than that."""


PURGED_SQLITE: Final = """
insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
select (select max(seq) from events) + row_number() over (order by e.key), e.value ->> 'at', e.value ->> 'kind',
    o.id, o.state, null, e.value ->> 'trigger', e.value ->> 'actor', e.value ->> 'data', e.value ->> 'change'
from json_each($1) e join orders o on o.id = e.value ->> 'subject' where o.ended_at is not null
returning subject, seq
"""
PURGED_POSTGRES: Final = """
insert into events (seq, at, kind, subject, from_state, to_state, trigger, actor, data, change)
select (select max(seq) from events) + row_number() over (), e.at, e.kind, o.id, o.state, null, e.trigger, e.actor,
    e.data, e.change
from json_to_recordset(cast($1 as json))
    as e (at bigint, kind text, subject text, trigger text, actor text, data text, change text)
    join orders o on o.id = e.subject where o.ended_at is not null
returning subject, seq
"""
REMOVE_ORDERS: Final = (
    "delete from orders where id = any (cast($1 as text[]))",
    "delete from specs where order_id = any (cast($1 as text[]))",
    "delete from envs where order_id = any (cast($1 as text[]))",
    "delete from runs where order_id = any (cast($1 as text[]))",
)
REMOVE_ANSWERS: Final = "delete from idempotency where order_id = any (cast($1 as text[]))"
REMOVE_EVENTS: Final = "delete from events where subject = any (cast($1 as text[])) and kind <> 'order.purged'"
REMOVE_LOGS: Final = "delete from logs where run_id = any (cast($1 as text[]))"
REMOVE_REPORTS: Final = "delete from reports where run_id = any (cast($1 as text[]))"

# oldest: the next $2 orders after $1, oldest first
OLDEST: Final = """
select s.seq, o.id, o.submitted_at, o.ended_at from specs s join orders o on o.id = s.order_id
where s.seq > $1 order by s.seq limit $2
"""
# oldest events: the first $1 events, but never the last one of all
OLDEST_EVENTS: Final = """
select seq, at from events where seq < (select max(seq) from events) order by seq limit $1
"""
ADD_KEY: Final = """
insert into keys (name, hash, created_at, last4) values ($1, $2, $3, $4) on conflict (name) do nothing returning name
"""
REMOVE_KEY: Final = "delete from keys where name = $1 and (select count(*) from keys) > 1 returning name"
PRUNE_IDEMPOTENCY: Final = """
delete from idempotency where (project, key) in
    (select project, key from idempotency where at < $1 order by at limit $2)
returning key
"""
_END_COUNTS: Final = """
    r.ended_at is null and (r.begun_at is null or excluded.exit_code is not null or excluded.error_name is not null)
"""
"""The first end does; a run that began is not given back by a question that comes late."""
PUT_REPORT: Final = """
insert into reports as r (run_id, boot, begun_at, heartbeat_at, progress, text, ended_at, exit_code, error_name, error,
    retryable, result)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (run_id) do update set begun_at = coalesce(r.begun_at, excluded.begun_at),
    heartbeat_at = case when excluded.heartbeat_at > r.heartbeat_at then excluded.heartbeat_at else r.heartbeat_at end,
    progress = coalesce(excluded.progress, r.progress), text = coalesce(excluded.text, r.text),
    ended_at = case when {counts} then excluded.ended_at else r.ended_at end,
    exit_code = case when {counts} then excluded.exit_code else r.exit_code end,
    error_name = case when {counts} then excluded.error_name else r.error_name end,
    error = case when {counts} then excluded.error else r.error end,
    retryable = case when {counts} then excluded.retryable else r.retryable end,
    result = case when {counts} then excluded.result else r.result end
returning *
""".replace("{counts}", _END_COUNTS)
PUT_READING: Final = """
insert into readings (host, at, body) values ($1, $2, $3)
on conflict (host) do update set at = excluded.at, body = excluded.body
"""
PUT_IMAGE: Final = """
insert into images (host, image, at, present, pulling_since, progress, error) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (host, image) do update set at = excluded.at, present = excluded.present,
    pulling_since = excluded.pulling_since, progress = excluded.progress, error = excluded.error
"""


class Sweeps(Reads):
    """What a store writes beside its changes."""

    purged: str
    """The text of the events that stay, which differs between the engines."""

    @abstractmethod
    async def transact(self, *steps: Step, as_writer: bool = False) -> Sequence[Row]:
        """Run the steps in one transaction, `as_writer` when it appends events; the rows of the first one."""

    @abstractmethod
    async def transact_logs(self, *steps: Step) -> None:
        """The same where the logs are."""

    async def purge(self, changes: Sequence[Change]) -> Sequence[Verdict]:
        verdicts: list[Verdict] = []
        for start in range(0, len(changes), PURGE_BATCH):
            batch = changes[start : start + PURGE_BATCH]
            ids = [change.subject for change in batch]
            await self._remove_logs(ids)
            removals = [*REMOVE_ORDERS, REMOVE_ANSWERS, REMOVE_EVENTS]
            events = encode([_event(change) for change in batch]).decode()
            found = await self.transact((self.purged, events), *((text, ids) for text in removals), as_writer=True)
            seqs = {row[0]: row[1] for row in found}
            verdicts += [
                Verdict(Answer.SAVED, seqs[order]) if order in seqs else Verdict(Answer.CONFLICT) for order in ids
            ]
        self.hints.tell(Heard(frozenset()))
        return verdicts

    async def prune_orders(self, before: int, after: int, most: int) -> tuple[int, int | None]:
        found = await self.fetch(OLDEST, after, most)
        ids = [row[1] for row in found if row[3] is not None and row[3] < before]
        if ids:
            await self._remove_logs(ids)
            count = ("update meta set orders_pruned = orders_pruned + $1", len(ids))
            await self.transact(*((text, ids) for text in REMOVE_ORDERS), count)
        # Nothing that was submitted later can have ended before.
        done = len(found) < most or found[-1][2] >= before
        return len(ids), None if done else found[-1][0]

    async def prune_events(self, before: int, most: int) -> int:
        found = await self.fetch(OLDEST_EVENTS, most)
        old = [row[0] for row in takewhile(lambda row: row[1] < before, found)]
        if old:
            note = "update meta set pruned_to = $1, events_pruned = events_pruned + $2 where pruned_to < $1"
            await self.transact(("delete from events where seq <= $1", old[-1]), (note, old[-1], len(old)))
        return len(old)

    async def _remove_logs(self, order_ids: Sequence[str]) -> None:
        """First of all: killed after it, the orders are still there to be removed again."""
        numbers = await self.fetch(ENDED_NUMBERS, list(order_ids))
        if numbers:
            runs = [f"{order_id}-{number}" for order_id, number in numbers]
            await self.remove_logs(runs)
            await self.transact((REMOVE_REPORTS, runs))

    async def remove_logs(self, run_ids: Sequence[str]) -> None:
        await self.transact_logs((REMOVE_LOGS, list(run_ids)))

    async def put_report(self, report: Report, *, news: bool) -> Report:
        (kept,) = await self.transact((PUT_REPORT, *astuple(report)), *(self.telling(report) if news else ()))
        if news:
            self.hints.tell(Heard(frozenset(), reported=frozenset({report.run_id})))
        return rows.value(Report, kept)

    def telling(self, report: Report) -> Sequence[Step]:
        """What tells other instances of a report; nothing where there are none."""
        return ()

    async def put_reading(self, host: str, at: int, body: str) -> None:
        await self.transact((PUT_READING, host, at, body))

    async def put_image(self, state: ImageState) -> None:
        await self.transact((PUT_IMAGE, *astuple(state)))

    async def add_key(self, key: Key) -> bool:
        return bool(await self.transact((ADD_KEY, *astuple(key))))

    async def remove_key(self, name: str) -> bool:
        return bool(await self.transact((REMOVE_KEY, name), as_writer=True))

    async def prune_idempotency(self, before: int, most: int) -> int:
        return len(await self.transact((PRUNE_IDEMPOTENCY, before, most)))


def _event(change: Change) -> dict[str, str | int]:
    return {
        "at": change.at,
        "kind": change.kind,
        "subject": change.subject,
        "trigger": change.trigger,
        "actor": change.actor,
        "data": encode({"order": None, "note": change.note}).decode(),
        "change": change.id,
    }
