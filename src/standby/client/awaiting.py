"""The client for programs that await: the same conversations as in `blocking`, each step awaited."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx2

from standby.client import flows, plans, project_plans, wire
from standby.client import schedules as recurring
from standby.client.address import ARGUMENT, find_address
from standby.client.signature import as_method
from standby.client.talk import Call, Flow, Item, Pause, Plan, Said, Step

P = ParamSpec("P")
T = TypeVar("T")


class _Conversation:
    """Carries out the steps of one plan or flow; holds at most one open stream."""

    def __init__(self, client: "AsyncClient") -> None:
        self._client = client
        self._stream: httpx2.Response | None = None
        self._lines: AsyncIterator[str] | None = None

    async def carry_out(self, step: Step) -> Said:
        client = self._client
        try:
            match step:
                case Call():
                    await self.close()
                    response = await client._http.send(wire.request(client._http, step), stream=step.stream)
                    client._known = True
                    if step.stream and response.is_success:
                        self._stream, self._lines = response, _lines(response)
                        return wire.reply(response)
                    return wire.reply(response, await response.aread())
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                    return None
                case _:
                    return None if self._lines is None else await anext(self._lines, None)
        except httpx2.TransportError as error:
            return wire.away(client.url, error, known=client._known)

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


async def _lines(stream: httpx2.Response) -> AsyncIterator[str]:
    lines = wire.Lines()
    async for piece in stream.aiter_bytes():
        for line in lines.of(piece):
            yield line


def _one(plan: Callable[P, Plan[T]]) -> "Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]":
    async def call(self: "AsyncClient", /, *args: P.args, **named: P.kwargs) -> T:
        steps, talk = plan(*args, **named), _Conversation(self)
        said: Said = None
        while True:
            try:
                step = steps.send(said)
            except StopIteration as end:
                value: T = end.value
                return value
            said = await talk.carry_out(step)

    as_method(call, plan, "AsyncClient")
    return call


def _many(flow: Callable[P, Flow[T]]) -> "Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]":
    async def call(self: "AsyncClient", /, *args: P.args, **named: P.kwargs) -> AsyncIterator[T]:
        steps, talk = flow(*args, **named), _Conversation(self)
        said: Said = None
        try:
            while True:
                try:
                    step = steps.send(said)
                except StopIteration:
                    return
                if isinstance(step, Item):
                    said = None
                    yield step.value
                else:
                    said = await talk.carry_out(step)
        finally:
            await talk.close()

    as_method(call, flow, "AsyncClient", AsyncIterator)
    return call


class AsyncClient:
    """One server, named or found as the command line finds it. Every method may raise ServerUnreachable or
    ServerRefused."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        said: str = ARGUMENT,
    ) -> None:
        """`said`: how errors name `url` and `key`."""
        address = find_address(url, key, said=said)
        self.url = address.url
        self._known = False
        self._http = httpx2.AsyncClient(transport=transport, **wire.options(address))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    submit = _one(plans.submit)
    submit_many = _one(plans.submit_many)
    order = _one(plans.order)
    orders_page = _one(plans.orders_page)
    why = _one(plans.why)
    runs = _one(plans.runs)
    order_events = _one(plans.order_events)
    cancel = _one(plans.cancel)
    rerun = _one(plans.rerun)
    cancel_many = _one(plans.cancel_many)
    rerun_many = _one(plans.rerun_many)
    purge_many = _one(plans.purge_many)
    pools = _one(plans.pools)
    pool = _one(plans.pool)
    patch_pool = _one(plans.patch_pool)
    projects = _one(project_plans.projects)
    project = _one(project_plans.project)
    patch_project = _one(project_plans.patch_project)
    set_project_mode = _one(project_plans.set_project_mode)
    hosts = _one(plans.hosts)
    host = _one(plans.host)
    starts = _one(plans.starts)
    slots = _one(plans.slots)
    set_pool_mode = _one(plans.set_pool_mode)
    reset_breaker = _one(plans.reset_breaker)
    set_host_mode = _one(plans.set_host_mode)
    declare_dead = _one(plans.declare_dead)
    schedules = _one(recurring.schedules)
    schedule = _one(recurring.schedule)
    add_schedule = _one(recurring.add_schedule)
    change_schedule = _one(recurring.change_schedule)
    set_schedule_mode = _one(recurring.set_schedule_mode)
    run_schedule = _one(recurring.run_schedule)
    remove_schedule = _one(recurring.remove_schedule)
    doctor = _one(plans.doctor)
    config = _one(plans.config)
    keys = _one(plans.keys)
    add_key = _one(plans.add_key)
    remove_key = _one(plans.remove_key)
    wait = _one(flows.wait)
    orders = _many(flows.orders)
    watch = _many(flows.watch)
    events = _many(flows.events)
    follow = _many(flows.follow)
    logs = _many(flows.logs)
