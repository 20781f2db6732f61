"""What a server may ask of the keeper, and what is refused."""

import os
import re
import resource
import secrets
from collections.abc import Callable, Sequence
from functools import cached_property

from standby.drivers.keeper import kernel, log, tree
from standby.drivers.keeper.journal import HORIZON_S, Journal, Record, Run
from standby.drivers.keeper.memory import Memory
from standby.drivers.keeper.places import Places
from standby.drivers.keeper.spawn import CannotStart, spawn
from standby.drivers.keeper.tree import Tree

_RUN_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", re.ASCII)
_FDS_KEPT_FREE = 64


class Refusal(Exception):
    """Understood and not done; it will have no effect."""


class Commands:
    """Each verb once, as one step: the keeper does nothing else meanwhile, so a later look shows its whole effect."""

    def __init__(self, directory: str, journal: Journal, tree_: Tree, watch: Callable[[Run], None]) -> None:
        self._directory = directory
        self._home_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        self._journal = journal
        self._places = Places()
        self._tree = tree_
        self._watch = watch
        self.live = 0
        self._live_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _FDS_KEPT_FREE

    @cached_property
    def memory(self) -> Memory:
        """The memory groups of our runs."""
        return Memory(f"standby-{self._journal.state.id}")

    def start(self, ask: Record) -> Record:
        """Spawn the run unless its id was ever seen; then tell what became of the first."""
        state = self._journal.state
        run_id: str = ask["run_id"]
        self._fence(ask["epoch"])
        run = state.runs.get(run_id)
        if run is None:
            self._admit(run_id, ask)
            run = self._begin(run_id, ask)
        return self.describe(run)

    def stop(self, ask: Record) -> Record:
        """Signal the whole tree of the run; absence is success."""
        self._fence(ask["epoch"])
        if ask["epoch"] > self._journal.state.epoch:
            self._journal.write({"k": "epoch", "e": ask["epoch"]})
        run = self._journal.state.runs.get(ask["run_id"])
        if run is None or run.gone:
            return {}
        members = self._tree.members(run)
        if ask["force"]:
            run.forced = True
            tree.end(run, members)
        else:
            tree.ask(run, members)
        return {}

    def list(self, ask: Record) -> Record:
        """The state of the named runs; an id that is missing in the answer was never seen."""
        state = self._journal.state
        return {
            "runs": [self.describe(state.runs[run_id]) for run_id in ask["run_ids"] if run_id in state.runs],
            "forgotten": [run_id for run_id in ask["run_ids"] if run_id in state.forgotten],
        }

    def all(self, ask: Record) -> Record:
        """Ids of all runs that are kept."""
        return {"run_ids": list(self._journal.state.runs)}

    def forget(self, ask: Record) -> Record:
        """Drop ended runs and clear their directories away. Live ones stay."""
        runs = self._journal.state.runs
        known = [runs[run_id] for run_id in ask["run_ids"] if run_id in runs]
        over = [run for run in known if run.gone]
        if over:
            self._journal.write({"k": "forget", "r": [run.id for run in over], "t": kernel.boottime()})
            for run in over:
                self._places.clear(run.id)
        return {"live": [run.id for run in known if not run.gone]}

    def describe(self, run: Run) -> Record:
        """One run in the words of the protocol."""
        handle = f"{run.pid}:{run.start}:{self._journal.boot}" if run.pid else None
        return {"run_id": run.id, "over": run.gone, "handle": handle, "exit": run.exit if run.gone else None}

    def _fence(self, epoch: int) -> None:
        highest = self._journal.state.epoch
        if epoch < highest:
            raise Refusal(f"epoch {epoch} is not the newest leader's ({highest})")

    def _admit(self, run_id: str, ask: Record) -> None:
        now = kernel.boottime()
        if _RUN_ID.fullmatch(run_id) is None:
            raise Refusal(f"{run_id!r} cannot be a run's id")
        if run_id in self._journal.state.forgotten:
            raise Refusal(f"run {run_id} is over and was forgotten")
        if now > ask["until"]:
            raise Refusal(f"the start came {now - ask['until']:.3f} s too late")
        if ask["until"] > now + HORIZON_S + 1:
            raise Refusal(f"a start may be valid for {HORIZON_S:.0f} s at most")
        disk = os.statvfs(".")
        free_mb = disk.f_bavail * disk.f_frsize >> 20
        if free_mb < ask["disk_reserve_mb"]:
            raise Refusal(f"only {free_mb} MB of disk are free, {ask['disk_reserve_mb']} MB are reserved: try later")
        if self.live >= self._live_max:
            raise Refusal(f"{self.live} runs are alive, more would need more open files: try later")

    def _begin(self, run_id: str, ask: Record) -> Run:
        home = self._cgroups if ask["cgroups"] else None
        cgroup = None if home is None else f"{home}/{run_id}"
        nonce, most = secrets.token_hex(16), ask.get("memory_mb")
        record = {"k": "run", "r": run_id, "n": nonce, "e": ask["epoch"], "cg": cgroup}
        try:  # the intent is in the journal before anything is spawned, so that it is never spawned twice
            self._journal.write(record if most is None else {**record, "m": most})
        except OSError as error:
            raise Refusal(f"the keeper's journal cannot be written: {error.strerror}") from error
        run = self._journal.state.runs[run_id]
        groups = self._groups(run)
        try:
            with kernel.inside(groups):
                run.pid = spawn(self._directory, self._home_fd, self._places, run, ask)
        except CannotStart as error:
            for group in groups:
                kernel.cgroup_remove(group)
            run.exit = {"start_error": str(error), **({} if error.again else {"retryable": False})}
            self._note_over(run)
            return run
        run.ours, run.sure = True, True
        self._watch(run)
        return run

    def _groups(self, run: Run) -> Sequence[str]:
        """Make the control groups that the run lives in."""
        if not kernel.cgroup_make(run.cgroup):
            run.cgroup = None
        memory = None if run.memory_mb is None else self.memory.make(run.id, run.memory_mb)
        return list(dict.fromkeys(group for group in (run.cgroup, memory) if group is not None))

    def _note_over(self, run: Run) -> None:
        try:
            self._journal.write({"k": "gone", "r": run.id, "x": run.exit})
        except OSError as error:
            log.fault(f"journal: {error}")
            self._watch(run)

    @cached_property
    def _cgroups(self) -> str | None:
        """Where the control groups of our runs are; null when none can be made."""
        return kernel.make_cgroup_home(f"standby-{self._journal.state.id}")
