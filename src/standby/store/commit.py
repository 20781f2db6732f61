"""Group commit: changes that arrive while a transaction is under way share the next one.

A change is all its rows or none, and harms no other: the engine refuses it alone, a constraint error makes the batch be
replayed one by one, and after an unknown outcome the changes are looked up by their ids before anything is said or
repeated.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Protocol, cast

import structlog

from standby.core.model import Change
from standby.store.contract import SAVED, Answer, Heard, StoreDown, Verdict
from standby.store.entry import Entry, Prepared, entry
from standby.store.hot import MOVES, SUBMIT

MOST_CHANGES = 500
MOST_BYTES = 4_000_000
MANY = 64
"""Of so many submits one half is answered first: what it asks for next is written while the other half goes on."""

Outcome = Verdict | Exception

log = structlog.get_logger("standby.store")


class Violated(Exception):
    """The database refused a row of the batch; nothing of the batch was written."""


class Unsure(Exception):
    """It is not known whether the batch was committed."""


class Engine(Protocol):
    """What group commit needs of a database."""

    sends_ahead: bool
    """Whether a batch may be sent while the one before is under way: it is written behind it."""

    def prepare(self, batch: Sequence[Entry]) -> Prepared:
        """What `commit` makes of a batch before it sends it, for whoever has the time before its turn."""

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        """Write the batch in one transaction; all of it or nothing with `together`. Raises Violated or Unsure."""

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        """Change id -> seq of those that were committed, once no earlier attempt can be under way. Raises StoreDown."""


class Call:
    """One `save` that waits for the outcomes of its changes."""

    __slots__ = ("entries", "known", "left", "moves", "together", "whole")

    def __init__(self, entries: list[Entry], whole: "asyncio.Future[Sequence[Outcome]]", *, together: bool) -> None:
        self.entries, self.whole, self.together = entries, whole, together
        self.moves = not together and not [one for one in entries if one.hot not in MOVES or one.asked_in is not None]
        """Whether it is only a leader's own moves of orders that are there, which tell nobody anything."""
        self.left = entries
        """What is still to be written."""
        self.known: dict[int, Outcome] = {}
        """Where only a part was written at a time: entry -> its outcome."""

    def answer(self, written: Sequence[Entry], outcomes: Sequence[Outcome]) -> None:
        """Note what became of some of its changes; the last ones wake the caller."""
        if len(written) < len(self.entries):
            self.known.update(zip(map(id, written), outcomes, strict=True))
            if len(self.known) < len(self.entries):
                return
            outcomes = [self.known[id(one)] for one in self.entries]
        if not self.whole.done():
            self.whole.set_result(outcomes)


Part = tuple[Call, Sequence[Entry]]
"""What is written of a call."""
Answered = tuple[Call, Sequence[Entry], Sequence[Outcome]]


def next_batch(waiting: deque[Call]) -> list[Part]:
    """Take what fits into one transaction; a change that touches a row of an earlier one stays, in its place. Only a
    claim may follow the end that lets its slot go, and the submit of its order: claims are written after both."""
    if waiting and (waiting[0].together or (len(waiting) == 1 and _apart(waiting[0]))):
        call = waiting.popleft()
        return [(call, call.left)]
    batch: list[Part] = []
    stay: list[Call] = []
    changes = later = size = 0
    taken: set[str] = set()
    let_go: set[str] = set()
    submitted: set[str | None] = set()
    while waiting and changes < MOST_CHANGES and later < MOST_CHANGES and size < MOST_BYTES:
        if waiting[0].together or (changes and changes + len(waiting[0].left) > MOST_CHANGES):
            break  # what was decided together is not torn apart: an end and the claim of its slot cost less in one
        call = waiting.popleft()
        fits: list[Entry] = []
        stays: list[Entry] = []
        for one in call.left:
            writes, claims = one.writes, one.claims
            if claims is not None and claims in let_go:
                taken.discard(claims)
            if submitted and one.hot is not SUBMIT and (order := one.claimed) in submitted:
                taken.discard(order or "")
            room = changes < MOST_CHANGES and size < MOST_BYTES
            if room and taken.isdisjoint(writes) and taken.isdisjoint(one.relies_on):
                fits.append(one)
                changes += 1
                size += one.size
                if claims is not None:
                    let_go.discard(claims)
                if one.lets_go is not None:
                    let_go.add(one.lets_go)
                if one.hot is SUBMIT:
                    submitted.add(writes[0])
            else:
                stays.append(one)
                let_go.difference_update(writes)
            taken.update(writes)
        if fits:
            batch.append((call, fits))
        if stays:
            call.left = stays
            stay.append(call)
            later += len(stays)
    waiting.extendleft(reversed(stay))
    return batch


