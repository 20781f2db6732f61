"""Holds the table of Coolify's API, by which the tests check every request, against Coolify's own description.

python tools/coolify_table.py PATH/TO/openapi.json
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.drivers.coolify_table import disagreements, read_table


def main(path: str) -> int:
    """0 when they agree."""
    calls = read_table()
    found = list(disagreements(calls, json.loads(Path(path).read_text())))
    print("\n".join(found) or f"{len(calls)} calls are as described in {path}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
