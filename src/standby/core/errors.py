"""Everything that can be refused or go wrong, by who can do something about it.

    StandbyError
    ├── ConfigError        the operator wrote something that cannot be used
    ├── Refused            the caller asked for something that is not possible now
    │   └── IllegalMove    ... because the row is in another state
    └── Unreachable        a platform could not be asked; nothing is known

What a save can answer is a value, not an exception: see `standby.store.contract.Verdict`.
"""


class StandbyError(Exception):
    """Base of all errors that Standby raises on purpose."""


class ConfigError(StandbyError):
    """The configuration cannot be used; the text names the source, the key and what to do."""


class Refused(StandbyError):
    """The request cannot be served; the text says why and what to do."""


class IllegalMove(Refused):
    """The row is not in a state from which this is allowed."""

    def __init__(self, verb: str, noun: str, name: str, state: str) -> None:
        super().__init__(f"cannot {verb} {noun} {name}: it is {state}")
        self.verb, self.noun, self.name, self.state = verb, noun, name, state


class Unreachable(StandbyError):
    """The platform could not be asked, or answered only in part."""
