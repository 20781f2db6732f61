"""Printing the output of runs."""

import sys
from collections.abc import Mapping
from typing import Any

from standby.cli.talk import print_json, say


def print_record(record: Mapping[str, Any], *, as_json: bool) -> None:
    """One record of a log: its own stream for its lines, stderr for our remarks."""
    if as_json:
        print_json(record)
    elif "dropped" in record:
        say(f"({record['dropped']} older lines are no longer kept)")
    elif record.get("stream") == "stdout":
        print(record["text"], flush=True)
    elif record.get("stream") is not None:
        print(record["text"], file=sys.stderr, flush=True)
