"""A Coolify for tests: a real HTTP server with its queue, its statuses that come late, and each of its lies.

Time is what `now` says, so a test moves it. What is due is done before a request is answered, and where there are
workers also by itself. Each request is held against the table of the API; what the table does not have is refused as
Coolify would, and kept in `violations`.

Work: `worker` is called in a thread for each container that comes up, with the container. When it returns, the
container has ended, and is started again unless it was stopped, as Coolify does.
"""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tests.drivers.coolify_table import read_table, violations

TOKEN: Final = "1|made-up-token"
PROJECT, SERVER = "project1", "server1"
LIVE: Final = ("queued", "in_progress")
POST_ONLY: Final = re.compile(r"/api/v1/(deploy|applications/\w+/(start|stop|restart))")
Answer = tuple[int, Any]


@dataclass
class Container:
    """What runs on the server for an application."""

    app: str
    """The application's name."""
    env: dict[str, str]
    deployment: str
    stopped: threading.Event = field(default_factory=threading.Event)
    restarts: int = 0
    looping: bool = False
    over: bool = False


Worker = Callable[[Container], None]


@dataclass
class App:
    uuid: str
    fields: dict[str, Any]
    created_at: int
    status: str = "exited"
    """What Coolify shows; the truth is in `container`."""
    envs: dict[str, dict[str, Any]] = field(default_factory=dict)
    container: Container | None = None
    stop_at: int | None = None
    stop_prunes: bool = False
    delete_at: int | None = None

    @property
    def name(self) -> str:
        return str(self.fields["name"])

    @property
    def image(self) -> str:
        return f"{self.fields['docker_registry_image_name']}:{self.fields.get('docker_registry_image_tag')}"

    @property
    def truth(self) -> str:
        if self.container is None:
            return "exited"
        return "degraded:unhealthy" if self.container.looping else "running:unknown"


@dataclass
class Deployed:
    id: int
    uuid: str
    app: App
    created_at: int
    commit: str
    status: str = "queued"
    up_at: int | None = None
    done_at: int | None = None
    finished_at: int | None = None
    fails: bool = False


