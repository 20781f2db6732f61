"""Making one run: its directory, its files, its main process."""

import os
import signal

from standby.drivers.keeper import kernel
from standby.drivers.keeper.journal import Record, Run
from standby.drivers.keeper.places import Places
from standby.drivers.keeper.tree import NONCE

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_FILES = [
    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
    (os.POSIX_SPAWN_OPEN, 1, "../stdout", _APPEND, 0o600),
    (os.POSIX_SPAWN_OPEN, 2, "../stderr", _APPEND, 0o600),
]
_IGNORED_BY_PYTHON = [signal.SIGPIPE, signal.SIGXFSZ]


class CannotStart(Exception):
    """The run could not begin; the text is for the person who ordered it."""


def spawn(directory: str, home_fd: int, places: Places, run: Run, order: Record) -> int:
    """Make the run's directory and its main process, leader of a session of its own; returns its pid.

    posix_spawn uses vfork, whose child shares the keeper's lock until it runs its program: a next keeper cannot begin
    to look for this run before it carries its marks.
    """
    place = f"{directory}/runs/{run.id}"
    env = {**order["env"], NONCE: run.nonce, "STANDBY_PAYLOAD_FILE": f"{place}/payload"}
    try:
        places.make(run.id)
        argv = _prepare(place, order)
        os.chdir(f"{place}/work")
        try:
            path = _find(argv[0], env.get("PATH", os.defpath))
            return os.posix_spawn(
                path, argv, env, file_actions=_FILES, setsid=True, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON
            )
        finally:
            os.fchdir(home_fd)
    except FileNotFoundError as error:
        raise CannotStart(f"cannot start {argv[0]}: no such command, or its interpreter is missing") from error
    except OSError as error:
        raise CannotStart(f"cannot start the run: {error.strerror}") from error
    except ValueError as error:  # a NUL byte, a name with "="
        raise CannotStart(f"cannot start the run: {error}") from error


def start_of(pid: int) -> int:
    """When our child began; it cannot be gone, because only we reap it."""
    proc = kernel.read_proc(pid)
    assert proc is not None, pid
    return proc.start


def _prepare(place: str, order: Record) -> list[str]:
    if order["payload"] != "null":  # each file costs as much as the spawn itself
        _put(f"{place}/payload", order["payload"], 0o600)
    script: str | None = order["script"]
    if script is None:
        return list(order["argv"])
    _put(f"{place}/script", script, 0o700)
    return [f"{place}/script"] if script.startswith("#!") else ["/bin/sh", f"{place}/script"]


def _put(path: str, text: str, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        rest = text.encode()
        while rest:
            rest = rest[os.write(fd, rest) :]
    finally:
        os.close(fd)


def _find(command: str, search: str) -> str:
    """The file of a command, looked up in the run's own PATH."""
    if "/" in command:
        return command
    for folder in search.split(":"):
        path = f"{folder or '.'}/{command}"
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise CannotStart(f"no such command: {command}")
