"""The worker protocol, decided: what a worker is told, who has a run, and what its reports mean for it.

A *boot* is one life of a worker in a slot, named by the nonce it drew. A run belongs to at most one boot.
"""

from typing import Final

from standby.core.model import Template, Warmth

URL: Final = "STANDBY_URL"
"""Where the server is, for whoever has a network."""
SOCKET: Final = "STANDBY_SOCKET"
"""The path of a Unix socket that serves the worker routes. Its directory is what is mounted, at the same path: the
socket itself is a new one after each start of the server."""
SLOT: Final = "STANDBY_SLOT"
SLOT_TOKEN: Final = "STANDBY_SLOT_TOKEN"  # noqa: S105  the name, not the token
"""Of a place that a worker lives in: exchanged for a boot token."""
SILENCE_S: Final = "STANDBY_SILENCE_S"
"""So long after its last answered heartbeat the worker ends itself; not set where silence means nothing."""
RUN_ID: Final = "STANDBY_RUN_ID"
RUN_TOKEN: Final = "STANDBY_RUN_TOKEN"  # noqa: S105
"""Of one run that is started for its order: heartbeats, progress and a result, nothing else."""


def handed_over(template: Template) -> bool:
    """Whether a run is handed to a worker that waits for it, so that nothing has to be sent to the platform."""
    return template.worker and template.warmth is Warmth.RUNNING
