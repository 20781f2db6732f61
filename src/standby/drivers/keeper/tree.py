"""Which processes belong to a run, also those that left its session.

A run's process is known by any of: session or process group of its main process, the nonce in its environment, its
output going to the run's files, its control group, or being a descendant of one that is known.

Looking through all of /proc for every ended run would cost more than the run. It is not needed: we are a subreaper, so
whatever outlives its parent in a run that we spawned becomes our own child, before the main process shows as ended.
So if none of our children is an orphan that could be this run's, nothing of it is left. Only runs of an earlier keeper
process (whose orphans went to init), runs with such an orphan, and stops need the full look.
"""

import os
import signal

from standby.drivers.keeper import kernel
from standby.drivers.keeper.journal import Run
from standby.drivers.keeper.kernel import Proc

NONCE = "STANDBY_NONCE"


class Tree:
    """Looks for the processes of runs."""

    def __init__(self, directory: str, runs: dict[str, Run]) -> None:
        self._prefix = f"{directory}/runs/"
        self._runs = runs
        self._orphans: dict[int, tuple[str | None, int]] = {}
        """Pid of an orphan -> (run id if known, start). Only our reaping frees its pid, so the key cannot be reused."""

    def take_orphans(self, leaders: set[int]) -> None:
        """Reap ended orphans and note the live ones, after all ends that are to be judged have been seen."""
        reaped = True
        while reaped:  # an orphan that ends hands its own children to us: look again until none has
            reaped = False
            found = [pid for pid in kernel.children() if pid not in leaders]
            for pid in found:
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None:
                    self._orphans.pop(pid, None)
                    reaped = True
        for pid in found:
            if self._orphans.get(pid, (None, 0))[0] is None:
                proc = kernel.read_proc(pid)
                if proc is not None:
                    self._orphans[pid] = (self._owner(proc), proc.start)

    def has_orphans(self, run: Run) -> bool:
        """Whether a live orphan is this run's, or could be its and no other live run's."""
        return any(self._could_be(run, owner, start) for owner, start in self._orphans.values())

    def members(self, run: Run) -> list[Proc]:
        """All live processes of the run, by a full look."""
        procs = kernel.all_procs()
        procs.pop(os.getpid(), None)
        own = {pid for pid, proc in procs.items() if proc.start >= run.start and self._belongs(run, proc)}
        own |= {pid for pid, (owner, start) in self._orphans.items() if self._could_be(run, owner, start)}
        own |= set(kernel.cgroup_pids(run.cgroup))
        grown = True
        while grown:
            more = {pid for pid, proc in procs.items() if proc.ppid in own and pid not in own}
            own |= more
            grown = bool(more)
        return [procs[pid] for pid in own if pid in procs and procs[pid].alive]

    def marked(self, run: Run | None = None) -> list[Proc]:
        """Live processes that carry the run's marks; without a run, those that carry any mark of this directory."""
        return [proc for proc in kernel.all_procs().values() if proc.alive and self._carries(run, proc)]

    def someone_is_in_exec(self) -> bool:
        """A process between two programs has no environment for a moment, so its marks cannot be seen."""
        procs = kernel.all_procs().values()
        return any(p.alive and not p.kernel_thread and kernel.environ_of(p.pid) == b"" for p in procs if p.pid == p.sid)

    def _could_be(self, run: Run, owner: str | None, start: int) -> bool:
        """An orphan without any mark (it left the session and cleared its environment) is ended with the last run that
        was alive when it began: sooner could hit another run's daemon."""
        if owner is not None or start < run.start or not run.sure:
            return owner == run.id
        return not any(r.ours and r.exit is None and r.start <= start for r in self._runs.values())

    def _owner(self, proc: Proc) -> str | None:
        for run in self._runs.values():
            if run.sure and run.pid in (proc.sid, proc.pgrp):
                return run.id
        text = _marks(proc.pid)
        return next((run.id for run in self._runs.values() if not run.gone and run.nonce in text), None)

    def _belongs(self, run: Run, proc: Proc) -> bool:
        return (run.sure and run.pid in (proc.sid, proc.pgrp)) or self._carries(run, proc)

    def _carries(self, run: Run | None, proc: Proc) -> bool:
        if proc.kernel_thread or proc.pid == os.getpid():
            return False
        text = _marks(proc.pid)
        if run is None:
            return self._prefix in text
        return run.nonce in text or f"{self._prefix}{run.id}/" in text


def _marks(pid: int) -> str:
    env = kernel.environ_of(pid) or b""
    ours = [var for var in env.split(b"\0") if var.startswith((NONCE.encode(), b"STANDBY_PAYLOAD_FILE"))]
    return "\n".join([os.fsdecode(var) for var in ours] + [f"{link}/" for link in kernel.links_of(pid)])


def end(run: Run, members: list[Proc]) -> None:
    """SIGKILL to all of them."""
    kernel.cgroup_kill(run.cgroup)
    for proc in members:
        kernel.send(proc, signal.SIGKILL)


def ask(run: Run, members: list[Proc]) -> None:
    """SIGTERM once to each of them, however often it is asked: a second one often means "quit now"."""
    for proc in members:
        if (proc.pid, proc.start) not in run.asked:
            run.asked.add((proc.pid, proc.start))
            kernel.send(proc, signal.SIGTERM)
