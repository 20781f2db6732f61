"""The `standby` command. Exit codes are in docs/clients.md."""

import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Final

from cyclopts import App, CycloptsError

from standby import __version__
from standby.cli.talk import FAILED, INTERRUPTED, OK, REFUSED, UNREACHABLE, USAGE, Unusable, say
from standby.client.errors import ServerRefused, ServerUnreachable
from standby.core.errors import ConfigError, StandbyError

HINTS: Final = {
    "key_needed": "name one with --key or STANDBY_KEY (the first one is in admin.key in the server's state directory)",
    "key_unknown": "name another one with --key or STANDBY_KEY; if it was removed or lost, see docs/operating.md",
    "no_such_work_order": "see: standby orders list",
    "no_such_schedule": "see: standby schedules list",
    "refused_together": "correct these lines and send all of them again",
    "host_answers": "to stop its work, cancel the orders; to take no more: standby hosts drain",
}

ORDERS: Final = frozenset({"list", "show", "why", "logs", "wait", "cancel", "rerun", "purge"})
"""Commands of `standby orders` that one may look for at the top."""

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
COMMANDS: Final = {
    "serve": ("serve:serve", SERVE),
    "submit": ("submit:submit", "Hand in a work order, and stay with it if asked to."),
    "orders": ("orders:app", "List, show, follow, cancel, repeat, remove work orders."),
    "schedules": ("schedules:app", "List schedules; add, change, show, pause, resume, run or remove one."),
    "events": ("events:events", "What happened, and what happens."),
    "pools": ("places:pools", "List pools; show, set, pause, resume or drain one."),
    "slots": ("places:slots", "List slots and what they do."),
    "hosts": ("places:hosts", "List hosts; show, pause, resume or drain one; declare one dead."),
    "projects": ("projects:app", "List projects; show, set, pause, resume or drain one."),
    "keys": ("keys:app", "List, add or remove API keys."),
    "doctor": ("doctor:doctor", "Look for what is wrong, here and at the server."),
    "config": ("admin:config", "Show or check the configuration."),
    "db": ("admin:db", "Look at or migrate the database."),
    "version": ("about:version", "Say which version this is."),
    "--install-completion": ("about:install_completion", "Let the shell complete commands (bash, zsh, fish)."),
}
# by name: what one command needs is not loaded for another
for _name, (_place, _help) in COMMANDS.items():
    app.command(f"standby.cli.{_place}", name=_name, help=_help)


def run(words: Sequence[str]) -> int:
    """Run one command line and return its exit code; expected errors are said in a line, never as a traceback."""
    if wrong := [word for word in words if not _is_text(word)]:
        return _fail(USAGE, f"{wrong[0]!a} is not text in UTF-8")
    if words and words[0] in ORDERS:
        return _fail(USAGE, f"there is no command {words[0]}; did you mean orders {words[0]}?")
    try:
        code = app(list(words), exit_on_error=False, print_error=False)
        return code if isinstance(code, int) else OK
    except CycloptsError as error:
        return _fail(USAGE, f"{error}\ntry: {' '.join(['standby', *(error.command_chain or ())])} --help")
    except (Unusable, ConfigError) as error:
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


def _is_text(word: str) -> bool:
    """Whether a word of the command line can be sent: bytes that are no UTF-8 cannot."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refusal(error: ServerRefused) -> str:
    """What the server refused, with a hint for a command line where the server's own is for HTTP."""
    hint = HINTS.get(error.problem.get("code", ""))
    detail = str(error.problem.get("detail", ""))
    return f"{detail}; {hint}" if hint and detail else str(error)


def _fail(code: int, text: str) -> int:
    say(f"standby: {text}")
    return code


def main() -> None:
    """The entry point."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without UTF-8 shows what it can
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
