"""A private Docker engine for one run of the tests, shared by all its workers: over a Unix socket and over TLS.

The first worker that needs it starts this file as a process of its own, which makes certificates and images, tells
where the engine is, and ends it when the run is over. A test that restarts or kills an engine has one to itself.
No image is pulled: they are made of what this machine has.
"""

import fcntl
import io
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import FrameType
from typing import Final

import httpx2
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DIRECTORY: Final = "STANDBY_TEST_ENGINE_DIR"
START_S: Final = 60
BOX: Final = "standby-test/box:1"
"""Busybox and nothing else."""
PYTHON: Final = "standby-test/python:1"
"""Busybox and Python."""
APPLETS: Final = "sh cat dd echo env false grep head id kill ls mkdir mv ps rm sleep sed tail test touch tr true wc"
STORAGES: Final = ("overlay2", "vfs")
PROGRAMS: Final = ("dockerd", "containerd", "runc", "busybox")


def missing() -> str | None:
    """Why no engine can be started here; null when one can."""
    if os.geteuid() != 0:
        return "dockerd needs root"
    lacking = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(lacking)} not found; on Debian: apt install docker.io busybox-static" if lacking else None


class RunningEngine:
    """Where an engine is, and how to stop, kill and start it."""

    def __init__(self, home: Path, *flags: str) -> None:
        self.home, self.flags = home, flags
        self.data = home / "data"
        self.socket = home / "engine.sock"
        self.tls = home / "tls"
        self.port = 0
        self._storage: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def unix(self) -> str:
        return f"unix://{self.socket}"

    @property
    def tcp(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        """Certificates, a port, and a configuration that is not this machine's."""
        self.home.mkdir(parents=True, exist_ok=True)
        make_certificates(self.tls)
        self.port = _free_port()
        (self.home / "daemon.json").write_text("{}")

    def start(self) -> None:
        """Start it and wait until it answers; the first time with the storage driver that works here."""
        log = self.home / "engine.log"
        for storage in (self._storage,) if self._storage else STORAGES:
            with log.open("ab") as out:
                self._process = subprocess.Popen(
                    self._command(storage), stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
                )
            _wait(lambda: self._ended() or self._answers())
            if self._answers():
                self._storage = storage
                return
            self.kill()
        raise RuntimeError(f"no Docker engine for the tests:\n{log.read_text()[-4000:]}")

    def stop(self) -> None:
        """As a service manager would."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=START_S)
            self._process = None

    def kill(self) -> None:
        """As the kernel would. Its containerd dies with it, and both leave files that would stop the next ones."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            for left in (self.home / "pid", self.home / "exec" / "containerd" / "containerd.pid"):
                left.unlink(missing_ok=True)

    def killed_while_it_removed(self, container: str) -> None:
        """Write down, after a kill, what it writes down before it begins to remove a container."""
        path = self.data / "containers" / container / "config.v2.json"
        about = json.loads(path.read_text())
        about["State"]["RemovalInProgress"] = True
        path.write_text(json.dumps(about))

    @contextmanager
    def kept_busy(self, container: str) -> Iterator[None]:
        """A mount on the root of a running container that the engine does not see and so cannot take away: what is left
        when it is stopped at a bad moment (moby issue 45510). After it, removals of that container fail."""
        with self.client() as client:
            layer = client.get(f"/containers/{container}/json").json()["GraphDriver"]["Data"]["MergedDir"]
        beside = self.home / "beside"
        beside.mkdir()
        hidden = beside / Path(layer).relative_to(self.data / "overlay2")
        subprocess.run(["mount", "--bind", "--make-private", self.data / "overlay2", beside], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "busy", hidden], check=True)
        try:
            yield
        finally:
            # unless it was taken away by `unmount`; if it is still there, this fails
            subprocess.run(["umount", "-R", beside], check=False, stderr=subprocess.DEVNULL)
            beside.rmdir()

    def unmount(self) -> None:
        """Stop it, take away every mount among its files, and start it again: the only help for a container that it
        cannot remove because of a mount that it does not see."""
        self.stop()
        _wait(lambda: not _unmounted(self.home))
        self.start()

    def client(self) -> httpx2.Client:
        """A client that is not the one under test."""
        transport = httpx2.HTTPTransport(uds=str(self.socket))
        return httpx2.Client(transport=transport, base_url="http://engine", timeout=60)

    def tell(self) -> str:
        return json.dumps({"port": self.port})

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.socket)) != 0:
                return False
        try:
            with self.client() as client:
                return client.get("/_ping").status_code == 200
        except httpx2.TransportError:
            return False

    def _ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def _command(self, storage: str) -> list[str | Path]:
        home, tls = self.home, self.tls
        name = f"standby-{home.name}"
        return [
            "dockerd",
            f"--config-file={home / 'daemon.json'}",
            f"--data-root={self.data}",
            f"--exec-root={home / 'exec'}",
            f"--pidfile={home / 'pid'}",
            f"--host={self.unix}",
            f"--host={self.tcp}",
            "--tlsverify",
            f"--tlscacert={tls / 'ca.pem'}",
            f"--tlscert={tls / 'server.pem'}",
            f"--tlskey={tls / 'server-key.pem'}",
            f"--containerd-namespace={name}",
            f"--containerd-plugins-namespace={name}-plugins",
            f"--storage-driver={storage}",
            # several engines share a machine: none of them may touch its network
            "--bridge=none",
            "--iptables=false",
            "--log-level=warn",
            *self.flags,
        ]


def shared_engine() -> RunningEngine:
    """The engine of this run of the tests; started by whoever asks first."""
    home = Path(os.environ[DIRECTORY])
    home.mkdir(exist_ok=True)
    told = home / "told"
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            _launch(home, told)
    engine = RunningEngine(home / "e")
    engine.port = json.loads(told.read_text())["port"]
    return engine


