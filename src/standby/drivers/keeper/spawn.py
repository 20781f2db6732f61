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

    again = True
    """Whether another try may go better."""


class NeverStarts(CannotStart):
    """What was ordered is to blame."""

    again = False


def spawn(directory: str, home_fd: int, places: Places, run: Run, order: Record) -> int:
    """Make the run's directory and its main process, leader of a session of its own; returns its pid.

    posix_spawn uses vfork, whose child shares the keeper's lock until it runs its program: a next keeper cannot begin
    to look for this run before it carries its marks.
    """
    place = f"{directory}/runs/{run.id}"
    try:
        env = {**order["env"], NONCE: run.nonce, "STANDBY_PAYLOAD_FILE": f"{place}/payload"}
        places.make(run.id)
        argv = _prepare(place, order)
        os.chdir(f"{place}/work")
        try:
            return _execute(argv, env)
        finally:
            _go_home(home_fd)
    except CannotStart:
        raise
    except OSError as error:
        raise CannotStart(f"cannot start the run: {error.strerror}") from error
    except Exception as error:  # a NUL byte, a name with "=", an order that is none
        raise NeverStarts(f"cannot start the run: {error}") from error


def start_of(pid: int) -> int:
    """When our child began, 0 if we may not see that; it cannot be gone, because only we reap it."""
    proc = kernel.read_proc(pid)
    return 0 if proc is None else proc.start


def _execute(argv: list[str], env: dict[str, str]) -> int:
    path = _find(argv[0], env.get("PATH", os.defpath))
    try:
        return os.posix_spawn(
            path, argv, env, file_actions=_FILES, setsid=True, setsigmask=(), setsigdef=_IGNORED_BY_PYTHON
        )
    except FileNotFoundError as error:
        raise NeverStarts(f"cannot start {argv[0]}: no such command, or its interpreter is missing") from error
    except PermissionError as error:
        raise NeverStarts(f"cannot start {argv[0]}: {error.strerror}") from error


def _go_home(home_fd: int) -> None:
    try:
        os.fchdir(home_fd)
    except OSError as error:  # all our paths are wrong now, and the run may have begun: the next keeper will find it
        raise SystemExit(f"cannot return to the keeper's directory: {error}") from error


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
    raise NeverStarts(f"no such command: {command}")
