"""How long an order will probably wait: a simulation of one pool in which every run takes as long as the usual one."""

from collections.abc import Sequence


def usual_ms(lengths: Sequence[int]) -> int | None:
    """The median of what was measured; null when nothing was."""
    return sorted(lengths)[len(lengths) // 2] if lengths else None


def wait_ms(ahead: int, places: int, open_ms: Sequence[int], usual: int) -> int | None:
    """When the order behind `ahead` others gets one of `places`, with open runs that took `open_ms` so far; null when
    there is no place at all."""
    if places <= 0:
        return None
    free_in = sorted(max(0, usual - taken) for taken in open_ms)[:places]
    free_in = [0] * (places - len(free_in)) + free_in
    # Every run is as long as any other, so they take the places in turns.
    return free_in[ahead % places] + ahead // places * usual
