from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.messages import HealthCheckRequest, HealthCheckResponse
from tfs_lite.server.grpc.health_service import HealthService
from tfs_lite.server.runtime.health import SERVICES, ChangeSignal, Health, ServingStatus
from tfs_lite.transport.table import CallContext

CONTEXT = CallContext(None)
MODELS = {"good": True, "bad": False}


def request(name: str) -> bytes:
    data: bytes = HealthCheckRequest(service=name).SerializeToString()
    return data


def read(data: bytes) -> ServingStatus:
    return ServingStatus(HealthCheckResponse.FromString(data).status)


def make(loop: asyncio.AbstractEventLoop, max_watchers: int = 10) -> tuple[Health, ChangeSignal, HealthService]:
    health, changes = Health(MODELS.get), ChangeSignal(loop)
    return health, changes, HealthService(health, changes, max_watchers)


async def next_status(stream: AsyncIterator[bytes]) -> ServingStatus:
    return read(await asyncio.wait_for(anext(stream), 20))


async def test_server_is_not_serving_before_it_is_ready_and_after_it_drains() -> None:
    health, _, service = make(asyncio.get_running_loop())
    for name in SERVICES:
        assert read(await service.check(request(name), CONTEXT)) is ServingStatus.NOT_SERVING
    health.set_ready()
    for name in SERVICES:
        assert read(await service.check(request(name), CONTEXT)) is ServingStatus.SERVING
    health.set_draining()
    assert not health.ready
    assert read(await service.check(request(""), CONTEXT)) is ServingStatus.NOT_SERVING
    assert read(await service.check(request("good"), CONTEXT)) is ServingStatus.NOT_SERVING


async def test_health_of_a_model_is_its_own() -> None:
    _, _, service = make(asyncio.get_running_loop())
    assert read(await service.check(request("good"), CONTEXT)) is ServingStatus.SERVING
    assert read(await service.check(request("bad"), CONTEXT)) is ServingStatus.NOT_SERVING
    with pytest.raises(ServingError) as caught:
        await service.check(request("nobody"), CONTEXT)
    assert caught.value.code is StatusCode.NOT_FOUND


async def test_watcher_hears_the_present_each_change_and_the_end() -> None:
    health, changes, service = make(asyncio.get_running_loop())
    stream = aiter(service.watch(request(""), CONTEXT))
    assert await next_status(stream) is ServingStatus.NOT_SERVING
    health.set_ready()
    changes.notify()
    assert await next_status(stream) is ServingStatus.SERVING
    changes.notify()  # nothing has changed: nothing is sent
    health.set_draining()
    changes.notify()
    assert await next_status(stream) is ServingStatus.NOT_SERVING
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_unknown_name_can_be_watched_until_it_appears() -> None:
    _, changes, service = make(asyncio.get_running_loop())
    stream = aiter(service.watch(request("late"), CONTEXT))
    assert await next_status(stream) is ServingStatus.SERVICE_UNKNOWN
    MODELS["late"] = True
    try:
        changes.notify()
        assert await next_status(stream) is ServingStatus.SERVING
    finally:
        del MODELS["late"]


async def test_number_of_watchers_is_bounded_and_a_place_is_given_back() -> None:
    _, _, service = make(asyncio.get_running_loop(), max_watchers=1)
    first = service.watch(request(""), CONTEXT)
    await next_status(aiter(first))
    with pytest.raises(ServingError) as caught:
        await anext(aiter(service.watch(request(""), CONTEXT)))
    assert caught.value.code is StatusCode.RESOURCE_EXHAUSTED
    await first.aclose()  # type: ignore[attr-defined]
    await next_status(aiter(service.watch(request(""), CONTEXT)))


def test_signal_of_a_closed_loop_is_ignored() -> None:
    loop = asyncio.new_event_loop()
    changes = ChangeSignal(loop)
    loop.close()
    changes.notify()
