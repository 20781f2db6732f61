"""The first program of the front page, run exactly as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.e2e.house import house

README = Path(__file__).parents[2] / "README.md"


def test_the_first_program_runs_as_it_is_printed(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    env = {name: value for name, value in os.environ.items() if not name.startswith("STANDBY_")}
    with house(tmp_path, state=tmp_path / ".standby") as home:
        home.start()
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "hello you\ncompleted 0\n", "")
