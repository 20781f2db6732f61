"""Coolify's API as far as a pool needs it: one request, one honest answer, never more than the budget allows."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx2

from standby.core.errors import Unreachable
from standby.drivers.contract import CommandRefused
from standby.drivers.coolify.answers import Application, Deployment, Project, applications, deployments, one

TIMEOUT_S: Final = 10.0
BURST: Final = 40
A_MINUTE: Final = 160
"""With the burst never more than 200 in any minute: Coolify's limit, which all tokens of a user share."""
RESERVED: Final = 10
"""Kept for looking: without it nobody would know how the rest went."""
PAUSE_MS: Final = 60_000
"""After a refusal that does not say for how long."""
_NOT_THERE: Final = re.compile(r"^(application|deployment|project) not found|^no resources found", re.IGNORECASE)


class Missing(Exception):
    """Coolify answered, and says that there is no such thing."""


class QueueFull(CommandRefused):
    """Coolify's deployment queue has no room: nothing was done, and later it may."""


class Budget:
    """How many requests may be sent now. It refuses instead of waiting: whoever asks again asks later."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._left, self._at = float(BURST), now()
        self._paused_until = 0

    def take(self, reserved: int) -> None:
        """One request; raises Unreachable when it would be too many, or Coolify asked for a pause."""
        now = self._now()
        if now < self._paused_until:
            raise Unreachable("Coolify asked for a pause")
        self._refill()
        if self._left < 1 + reserved:
            raise Unreachable("Coolify's limit of requests a minute is used up")
        self._left -= 1

    def spare(self) -> bool:
        """Whether there is plenty, for what is only nice to have."""
        self._refill()
        return self._left > BURST / 2

    def pause(self, ms: int) -> None:
        """Nothing is sent for so long."""
        self._paused_until = self._now() + ms

    def _refill(self) -> None:
        now = self._now()
        self._left = min(BURST, self._left + max(0, now - self._at) * A_MINUTE / 60_000)
        self._at = now


class Client:
    """Asks once and never repeats. Raises Unreachable when nothing is known of the outcome, CommandRefused when Coolify
    says that it did nothing, Missing when it says that there is no such thing."""

    def __init__(self, url: str, token: str, now: Callable[[], int]) -> None:
        self.budget = Budget(now)
        self._url, self._token = url.rstrip("/"), token
        self._http: httpx2.AsyncClient | None = None

    async def close(self) -> None:
        """Hang up; the next request connects again."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    # looking: with nothing reserved for others when that is what it is for

    async def applications(self, tag: str) -> list[Application]:
        """All applications with this tag."""
        return applications(await self._send("GET", "/applications", {"tag": tag}, reserved=0))

    async def application(self, uuid: str, reserved: int = RESERVED) -> Application:
        found: Application = one(await self._send("GET", f"/applications/{uuid}", reserved=reserved), Application)
        return found

    async def live_deployments(self) -> dict[str, Deployment]:
        """What is queued or under way in the whole team, by uuid."""
        rows = deployments(await self._send("GET", "/deployments", reserved=0))
        return {row.deployment_uuid: row for row in rows}

    async def deployments_of(self, app: str, take: int, reserved: int = RESERVED) -> list[Deployment]:
        """The newest ones of an application, newest first."""
        query = {"skip": "0", "take": str(take)}
        return deployments(await self._send("GET", f"/deployments/applications/{app}", query, reserved=reserved))

    async def deployment(self, uuid: str) -> Deployment:
        found: Deployment = one(await self._send("GET", f"/deployments/{uuid}"), Deployment)
        return found

    async def project(self, uuid: str) -> None:
        """Raises Missing unless this token can see the project."""
        one(await self._send("GET", f"/projects/{uuid}", reserved=0), Project)

    # doing

    async def create(self, body: Mapping[str, Any]) -> str:
        """A new application from an image; names are not unique, so look for it first."""
        answer = await self._send("POST", "/applications/dockerimage", body=body)
        if not isinstance(answer, dict) or not isinstance(answer.get("uuid"), str):
            raise Unreachable("Coolify made an application and did not say which")
        uuid: str = answer["uuid"]
        return uuid

    async def update(self, app: str, body: Mapping[str, Any]) -> None:
        await self._send("PATCH", f"/applications/{app}", body=body)

    async def set_env(self, app: str, env: Mapping[str, str]) -> None:
        """Variables for the next deployment. Every flag is sent each time: a missing one would be written as null."""
        flags = {"is_preview": False, "is_literal": True, "is_multiline": False, "is_shown_once": False}
        where = {"is_runtime": True, "is_buildtime": False}
        data = [{"key": key, "value": value, **flags, **where} for key, value in env.items()]
        await self._send("PATCH", f"/applications/{app}/envs/bulk", body={"data": data})

    async def deploy(self, app: str) -> str | None:
        """Ask for a deployment; the id it answers may be of none, and there may be no id at all."""
        answer = await self._send("POST", "/deploy", {"uuid": app})
        rows = answer.get("deployments") if isinstance(answer, dict) else None
        row = rows[0] if isinstance(rows, list) and rows else None
        uuid = row.get("deployment_uuid") if isinstance(row, dict) else None
        return uuid if isinstance(uuid, str) else None

    async def cancel(self, deployment: str) -> None:
        """Give up a deployment; one that has ended is left alone."""
        try:
            await self._send("POST", f"/deployments/{deployment}/cancel")
        except (Missing, CommandRefused):
            pass

    async def stop(self, app: str) -> None:
        """Ask for its container to be ended, and its image to be kept. It happens later."""
        await self._send("POST", f"/applications/{app}/stop", {"docker_cleanup": "false"})

    async def delete(self, app: str) -> None:
        """Ask for it to be deleted. It happens later."""
        query = {"delete_configurations": "true", "delete_volumes": "true", "docker_cleanup": "false"}
        await self._send("DELETE", f"/applications/{app}", {**query, "delete_connected_networks": "false"})

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        reserved: int = RESERVED,
    ) -> Any:
        if self._http is None:
            headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
            self._http = httpx2.AsyncClient(base_url=f"{self._url}/api/v1", headers=headers, timeout=TIMEOUT_S)
        self.budget.take(reserved)
        try:
            reply = await self._http.request(method, path, params=query, json=body)
        except httpx2.HTTPError as error:
            raise Unreachable(f"Coolify does not answer: {str(error) or type(error).__name__}") from None
        try:
            answer = reply.json()
        except ValueError:
            raise Unreachable(f"Coolify answered {reply.status_code} without JSON") from None
        if reply.is_success:
            return answer
        raise self._problem(reply, answer)

    def _problem(self, reply: httpx2.Response, answer: Any) -> Exception:
        message = answer.get("message") if isinstance(answer, dict) else None
        said = message if isinstance(message, str) else "nothing"
        text = f"Coolify answered {reply.status_code}: {said}"
        match reply.status_code:
            case 404 if _NOT_THERE.match(said):
                return Missing(said)
            case 400 | 409 | 422 if reply.request.method != "GET":
                errors = answer.get("errors") if isinstance(answer, dict) else None
                return CommandRefused(f"{text} {errors}" if errors else text)
            case 429 if "queue" in said.lower():
                return QueueFull(text)  # other requests may go on
            case 429:
                wait = reply.headers.get("Retry-After", "")
                self.budget.pause(int(wait) * 1000 if wait.isdigit() else PAUSE_MS)
                return Unreachable(text)
            case _:
                return Unreachable(text)
