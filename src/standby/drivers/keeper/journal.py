"""The keeper's memory: an append-only file of JSON lines, and the state they fold to.

One write() a record and no fsync: what the kernel has taken survives the death of any process, and a power cut changes
the boot id, after which no run is alive anyway. Replay and live work use the same `State.apply`.
"""

import contextlib
import errno
import json
import os
import secrets
from typing import Any

from standby.drivers.keeper import kernel, log

VERSION = 1
HORIZON_S = 30.0
"""No start is accepted that is valid for longer: so long a forgotten run id has to be remembered."""
_COMPACT_BYTES = 1 << 20
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode

Record = dict[str, Any]


class Run:
    """One run. The first part is folded from the journal, the second is what this keeper process knows of it."""

    def __init__(self, run_id: str, nonce: str, cgroup: str | None, memory_mb: int | None = None) -> None:
        self.id, self.nonce, self.cgroup = run_id, nonce, cgroup
        self.memory_mb = memory_mb
        """What it was to be held to, if anything."""
        self.pid, self.start = 0, 0
        self.exit: Record | None = None
        """How its main process ended."""
        self.gone = False
        """Its whole tree is gone."""
        self.fd = -1
        self.ours = False
        """Its main process is a child of this keeper process, and not reaped."""
        self.sure = False
        """This keeper process has held its pid while it lived, so nobody else can have got it since."""
        self.asked: set[tuple[int, int]] = set()
        """Processes (pid, start) that got their SIGTERM."""
        self.forced = False
        self.usage: Record = {}


class State:
    """What the journal says."""

    def __init__(self) -> None:
        self.id = ""
        self.boot = ""
        self.epoch = 0
        self.runs: dict[str, Run] = {}
        self.forgotten: dict[str, float] = {}

    def apply(self, record: Record) -> None:
        """Fold in one record."""
        match record["k"]:
            case "head":
                if record["v"] != VERSION:
                    raise ValueError("a journal of another version")
                self.id, self.boot, self.epoch = record["id"], record["boot"], record["e"]
            case "epoch":
                self.epoch = max(self.epoch, record["e"])
            case "run":
                self.runs[record["r"]] = Run(record["r"], record["n"], record["cg"], record.get("m"))
                self.epoch = max(self.epoch, record["e"])
            case "up":
                run = self.runs[record["r"]]
                run.pid, run.start = record["pid"], record["st"]
            case "end":
                self.runs[record["r"]].exit = record["x"]
            case "gone":
                run = self.runs[record["r"]]
                run.exit, run.gone = record["x"], True
            case "forget":
                for run_id in record["r"]:
                    self.runs.pop(run_id, None)
                    self.forgotten[run_id] = record["t"]
            case other:
                raise ValueError(f"unknown record {other}")

    def records(self) -> list[Record]:
        """The shortest journal that folds to this state."""
        out: list[Record] = [{"k": "head", "v": VERSION, "id": self.id, "boot": self.boot, "e": self.epoch}]
        for run in self.runs.values():
            memory = {} if run.memory_mb is None else {"m": run.memory_mb}
            out.append({"k": "run", "r": run.id, "n": run.nonce, "e": 0, "cg": run.cgroup, **memory})
            if run.pid:
                out.append({"k": "up", "r": run.id, "pid": run.pid, "st": run.start})
            if run.exit is not None:
                out.append({"k": "gone" if run.gone else "end", "r": run.id, "x": run.exit})
        out += [{"k": "forget", "r": [run_id], "t": at} for run_id, at in self.forgotten.items()]
        return out

    def drop_old_forgotten(self, now: float) -> None:
        """A start of a forgotten run that could still arrive is late by now."""
        self.forgotten = {run_id: at for run_id, at in self.forgotten.items() if now - at <= HORIZON_S}


class Journal:
    """The file `journal` in the current directory and its state; a record is in the file before it is in the state."""

    def __init__(self, boot: str) -> None:
        state, self._size = _replay()
        self.is_new = state is None
        """There was none, or it cannot be trusted: this keeper is another one than before, and knows nothing."""
        self.state = state or State()
        self.state.id = self.state.id or secrets.token_hex(8)
        self.rebooted = not self.is_new and self.state.boot != boot
        self.boot = boot
        if self.state.boot != boot:
            self.state.forgotten = {}
        self._fd = -1
        self._torn = True
        """There may be part of a record behind `_size`."""
        self._compact_at = _COMPACT_BYTES

    def begin(self) -> None:
        """Write the file anew and go on appending to it; on a full disk to the old one, if that says the same."""
        self.state.boot = self.boot
        try:
            self._compact()
            os.close(_replace("keeper.id", (self.state.id + "\n").encode()))
        except OSError as error:
            if self.is_new or self.rebooted:
                raise
            log.fault(f"journal: {error}")
        if self._fd < 0:
            self._fd = os.open("journal", os.O_WRONLY | os.O_APPEND)

    def write(self, record: Record) -> None:
        """Append and fold in; raises OSError when it could not be written, then nothing has changed."""
        line = (_encode(record) + "\n").encode()
        if self._torn:
            os.ftruncate(self._fd, self._size)
        self._torn = True
        if os.write(self._fd, line) != len(line):
            raise OSError(errno.ENOSPC, "no space left for the journal")
        self._torn = False
        self._size += len(line)
        self.state.apply(record)

    def tidy(self) -> None:
        """Compact when it has grown large; on a full disk the old file stays in use."""
        if self._size > self._compact_at:
            try:
                self._compact()
            except OSError:
                self._compact_at = 2 * self._size

    def _compact(self) -> None:
        self.state.drop_old_forgotten(kernel.boottime())
        data = "".join(_encode(record) + "\n" for record in self.state.records()).encode()
        fd = _replace("journal", data)
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._torn = fd, len(data), False
        self._compact_at = max(_COMPACT_BYTES, 4 * len(data))


def _replay() -> tuple[State | None, int]:
    """The state of the journal in the current directory, null when there is none or it is damaged in its middle, and
    how many bytes tell it."""
    try:
        data = kernel.read_bytes("journal")
    except FileNotFoundError:
        return None, 0
    whole = data[: data.rfind(b"\n") + 1]  # a keeper killed while writing leaves a torn last line
    state = State()
    try:
        for line in whole.split(b"\n")[:-1]:
            state.apply(json.loads(line))
    except (ValueError, KeyError, TypeError):
        return None, 0
    return (state if state.id else None), len(whole)


def _replace(name: str, data: bytes) -> int:
    """Put the file there in one step and return it open for appending."""
    temporary = f"{name}.new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        os.rename(temporary, name)
    except OSError:
        os.close(fd)
        with contextlib.suppress(OSError):  # half of it would only take the room that is missing
            os.unlink(temporary)
        raise
    return fd
