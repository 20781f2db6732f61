"""A fake Coolify with drivers for it, under a clock that the test moves."""

import contextlib
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.core.model import Slot, SlotState, Spec, Template, Warmth
from standby.drivers.contract import Making, Place, Sighting
from standby.drivers.coolify import CoolifyDriver, CoolifyHost
from standby.drivers.coolify.client import Client
from tests.drivers.coolify_fake import PROJECT, SERVER, TOKEN, FakeCoolify
from tests.drivers.rigs import open_run, start_of

LOOK_MS = 15_000
MINUTE = 60_000
LAG = 3 * MINUTE
IMAGE = "registry.example/team/bot:1"
ENV = {"STANDBY_SLOT": "a slot", "STANDBY_SLOT_TOKEN": "a token"}
SOCKET = {"STANDBY_SOCKET": "/run/standby/api.sock"}
"""Cannot be mounted."""
WORK = Spec(order_id="any", payload="null")


def making(warmth: Warmth = Warmth.CREATED, **template: Any) -> Making:
    made = Template(**{"image": IMAGE, "worker": True, "warmth": warmth, **template})
    return Making(template=made, memory_mb=512, env={**ENV, **SOCKET})


class Yard:
    """One Coolify, and the servers that use it."""

    def __init__(self, fake: FakeCoolify, url: str) -> None:
        self.fake, self.url = fake, url
        self.at = fake.now()
        fake.now = lambda: self.at
        fake.images.add(IMAGE)
        self.opened: list[CoolifyDriver] = []
        self._clients: list[Client] = []

    async def server(self, installation: str = "ours", token: str = TOKEN) -> CoolifyDriver:
        """One more server."""
        driver = self.driver(installation, token)
        await driver.open()
        return driver

    def driver(self, installation: str = "ours", token: str = TOKEN) -> CoolifyDriver:
        """One that has not asked anything yet."""
        client = Client(self.url, token, lambda: self.at)
        host = CoolifyHost(project=PROJECT, server=SERVER)
        driver = CoolifyDriver(client, host, installation=installation, now=lambda: self.at)
        self.opened.append(driver)
        return driver

    def person(self) -> Client:
        """Somebody else's connection to this Coolify."""
        client = Client(self.url, TOKEN, lambda: self.at)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for driver in self.opened:
            await driver.close()
        for client in self._clients:
            await client.close()

    async def look(self, driver: CoolifyDriver, ms: int = LOOK_MS) -> list[Place] | None:
        """Let time pass and look; null when that was not possible."""
        self.at += ms
        try:
            return list(await driver.places())
        except Unreachable:
            return None

    async def pass_time(self, driver: CoolifyDriver, ms: int) -> None:
        """Let time pass, with a look each 15 s."""
        for _ in range(ms // LOOK_MS):
            await self.look(driver)

    async def place(self, driver: CoolifyDriver, number: int = 1, what: Making | None = None) -> Slot:
        """A slot with its application, made as the host's step would."""
        return await self.made(driver, new_slot(number), what)

    async def made(self, driver: CoolifyDriver, slot: Slot, what: Making | None = None) -> Slot:
        """Ask until it is made."""
        for _ in range(100):
            made = await driver.create(slot, what or making())
            if made is not None:
                self.at += 3_000  # so that the requests of many do not become too many
                return replace(slot, state=SlotState.IDLE, incarnation=made)
            await self.look(driver)
        raise AssertionError("it was never made")

    async def clean(self, driver: CoolifyDriver, slot: Slot, what: Making | None = None) -> Slot:
        """Reset a used slot until it is clean."""
        used = replace(slot, state=SlotState.CLEANING, state_since=self.at, generation=slot.generation + 1)
        for _ in range(100):
            made = await driver.reset(used, what or making())
            if made is not None:
                return replace(used, state=SlotState.IDLE, incarnation=made)
            await self.look(driver)
        raise AssertionError("it was never clean")

    async def start(self, driver: CoolifyDriver, slot: Slot, order: str = "o") -> Sighting:
        return await driver.start(slot, start_of(slot, order, WORK))

    async def seen(self, driver: CoolifyDriver, slot: Slot, run: str = "o-1", ms: int = LOOK_MS) -> Sighting:
        """What a look shows that is asked now, after some time has passed."""
        with contextlib.suppress(Unreachable):
            await driver.observe([open_run(slot, run)])
        self.at += ms
        await driver.places()
        (sighting,) = await driver.observe([open_run(slot, run)])
        return sighting

    async def running(self, driver: CoolifyDriver, number: int = 1) -> Slot:
        """A slot whose run is up, and seen so."""
        slot = await self.place(driver, number)
        await self.start(driver, slot)
        for _ in range(8):
            await self.seen(driver, slot)
        assert self.fake.app(slot.name).status == "running:unknown"
        return slot

    def deployments(self) -> list[str]:
        return [each.uuid for each in self.fake.deployments]


def new_slot(number: int = 1, installation: str = "ours") -> Slot:
    return Slot(
        name=f"{installation}-pool-bots-{number:03}",
        host="h",
        pool="bots",
        state=SlotState.CREATING,
        state_since=0,
        created_at=0,
    )


@contextlib.contextmanager
def yard() -> Iterator[Yard]:
    """A yard whose every request was one that Coolify's API has."""
    fake = FakeCoolify(now=lambda: 1_800_000_000_000)
    with fake.serving() as url:
        yield Yard(fake, url)
    assert fake.violations == []
