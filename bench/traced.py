"""`standby serve` that counts what SQLite was asked, begin and commit left out, and writes the count on SIGUSR1.

python -m bench.traced COUNT_FILE serve ...
"""

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import apsw

from standby.cli.main import main

if __name__ == "__main__":
    told = Path(sys.argv.pop(1))
    asked = 0

    def count(event: dict[str, Any]) -> None:
        global asked
        asked += event["sql"].split(maxsplit=1)[0].lower() not in ("begin", "commit", "rollback")

    def tell(_: int, __: FrameType | None) -> None:
        draft = told.with_suffix(".new")
        draft.write_text(str(asked))
        draft.rename(told)

    apsw.connection_hooks.append(lambda connection: connection.trace_v2(apsw.SQLITE_TRACE_STMT, count))
    signal.signal(signal.SIGUSR1, tell)
    main()