def _apart(call: Call) -> bool:
    """Whether it is a leader's moves alone, which fit and touch different rows, but for the slots they hand over: as a
    rule they do, and it is told in a fifth of the time that a look at each of them takes."""
    if not call.moves or len(call.left) > MOST_CHANGES or sum([one.size for one in call.left]) > MOST_BYTES:
        return False
    keys = list(chain.from_iterable([one.writes for one in call.left]))
    claimed = {slot for one in call.left if (slot := one.claims) is not None}
    handed = claimed.intersection([one.lets_go for one in call.left])
    return len(keys) == len(set(keys)) + len(handed)


class GroupCommit:
    """The one writer of a store in this process."""

    def __init__(
        self,
        engine: Engine,
        committed: Callable[[Heard], None],
        *,
        inline: bool = False,
    ) -> None:
        self._engine = engine
        self._committed = committed
        self._inline = inline
        self._waiting: deque[Call] = deque()
        self._next: tuple[list[Part], Prepared | None] | None = None
        """The batch whose turn is next, made ready while another one is under way."""
        self._sent: asyncio.Task[Sequence[Outcome]] | None = None
        """Its outcomes, where it was sent already."""
        self._preparing = False
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    async def save(self, changes: Sequence[Change], *, together: bool = False) -> Sequence[Verdict]:
        """One verdict for each change, in order; StoreDown when that of any is unknown."""
        if self._closed:
            raise StoreDown("the store is closed")
        if not changes:
            return []
        entries = [entry(change) for change in changes]
        call = Call(entries, asyncio.get_running_loop().create_future(), together=together)
        if together:
            if len({key for one in entries for key in one.writes}) < sum(len(one.writes) for one in entries):
                raise ValueError("changes that are saved together must not touch the same rows")
        elif not call.moves and any(one.hot is None and one.of_schedule for one in entries):
            raise ValueError("a schedule is saved together with what goes with it")
        self._waiting.append(call)
        if self._inline:
            await self._write_all()
        elif self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="store writer")
        elif call.moves and not self._preparing:
            self._preparing = True
            asyncio.get_running_loop().call_soon(self._prepare)
        return _verdicts(await call.whole)

    async def close(self) -> None:
        """Write what waits and take nothing more."""
        self._closed = True
        if self._writer is not None:
            await self._writer

    def _prepare(self) -> None:
        """Make the next batch ready, if many moves wait: in a drain the database would wait for it. Other changes are
        not many yet when the first ones wait."""
        self._preparing = False
        moves = all(call.moves for call in self._waiting)
        if self._next is None and moves and sum([len(call.left) for call in self._waiting]) >= MANY:
            batch = next_batch(self._waiting)
            entries = _entries(batch)
            try:
                self._next = batch, self._engine.prepare(entries)
            except Exception:  # noqa: BLE001  its turn tells why
                self._next = batch, None
            if self._engine.sends_ahead:
                self._sent = asyncio.create_task(self._settle(entries, self._next[1]), name="store writer ahead")

    async def _write_all(self) -> None:
        while self._next is not None or self._waiting:
            batch, prepared = self._next or (next_batch(self._waiting), None)
            sent, self._next, self._sent = self._sent, None, None
            entries = _entries(batch)
            try:
                if sent is not None:
                    asyncio.get_running_loop().call_soon(self._prepare)
                    outcomes: Sequence[Outcome] = await sent
                elif batch[0][0].together:
                    outcomes = await self._settle_together(entries)
                else:
                    outcomes = await self._settle(entries, prepared)
            except Exception as error:  # noqa: BLE001  whoever waits for these changes is told; the next ones go on
                outcomes = [error] * len(entries)
            if self._inline:
                self._hear(batch, outcomes)
            else:  # the next batch is sent before: answers, and giving a whole batch of rows back, take their time
                asyncio.get_running_loop().call_soon(self._hear, batch, outcomes)

    def _hear(self, batch: Sequence[Part], outcomes: Sequence[Outcome]) -> None:
        """Tell everybody what became of a batch."""
        first, later = _turns(batch, outcomes)
        _answer(first)
        if later:
            asyncio.get_running_loop().call_soon(_answer, later)
        if not all(call.moves for call, _ in batch):
            self._tell(_entries(batch), outcomes)
        elif any(isinstance(outcome, Verdict) and outcome.answer is SAVED for outcome in outcomes):
            self._committed(Heard(frozenset()))  # who follows events reads them now

    def _tell(self, entries: Sequence[Entry], outcomes: Sequence[Outcome]) -> None:
        saved = [
            one
            for one, outcome in zip(entries, outcomes, strict=True)
            if isinstance(outcome, Verdict) and outcome.answer is SAVED
        ]
        if saved:
            # most changes are a leader's own moves, which tell nobody anything
            telling = [one for one in saved if one.hot not in MOVES or one.asked_in is not None]
            added = [work for one in telling if (work := one.added) is not None]
            asked = frozenset([one.asked_in for one in telling if one.asked_in is not None and one.added is None])
            handed = frozenset([slot for one in telling if (slot := one.handed) is not None])
            self._committed(Heard(asked, added, handed))

    async def _settle(self, batch: Sequence[Entry], prepared: Prepared | None = None) -> Sequence[Outcome]:
        try:
            return await self._engine.commit(batch, prepared=prepared)
        except Violated as error:
            if len(batch) > 1:
                return [(await self._settle([one]))[0] for one in batch]
            log.warning("a change was refused by the database", change=batch[0].change.id, error=str(error))
            return [Verdict(Answer.CONFLICT)]
        except Unsure as error:
            log.warning("a commit of unknown outcome is looked up", changes=len(batch), error=str(error))
            return await self._look_up(batch)

    async def _settle_together(self, batch: Sequence[Entry]) -> Sequence[Outcome]:
        """All or nothing; an unknown outcome is looked up, and tried once more when nothing was found."""
        for last in (False, True):
            try:
                verdicts = await self._engine.commit(batch, together=True)
                if not last or verdicts[0].saved:
                    return verdicts
            except Violated:
                verdicts = [Verdict(Answer.CONFLICT)] * len(batch)
                if not last:
                    return verdicts
            except Unsure as error:
                verdicts = []
                if last:
                    return [StoreDown(f"the outcome is unknown: {error}")] * len(batch)
            found = await self._engine.find(batch)
            if found:
                return [Verdict(SAVED, found[one.change.id]) for one in batch]
        return verdicts

    async def _look_up(self, batch: Sequence[Entry]) -> Sequence[Outcome]:
        try:
            found = await self._engine.find(batch)
        except StoreDown as error:
            return [error] * len(batch)
        missing = [one for one in batch if one.change.id not in found]
        again = dict(zip((one.change.id for one in missing), await self._again(missing), strict=True))
        return [
            Verdict(SAVED, found[one.change.id]) if one.change.id in found else again[one.change.id] for one in batch
        ]

    async def _again(self, missing: Sequence[Entry]) -> Sequence[Outcome]:
        if not missing:
            return []
        try:
            verdicts = await self._engine.commit(missing)
        except Violated:
            return [(await self._settle_once(one)) for one in missing]
        except Unsure as error:
            return [StoreDown(f"the outcome is unknown: {error}")] * len(missing)
        refused = [one for one, verdict in zip(missing, verdicts, strict=True) if not verdict.saved]
        # The first attempt may have come through after it was looked for: then its own rows refuse the second one.
        try:
            late = await self._engine.find(refused) if refused else {}
        except StoreDown as error:
            return [verdict if verdict.saved else error for verdict in verdicts]
        return [
            Verdict(SAVED, late[one.change.id]) if one.change.id in late else verdict
            for one, verdict in zip(missing, verdicts, strict=True)
        ]

    async def _settle_once(self, one: Entry) -> Outcome:
        try:
            return (await self._engine.commit([one]))[0]
        except Violated:
            return Verdict(Answer.CONFLICT)
        except Unsure as error:
            return StoreDown(f"the outcome is unknown: {error}")


