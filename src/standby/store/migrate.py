"""Numbered SQL, forward only: what was applied, what is pending, and when a database must be refused."""

import re
import uuid
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct

from standby.core.errors import Refused

if TYPE_CHECKING:
    import apsw

Kind = Literal["sqlite", "sqlite_logs", "postgres"]

# The one statement that both engines understand and that no migration can hold: it is what migrations are counted in.
LEDGER: Final = """
create table if not exists migrations (
    number     bigint not null primary key,
    name       text   not null,
    checksum   text   not null,
    applied_at bigint not null
)
"""
APPLIED: Final = "select number, name, checksum, applied_at from migrations order by number"


class WrongSchema(Refused):
    """The database's schema is not the one this code was written for."""


class Migration(Struct, frozen=True):
    """One numbered step as this code knows it."""

    number: int
    name: str
    sql: str
    checksum: str


class Applied(Struct, frozen=True):
    """One step as the database remembers it."""

    number: int
    name: str
    checksum: str
    at: int


class Status(Struct, frozen=True):
    """How a database stands to this code."""

    applied: Sequence[Applied]
    pending: Sequence[Migration]
    unknown: Sequence[Applied]
    """Steps that only a newer Standby knows."""
    changed: Sequence[Applied]
    """Steps whose text is not the one that was applied."""

    @property
    def refusal(self) -> str | None:
        """Why this code must not open the database; null when it may."""
        if self.unknown:
            newest = self.unknown[-1].name
            return f"the database schema ({newest}) is newer than this version of Standby: upgrade Standby"
        if self.changed:
            names = ", ".join(step.name for step in self.changed)
            return f"the database was migrated with other texts of {names}: this is not the Standby that made it"
        if self.pending:
            names = ", ".join(step.name for step in self.pending)
            return f"the database schema is not current, pending: {names}. Run: standby db migrate"
        return None

    @property
    def sql(self) -> str:
        """The text that a migration would run."""
        return "\n".join(f"-- {step.name}\n{step.sql}" for step in self.pending)


def known(kind: Kind) -> Sequence[Migration]:
    """The steps this code ships for an engine, in order."""
    folder = files("standby.store").joinpath("schema", kind)
    steps = []
    for file in folder.iterdir():
        numbered = re.fullmatch(r"(\d{4})_\w+\.sql", file.name)
        if numbered is not None:
            text = file.read_text(encoding="utf-8")
            checksum = sha256(text.encode()).hexdigest()
            steps.append(Migration(int(numbered[1]), file.name.removesuffix(".sql"), text, checksum))
    return sorted(steps, key=lambda step: step.number)


def compare(steps: Sequence[Migration], applied: Sequence[Applied]) -> Status:
    """Set what the code knows against what the database remembers."""
    mine = {step.number: step for step in steps}
    done = {step.number for step in applied}
    return Status(
        applied=applied,
        pending=[step for step in steps if step.number not in done],
        unknown=[step for step in applied if step.number not in mine],
        changed=[step for step in applied if step.number in mine and mine[step.number].checksum != step.checksum],
    )


def refuse(status: Status) -> None:
    """Raise WrongSchema when the database must not be opened."""
    if status.refusal is not None:
        raise WrongSchema(status.refusal)


def new_incarnation() -> str:
    """A name for a database that was just made."""
    return uuid.uuid4().hex


def sqlite_status(connection: "apsw.Connection", kind: Kind = "sqlite") -> Status:
    """How an open SQLite database stands; changes nothing."""
    if not connection.table_exists(None, "migrations"):
        return compare(known(kind), [])
    return compare(known(kind), [Applied(*row) for row in connection.execute(APPLIED)])


def migrate_sqlite(connection: "apsw.Connection", now: int, *, path: Path | None, kind: Kind = "sqlite") -> Status:
    """Bring a SQLite database up to date, after a copy of the file when it held anything; returns what was done."""
    status = sqlite_status(connection, kind)
    if status.unknown or status.changed:
        refuse(status)
    if not status.pending:
        return status
    if path is not None and status.applied:
        _copy(connection, path.with_name(f"{path.name}.before-{status.pending[0].number:04d}"))
    connection.execute("begin immediate")
    try:
        connection.execute(LEDGER)
        # Two processes may have found the same new file.
        done = {row[0] for row in connection.execute(APPLIED)}
        for step in status.pending:
            if step.number not in done:
                connection.execute(step.sql)
                ledger = (step.number, step.name, step.checksum, now)
                connection.execute("insert into migrations values (?, ?, ?, ?)", ledger)
        if kind == "sqlite" and connection.execute("select count(*) from meta").get == 0:
            connection.execute("insert into meta (incarnation) values (?)", (new_incarnation(),))
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")
    return status


def _copy(connection: "apsw.Connection", target: Path) -> None:
    target.unlink(missing_ok=True)
    connection.execute("vacuum into ?", (str(target),))
