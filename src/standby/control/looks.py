"""Sightings as they come, from looks and from answers: one for each run, in texts that a database can hold."""

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace

from standby.core.model import Host
from standby.core.sighting import Seen, Sighting

NUL: Final = "\0"
NEWS: Final = (Seen.READY, Seen.STOPPED)
"""What says something about a run whenever it is heard."""
_STOPPED: Final = Seen.STOPPED
_WEIGHT: Final = {Seen.STOPPED: 2, Seen.READY: 1}


def best(sightings: Iterable[Sighting]) -> dict[str, Sighting]:
    """One sighting for each run: an end says more than being ready, which says more than anything else."""
    found: dict[str, Sighting] = {}
    for sighting in sightings:
        known = found.get(sighting.run_id)
        if known is None or _WEIGHT.get(sighting.seen, 0) >= _WEIGHT.get(known.seen, 0):
            found[sighting.run_id] = _plain(sighting)
    return found


def ended(*heard: Iterable[Sighting]) -> set[str]:
    """Runs whose end was heard of: there is nothing more to see of them."""
    return {sighting.run_id for some in heard for sighting in some if sighting.seen is _STOPPED}


def _plain(sighting: Sighting) -> Sighting:
    """Without the one character that no database of ours can hold in a text."""
    handle, error = sighting.handle, None if sighting.exit is None else sighting.exit.start_error
    if (handle is None or NUL not in handle) and (error is None or NUL not in error):
        return sighting
    ending = sighting.exit and replace(sighting.exit, start_error=error and error.replace(NUL, ""))
    return replace(sighting, handle=sighting.handle and sighting.handle.replace(NUL, ""), exit=ending)


def another_platform(host: Host, identity: str) -> str:
    """What to do about a platform that is not the one this host is known to be."""
    return (
        f"host {host.name} is known as {host.identity}, but {identity} answers: give this machine's host a name of its "
        f"own, or say `standby hosts declare-dead {host.name}` if nothing of the other one can be alive"
    )