def _entries(batch: Sequence[Part]) -> list[Entry]:
    return [one for _, part in batch for one in part]


def _turns(batch: Sequence[Part], outcomes: Sequence[Outcome]) -> tuple[Sequence[Answered], Sequence[Answered]]:
    """Who hears first, and who a turn later: a claim that came with its order is on its way before anybody hears of the
    order."""
    answered: list[Answered] = []
    place = 0
    for call, part in batch:
        answered.append((call, part, outcomes[place : place + len(part)]))
        place += len(part)
    submits = [each for each in answered if each[1][0].hot is SUBMIT]
    if not submits:
        return answered, ()
    others = [each for each in answered if each[1][0].hot is not SUBMIT]
    if others:
        return others, submits
    first = len(submits) // 2 if len(submits) >= MANY else len(submits)
    return submits[:first], submits[first:]


def _answer(answers: Iterable[Answered]) -> None:
    for call, part, outcomes in answers:
        call.answer(part, outcomes)


def held_back(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """The verdicts of a group that was rolled back because some of it was refused."""
    return [Verdict(Answer.HELD_BACK) if verdict.saved else verdict for verdict in verdicts]


def _verdicts(outcomes: Sequence[Outcome]) -> Sequence[Verdict]:
    if type(outcomes[0]) is not Verdict or (len(outcomes) > 1 and set(map(type, outcomes)) != {Verdict}):
        raise next(outcome for outcome in outcomes if isinstance(outcome, Exception))
    return cast(Sequence[Verdict], outcomes)
