"""The directories of runs. Making one can cost more than the spawn itself, so one that was left empty serves again."""

import contextlib
import os
import secrets
import stat

SPARES_MAX = 128
_OURS = ("stdout", "stderr", "payload", "script")


class Places:
    """`runs/<run id>/` with its `work/`: made, or taken from `spare/`, and cleared away."""

    def __init__(self) -> None:
        os.makedirs("spare", 0o700, exist_ok=True)
        self._spares = os.listdir("spare")

    def make(self, run_id: str) -> None:
        """An empty directory for a new run."""
        while self._spares:
            with contextlib.suppress(OSError):
                os.rename(f"spare/{self._spares.pop()}", f"runs/{run_id}")
                return
        os.mkdir(f"runs/{run_id}", 0o700)
        os.mkdir(f"runs/{run_id}/work", 0o700)

    def clear(self, run_id: str) -> None:
        """Keep the directory for another run if this one left nothing in it, else throw it away."""
        name = secrets.token_hex(8)
        try:
            if len(self._spares) < SPARES_MAX and _emptied(f"runs/{run_id}"):
                os.rename(f"runs/{run_id}", f"spare/{name}")
                self._spares.append(name)
                return
        except OSError:
            pass
        discard(run_id)


def discard(run_id: str) -> None:
    """Move what is kept of a run out of the way; a server removes it."""
    try:
        os.makedirs("trash", 0o700, exist_ok=True)
        os.rename(f"runs/{run_id}", f"trash/{run_id}.{secrets.token_hex(4)}")
    except OSError:
        return


def _emptied(place: str) -> bool:
    """Whether only our own files were there besides an empty work directory; they are removed then."""
    if not stat.S_ISDIR(os.lstat(f"{place}/work").st_mode) or os.listdir(f"{place}/work"):
        return False
    for name in os.listdir(place):
        if name in _OURS:
            os.unlink(f"{place}/{name}")
        elif name != "work":
            return False
    os.chmod(f"{place}/work", 0o700)
    return True
