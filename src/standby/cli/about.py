"""`standby version` and `standby --install-completion`: about the program itself."""

from pathlib import Path
from typing import Literal

from standby import __version__
from standby.cli.talk import OK, Json, Unusable, print_json, say


def version(*, json: Json = False) -> int:
    """Print the version."""
    print_json({"version": __version__}) if json else print(__version__)
    return OK


def install_completion(*, shell: Literal["bash", "zsh", "fish"] | None = None, output: Path | None = None) -> int:
    """Let the shell complete commands and options: writes a script where the shell looks for it.

    Parameters
    ----------
    shell
        Which shell; the present one unless said.
    output
        Write the script to this file, and touch nothing else.
    """
    from cyclopts.completion.detect import ShellDetectionError

    from standby.cli.main import app

    try:
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        raise Unusable("which shell this is cannot be seen; say it with --shell bash, zsh or fish") from None
    say(f"{path} is written; {'begin a new shell' if output is None else 'source it'} to use it")
    return OK