@contextmanager
def own_engine(home: Path, *flags: str) -> Iterator[RunningEngine]:
    """An engine for one test, with the image in it; nothing is left of it afterwards."""
    engine = RunningEngine(home, *flags)
    engine.prepare()
    engine.start()
    try:
        load_box(engine)
        yield engine
    finally:
        if engine._process is None:
            engine.start()
        clear(engine)
        engine.stop()
        remove_home(home)


def clear(engine: RunningEngine) -> None:
    """Remove every container, so that no shim outlives the engine."""
    with engine.client() as client:
        for each in client.get("/containers/json", params={"all": 1}).json():
            client.delete(f"/containers/{each['Id']}", params={"force": 1, "v": 1})


def remove_home(home: Path) -> None:
    """Its files, after what is still mounted among them: an engine may leave mounts that go a moment later."""
    _wait(lambda: _removed(home))


def _removed(home: Path) -> bool:
    _unmounted(home)
    shutil.rmtree(home, ignore_errors=True)
    return not home.exists()


def _unmounted(home: Path) -> int:
    """Unmount what is mounted among these files; how many there were."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    ours = [target for target in mounts if target.startswith(f"{home}/")]
    for target in ours:
        subprocess.run(["umount", "-l", target], check=False, stderr=subprocess.DEVNULL)
    return len(ours)


def load_box(engine: RunningEngine) -> None:
    """Make the test image from this machine's static busybox."""
    load_image(engine, BOX, box())


def box() -> bytes:
    """The packed root of the test image."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _add_busybox(tar)
    return packed.getvalue()


def _add_busybox(tar: tarfile.TarFile) -> None:
    busybox = shutil.which("busybox")
    assert busybox is not None
    tar.add(busybox, "bin/busybox")
    for applet in APPLETS.split():
        link = tarfile.TarInfo(f"bin/{applet}")
        link.type, link.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(link)


def load_python(engine: RunningEngine) -> None:
    """Make an image from this machine's own Python, its libraries and busybox."""
    python = Path("/usr/bin/python3").resolve()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _add_busybox(tar)
        tar.add(python, "usr/bin/python3")
        modules = Path(f"/usr/lib/{python.name}")
        tar.add(modules, str(modules)[1:], filter=_needed)
        programs = [python, *modules.glob("lib-dynload/_*.so")]
        linked = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=True).stdout
        for library in sorted({word for word in linked.split() if word.startswith("/") and ":" not in word}):
            tar.add(Path(library).resolve(), library[1:])
    load_image(engine, PYTHON, packed.getvalue())


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Not what only weighs."""
    parts = set(Path(member.name).parts)
    return None if parts & {"__pycache__", "test", "idlelib", "lib2to3", "ensurepip", "pydoc_data"} else member


def load_image(engine: RunningEngine, image: str, packed: bytes, *changes: str) -> None:
    """Make an image from a packed root, with changes as a Dockerfile would say them."""
    name, _, tag = image.rpartition(":")
    params = {"fromSrc": "-", "repo": name, "tag": tag, "changes": list(changes)}
    with engine.client() as client:
        answer = client.post("/images/create", params=params, content=packed)
        assert answer.status_code == 200 and "error" not in answer.text, answer.text


def make_certificates(folder: Path) -> None:
    """A certificate authority, and certificates of the engine and of its clients."""
    folder.mkdir(exist_ok=True)
    authority = ec.generate_private_key(ec.SECP256R1())
    _write_pair(folder, "ca", authority, _certificate("ca", authority, authority, None))
    for name, files, usage in (
        ("engine", "server", ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", "client", ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        _write_pair(folder, files, key, _certificate(name, key, authority, usage))
    (folder / "client.pem").rename(folder / "cert.pem")
    (folder / "client-key.pem").rename(folder / "key.pem")


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: ec.EllipticCurvePrivateKey, usage: x509.ObjectIdentifier | None
) -> x509.Certificate:
    now = datetime.now(UTC)
    build = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=usage is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)
    )
    if usage is None:
        signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        build = build.add_extension(signs, critical=True)
    else:
        build = build.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        here = [x509.IPAddress(ip_address("127.0.0.1")), x509.DNSName("localhost")]
        build = build.add_extension(x509.SubjectAlternativeName(here), critical=False)
    return build.sign(issuer, hashes.SHA256())


def _write_pair(folder: Path, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    plain = serialization.NoEncryption()
    pem, kind = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / f"{name}-key.pem").write_bytes(key.private_bytes(pem, kind, plain))
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))


def _launch(home: Path, told: Path) -> None:
    log_path = home / "log"
    with log_path.open("ab") as log:
        command = [sys.executable, __file__, str(home), os.environ[f"{DIRECTORY}_OWNER"]]
        launcher = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    (home / "launcher.pid").write_text(str(launcher.pid))
    _wait(lambda: told.exists() or launcher.poll() is not None)
    if not told.exists():
        raise RuntimeError(f"the Docker engine for the tests did not start:\n{log_path.read_text()[-4000:]}")
    launcher.returncode = 0  # it outlives whoever started it: nobody waits for it


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# what follows runs in the launcher


def serve(home: Path, owner: int) -> None:
    """Run an engine until the process `owner` is gone or this one is asked to end."""
    signal.signal(signal.SIGTERM, _end)
    with own_engine(home / "e") as engine:
        told = home / "told.new"
        told.write_text(engine.tell())
        told.rename(home / "told")
        try:
            select.select([os.pidfd_open(owner)], [], [])
        except ProcessLookupError:
            return


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
