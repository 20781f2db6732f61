"""The peers' virtual environments: made when they are first needed, from hash-locked lists."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent


def python_of(peer: str) -> Path:
    """The interpreter that has this peer, and nothing else, installed."""
    listed = HERE / f"{peer}.txt"
    home = HERE.parent / ".venvs" / peer
    stamp, wanted = home / "installed", hashlib.sha256(listed.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing {peer} into bench/.venvs (once)", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", home], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        # the list is whole: what a package asks for with an extra would be taken for one that is not in it
        subprocess.run([*pip, "install", "--no-deps", "--require-hashes", "-r", str(listed)], check=True)
        stamp.write_text(wanted)
    return home / "bin" / "python"
