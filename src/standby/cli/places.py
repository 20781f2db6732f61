"""`standby pools`, `standby slots`, `standby hosts`: what there is, and what is wanted of it."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

from cyclopts import App, Parameter

from standby.cli.table import print_facts, print_table
from standby.cli.talk import HERE, OK, ServerNeed, Unusable, Why, ago, length, pair, print_json, say, shown
from standby.client.answers import Host, Image, Override, Pool, StartHolder, StartWaiter

PoolName = Annotated[str, Parameter(help="Name of the pool.")]
HostName = Annotated[str, Parameter(help="Name of the host.")]
Now = Annotated[
    bool, Parameter(negative=(), show_default=False, help="Also stop what runs; its policy says whether it runs again.")
]
Unset = Annotated[list[str] | None, Parameter(negative=(), help="A key whose configured value counts again.")]

pools = App(name="pools", help="List pools; show, set, pause, resume or drain one.")
hosts = App(name="hosts", help="List hosts; show, pause, resume or drain one; declare one dead.")


@pools.default
@pools.command(name="list")
def list_pools(*, server: ServerNeed = HERE) -> int:
    """All pools with their waiting orders and slots."""
    found = server.ask(lambda client: client.pools())
    columns = {
        "POOL": lambda pool: pool.name,
        "HOST": lambda pool: pool.host,
        "MODE": lambda pool: pool.mode,
        "PENDING": lambda pool: pool.pending,
        "OPEN": lambda pool: pool.open,
        "SLOTS": lambda pool: _words(pool.slots),
        "MAX": lambda pool: pool.slots_max,
        "NOTE": _note,
    }
    return server.show({"pools": found}, lambda: print_table(found, columns))


def _note(pool: Pool) -> str | None:
    if pool.broken_since is not None:
        return f"makes no slots since {pool.failures} failed"
    return pool.mode_reason if pool.mode != "open" else _above(pool)


def _above(pool: Pool) -> str | None:
    peaks = pool.peaks
    if peaks is None or peaks["above"] == 0:
        return None
    return (
        f"{peaks['above']} of the last {peaks['runs']} runs took more memory than declared, up to {peaks['most_mb']} MB"
    )


@pools.command(name="show")
def show_pool(name: PoolName, /, *, server: ServerNeed = HERE) -> int:
    """One pool: its settings, and what was set by hand."""
    pool = server.ask(lambda client: client.pool(name))
    settings = {
        name: ", ".join(value) or "(nothing)" if isinstance(value, list) else value
        for name, value in pool.settings.items()
    }
    facts = {
        "pool": pool.name,
        "host": pool.host,
        "mode": pool.mode,
        "mode_reason": pool.mode_reason,
        "mode_actor": None if pool.mode == "open" else f"{pool.mode_actor}, {ago(pool.mode_since)} ago",
        "stops what runs since": shown(pool.mode_stop_at),
        "pending": pool.pending,
        "open": pool.open,
        "slots": _words(pool.slots),
        "slots_max": pool.slots_max,
        "project": pool.project,
        "warmth": pool.warmth,
        "breaker": None if pool.broken_since is None else f"open for {ago(pool.broken_since)}: {_note(pool)}",
        "runs take": _lengths(pool),
        "estimates": _estimates(pool),
        "memory": _above(pool),
        **{key: "none" if value is None else value for key, value in settings.items()},
        "set by hand": overrides_text(pool.overrides),
    }
    return server.show(pool, lambda: print_facts(facts))


def _lengths(pool: Pool) -> str | None:
    """How long runs usually take, by the label that tells it."""
    found = pool.lengths
    if found is None:
        return None
    kinds = [f"{found.label}={value}: {length(ms / 1000)}" for value, ms in found.usual_ms_by_label.items()]
    return "\n".join([f"{length(found.usual_ms / 1000)} (the usual of the last {found.count})", *kinds])


def _estimates(pool: Pool) -> str | None:
    """How right the waits estimated at submit were."""
    found = pool.estimates
    if found is None:
        return None
    return (
        f"of the last {found.started} waits: off by {length(found.off_ms / 1000)}, {found.held:.0%} within their range"
    )


def overrides_text(overrides: Mapping[str, Override]) -> str | None:
    """What was set by hand, by whom, when and why."""
    words = []
    for key, each in sorted(overrides.items()):
        why = f": {each.reason}" if each.reason else ""
        words.append(f"{key} = {json.dumps(each.value)} by {each.actor}, {ago(each.at)} ago{why}")
    return "\n".join(words) or None


@pools.command(name="set")
def set_pool(
    name: PoolName,
    /,
    *settings: Annotated[
        str, Parameter(help="key=value, with keys and values as in the configuration: run_timeout=2h.")
    ],
    unset: Unset = None,
    reason: Why = None,
    server: ServerNeed = HERE,
) -> int:
    """Change settings of a pool at once. They win over its configuration and survive restarts, until they are unset."""
    if not settings and not unset:
        raise Unusable("say what to set (key=value), or --unset KEY")
    chosen = dict(_wire(*pair(each, "settings")) for each in settings)
    names = [_wire(key, None)[0] for key in unset or []]
    pool = server.ask(lambda client: client.patch_pool(name, chosen, names, reason))
    words = [*settings, *(f"{key} as configured" for key in unset or [])]
    return server.tell(pool, f"pool {name}: {', '.join(words)}")


def _wire(key: str, text: str | None) -> tuple[str, Any]:
    """A setting as the API takes it: lengths in seconds, `none` as null."""
    from standby.config import PoolConfig, model, values  # takes a tenth of a second, and is seldom needed here

    keys = model.keys_of(PoolConfig)
    is_length = keys.get(key.removesuffix("_s"), "").endswith("_ms")
    wire = f"{key.removesuffix('_s')}_s" if is_length else key
    if text is None or text == "none":
        return wire, None
    try:
        if is_length:
            return wire, values.length_ms(text) / 1000
        return wire, json.loads(text)
    except ValueError as error:
        if is_length:
            raise Unusable(f"{key}: {error}") from None
        return wire, [each.strip() for each in text.split(",")] if key.endswith("retry_on") else text


@pools.command(name="pause")
def pause_pool(name: PoolName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """No more starts; running work goes on, waiting orders do not expire."""
    return server.set_mode(f"pool {name}", lambda client: client.set_pool_mode(name, "pause", reason))


@pools.command(name="resume")
def resume_pool(name: PoolName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """Starts are allowed again."""
    return server.set_mode(f"pool {name}", lambda client: client.set_pool_mode(name, "resume", reason))


@pools.command(name="drain")
def drain_pool(name: PoolName, /, *, now: Now = False, reason: Why = None, server: ServerNeed = HERE) -> int:
    """No more starts, and slots are taken away as they come free."""
    return server.set_mode(f"pool {name}", lambda client: client.set_pool_mode(name, "drain", reason, now=now))


@pools.command(name="reset-breaker")
def reset_breaker(name: PoolName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """Let a pool make slots again, although too many of them failed."""
    pool = server.ask(lambda client: client.reset_breaker(name, reason))
    return server.tell(pool, f"pool {name} makes slots again")


def slots(*, pool: str | None = None, host: str | None = None, server: ServerNeed = HERE) -> int:
    """List slots and what they do.

    Parameters
    ----------
    pool
        Only those of this pool.
    host
        Only those on this host.
    """
    found = server.ask(lambda client: client.slots(pool=pool, host=host))
    columns = {
        "SLOT": lambda slot: slot.name,
        "HOST": lambda slot: slot.host,
        "STATE": lambda slot: slot.state,
        "SINCE": lambda slot: ago(slot.state_since),
        "ORDER": lambda slot: slot.order,
        "USES": lambda slot: slot.uses,
        "ERROR": lambda slot: slot.error,
    }
    return server.show({"slots": found}, lambda: print_table(found, columns))


@hosts.default
@hosts.command(name="list")
def list_hosts(*, server: ServerNeed = HERE) -> int:
    """All hosts, who leads them and how full they are."""
    found = server.ask(lambda client: client.hosts())
    columns = {
        "HOST": lambda host: host.name,
        "DRIVER": lambda host: host.driver,
        "MODE": lambda host: host.mode,
        "LED BY": _leader,
        "MEMORY MB": lambda host: f"{host.memory_used_mb} of {host.memory_mb or 'no limit'}",
        "PRESSURE": _pressure,
        "NOTE": lambda host: host.error or (host.mode_reason if host.mode != "open" else None) or host.pressure_cause,
    }
    return server.show({"hosts": found}, lambda: print_table(found, columns))


def _pressure(host: Host) -> str:
    if host.pressure_since is None or host.pressure == "none":
        return host.pressure if host.measured else "unknown"
    level = f"{host.pressure} for {ago(host.pressure_since)}"
    return level if host.measured else f"{level}, not measured now"


def _most(limit: int | None) -> str:
    return "no limit" if limit is None else f"at most {limit}"


def _image(each: Image) -> str:
    if each.pulling_since is not None:
        return f"{each.image}: being pulled for {ago(each.pulling_since)} {each.progress or ''}".rstrip()
    return f"{each.image}: {'there' if each.present else each.error or 'not there'}"


def _leader(host: Host) -> str:
    return host.lease.owner if host.lease is not None and host.lease.live else "nobody"


@hosts.command(name="show")
def show_host(name: HostName, /, *, server: ServerNeed = HERE) -> int:
    """One host: who leads it, its last reading, its slots and what waits for it."""
    host = server.ask(lambda client: client.host(name))
    reading = dict(host.reading or {})
    stalls = reading.pop("pressure", None) or {}
    facts = {
        "host": host.name,
        "driver": host.driver,
        "mode": host.mode,
        "mode_reason": host.mode_reason,
        "mode_actor": None if host.mode == "open" else f"{host.mode_actor}, {ago(host.mode_since)} ago",
        "stops what runs since": shown(host.mode_stop_at),
        "led by": _leader(host),
        "unreachable since": shown(host.unreachable_since),
        "error": host.error,
        "memory MB": f"{host.memory_used_mb} of {host.memory_mb or 'no limit'}",
        "cpus": None if host.cpus is None else f"{host.cpus_used:g} of {host.cpus:g}",
        "pressure": _pressure(host),
        "pressure cause": host.pressure_cause,
        "calm since": shown(host.calm_since),
        "pools": None if host.pools is None else ", ".join(host.pools),
        "slots": None if host.slots is None else f"{_words(host.slots) or 'none'}, at most {host.slots_max}",
        "queue depth": host.queue_depth,
        "starts": f"{host.starting} in flight, {_most(host.starts_max)}",
        "start gap s": host.start_gap_s or None,
        "images": "\n".join(_image(each) for each in host.images or ()) or None,
        **{key.replace("_", " "): value for key, value in {**reading, **stalls}.items()},
    }
    return server.show(host, lambda: print_facts(facts))


@hosts.command(name="starts")
def show_starts(name: HostName, /, *, server: ServerNeed = HERE) -> int:
    """The starts on a host that are under way, and those that wait."""
    found = server.ask(lambda client: client.starts(name))
    if server.json:
        print_json(found)
        return OK
    columns = {
        "ORDER": lambda each: each.order or "(a slot is made)",
        "POOL": lambda each: each.pool,
        "STATE": lambda each: f"waits, number {each.position}" if isinstance(each, StartWaiter) else "starts",
        "SINCE": lambda each: ago(each.since),
        "SLOT": lambda each: None if isinstance(each, StartWaiter) else each.slot,
        "GIVES UP": _gives_up,
    }
    print_table([*found.holders, *found.waiters], columns)
    say(f"{found.active} in flight ({_most(found.maximum)}), {found.queued} waiting")
    return OK


def _gives_up(each: StartHolder | StartWaiter) -> str | None:
    if isinstance(each, StartHolder) or each.gives_up_in_s is None:
        return None
    return f"in {length(each.gives_up_in_s)}"


def _words(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


@hosts.command(name="pause")
def pause_host(name: HostName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """No more starts on any of its pools."""
    return server.set_mode(f"host {name}", lambda client: client.set_host_mode(name, "pause", reason))


@hosts.command(name="resume")
def resume_host(name: HostName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """Starts are allowed again."""
    return server.set_mode(f"host {name}", lambda client: client.set_host_mode(name, "resume", reason))


@hosts.command(name="drain")
def drain_host(name: HostName, /, *, now: Now = False, reason: Why = None, server: ServerNeed = HERE) -> int:
    """No more starts, and slots are taken away as they come free."""
    return server.set_mode(f"host {name}", lambda client: client.set_host_mode(name, "drain", reason, now=now))


@hosts.command(name="declare-dead")
def declare_dead(
    name: HostName,
    /,
    *,
    reason: Annotated[str, Parameter(help="How you know; it is kept with the event.")],
    confirm: Annotated[str | None, Parameter(help="The host's name once more.")] = None,
    server: ServerNeed = HERE,
) -> int:
    """Your word that nothing commanded on this host so far is alive: its open runs are then lost, maybe retried."""
    if confirm != name:
        raise Unusable(f"this cannot be taken back: if nothing on {name} is alive, repeat with --confirm {name}")
    host = server.ask(lambda client: client.declare_dead(name, reason))
    return server.tell(host, f"host {name} is declared dead as of {shown(host.dead_at)}")
