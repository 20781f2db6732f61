"""The keeper's log, which is on the disk that may be full: saying something never fails."""

import contextlib
import os
import time

_AGAIN_S = 60.0
_TOLD_MAX = 100
_told: dict[str, float] = {}
_now = time.monotonic


def say(text: str) -> None:
    """One line on stderr, if there is room for it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n".encode(errors="replace"))


def fault(text: str) -> None:
    """Say it, but at most once a minute: most faults come back many times a second."""
    now = _now()
    if now - _told.get(text, -_AGAIN_S) < _AGAIN_S:
        return
    if len(_told) >= _TOLD_MAX:
        _told.clear()
    _told[text] = now
    say(text)
