"""A meeting bot's status, in the words of those who order bots, from an order of Standby as the API shows it."""

from collections.abc import Mapping
from typing import Any

STATUS = {
    "pending": "QUEUED",
    "waiting_retry": "QUEUED",
    "preparing": "DEPLOYING",
    "running": "JOINING_CALL",
    "stopping": "LEAVING",
    "completed": "DONE",
    "failed": "FATAL",
    "cancelled": "CANCELLED",
}


def bot(order: Mapping[str, Any]) -> dict[str, Any]:
    """What the user of a bot sees: its status, and where it stands in the queue."""
    said = order["worker"] or {}
    status = STATUS[order["state"]]
    if order["state"] == "running" and said.get("text"):
        status = said["text"]  # the bot itself knows better: JOINING_CALL, IN_CALL, LEAVING
    return {
        "id": order["id"],
        "status": status,
        "queue_position": order["queue_position"],
        "estimated_wait_ms": order["estimated_wait_ms"],
        "progress": said.get("progress"),
        "why": (said.get("error") or {}).get("text") or order["reason"],
        "result": said.get("result"),
    }
