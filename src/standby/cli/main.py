"""The `standby` command. Exit codes: 0 ok, 1 failed, 2 usage, 3 server not reachable, 4 not found or refused."""

import sys
from collections.abc import Sequence
from typing import Final

from cyclopts import App, CycloptsError

from standby import __version__
from standby.cli import orders, places
from standby.cli.submit import Unusable, submit
from standby.cli.talk import FAILED, INTERRUPTED, OK, REFUSED, UNREACHABLE, USAGE, say
from standby.client import ServerRefused, ServerUnreachable
from standby.core.errors import ConfigError, StandbyError

HINTS: Final = {
    "key_needed": "name one with --key or STANDBY_KEY (the first one is in admin.key in the server's state directory)",
    "no_such_work_order": "see: standby orders list",
    "host_answers": "to stop its work, cancel the orders; to take no more: standby hosts drain",
}

SERVE: Final = """Start the server: the API, the page, and the work.

With no configuration: SQLite in .standby, work on this machine, http://127.0.0.1:8377. Every key of the configuration
file can also be set in the environment (STANDBY_PORT for port); a flag wins over that, that over the file.
"""

app = App(
    name="standby",
    help="A self-hosted control plane for heavy work.",
    version=__version__,
    result_action="return_value",
)
# by name: what a server needs is not loaded to ask one
app.command("standby.cli.serve:serve", name="serve", help=SERVE)
app.command(submit)
app.command(orders.app)
app.command(places.pools)
app.command(places.slots)
app.command(places.hosts)
app.command("standby.cli.admin:db", name="db", help="Look at or migrate the database.")
app.command("standby.cli.admin:config", name="config", help="Check the configuration.")
app.command("standby.cli.admin:version", name="version", help="Say which version this is.")


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; expected errors are said in a line, never as a traceback."""
    try:
        code = app(list(words), exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else OK
    except CycloptsError as error:
        return _fail(USAGE, f"{error}\ntry: {' '.join(['standby', *(error.command_chain or ())])} --help")
    except Unusable as error:
        return _fail(USAGE, str(error))
    except ConfigError as error:
        return _fail(USAGE, str(error))
    except ServerUnreachable as error:
        return _fail(UNREACHABLE, str(error))
    except ServerRefused as error:
        return _fail(REFUSED, _refusal(error))
    except StandbyError as error:
        return _fail(FAILED, str(error))
    except BrokenPipeError:
        # Whoever read us has seen enough; nothing more can be written, not even by Python when it ends.
        sys.stdout = None
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _refusal(error: ServerRefused) -> str:
    """What the server refused, with a hint for a command line where the server's own is for HTTP."""
    hint = HINTS.get(error.problem.get("code", ""))
    return f"{error.problem['detail']}; {hint}" if hint and error.problem.get("detail") else str(error)


def _fail(code: int, text: str) -> int:
    say(f"standby: {text}")
    return code


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
