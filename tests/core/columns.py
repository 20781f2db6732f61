"""What a change writes, as an event would tell it."""

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict


def changed(was: Struct | None, row: Struct | None) -> dict[str, Any]:
    """The columns that differ, with their new values. The version counts one up with the save, if not before."""
    assert was is not None and row is not None
    before, after = asdict(was), asdict(row)
    assert after.pop("version") - before["version"] in (0, 1)
    return {name: value for name, value in after.items() if value != before[name]}
