"""How a run ended, from what the engine says and what was noted in the run's directory."""

import io
import tarfile
from collections.abc import Mapping
from typing import Any

from standby.drivers.contract import Exit
from standby.drivers.docker import wrap
from standby.drivers.docker.engine import Engine, EngineRefused

Record = Mapping[str, str]
"""File -> what is in it: `cut`, `pid`, `error`, `exit`, `oom`, `taken`, `forgotten`."""
SIGNAL_MAX = 64
FORGOTTEN = "forgotten"
NOT_WHOLE = "the order did not arrive whole"
"""Whoever sent it died meanwhile, or something ended the container."""
END = bytes(2 * tarfile.BLOCKSIZE)
"""How an archive ends. The engine ends any answer well: it sends nothing else where a mount went away after it looked,
and puts an error behind what it could not finish."""


async def records(engine: Engine, container: str) -> dict[str, Record]:
    """What was noted of each run of a container, by the name of its directory."""
    try:
        packed = await engine.files("GET", container, wrap.RUNS)
    except EngineRefused as refusal:
        if refusal.status == 404:
            return {}
        raise
    if packed.startswith(END) or not packed.endswith(END):
        raise EngineRefused(500, "what was noted there did not come whole")
    found: dict[str, dict[str, str]] = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            folder, _, name = path.partition("/")
            if folder and (member.isdir() or name):
                files = found.setdefault(folder, {})
                file = tar.extractfile(member) if name in _SMALL and member.isfile() else None
                if file is not None:
                    files[name] = file.read(4096).decode(errors="replace").strip()
    return dict(found)


_SMALL = ("cut", "exit", "error", "taken", "pid", "oom", FORGOTTEN)


def forgotten(folder: str) -> bytes:
    """Packed: the files in a run's directory that say that nobody asks for it again, and that it shall not begin."""
    return _packed(*(tarfile.TarInfo(f"{folder}/{name}") for name in (FORGOTTEN, wrap.BEGUN)))


def open_home() -> bytes:
    """Packed: the directory of all runs, where any user of the container may make one."""
    entry = tarfile.TarInfo(wrap.RUNS.rpartition("/")[2])
    entry.type, entry.mode = tarfile.DIRTYPE, 0o1777
    return _packed(entry)


def _packed(*entries: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for entry in entries:
            tar.addfile(entry)
    return packed.getvalue()


def ending(state: Mapping[str, Any], record: Record | None) -> Exit:
    """The end of a run that had its container for itself; `record`: what was noted, where its code asks for it."""
    code, oom = int(state.get("ExitCode", 0)), bool(state.get("OOMKilled"))
    if record is None:
        return by_code(code, oom=oom)
    if "error" in record:
        return Exit(start_error=record["error"], retryable=False)
    if record.get("exit", "").isdigit():
        return by_code(int(record["exit"]), oom=oom)
    if "pid" not in record:
        return not_begun(record, state.get("Error"))
    if oom:
        return by_code(137, oom=True)
    # something from outside ended the container: nobody can say how the run would have ended
    return Exit(lost=True, signal=9 if code == 137 else None)


def not_begun(record: Record, error: str | None = None) -> Exit:
    """The end of a run that never began. Where the order was cut off, whoever sent it is to blame and not the place."""
    text = error or NOT_WHOLE
    return Exit(start_error=text, place_failed=bool(error) or "cut" not in record)


def by_code(code: int, *, oom: bool) -> Exit:
    """By the custom of shells: 128 and a signal. Who was short of memory and ended well did without."""
    killed = oom and code != 0
    if 128 < code <= 128 + SIGNAL_MAX:
        return Exit(signal=code - 128, oom=killed)
    return Exit(code=code, oom=killed)
