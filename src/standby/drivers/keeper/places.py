"""The directories of runs. Making one can cost more than the spawn itself, so one that was left empty serves again."""

import contextlib
import os
import secrets
import stat

SPARES_MAX = 128
_OURS = ("stdout", "stderr", "payload", "script")
_ACCESS = 0o5777
"""All bits of a mode that matter here: setgid is inherited from the parent."""


class Places:
    """`runs/<run id>/` with its `work/`: made, or taken from `spare/`, and cleared away."""

    def __init__(self) -> None:
        self._spares: list[str] = []
        with contextlib.suppress(OSError):  # without spares it is only slower
            os.makedirs("spare", 0o700, exist_ok=True)
            self._spares = os.listdir("spare")

    def make(self, run_id: str) -> None:
        """An empty directory for a new run."""
        while self._spares:
            spare = f"spare/{self._spares.pop()}"
            with contextlib.suppress(OSError):
                if _is_as_new(spare):  # it has lain where every run with our rights can reach it
                    os.rename(spare, f"runs/{run_id}")
                    return
            _throw_away(spare)
        try:
            os.mkdir(f"runs/{run_id}", 0o700)
        except FileNotFoundError:  # a run with our rights has removed it
            os.mkdir("runs", 0o700)
            os.mkdir(f"runs/{run_id}", 0o700)
        os.mkdir(f"runs/{run_id}/work", 0o700)

    def clear(self, run_id: str) -> None:
        """Keep the directory for another run if this one left nothing in it, else throw it away."""
        place, name = f"runs/{run_id}", secrets.token_hex(8)
        with contextlib.suppress(OSError):
            if len(self._spares) < SPARES_MAX and _is_as_new(place, _OURS):
                for ours in set(_OURS).intersection(os.listdir(place)):
                    os.unlink(f"{place}/{ours}")
                os.rename(place, f"spare/{name}")
                self._spares.append(name)
                return
        discard(run_id)


def discard(run_id: str) -> None:
    """Move what is kept of a run out of the way; a server removes it."""
    _throw_away(f"runs/{run_id}")


def _throw_away(place: str) -> None:
    with contextlib.suppress(OSError):
        os.makedirs("trash", 0o700, exist_ok=True)
        os.rename(place, f"trash/{os.path.basename(place)}.{secrets.token_hex(4)}")


def _is_as_new(place: str, besides: tuple[str, ...] = ()) -> bool:
    """Whether it is a directory of ours with nothing but an empty `work` in it, besides files of these names."""
    work = f"{place}/work"
    if not _is_private(place) or not _is_private(work) or os.listdir(work):
        return False
    return set(os.listdir(place)) <= {"work", *besides}


def _is_private(folder: str) -> bool:
    status = os.lstat(folder)
    return stat.S_ISDIR(status.st_mode) and status.st_mode & _ACCESS == 0o700 and status.st_uid == os.geteuid()
