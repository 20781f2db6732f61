"""`standby version` and `standby --install-completion`: about the program itself."""

import sys
from pathlib import Path
from shutil import which
from typing import Final, Literal

from standby import __version__
from standby.cli.talk import OK, Json, Unusable, print_json, say

STARTUP: Final = {"bash": ".bashrc", "zsh": ".zshrc"}
"""What a shell reads when it begins, and is told of the script; fish looks for it by itself."""


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
    from cyclopts.completion.detect import ShellDetectionError, detect_shell

    from standby.cli.main import app

    try:
        found = shell or detect_shell()
        path = app.install_completion(shell=found, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        raise Unusable("which shell this is cannot be seen; say it with --shell bash, zsh or fish") from None
    if output is not None:
        say(f"{path} is written; source it to use it")
    else:
        begins = f", and ~/{STARTUP[found]} reads it" if found in STARTUP else ""
        say(f"{path} is written{begins}; begin a new shell to use it")
    if which("standby") is None:
        here = Path(sys.argv[0]).absolute().parent
        say(f"standby is not on PATH, so no shell knows it by its name; to change that: export PATH={here}:$PATH")
    return OK
