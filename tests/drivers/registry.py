"""A registry of one image on loopback, as much of one as an engine needs to pull: with a login, and slow if asked."""

import base64
import gzip
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """Serves one layer as `box:1`; everything else is not there."""

    def __init__(self, packed: bytes, login: str | None) -> None:
        self.login = login
        self.asked: list[str] = []
        layer = gzip.compress(packed, compresslevel=1)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [_digest(packed)]},
            }
        ).encode()
        self.blobs = {_digest(each): each for each in (layer, config)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _part("application/vnd.docker.container.image.v1+json", config),
            "layers": [_part("application/vnd.docker.image.rootfs.diff.tar.gzip", layer)],
        }
        self.manifest = json.dumps(manifest).encode()
        self.port = 0

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.port}/box:1"

    def answer(self, path: str, login: str | None) -> tuple[int, str, bytes]:
        """Status, type and body."""
        self.asked.append(path)
        wanted = None if self.login is None else f"Basic {base64.b64encode(self.login.encode()).decode()}"
        if login != wanted:
            return 401, "application/json", b'{"errors": [{"code": "UNAUTHORIZED", "message": "who are you"}]}'
        blob = self.blobs.get(path.rpartition("/")[2])
        if path == "/v2/":
            return 200, "application/json", b"{}"
        if path in ("/v2/box/manifests/1", f"/v2/box/manifests/{_digest(self.manifest)}"):
            return 200, MANIFEST, self.manifest
        if path.startswith("/v2/box/blobs/") and blob is not None:
            return 200, "application/octet-stream", blob
        return 404, "application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "not here"}]}'


@contextmanager
def registry(packed: bytes, login: str | None = None) -> Iterator[Registry]:
    """One that serves while the test goes on."""
    told = Registry(packed, login)

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, kind, body = told.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Docker-Content-Digest", _digest(body))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="here"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    told.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _part(kind: str, data: bytes) -> dict[str, object]:
    return {"mediaType": kind, "size": len(data), "digest": _digest(data)}
