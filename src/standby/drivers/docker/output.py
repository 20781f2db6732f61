"""The output of containers, from where the last read ended: each line once, with its stream and time."""

import asyncio
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from standby.core.errors import Unreachable
from standby.drivers.contract import LogLine, LogPiece
from standby.drivers.docker import wrap
from standby.drivers.docker.engine import Engine, EngineRefused, Params, Unclear
from standby.drivers.docker.shape import Container

READ_MAX: Final = 256 << 10
LINE_MAX: Final = 64 << 10
OVERLAP_S: Final = 1
"""The engine writes two streams side by side: a line may stand after one of the other stream that is a bit younger."""
SETTLE_S: Final = 2.0
"""So long after its end the last words of a killed exec may still be on their way into the container's log."""
BEING_REMOVED: Final = 409
"""What is answered of a container that is being removed, or was when the engine died: nobody can read its output."""
STREAMS: Final = {1: "stdout", 2: "stderr"}
HEADER: Final = 8


class Mark(Struct, array_like=True):
    """How far one stream was read: the time of the last entry, and how many entries of exactly that time."""

    at: str = ""
    count: int = 0
    ended: bool = False
    """The line after a shared run's output was read."""


class Reader:
    """Turns what the engine sends into lines, without those before the cursor."""

    def __init__(self, cursor: str, run_id: str, *, shared: bool) -> None:
        kept = msgspec.json.decode(cursor, type=dict[str, Mark]) if cursor else {}
        self._kept = {stream: kept.get(name, Mark()) for stream, name in STREAMS.items()}
        self._read = {stream: Mark() for stream in STREAMS}
        self._half = dict.fromkeys(STREAMS, b"")
        self._data = b""
        self._begin, self._end = wrap.marked("begin", run_id), wrap.marked("end", run_id)
        self._begun = bool(cursor) or not shared

    @property
    def cursor(self) -> str:
        begun = self._begun and any(mark.at for mark in self._kept.values())
        return msgspec.json.encode({STREAMS[each]: mark for each, mark in self._kept.items()}).decode() if begun else ""

    @property
    def since(self) -> str:
        """The parameter for the engine: a bit before the last entry."""
        last = max(mark.at for mark in self._kept.values())
        return f"{_seconds(last) - OVERLAP_S}.{last[20:29]}" if last else "0"

    @property
    def ended(self) -> bool:
        """Both streams came to the line that ends the run's output."""
        return all(mark.ended for mark in self._kept.values())

    def feed(self, data: bytes) -> Iterator[LogLine]:
        """Whole lines among what came."""
        self._data += data
        while len(self._data) >= HEADER:
            size = int.from_bytes(self._data[4:HEADER], "big")
            if len(self._data) < HEADER + size:
                return
            stream, entry = self._data[0], self._data[HEADER : HEADER + size]
            self._data = self._data[HEADER + size :]
            if stream in STREAMS:
                yield from self._entry(stream, entry)

    def last(self) -> Iterator[LogLine]:
        """What stands without a newline at the very end."""
        for stream, half in self._half.items():
            if half:
                yield from self._line(stream, self._read[stream].at, half)

    def _entry(self, stream: int, entry: bytes) -> Iterator[LogLine]:
        stamp, _, text = entry.partition(b" ")
        at = stamp.decode(errors="replace")
        kept, read = self._kept[stream], self._read[stream]
        count = read.count + 1 if read.at == at else 1
        self._read[stream] = Mark(at, count, read.ended)
        if (at, count) <= (kept.at, kept.count):
            return
        whole = self._half[stream] + text
        if whole.endswith(b"\n") or len(whole) >= LINE_MAX:
            self._half[stream] = b""
            yield from self._line(stream, at, whole)
        else:
            self._half[stream] = whole

    def _line(self, stream: int, at: str, whole: bytes) -> Iterator[LogLine]:
        text = whole.removesuffix(b"\n").decode(errors="replace")
        said, over = text.removesuffix(self._end), self._kept[stream].ended
        ended = over or said != text
        self._kept[stream] = Mark(at, self._read[stream].count, ended)
        if text.endswith(self._begin):
            self._begun = True
        elif self._begun and not over and (said or not ended):  # what ends without a newline stands before the mark
            yield LogLine(at=_seconds(at) * 1000 + int(at[20:23]), stream=STREAMS[stream], text=said)