class FakeCoolify:
    """One Coolify with one server. Times are milliseconds."""

    def __init__(self, now: Callable[[], int] | None = None, worker: Worker | None = None) -> None:
        self.now = now or (lambda: time.time_ns() // 1_000_000)
        self.worker = worker
        self.url = ""
        self.up_ms, self.done_ms, self.pull_ms = 20_000, 10_000, 420_000
        self.status_ms, self.stop_ms, self.delete_ms = 60_000, 3_000, 5_000
        self.concurrent_builds, self.queue_limit, self.rate_limit = 2, 25, 200
        self.images: set[str] = set()
        """On the server's disk; others are pulled."""
        self.pulls: list[str] = []
        self.apps: dict[str, App] = {}
        self.deployments: list[Deployed] = []
        self.requests: list[tuple[str, str, Mapping[str, str], Any]] = []
        self.violations: list[str] = []
        self.most_live = 0
        # lies and faults
        self.api_on = True
        self.project = PROJECT
        """The one that the token's team can see."""
        self.outage: Response | None = None
        self.list_lies: str | int | None = None
        """`empty`, `half`, or a status."""
        self.phantoms = self.skips = self.failures = 0
        """So many of the next deployments are answered with an id of nothing, without an id, or fail."""
        self.lost_replies: list[str] = []
        """Requests (`POST /deploy`) that are done while their answer is lost."""
        self.knows_tags = True
        """An older one shows all applications of the team, whatever the tag."""
        self.numbered = True
        """Live deployments come as an object keyed by number."""
        self._calls = read_table()
        self._ids, self._uuids = count(100), count(1)
        self._asked: list[int] = []
        self._pushed_at = self._at = self.now()
        self._lock = threading.RLock()

    # what a test looks at and does

    def app(self, name: str) -> App:
        """The only application of that name."""
        (found,) = [app for app in self.apps.values() if app.name == name]
        return found

    def sent(self, method: str, pattern: str) -> list[Any]:
        """Bodies (or queries) of the requests of that kind so far."""
        asked = [each for each in self.requests if each[0] == method and re.fullmatch(pattern, each[1])]
        return [query if body is None else body for _, _, query, body in asked]

    def settle(self) -> None:
        """Do what is due."""
        with self._lock:
            while (due := min(self._due(), key=lambda each: each[0], default=None)) and due[0] <= self.now():
                self._at = max(self._at, due[0])
                due[1]()
                self._fill()
            self._at = self.now()

    def push(self) -> None:
        """The agent tells what runs."""
        with self._lock:
            for app in self.apps.values():
                app.status = app.truth
                if app.container and app.container.restarts >= app.fields.get("max_restart_count", 10) > 0:
                    app.stop_at, app.stop_prunes = self._at, True

    def boot(self) -> None:
        """Coolify is restarted: everything in its queue has failed, what runs goes on."""
        with self._lock:
            self.settle()
            for each in self.deployments:
                if each.status in LIVE:
                    each.status = "failed"

    def restart(self, name: str) -> None:
        """The container ended, and Docker started it again."""
        with self._lock:
            container = self.app(name).container
            assert container is not None
            container.restarts += 1
            container.over = False
            self._work(container)

    def crash_loop(self, name: str) -> None:
        container = self.app(name).container
        assert container is not None
        container.looping = True

    def vanish(self, name: str) -> None:
        """The container is gone, and Coolify does not know it yet."""
        with self._lock:
            self._end(self.app(name))

    # the server

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Its address, as long as it serves."""
        app = Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST", "PATCH", "DELETE"])])
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", loop="asyncio", access_log=False)
        server = uvicorn.Server(config)
        # named, so that asyncio switches off what costs 40 ms an answer
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(100)
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
            thread.start()
            over = threading.Event()
            ticking = threading.Thread(target=self._go_on, args=(over,), daemon=True)
            try:
                _wait_until(lambda: server.started)
                if self.worker is not None:
                    ticking.start()
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                yield self.url
            finally:
                over.set()
                server.should_exit = True
                thread.join()
                for each in self.apps.values():
                    self._end(each)

    def _go_on(self, over: threading.Event) -> None:
        """Where there are workers time passes by itself."""
        while not over.wait(0.02):
            self.settle()

    async def _answer(self, request: Request) -> Response:
        body = await request.json() if await request.body() else None
        with self._lock:
            self.settle()
            return self._checked(request, body)

    def _checked(self, request: Request, body: Any) -> Response:
        method, path, query = request.method, request.url.path, dict(request.query_params)
        self.requests.append((method, path.removeprefix("/api/v1"), query, body))
        if self.outage is not None:
            return self.outage
        if not self.api_on:
            return JSONResponse({"success": True, "message": "API is disabled."}, 403)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"message": "Unauthenticated."}, 401)
        if (wait := self._throttle()) is not None:
            return JSONResponse({"message": "Too Many Attempts."}, 429, {"Retry-After": str(wait)})
        if method == "GET" and POST_ONLY.fullmatch(path):
            return JSONResponse({"message": "Method not allowed."}, 405, {"Allow": "POST"})
        wrong = list(violations(self._calls, method, path, query, body))
        if wrong:
            self.violations += wrong
            return JSONResponse({"message": "Validation failed.", "errors": {"request": wrong}}, 422)
        status, answer = self._route(method, path.removeprefix("/api/v1"), query, body)
        if (short := f"{method} {path.removeprefix('/api/v1')}") in self.lost_replies:
            self.lost_replies.remove(short)
            return PlainTextResponse("Bad Gateway", 502)
        return JSONResponse(answer, status, {"Retry-After": "60"} if status == 429 else None)

    def _throttle(self) -> int | None:
        now = self.now()
        self._asked = [at for at in self._asked if at > now - 60_000]
        if len(self._asked) >= self.rate_limit:
            return (self._asked[0] + 60_000 - now) // 1000 + 1
        self._asked.append(now)
        return None

    # the API

    def _route(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Answer:
        parts = path.strip("/").split("/")
        match method, parts:
            case "GET", ["applications"]:
                return self._list(query.get("tag"))
            case "POST", ["applications", "dockerimage"]:
                return self._create(body)
            case "POST", ["deploy"]:
                return self._deploy(query["uuid"])
            case "GET", ["deployments"]:
                rows = [self._record(each) for each in self.deployments if each.status in LIVE]
                return 200, ({str(at): row for at, row in enumerate(rows)} if self.numbered and rows else rows)
            case "GET", ["projects", uuid]:
                return (200, {"uuid": uuid}) if uuid == self.project else (404, {"message": "Project not found."})
            case "GET", ["deployments", "applications", uuid]:
                return self._records(uuid, int(query.get("take", 10)))
            case _, ["deployments", uuid, *_]:
                found = next((each for each in self.deployments if each.uuid == uuid), None)
                if found is None:
                    return 404, {"message": "Deployment not found."}
                return (200, self._record(found)) if method == "GET" else self._cancel(found)
            case _, ["applications", uuid, *rest]:
                app = self.apps.get(uuid)
                if app is None:
                    return 404, {"message": "Application not found."}
                return self._about(method, app, rest, query, body)
        return 404, {"message": "Not found.", "docs": "https://coolify.io/docs"}

    def _about(self, method: str, app: App, rest: list[str], query: Mapping[str, str], body: Any) -> Answer:
        match method, rest:
            case "GET", _:
                return 200, self._row(app)
            case "PATCH", ["envs", "bulk"]:
                for item in body["data"]:
                    app.envs[item["key"]] = item
                return 201, [{"key": item["key"]} for item in body["data"]]
            case "PATCH", _:
                app.fields.update(body)
                return 200, {"uuid": app.uuid}
            case "POST", ["stop"]:
                app.stop_at, app.stop_prunes = self.now(), query.get("docker_cleanup", "true") == "true"
                return 200, {"message": "Application stopping request queued."}
            case _:
                app.delete_at = self.now()
                return 200, {"message": "Application deletion request queued."}

    def _list(self, tag: str | None) -> Answer:
        tag = tag if self.knows_tags else None
        rows = [self._row(app) for app in self.apps.values() if tag is None or tag in app.fields.get("tags", [])]
        match self.list_lies:
            case int(status):
                return status, {"message": "Too Many Attempts." if status == 429 else "Server Error"}
            case "empty":
                return 200, []
            case "half":
                return 200, rows[: len(rows) // 2]
        return 200, rows

    def _create(self, body: dict[str, Any]) -> Answer:
        if body["project_uuid"] != self.project or body["server_uuid"] != SERVER:
            return 404, {"message": "Project not found."}
        app = App(f"app{next(self._uuids)}", {"git_commit_sha": "HEAD", **body}, self.now())
        self.apps[app.uuid] = app
        if body.get("instant_deploy"):
            self._queue(app)
        return 201, {"uuid": app.uuid, "domains": None if body.get("autogenerate_domain") is False else "http://x"}

    def _deploy(self, uuid: str) -> Answer:
        app = self.apps.get(uuid)
        if app is None:
            return 404, {"message": "No resources found."}
        row = {"message": f"Application {app.name} deployment queued.", "resource_uuid": uuid}
        if sum(each.status == "queued" for each in self.deployments) >= self.queue_limit:
            return 429, {"message": "Deployment queue is full. Please wait for existing deployments to complete."}
        if self.skips > 0:
            self.skips -= 1
            return 200, {"deployments": [{**row, "message": "Deployment already queued for this commit."}]}
        if self.phantoms > 0:
            self.phantoms -= 1
            return 200, {"deployments": [{**row, "deployment_uuid": f"phantom{next(self._uuids)}"}]}
        if any(each.app is app and each.status in LIVE for each in self.deployments):
            row["message"] = "Deployment already queued for this commit."
            return 200, {"deployments": [{**row, "deployment_uuid": f"phantom{next(self._uuids)}"}]}
        return 200, {"deployments": [{**row, "deployment_uuid": self._queue(app).uuid}]}

    def _queue(self, app: App) -> Deployed:
        made = Deployed(
            next(self._ids), f"deployment{next(self._uuids)}", app, self.now(), app.fields["git_commit_sha"]
        )
        if self.failures > 0:
            self.failures -= 1
            made.fails = True
        self.deployments.append(made)
        self._fill()
        self.most_live = max(self.most_live, sum(each.status in LIVE for each in self.deployments))
        return made

    def _cancel(self, each: Deployed) -> Answer:
        if each.status not in LIVE:
            return 400, {"message": f"Deployment cannot be cancelled. Current status: {each.status}"}
        each.status = "cancelled-by-user"
        self._fill()
        return 200, {"message": "Deployment cancelled successfully.", "deployment_uuid": each.uuid}

    def _records(self, uuid: str, take: int) -> Answer:
        if uuid not in self.apps:
            return 404, {"message": "Application not found"}
        mine = [self._record(each) for each in self.deployments if each.app.uuid == uuid]
        return 200, {"count": len(mine), "deployments": mine[::-1][:take]}

    def _row(self, app: App) -> dict[str, Any]:
        hidden = ("tags", "project_uuid", "server_uuid", "environment_name", "instant_deploy", "autogenerate_domain")
        shown = {key: value for key, value in app.fields.items() if key not in hidden}
        return {**shown, "uuid": app.uuid, "status": app.status, "created_at": _iso(app.created_at)}

    def _record(self, each: Deployed) -> dict[str, Any]:
        return {
            "id": each.id,
            "application_id": each.app.uuid,
            "deployment_uuid": each.uuid,
            "status": each.status,
            "commit": each.commit,
            "created_at": _iso(each.created_at),
            "finished_at": _iso(each.finished_at),
        }

    # what happens by itself

    def _due(self) -> Iterator[tuple[int, Callable[[], None]]]:
        yield self._pushed_at + self.status_ms, self._tick
        for each in self.deployments:
            if each.status == "in_progress":
                assert each.up_at is not None and each.done_at is not None
                up = each.fails or (each.app.container is not None and each.app.container.deployment == each.uuid)
                yield (each.done_at, partial(self._finish, each)) if up else (each.up_at, partial(self._up, each))
        for app in self.apps.values():
            if app.stop_at is not None:
                yield app.stop_at + self.stop_ms, partial(self._stopped, app)
            if app.delete_at is not None:
                yield app.delete_at + self.delete_ms, partial(self._deleted, app)
            if app.container is not None and app.container.over:
                yield self.now(), partial(self.restart, app.name)

    def _tick(self) -> None:
        self._pushed_at += self.status_ms
        self.push()

    def _fill(self) -> None:
        """Begin what may begin, oldest first."""
        for each in self.deployments:
            busy = [other for other in self.deployments if other.status == "in_progress"]
            if each.status != "queued" or len(busy) >= self.concurrent_builds:
                continue
            if any(other.app is each.app for other in busy):
                continue
            missing = each.app.image not in self.images
            if missing:
                self.pulls.append(each.app.image)
            each.status = "in_progress"
            each.up_at = self._at + self.up_ms + (self.pull_ms if missing else 0)
            each.done_at = each.up_at + self.done_ms

    def _up(self, each: Deployed) -> None:
        self.images.add(each.app.image)
        self._end(each.app)
        env = {key: item["value"] for key, item in each.app.envs.items() if item["is_runtime"]}
        each.app.container = Container(each.app.name, env, each.uuid)
        self._work(each.app.container)

    def _work(self, container: Container) -> None:
        if self.worker is None:
            return

        def run(work: Worker, stopped: threading.Event) -> None:
            work(container)
            container.over = not stopped.is_set()

        threading.Thread(target=run, args=(self.worker, container.stopped), daemon=True).start()

    def _finish(self, each: Deployed) -> None:
        each.status = "failed" if each.fails else "finished"
        each.finished_at = each.done_at

    def _stopped(self, app: App) -> None:
        self._end(app)
        app.status, app.stop_at = "exited", None
        if app.stop_prunes:
            self.images.clear()

    def _deleted(self, app: App) -> None:
        self._end(app)
        del self.apps[app.uuid]
        self.deployments = [each for each in self.deployments if each.app is not app]

    def _end(self, app: App) -> None:
        if app.container is not None:
            app.container.stopped.set()
            app.container = None


def _iso(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _wait_until(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not check():
        assert time.monotonic() < deadline
        time.sleep(0.01)
