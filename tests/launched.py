"""What one run of the tests launched for all its workers, and how it ends."""

import os
import select
import shutil
import signal
from pathlib import Path

PATIENCE_S = 60


def end_launched(home: Path) -> None:
    """End what the launcher that noted itself here started, if there is one, and leave nothing behind."""
    pid_file = home / "launcher.pid"
    if pid_file.exists():
        launcher = int(pid_file.read_text())
        try:
            gone = os.pidfd_open(launcher)
        except ProcessLookupError:
            return
        os.kill(launcher, signal.SIGTERM)
        select.select([gone], [], [], PATIENCE_S)
        os.close(gone)
    shutil.rmtree(home, ignore_errors=True)
