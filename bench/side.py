"""One side of a comparison: a process of its own, asked one thing at a time."""

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

ROOT: Final = Path(__file__).parents[1]
ANSWER_S: Final = 300


class Side:
    """A measured process that answers by `bench.talk`; ended with its `with` block."""

    def __init__(self, module: str, *arguments: str, python: Path | None = None) -> None:
        command = [str(python or sys.executable), "-m", f"bench.{module}", *arguments]
        self.name = module.rpartition(".")[2]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the exit; a pipe would fill up, as nobody reads it)
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, bufsize=0
        )

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        """What it answers to one verb."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        try:
            self._process.stdin.write(json.dumps({"do": verb, **arguments}).encode() + b"\n")
        except BrokenPipeError:
            raise RuntimeError(f"{self.name} ended: {self._last_words()}") from None
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_S)
            piece = os.read(self._process.stdout.fileno(), 65_536) if ready else b""
            if not piece:
                raise RuntimeError(f"{self.name} did not answer {verb!r}: {self._last_words()}")
            line += piece
        found: dict[str, Any] = json.loads(line)
        return found

    def _last_words(self) -> str:
        self._process.kill()
        self._process.wait()
        self._said.seek(0)
        return self._said.read().decode(errors="replace")[-4_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        finally:
            self._said.close()
