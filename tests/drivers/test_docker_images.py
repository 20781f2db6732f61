"""Images of a Docker engine: there or not, pulled with progress and a login, and what may go wrong."""

import base64
import json
from collections.abc import Iterator

import pytest

from standby.core.errors import ConfigError
from standby.drivers.contract import CommandRefused
from standby.drivers.docker import DockerDriver
from standby.drivers.docker.images import logins, registry_of, split
from tests.engine import BOX, shared_engine

from .docker_rig import DockerRig, bare_image
from .registry import Registry, registry
from .rigs import now_ms

pytestmark = pytest.mark.anyio
on_engine = pytest.mark.docker


@pytest.fixture
def hub() -> Iterator[Registry]:
    with registry(bare_image(), login="bot:s:cret") as made:
        yield made


def driver_with(hub: Registry | None = None, login: str | None = None) -> DockerDriver:
    known = {} if hub is None or login is None else {f"127.0.0.1:{hub.port}": login}
    return DockerDriver(shared_engine().unix, installation="i", host="h", now=now_ms, registries=known)


@on_engine
async def test_an_image_is_there_under_exactly_its_name(created: DockerRig) -> None:
    assert await created.driver.has_image(BOX)
    assert not await created.driver.has_image(BOX.replace(":1", ":2"))
    assert not await created.driver.has_image("standby-test/nothing")


@on_engine
async def test_a_pull_says_how_far_it_is_and_ends_when_the_image_is_there(hub: Registry) -> None:
    driver = driver_with(hub, "bot:s:cret")
    assert not await driver.has_image(hub.image)
    said = [words async for words in driver.pull(hub.image)]
    assert len(said) > 1 and all(said)
    assert await driver.has_image(hub.image)
    await driver.close()


@on_engine
@pytest.mark.parametrize("login", [None, "bot:wrong"])
async def test_a_pull_without_the_right_login_is_refused(hub: Registry, login: str | None) -> None:
    driver = driver_with(hub, login)
    with pytest.raises(CommandRefused):
        _ = [words async for words in driver.pull(hub.image)]
    await driver.close()


@on_engine
async def test_an_image_that_the_registry_does_not_have_is_refused(hub: Registry) -> None:
    driver = driver_with(hub, "bot:s:cret")
    with pytest.raises(CommandRefused):
        _ = [words async for words in driver.pull(f"127.0.0.1:{hub.port}/other:1")]
    await driver.close()


@on_engine
async def test_a_registry_that_is_away_refuses() -> None:
    driver = driver_with()
    with pytest.raises(CommandRefused):
        _ = [words async for words in driver.pull("127.0.0.1:9/box:1")]
    await driver.close()


@pytest.mark.parametrize(
    ("image", "parts", "registry"),
    [
        ("box", ("box", "latest"), "docker.io"),
        ("team/box:1.2", ("team/box", "1.2"), "docker.io"),
        ("reg.example/box", ("reg.example/box", "latest"), "reg.example"),
        ("reg.example:5000/box", ("reg.example:5000/box", "latest"), "reg.example:5000"),
        ("localhost/a/b:c", ("localhost/a/b", "c"), "localhost"),
        ("reg.example/box:1@sha256:abc", ("reg.example/box:1", "sha256:abc"), "reg.example"),
    ],
)
def test_an_image_has_one_tag_and_one_registry(image: str, parts: tuple[str, str], registry: str) -> None:
    assert split(image) == parts
    assert registry_of(image) == registry


def test_logins_are_read_as_docker_writes_them() -> None:
    auth = base64.b64encode(b"bot:s:cret").decode()
    said = json.dumps({"auths": {"https://index.docker.io/v1/": {"auth": auth}, "reg.example:5000": {"auth": auth}}})
    assert logins(said) == {"docker.io": "bot:s:cret", "reg.example:5000": "bot:s:cret"}
    assert logins(None) == logins("") == logins("{}") == {}


@pytest.mark.parametrize("said", ["[]", "{", '{"auths": {"r": {}}}', '{"auths": {"r": {"auth": "!"}}}'])
def test_logins_that_cannot_be_read_are_not_ignored(said: str) -> None:
    with pytest.raises(ConfigError, match="DOCKER_AUTH_CONFIG"):
        logins(said)
