"""What a change writes, as an event would tell it."""

from typing import Any

from msgspec import Struct
from msgspec.structs import asdict


def changed(was: Struct | None, row: Struct | None) -> dict[str, Any]:
    """The columns that differ, with their new values."""
    assert was is not None and row is not None
    before = asdict(was)
    return {name: value for name, value in asdict(row).items() if value != before[name]}
