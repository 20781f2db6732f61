"""A bot that joins meetings: the meeting is pretended, the protocol is real.

An order's payload is {"meeting": "https://meet.example/abc", "minutes": 30}. Two meetings are special: .../nobody does
not exist, and nobody opens the door of .../lobby.
"""

from collections.abc import Mapping
from typing import Any

from standby.worker import Failed, Job, Worker

MINUTE_S = 0.1
"""Pretended minutes are short."""
LOBBY_S = 0.5


def attend(job: Job) -> Mapping[str, Any]:
    """Join, stay until it is over or somebody wants the bot to leave, and say what was heard."""
    wish = job.payload or {}
    url, minutes = str(wish.get("meeting", "")), int(wish.get("minutes", 1))
    job.progress(0, "JOINING_CALL")
    if not url.startswith("https://") or url.endswith("/nobody"):
        raise Failed("NoSuchMeeting", f"there is no meeting at {url!r}", retryable=False)
    if url.endswith("/lobby"):
        job.stopping.wait(LOBBY_S)
        raise Failed("LobbyTimeout", "nobody let the bot in", retryable=True)
    for minute in range(minutes):
        job.progress(minute / minutes, "IN_CALL")
        if job.stopping.wait(MINUTE_S):
            job.progress(minute / minutes, "LEAVING")
            return {"heard_minutes": minute, "left_early": True}
    job.progress(1, "LEAVING")
    return {"heard_minutes": minutes, "left_early": False}


if __name__ == "__main__":
    Worker().run(attend)
