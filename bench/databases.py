"""The PostgreSQL of a run: the one of the tests, with the durability that it has by itself."""

import asyncio
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.launched import end_launched
from tests.postgres import DIRECTORY, server_url

DURABLE: Final = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
_A_GIGABYTE: Final = """
select count(pg_logical_emit_message(false, 'bench', repeat('x', 1000000))) from generate_series(1, 1000)
"""
_ASKED: Final = re.compile(r"LOG:  (?:execute [^:]*|statement): (?!begin|commit|rollback)", re.IGNORECASE)


class Postgres:
    """A running server."""

    def __init__(self, url: str, log: Path) -> None:
        self.url, self._log = url, log
        self.settings = {name: str(self.ask("postgres", f"show {name}")) for name in (*DURABLE, "server_version")}
        careless = {name: self.settings[name] for name, value in DURABLE.items() if self.settings[name] != value}
        if careless:
            raise RuntimeError(f"PostgreSQL would not keep what it commits: {careless}; unset STANDBY_TEST_FSYNC")

    def database(self) -> str:
        """The URL of a new, empty database."""
        name = f"bench_{uuid.uuid4().hex}"
        self.ask("postgres", f'create database "{name}"')
        return f"{self.url}/{name}"

    def log_statements(self, url: str) -> None:
        """Have the log tell what later sessions in this database ask; those in others are not told of."""
        self.ask("postgres", f"""alter database "{url.rpartition("/")[2]}" set log_statement = 'all'""")

    def statements(self) -> int:
        """How many it told of, begin and commit left out."""
        return len(_ASKED.findall(self._log.read_text()))

    def reuse_log(self) -> None:
        """Have it reuse the files of its log, as a server does that has run for a while. A new one fills each of them
        with zeros first: for every 16 MB that anybody writes, whoever writes just then waits for 45 ms."""
        self.ask("postgres", _A_GIGABYTE)
        self.ask("postgres", "checkpoint")

    def ask(self, database: str, sql: str) -> Any:
        """The first value of a statement's answer."""
        return asyncio.run(_ask(f"{self.url}/{database}", sql))


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server of its own for the length of a run."""
    home = Path(tempfile.mkdtemp(prefix="standby-bench-"))
    os.environ.update({DIRECTORY: str(home), f"{DIRECTORY}_OWNER": str(os.getpid())})
    try:
        server = Postgres(server_url(), home / "log")
        server.reuse_log()
        yield server
    finally:
        end_launched(home)


async def _ask(url: str, sql: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()
