"""`standby db ...`, `standby config check`, `standby version`: what needs no server."""

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from standby import __version__
from standby.cli.talk import FAILED, OK, Json, print_facts, print_json, private_files, say
from standby.config import load_config
from standby.store.store import SQLITE, schema_status
from standby.store.store import migrate as migrate_store

db = App(name="db", help="Look at or migrate the database.")
config = App(name="config", help="Check the configuration.")

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
    settings = load_config(config, flags={"database": database})
    with private_files():
        before = asyncio.run(migrate_store(settings.database_url))
    names = [step.name for step in before.pending]
    if json:
        print_json({"database": settings.database_shown, "applied": names})
    else:
        say(f"{settings.database_shown}: applied {', '.join(names)}" if names else "nothing to do")
    return OK


@db.command
def status(*, config: ConfigFile = None, database: Database = None, json: Json = False) -> int:
    """Which migrations were applied and which are pending; exit code 1 when the server would refuse the database."""
    settings = load_config(config, flags={"database": database})
    found = asyncio.run(schema_status(settings.database_url))
    applied, pending = [step.name for step in found.applied], [step.name for step in found.pending]
    # A server brings a SQLite file up to date by itself; only PostgreSQL waits for `db migrate`.
    by_itself = settings.database_url.startswith(SQLITE) and not found.unknown and not found.changed
    refusal = None if by_itself else found.refusal
    about = {"database": settings.database_shown, "refused": refusal}
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
    settings = load_config(config, flags={"database": database})
    print(asyncio.run(schema_status(settings.database_url)).sql)
    return OK


@config.command
def check(*, config: ConfigFile = None, json: Json = False) -> int:
    """Say whether the configuration can be used, and what it comes to."""
    settings = load_config(config)
    pools = {name: settings.pool_host(name) for name in sorted(settings.pools)}
    view = {
        "state_dir": str(settings.state_dir),
        "database": settings.database_shown,
        "bind": settings.bind,
        "port": settings.port,
        "auth": settings.auth,
    }
    if json:
        print_json({**view, "hosts": sorted(settings.hosts), "pools": pools, "projects": sorted(settings.projects)})
        return OK
    print_facts({**view, "pools": ", ".join(f"{pool} on {host}" for pool, host in pools.items())})
    say("the configuration can be used")
    return OK


def version(*, json: Json = False) -> int:
    """Print the version."""
    print_json({"version": __version__}) if json else print(__version__)
    return OK
