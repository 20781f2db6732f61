"""`standby keys ...`: who may ask."""

import sys
from typing import Annotated

from cyclopts import App, Parameter

from standby.cli.table import print_table
from standby.cli.talk import HERE, OK, ServerNeed, Unusable, ago, agreed, print_json, say
from standby.client.address import find_address
from standby.client.blocking import Client

KeyName = Annotated[str, Parameter(help="Name of the key: what events call whoever uses it.")]

app = App(name="keys", help="List, add or remove API keys.")


@app.default
@app.command(name="list")
def list_keys(*, server: ServerNeed = HERE) -> int:
    """All keys by their names; the keys themselves are kept nowhere."""
    found = server.ask(lambda client: client.keys())
    plain = [{each: getattr(key, each) for each in ("name", "created_at", "last4")} for key in found]
    columns = {
        "KEY": lambda key: key.name,
        "MADE": lambda key: f"{ago(key.created_at)} ago",
        "LAST LETTERS": lambda key: key.last4,
    }
    return server.show({"keys": plain}, lambda: print_table(found, columns))


@app.command
def add(name: KeyName, /, *, server: ServerNeed = HERE) -> int:
    """Make a key and print it: it is shown this once."""
    made = server.ask(lambda client: client.add_key(name))
    print_json(made) if server.json else print(made.key)
    say(f"this is the key {name}; keep it, it is not shown again")
    return OK


@app.command
def remove(
    name: KeyName,
    /,
    *,
    yes: Annotated[
        bool, Parameter(name=("--yes", "-y"), negative=(), show_default=False, help="Also the key that is used here.")
    ] = False,
    server: ServerNeed = HERE,
) -> int:
    """Take a key away; whoever has it is refused within seconds. Asks before it takes the key that is used here."""
    last4 = (find_address(server.url, server.key).key or "")[-4:]

    def take(client: Client) -> bool:
        keys = () if yes else client.keys()
        ours = any((key.name, key.last4) == (name, last4) for key in keys)
        if ours and not sys.stdin.isatty():
            raise Unusable(f"{name} is the key that you use: without it you are let in no more; repeat with --yes")
        if ours and not agreed(f"{name} is the key that you use. remove it?"):
            return False
        client.remove_key(name)
        return True

    gone = server.ask(take)
    print_json({"name": name}) if server.json and gone else say(f"key {name} is gone" if gone else "nothing was done")
    return OK
