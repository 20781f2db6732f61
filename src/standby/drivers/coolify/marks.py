"""Which life of an application is meant: the mark on it, and the incarnation that slots and runs name.

A place is clean from the moment its mark is written. The mark says how often something was made under the slot's name,
what an idle one is, and the last deployment before it: every later one belongs to this life. Coolify has no field for
it and shows labels only to few, so it stands where an application from git has its commit.
"""

import re
from typing import Final, Self

from msgspec import Struct

from standby.drivers.coolify.answers import Application, Deployment

_MARK: Final = re.compile(r"(c|r)([0-9]{1,15})\.([0-9]{1,18})")


class Mark(Struct, frozen=True):
    """One life of an application."""

    app: str
    live: bool
    """An idle one has a container that runs; else it was never deployed in this life."""
    generation: int
    base: int
    """Id of the last deployment before this life; 0 is none."""

    @classmethod
    def of(cls, row: Application) -> Self | None:
        """The life that an application is in; null when it was never made ready."""
        return cls._read(row.uuid, row.git_commit_sha or "")

    @classmethod
    def parse(cls, incarnation: str | None) -> Self | None:
        """The life that an incarnation names; null when it is not one of ours."""
        app, _, text = (incarnation or "").partition(":")
        return cls._read(app, text)

    @classmethod
    def _read(cls, app: str, text: str) -> Self | None:
        found = _MARK.fullmatch(text)
        return cls(app, found[1] == "r", int(found[2]), int(found[3])) if found and app else None

    @property
    def text(self) -> str:
        return f"{'r' if self.live else 'c'}{self.generation}.{self.base}"

    @property
    def incarnation(self) -> str:
        return f"{self.app}:{self.text}"

    def mine(self, rows: list[Deployment]) -> Deployment | None:
        """The deployment of this life, the first after its mark; null when there was none."""
        return min((row for row in rows if row.id > self.base), key=lambda row: row.id, default=None)


def incarnation_of(row: Application) -> str:
    """What a place is called in a list; one that was never made ready is called like no slot's."""
    mark = Mark.of(row)
    return f"{row.uuid}:" if mark is None else mark.incarnation
