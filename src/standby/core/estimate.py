"""How long an order will probably wait: a simulation of one pool in which every run takes as long as the usual one."""

from collections.abc import Sequence

from msgspec import Struct


class Lengths(Struct, frozen=True):
    """How long runs took lately."""

    usual: int
    """The median."""
    long: int
    """Nine of ten took no longer."""


def measured(lengths: Sequence[int]) -> Lengths | None:
    """What the measured lengths come to; null when nothing was measured."""
    if not lengths:
        return None
    ordered, count = sorted(lengths), len(lengths)
    return Lengths(ordered[count // 2], ordered[-(-count * 9 // 10) - 1])


class Line(Struct, frozen=True):
    """When the places of a pool come free, as it looks now."""

    free_in: Sequence[int]
    usual: int

    def wait_ms(self, ahead: int) -> int:
        """When the order behind `ahead` others gets a place. Every run is as long as any other: they take turns."""
        places = len(self.free_in)
        return self.free_in[ahead % places] + ahead // places * self.usual


def line(places: int, open_ms: Sequence[int], lengths: Lengths) -> Line | None:
    """The line before `places`, with open runs that took `open_ms` so far; null when there is no place at all, or
    nobody can say when one comes free."""
    # Nobody knows when a run ends that took longer than the long ones: its place is left out.
    known = sorted(left for taken in open_ms if (left := _left(taken, lengths)) is not None)
    places -= len(open_ms) - len(known)
    if places <= 0:
        return None
    # Of more runs than places the first to end leave none free.
    return Line([0] * (places - len(known)) + known[-places:], lengths.usual)


def _left(taken: int, lengths: Lengths) -> int | None:
    if taken < lengths.usual:
        return lengths.usual - taken
    return lengths.long - taken if taken < lengths.long else None
