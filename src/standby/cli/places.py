"""`standby pools`, `standby slots`, `standby hosts`: what there is, and what is wanted of it."""

from typing import Annotated

from cyclopts import App, Parameter

from standby.cli.submit import Unusable
from standby.cli.talk import OK, Server, ServerNeed, Why, ago, print_json, print_table, say
from standby.client import View

PoolName = Annotated[str, Parameter(help="Name of the pool.")]
HostName = Annotated[str, Parameter(help="Name of the host.")]

pools = App(name="pools", help="List pools; pause, resume or drain one.")
hosts = App(name="hosts", help="List hosts; pause, resume or drain one; declare one dead.")


@pools.default
@pools.command(name="list")
def list_pools(*, server: ServerNeed = None) -> int:
    """All pools with their waiting orders and slots."""
    asked = server or Server()
    found = asked.ask(lambda client: client.pools())
    columns = {
        "POOL": lambda pool: pool["name"],
        "HOST": lambda pool: pool["host"],
        "MODE": lambda pool: pool["mode"],
        "PENDING": lambda pool: pool["pending"],
        "OPEN": lambda pool: pool["open"],
        "SLOTS": lambda pool: ", ".join(f"{count} {word}" for word, count in sorted(pool["slots"].items())),
        "MAX": lambda pool: pool["slots_max"],
        "NOTE": lambda pool: pool["mode_reason"] if pool["mode"] != "open" else None,
    }
    print_json({"pools": found}) if asked.json else print_table(found, columns)
    return OK


@pools.command(name="pause")
def pause_pool(name: PoolName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """No more starts; running work goes on, waiting orders do not expire."""
    return _set(server, "pools", name, "pause", reason)


@pools.command(name="resume")
def resume_pool(name: PoolName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """Starts are allowed again."""
    return _set(server, "pools", name, "resume", reason)


@pools.command(name="drain")
def drain_pool(name: PoolName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """No more starts, and slots are taken away as they come free."""
    return _set(server, "pools", name, "drain", reason)


def slots(*, pool: str | None = None, host: str | None = None, server: ServerNeed = None) -> int:
    """List slots and what they do.

    Parameters
    ----------
    pool
        Only those of this pool.
    host
        Only those on this host.
    """
    asked = server or Server()
    found = asked.ask(lambda client: client.slots(pool=pool, host=host))
    columns = {
        "SLOT": lambda slot: slot["name"],
        "HOST": lambda slot: slot["host"],
        "STATE": lambda slot: slot["state"],
        "SINCE": lambda slot: ago(slot["state_since"]),
        "ORDER": lambda slot: slot["order"],
        "USES": lambda slot: slot["uses"],
        "ERROR": lambda slot: slot["error"],
    }
    print_json({"slots": found}) if asked.json else print_table(found, columns)
    return OK


@hosts.default
@hosts.command(name="list")
def list_hosts(*, server: ServerNeed = None) -> int:
    """All hosts, who leads them and how full they are."""
    asked = server or Server()
    found = asked.ask(lambda client: client.hosts())
    columns = {
        "HOST": lambda host: host["name"],
        "DRIVER": lambda host: host["driver"],
        "MODE": lambda host: host["mode"],
        "LED BY": _leader,
        "MEMORY MB": lambda host: f"{host['memory_used_mb']} of {host['memory_mb'] or 'no limit'}",
        "NOTE": lambda host: host["error"] or (host["mode_reason"] if host["mode"] != "open" else None),
    }
    print_json({"hosts": found}) if asked.json else print_table(found, columns)
    return OK


def _leader(host: View) -> str:
    lease = host["lease"]
    return lease["owner"] if lease is not None and lease["live"] else "nobody"


@hosts.command(name="pause")
def pause_host(name: HostName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """No more starts on any of its pools."""
    return _set(server, "hosts", name, "pause", reason)


@hosts.command(name="resume")
def resume_host(name: HostName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """Starts are allowed again."""
    return _set(server, "hosts", name, "resume", reason)


@hosts.command(name="drain")
def drain_host(name: HostName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """No more starts, and slots are taken away as they come free."""
    return _set(server, "hosts", name, "drain", reason)


@hosts.command(name="declare-dead")
def declare_dead(
    name: HostName,
    /,
    *,
    reason: Annotated[str, Parameter(help="How you know; it is kept with the event.")],
    confirm: Annotated[str | None, Parameter(help="The host's name once more.")] = None,
    server: ServerNeed = None,
) -> int:
    """Your word that nothing commanded on this host so far is alive: its open runs are then lost, maybe retried."""
    if confirm != name:
        raise Unusable(f"this cannot be taken back: if nothing on {name} is alive, repeat with --confirm {name}")
    asked = server or Server()
    host = asked.ask(lambda client: client.declare_dead(name, reason))
    print_json(host) if asked.json else say(f"host {name} is declared dead as of {host['dead_at']}")
    return OK


def _set(server: Server | None, noun: str, name: str, verb: str, reason: str | None) -> int:
    asked = server or Server()
    place = asked.ask(lambda client: client.set_mode(noun, name, verb, reason))
    print_json(place) if asked.json else say(f"{noun[:-1]} {name} is {place['mode']}")
    return OK
