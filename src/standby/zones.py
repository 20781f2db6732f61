"""Time zones by their names, from this machine's database (or the package tzdata, where that is installed)."""

from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from standby.config.values import nearest
from standby.core.errors import Refused


class UnknownZone(Refused):
    """There is no such time zone here."""


def find(name: str) -> tzinfo:
    """The zone with this name; raises UnknownZone with what to do."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        known = available_timezones()
        if not known:
            text = "this machine has no database of time zones: install tzdata (a package of the system, or of Python)"
            raise UnknownZone(text) from None
        meant = nearest(name, known)
        hint = "use one like UTC or Europe/Berlin" if meant is None else f"did you mean {meant}?"
        raise UnknownZone(f"there is no time zone {name!r}; {hint}") from None
