"""What a new keeper makes of its predecessor's journal: every run is watched, or over, or about to be."""

import os
import time

from standby.drivers.keeper import kernel, log, tree
from standby.drivers.keeper.journal import Journal, Record, Run
from standby.drivers.keeper.memory import Memory
from standby.drivers.keeper.places import discard
from standby.drivers.keeper.tree import Tree

_EXEC_S = 1.0
LOST: Record = {"lost": True}


def recover(journal: Journal, tree_: Tree) -> list[Run]:
    """Begin the journal and return the runs that are not over: to be watched, or ended but perhaps not their tree."""
    if journal.is_new:
        _end_strays(tree_)
        _put_aside()
    rebooted = journal.rebooted
    journal.begin()
    for name in os.listdir("runs"):
        if name not in journal.state.runs:
            discard(name)
    unsettled = [run for run in list(journal.state.runs.values()) if not run.gone]
    for run in unsettled:
        if rebooted:
            run.exit = run.exit or LOST
            _note(journal, {"k": "gone", "r": run.id, "x": run.exit})
        elif run.exit is None:
            _adopt(journal, tree_, run)
    return [run for run in unsettled if not run.gone]


def _adopt(journal: Journal, tree_: Tree, run: Run) -> None:
    """Hold the main process if it lives, else write down how it ended, as far as that can be known."""
    if not run.pid:
        _find_spawned(journal, tree_, run)
    fd = kernel.hold(run.pid, run.start) if run.pid else None
    if fd is None:
        run.exit = LOST
        _note(journal, {"k": "end", "r": run.id, "x": LOST})
        return
    run.fd, run.sure = fd, True  # if it is a zombie by now, the loop is told so at once


def _find_spawned(journal: Journal, tree_: Tree, run: Run) -> None:
    """The predecessor died between its intent and its note of the pid: the run may have begun or not."""
    until = time.monotonic() + _EXEC_S
    while True:
        leaders = [proc for proc in tree_.marked(run) if proc.pid == proc.sid]
        if leaders:
            first = min(leaders, key=lambda proc: proc.start)
            run.pid, run.start = first.pid, first.start
            _note(journal, {"k": "up", "r": run.id, "pid": first.pid, "st": first.start})
            return
        if time.monotonic() > until or not tree_.someone_is_in_exec():
            return
        time.sleep(0.005)


def _note(journal: Journal, record: Record) -> None:
    """Write it if that is possible. To leave instead would lose the ends of runs that are held by now."""
    try:
        journal.write(record)
    except OSError as error:
        log.fault(f"journal: {error}")


def _end_strays(tree_: Tree) -> None:
    """Without a journal nobody can name what still runs here, and we will say that it is absent: so it has to be."""
    name = _old_name()
    home = None if name is None else kernel.make_cgroup_home(name)
    groups = [entry.path for entry in os.scandir(home) if entry.is_dir()] if home else []
    while (strays := tree_.marked()) or any(kernel.cgroup_pids(group) for group in groups):
        for group in groups:
            kernel.cgroup_kill(group)
        tree.end(Run("", "", None), strays)
        time.sleep(0.005)
    for group in groups:
        kernel.cgroup_remove(group)
    kernel.cgroup_remove(home)
    if name is not None:
        Memory(name).remove_all()


def _old_name() -> str | None:
    """What the groups of the keeper before us are called, if there was one."""
    try:
        return f"standby-{kernel.read_bytes('keeper.id').decode().strip()}"
    except FileNotFoundError:
        return None


def _put_aside() -> None:
    if os.listdir("runs"):
        os.rename("runs", f"runs.lost-{time.time_ns()}")
        os.mkdir("runs", 0o700)
