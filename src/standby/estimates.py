"""What estimates are made of, and how right they were: remembered by whoever answers, read anew after a restart."""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from standby.core.crowd import End
from standby.core.estimate import Wait
from standby.core.outlook import Took
from standby.core.telling import Ran, by_label
from standby.store.contract import Store

REMEMBERED: Final = 500
"""Runs of each pool."""
FIRST_LOOK: Final = 10_000
"""So many events are looked through after a start."""
LOOK: Final = 5_000
"""The same for each later look: what is older was too much to be read, and is left out."""
GIVEN: Final = 10_000
"""Estimates whose order has not started; beyond that the oldest are not measured."""
SLACK_MS: Final = 1_000
"""By so much nobody minds that the range was missed: a step takes its time, too."""


class Error(Struct, frozen=True):
    """What came of one estimate."""

    off_ms: int
    """How much longer the wait was than estimated; negative when it was shorter."""
    held: bool
    """It was within the range."""


class Record(Struct, frozen=True):
    """How right the last estimates of a pool were, since this server started."""

    started: int
    off_ms: int
    """The median of how far off they were."""
    held: float
    """The share of them whose range held."""


class _Pool:
    def __init__(self) -> None:
        self.runs: deque[Ran] = deque(maxlen=REMEMBERED)
        self.starts: deque[int] = deque(maxlen=REMEMBERED)
        self.makes: deque[int] = deque(maxlen=REMEMBERED)
        self.ends: deque[End] = deque(maxlen=REMEMBERED)

    def took(self) -> Took:
        """What is remembered."""
        runs = [length for length, _ in self.runs]
        return Took(runs, list(self.starts), list(self.makes), list(self.ends), by_label(self.runs))


class Estimates:
    """Nothing here is missed by a restart: lengths are read again, and errors are counted from then on."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}
        self._took: dict[str, Took] = {}
        self._after: int | None = None
        self._given: OrderedDict[str, tuple[int, Wait]] = OrderedDict()
        self._errors: dict[str, deque[Error]] = {}

    async def took(self, store: Store) -> Mapping[str, Took]:
        """What runs, starts and slots took in each pool, up to now."""
        last = await store.last_seq()
        after = max(0, last - FIRST_LOOK) if self._after is None else max(self._after, last - LOOK)
        found = await store.lengths(after, last) if after < last else ()
        for each in found:
            pool = self._pools.setdefault(each.pool, _Pool())
            if each.start_ms is not None:
                pool.starts.append(each.start_ms)
            if each.made:
                pool.makes.append(each.length_ms)
            else:
                pool.runs.append((each.length_ms, each.labels))
            if each.project is not None:
                pool.ends.append((each.at, each.project))
        self._after = max(after, last)
        self._took = {**self._took, **{name: self._pools[name].took() for name in {each.pool for each in found}}}
        return self._took

    def give(self, order_id: str, at: int, wait: Wait) -> None:
        """Remember what was said of an order when it was taken in."""
        self._given[order_id] = (at, wait)
        if len(self._given) > GIVEN:
            self._given.popitem(last=False)

    def settle(self, order_id: str, pool: str, at: int) -> Error | None:
        """Its first run was claimed: how wrong was the estimate? Null where none was given here."""
        given = self._given.pop(order_id, None)
        if given is None:
            return None
        submitted_at, wait = given
        waited = at - submitted_at
        error = Error(waited - wait.usual_ms, wait.low_ms - SLACK_MS <= waited <= wait.high_ms + SLACK_MS)
        self._errors.setdefault(pool, deque(maxlen=REMEMBERED)).append(error)
        return error

    def forget(self, order_id: str) -> None:
        """It ended, perhaps without a start."""
        self._given.pop(order_id, None)

    def record(self, pool: str) -> Record | None:
        """How right the last estimates of a pool were; null before the first."""
        errors = self._errors.get(pool)
        if not errors:
            return None
        off = sorted(abs(each.off_ms) for each in errors)
        return Record(len(errors), off[len(off) // 2], sum(each.held for each in errors) / len(errors))
