"""Standby: a self-hosted control plane for heavy work."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from standby.client.awaiting import AsyncClient as AsyncClient
    from standby.client.blocking import Client as Client
    from standby.client.errors import ConfigError as ConfigError
    from standby.client.errors import ServerRefused as ServerRefused
    from standby.client.errors import ServerUnreachable as ServerUnreachable
    from standby.client.errors import StandbyError as StandbyError

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "ConfigError",
    "ServerRefused",
    "ServerUnreachable",
    "StandbyError",
    "__version__",
]
_ERRORS = ("ConfigError", "ServerRefused", "ServerUnreachable", "StandbyError")
_HOMES = {"AsyncClient": "awaiting", "Client": "blocking", **dict.fromkeys(_ERRORS, "errors")}


def __getattr__(name: str) -> object:
    """The client, loaded when it is first named: `import standby` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"standby.client.{_HOMES[name]}"), name)