class Follower:
    """Keeps reading the output of one live run, as far as somebody takes it."""

    def __init__(self, engine: Engine, container: str, reader: Reader) -> None:
        self._engine, self._container, self._reader = engine, container, reader
        self.taken = reader.cursor
        """Where the last taking ended."""
        self._lines: list[LogLine] = []
        self._size = 0
        self._room = asyncio.Event()
        self._task = asyncio.create_task(self._read())

    @property
    def broken(self) -> bool:
        return self._task.done() and not self._lines

    def take(self) -> tuple[list[LogLine], str, bool]:
        """New lines, the cursor after them, and whether they are the last."""
        lines, self._lines, self._size = self._lines, [], 0
        self.taken = self._reader.cursor
        self._room.set()
        return lines, self.taken, self._reader.ended

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _read(self) -> None:
        params: Params = {"follow": 1, "stdout": 1, "stderr": 1, "timestamps": 1, "since": self._reader.since}
        try:
            async with self._engine.stream("GET", f"/containers/{self._container}/logs", params) as pieces:
                async for piece in pieces:
                    for line in self._reader.feed(piece):
                        self._lines.append(line)
                        self._size += len(line.text) + 1
                    if self._size >= READ_MAX:
                        self._room.clear()
                        await self._room.wait()
        except (Unreachable, EngineRefused):
            return  # the next read begins again where the last one ended


class Output:
    """Reads the output of runs: followed while they live, to the end when they are over."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._followers: dict[str, Follower] = {}
        self._over_since: dict[str, float] = {}

    async def read(self, run_id: str, place: Container, cursor: str, *, over: bool) -> LogPiece:
        """What is new since the cursor."""
        if over:
            await self.drop(run_id)
            return await self._finish(run_id, place, cursor)
        follower = self._followers.get(run_id)
        if follower is None or follower.broken or follower.taken != cursor:
            await self.drop(run_id)
            reader = Reader(cursor, run_id, shared=place.shared)
            follower = self._followers[run_id] = Follower(self._engine, place.id, reader)
        lines, cursor, ended = follower.take()
        return LogPiece(run_id=run_id, lines=lines, cursor=cursor, closed=place.shared and ended)

    async def drop(self, run_id: str) -> None:
        """Stop following."""
        follower = self._followers.pop(run_id, None)
        if follower is not None:
            await follower.close()

    async def close(self) -> None:
        for run_id in list(self._followers):
            await self.drop(run_id)

    async def _finish(self, run_id: str, place: Container, cursor: str) -> LogPiece:
        reader = Reader(cursor, run_id, shared=place.shared)
        lines: list[LogLine] = []
        size = 0
        params: Params = {"stdout": 1, "stderr": 1, "timestamps": 1, "since": reader.since}
        try:
            async with self._engine.stream("GET", f"/containers/{place.id}/logs", params) as pieces:
                async for piece in pieces:
                    for line in reader.feed(piece):
                        lines.append(line)
                        size += len(line.text) + 1
                    if size >= READ_MAX:
                        return LogPiece(run_id=run_id, lines=lines, cursor=reader.cursor, closed=False)
        except EngineRefused as refusal:
            if refusal.status == BEING_REMOVED:
                return LogPiece(run_id=run_id, lines=(), cursor=cursor, closed=True)
            raise Unclear(f"the output of {run_id} cannot be read: {refusal}") from refusal
        closed = not place.shared or reader.ended or self._settled(run_id)
        if closed:
            lines += reader.last()
            self._over_since.pop(run_id, None)
        return LogPiece(run_id=run_id, lines=lines, cursor=reader.cursor or cursor, closed=closed)

    def _settled(self, run_id: str) -> bool:
        return time.monotonic() - self._over_since.setdefault(run_id, time.monotonic()) > SETTLE_S


def _seconds(stamp: str) -> int:
    return int(datetime.fromisoformat(stamp[:19]).replace(tzinfo=UTC).timestamp())
