"""`standby db ...`, `standby config ...`: what needs no server."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from standby.cli.table import print_facts, print_table
from standby.cli.talk import FAILED, HERE, OK, Json, ServerNeed, print_json, private_files, say
from standby.client.errors import ServerUnreachable
from standby.config import load_config, settings
from standby.store.store import SQLITE, schema_status
from standby.store.store import migrate as migrate_store

db = App(name="db", help="Look at or migrate the database.")
config = App(name="config", help="Show or check the configuration.")

ConfigFile = Annotated[
    Path | None,
    Parameter(
        name="--config", env_var="STANDBY_CONFIG", help="The configuration file (standby.toml here, if there is one)."
    ),
]
Database = Annotated[
    str | None,
    Parameter(
        env_var="STANDBY_DATABASE",
        show_default=False,
        help="postgresql://... or sqlite:///...; the configured one unless said.",
    ),
]


@db.command
def migrate(*, config: ConfigFile = None, database: Database = None, json: Json = False) -> int:
    """Bring the database up to date. A SQLite file is copied first; stop the server before."""
    found = load_config(config, flags={"database": database})
    with private_files():
        before = asyncio.run(migrate_store(found.database_url))
    names = [step.name for step in before.pending]
    if json:
        print_json({"database": found.database_shown, "applied": names})
    else:
        say(f"{found.database_shown}: applied {', '.join(names)}" if names else "nothing to do")
    return OK


@db.command
def status(*, config: ConfigFile = None, database: Database = None, json: Json = False) -> int:
    """Which migrations were applied and which are pending; exit code 1 when the server would refuse the database."""
    configured = load_config(config, flags={"database": database})
    found = asyncio.run(schema_status(configured.database_url))
    applied, pending = [step.name for step in found.applied], [step.name for step in found.pending]
    # A server brings a SQLite file up to date by itself; only PostgreSQL waits for `db migrate`.
    by_itself = configured.database_url.startswith(SQLITE) and not found.unknown and not found.changed
    refusal = None if by_itself else found.refusal
    about = {"database": configured.database_shown, "refused": refusal}
    if json:
        print_json({**about, "applied": applied, "pending": pending})
    else:
        lists = {"applied": ", ".join(applied) or "nothing", "pending": ", ".join(pending) or "nothing"}
        print_facts({**about, **lists})
        if by_itself and pending:
            say("`standby serve` brings it up to date" if applied else "there is none yet: `standby serve` makes it")
    return OK if refusal is None else FAILED


@db.command
def sql(*, config: ConfigFile = None, database: Database = None) -> int:
    """Print what `migrate` would run."""
    found = load_config(config, flags={"database": database})
    print(asyncio.run(schema_status(found.database_url)).sql)
    return OK


@config.command
def check(config: ConfigFile = None, *, json: Json = False) -> int:
    """Say whether a configuration file can be used, and what it comes to."""
    found = load_config(config)
    pools = {name: found.pool_host(name) for name in sorted(found.pools)}
    view = {
        "state_dir": str(found.state_dir),
        "database": found.database_shown,
        "bind": found.bind,
        "port": found.port,
        "auth": found.auth,
    }
    if json:
        print_json({**view, "hosts": sorted(found.hosts), "pools": pools, "projects": sorted(found.projects)})
        return OK
    print_facts(
        {**view, "auth": _written(found.auth), "pools": ", ".join(f"{pool} on {host}" for pool, host in pools.items())}
    )
    say("the configuration can be used")
    return OK


@config.command
def show(
    *,
    config: ConfigFile = None,
    local: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    changed: Annotated[bool, Parameter(negative=(), show_default=False)] = False,
    server: ServerNeed = HERE,
) -> int:
    """Every setting: its value, where it comes from, and what lost against that.

    A flag wins over the environment, that over the file, that over the default; for a pool, what was set by hand wins
    over all. Shown is what the server has, or what one started here would have when none runs.

    Parameters
    ----------
    local
        What a server started here would have, also when one runs.
    changed
        Only what is not a default.
    """
    found = None
    if not local and config is None:
        try:
            found = list(server.ask(lambda client: client.config()))
            say("as the server has it")
        except ServerUnreachable:
            if server.url is not None:
                raise
    rows: list[Any] = [*(found if found is not None else settings(load_config(config)))]
    if found is None:
        say("as a server started here would have it")
    rows = [each for each in rows if each.value_from != "default" or not changed]
    if server.json:
        print_json({"settings": rows})
        return OK
    columns = {
        "SETTING": lambda each: each.name,
        "FROM": lambda each: each.value_from,
        "VALUE": lambda each: _written(each.value),
        "WHERE": lambda each: None if each.value_from == "default" else _where(each.where, each.over),
    }
    if rows or not changed:
        print_table(rows, columns)
    else:
        say("everything is at its default")
    return OK


def _where(where: str, over: Sequence[str]) -> str:
    return where + (f" (over {', '.join(over)})" if over else "")


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value) or "(nothing)"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
