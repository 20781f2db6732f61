"""Carries the output of runs from the platform into the store, and lets it forget what is stored to its end."""

from collections.abc import Sequence

import msgspec

from standby.drivers.contract import LogPiece, Logs
from standby.store.contract import LogChunk, LogTail, OrderFilter, Store

BATCH = 200
"""Runs whose output is read in one go."""


class LogStep:
    """One host's log collector. A chunk that does not begin where the stored log ends (a rival's) is ignored."""

    def __init__(self, store: Store, driver: Logs, cap_bytes: int) -> None:
        self._store, self._driver, self._cap_bytes = store, driver, cap_bytes
        self._tails: dict[str, LogTail] = {}
        self._ended: set[str] = set()
        """Runs that were told to be rows of history."""
        self._silent: list[str] = []
        """Others that wrote nothing: their log is closed by the note of their end."""
        self._unsure: set[str] = set()
        """Runs that were closed a step ago, and whose end nobody had told of."""

    def ended(self, ends: Sequence[tuple[str, bool]]) -> None:
        """The ends of these runs are saved (and whether they were silent): the store need not be asked about them."""
        self._silent += [run for run, silent in ends if silent]
        self._ended.update([run for run, silent in ends if not silent])

    async def step(self) -> bool:
        """Store what is new. Returns whether there was any output, so that there may be more at once."""
        await self._forget_silent()
        kept = list(await self._driver.unstored())
        known = frozenset(kept)
        self._tails = {run: tail for run, tail in self._tails.items() if run in known}
        self._ended &= known
        unsure, self._unsure = self._unsure, set()
        moved = False
        for start in range(0, len(kept), BATCH):
            runs = kept[start : start + BATCH]
            moved = await self._carry(runs) or moved
            await self._forget([run for run in runs if self._tails[run].closed], unsure)
        return moved

    async def close(self) -> None:
        """Let the platform forget the runs that wrote nothing: whoever leads next cannot know, and would store that."""
        await self._forget_silent()

    async def _forget_silent(self) -> None:
        """Before anybody asks what is kept: there may be thousands of them. One of which something is stored already is
        carried to its end."""
        silent, self._silent = self._silent, []
        if self._tails:
            self._ended.update(run for run in silent if run in self._tails)
            silent = [run for run in silent if run not in self._tails]
        if silent:
            await self._driver.forget(silent)

    async def _carry(self, runs: list[str]) -> bool:
        for run in runs:
            # if more is stored of it, the first chunk is ignored and the store says how far it is
            self._tails.setdefault(run, LogTail(run_id=run, next_line=0, cursor="", closed=False))
        open_tails = [self._tails[run] for run in runs if not self._tails[run].closed]
        pieces = await self._driver.logs({tail.run_id: tail.cursor for tail in open_tails}) if open_tails else []
        chunks = [self._chunk(piece) for piece in pieces if piece.lines or piece.closed]
        if chunks:
            stored = await self._store.append_logs(chunks, self._cap_bytes)
            for chunk in chunks:
                # nothing is stored of it (any more): it begins again
                tail = LogTail(run_id=chunk.run_id, next_line=0, cursor="", closed=False)
                self._tails[chunk.run_id] = stored.get(chunk.run_id, tail)
        return any(chunk.count for chunk in chunks)

    def _chunk(self, piece: LogPiece) -> LogChunk:
        return LogChunk(
            run_id=piece.run_id,
            first=self._tails[piece.run_id].next_line,
            count=len(piece.lines),
            body=msgspec.json.encode(piece.lines).decode(),
            cursor=piece.cursor,
            closed=piece.closed,
            bytes=sum(len(line.text.encode()) + 1 for line in piece.lines),
        )

    async def _forget(self, runs: list[str], unsure: set[str]) -> None:
        """Only what the store itself says: the outcome is a row of history and the log is there to its end."""
        over = {run for run in runs if run in self._ended}
        untold = [run for run in runs if run not in over]
        self._unsure.update(untold)
        # most ends are told of in the moment after a log is closed; what is left was saved by another, or was purged
        asked = [run for run in untold if run in unsure]
        if asked:
            over |= await self._store.ended_runs(asked)
            orphans = await self._orphans([run for run in asked if run not in over])
            if orphans:
                await self._store.remove_logs(orphans)
                over.update(orphans)
        if over:
            await self._driver.forget(sorted(over))

    async def _orphans(self, runs: list[str]) -> list[str]:
        """Runs whose order was purged before all of their output was carried over."""
        if not runs:
            return []
        ids = sorted({run.rpartition("-")[0] for run in runs})
        page = await self._store.orders(OrderFilter(ids=ids), None, len(ids))
        known = {each.order.id for each in page.orders}
        return [run for run in runs if run.rpartition("-")[0] not in known]
