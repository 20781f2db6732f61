"""`standby submit`: hand in an order, and stay with it if asked to."""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from standby.cli.follow import print_record
from standby.cli.talk import INTERRUPTED, OK, Server, ServerNeed, order_code, print_json, say
from standby.client import Client, View
from standby.core.errors import ConfigError, StandbyError


class Unusable(StandbyError):
    """An option that cannot be used; the text says why."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the order is and may use."""

    script: str | None = None
    """File with a shell script to run instead of a command; - is stdin."""
    pool: str | None = None
    project: str | None = None
    env: Annotated[list[str] | None, Parameter(negative=())] = None
    """NAME=value, or NAME to pass on one's own; may be repeated. Values are kept sealed."""
    payload: str | None = None
    """JSON for the order, or @file."""
    label: Annotated[list[str] | None, Parameter(negative=())] = None
    """name=value; may be repeated."""
    priority: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None
    """Smaller goes first; 100 unless said."""
    memory_mb: int | None = None
    queue_timeout: str | None = None
    """How long it may wait: 30s, 5m, none."""
    start_timeout: str | None = None
    run_timeout: str | None = None
    stop_grace: str | None = None
    retries: int | None = None
    not_before: str | None = None
    """Not before this time, like 2030-01-31T12:00:00Z."""
    dedupe_key: str | None = None
    """While an order with this key is unfinished, that one is meant."""
    rerun_of: str | None = None
    """Id of the order that this one repeats."""


def submit(
    *command: str,
    wish: Annotated[Wish | None, Parameter(name="*")] = None,
    idempotency_key: str | None = None,
    wait: Annotated[bool, Parameter(negative=())] = False,
    follow: Annotated[bool, Parameter(negative=())] = False,
    server: ServerNeed = None,
) -> int:
    """Hand in a work order: `standby submit [options] -- COMMAND ...`

    Prints the order's id. With --wait or --follow the exit code is the order's.

    Parameters
    ----------
    command
        Program and arguments, after `--`.
    idempotency_key
        The same key with the same order hands it in only once (kept for a day).
    wait
        Stay until the order has ended.
    follow
        Stay, and print its output.
    """
    asked, body = server or Server(), order_body(command, wish or Wish())
    order = asked.ask(lambda client: client.submit(body, idempotency_key))
    if not (wait or follow):
        print_json(order) if asked.json else print(order["id"])
        say(_welcome(order))
        return OK
    if not asked.json and not follow:
        print(order["id"], flush=True)
    say(_welcome(order))
    return stay_with(asked, order["id"], follow=follow)


def _welcome(order: View) -> str:
    if order.get("deduplicated"):
        return f"order {order['id']} is there already ({order['state']})"
    place = f", number {order['queue_position']} in its queue" if order["queue_position"] else ""
    return f"order {order['id']} taken in{place}"


def stay_with(asked: Server, order_id: str, *, follow: bool) -> int:
    """Wait for an order's end; the order's exit code, or 130 when the person leaves (the order goes on)."""

    async def stay(client: Client) -> View:
        if follow:
            async for record in client.follow_order(order_id):
                print_record(record, as_json=asked.json)
        return await client.wait(order_id)

    try:
        order = asked.ask(stay)
    except KeyboardInterrupt:
        say(f"order {order_id} goes on; end it with: standby orders cancel {order_id}")
        return INTERRUPTED
    if asked.json:
        print_json(order)
    reason = f" ({order['reason']})" if order["reason"] else ""
    code = "" if order["exit_code"] is None else f", exit code {order['exit_code']}"
    say(f"order {order_id} {order['state']}{reason}{code}")
    return order_code(order)


def order_body(command: Sequence[str], wish: Wish) -> dict[str, Any]:
    """The request for what was asked on the command line; what was not said is left to the server."""
    body: dict[str, Any] = {
        "command": list(command) or None,
        "script": None if wish.script is None else _text_of(wish.script, "--script"),
        "pool": wish.pool,
        "project": wish.project,
        "priority": wish.priority,
        "memory_mb": wish.memory_mb,
        "start_timeout_s": _seconds(wish.start_timeout, "start_timeout"),
        "stop_grace_s": _seconds(wish.stop_grace, "stop_grace"),
        "not_before": wish.not_before,
        "dedupe_key": wish.dedupe_key,
        "rerun_of": wish.rerun_of,
        "env": dict(_variable(each) for each in wish.env or []) or None,
        "labels": dict(_pair(each, "--label") for each in wish.label or []) or None,
        "retry": None if wish.retries is None else {"retries": wish.retries},
    }
    body = {name: value for name, value in body.items() if value is not None}
    for name in ("queue_timeout", "run_timeout"):
        if (said := getattr(wish, name)) is not None:
            body[f"{name}_s"] = _seconds(said, name)
    if wish.payload is not None:
        body["payload"] = _payload(wish.payload)
    if ("command" in body) == ("script" in body):
        raise Unusable("give a command after `--`, or a script with --script (not both)")
    return body


def _payload(text: str) -> Any:
    raw = _text_of(text[1:], "--payload") if text.startswith("@") else text
    try:
        msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise Unusable(f"--payload is not JSON: {error}") from None
    return msgspec.Raw(raw.strip().encode())


def _text_of(path: str, option: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"{option}: {path} cannot be read: {error}") from None


def _variable(text: str) -> tuple[str, str]:
    if "=" in text:
        return _pair(text, "--env")
    if text not in os.environ:
        raise Unusable(f"--env {text}: there is no such variable here; write {text}=value")
    return text, os.environ[text]


def _pair(text: str, option: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Unusable(f"{option}: write name=value")
    return name, value


def _seconds(text: str | None, key: str) -> float | None:
    """A length as in the configuration, in seconds; "none" is null."""
    if text is None:
        return None
    from standby.config import Config  # takes a tenth of a second, and is seldom needed here

    try:
        pool = Config.of(pools={"default": {key: text, "queue_timeout_max": "none"}}).pools["default"]
    except ConfigError:
        option = "--" + key.replace("_", "-")
        raise Unusable(f'{option}: write a number of seconds, or a text like "30s" or "5m"') from None
    ms: int | None = getattr(pool, f"{key}_ms")
    return None if ms is None else ms / 1000
