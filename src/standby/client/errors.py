"""What can go wrong between a client and its server.

StandbyError
├── ServerUnreachable    no server answers
└── ServerRefused        it answered, and refused
"""

from typing import Any

from standby.core.errors import ConfigError as ConfigError
from standby.core.errors import StandbyError as StandbyError


class ServerUnreachable(StandbyError):
    """No server answers at the address."""


class ServerRefused(StandbyError):
    """The server understood and refused; `problem` is its answer, `code` the name of the refusal."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        detail = problem.get("detail") or f"the server answered {status}"
        super().__init__(f"{detail}; {problem['what_to_do']}" if problem.get("what_to_do") else str(detail))
        self.status, self.problem, self.code = status, problem, str(problem.get("code", ""))
