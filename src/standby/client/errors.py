"""What can go wrong between a client and its server.

StandbyError
├── ConfigError          an address, a key or an id that cannot be one
├── ServerUnreachable    no server answers
└── ServerRefused        it answered, and refused
"""

from typing import Any, Final

from standby.core.errors import ConfigError as ConfigError
from standby.core.errors import StandbyError as StandbyError

NAMED_MOST: Final = 3
"""So many of the wrong fields are named in a text; all are in its `problem`."""


class ServerUnreachable(StandbyError):
    """No server answers at the address."""


class ServerRefused(StandbyError):
    """The server understood and refused; `problem` is its answer, `code` the name of the refusal."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        detail = _detail(problem) or f"the server answered {status}"
        super().__init__(f"{detail}; {problem['what_to_do']}" if problem.get("what_to_do") else str(detail))
        self.status, self.problem, self.code = status, problem, str(problem.get("code", ""))


def _detail(problem: dict[str, Any]) -> str:
    """What is wrong, with the first of the wrong fields that it does not name itself."""
    detail, errors = str(problem.get("detail") or ""), problem.get("errors")
    wrong = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    named = [f"{each['field']}: {each['message']}" for each in wrong if {"field", "message"} <= set(each)]
    told = [each for each in named if each not in detail and not each.endswith(f": {detail}")]
    if not detail or not told:
        return detail
    more = [f"and {len(told) - NAMED_MOST} more"] if len(told) > NAMED_MOST else []
    return f"{detail} ({'; '.join(told[:NAMED_MOST] + more)})"
