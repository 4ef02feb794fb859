"""The first load: more threads for its time, and a clear answer."""

from __future__ import annotations

import pytest

from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.servable import ServableRequest
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.managers.load_servables_fast import load_servables_fast
from tfs_lite.testing.world import ManagerWorld


@pytest.fixture
def world():
    found = ManagerWorld(
        load_executor=PoolExecutor("load", 1),
        unload_executor=PoolExecutor("unload", 1),
        tick_interval=0.05,
        max_num_load_retries=0,
    )
    found.manager.start()
    yield found
    found.manager.close()


def load(world: ManagerWorld, *requests: ServableRequest, connect=lambda: None, timeout: float | None = 60.0) -> None:
    load_servables_fast(world.manager, connect, world.monitor, requests, 4, timeout)


def aspire(world: ManagerWorld, *names: str, threads: list[int] | None = None):
    def connect() -> None:
        if threads is not None:
            threads.append(world.manager.num_load_threads)
        for name in names:
            world.aspire(name, 1)

    return connect


def test_waits_until_everything_is_available_with_more_threads(world: ManagerWorld) -> None:
    threads: list[int] = []
    load(
        world,
        ServableRequest.latest("a"),
        ServableRequest.specific("b", 1),
        connect=aspire(world, "a", "b", threads=threads),
    )
    assert (world.ready("a"), world.ready("b")) == ([1], [1])
    assert threads == [4]
    assert world.manager.num_load_threads == 1


def test_nothing_to_wait_for_returns_at_once(world: ManagerWorld) -> None:
    load(world)
    assert world.manager.num_load_threads == 1


def test_failure_names_each_servable_and_its_error_and_keeps_what_loaded(world: ManagerWorld) -> None:
    for name in ("bad", "worse"):
        world.loading[world.data(name, 1).id] = {"failures": -1}
    requests = [ServableRequest.latest(name) for name in ("good", "bad", "worse")]
    with pytest.raises(ServingError) as raised:
        load(world, *requests, connect=aspire(world, "good", "bad", "worse"))
    assert raised.value.code is StatusCode.UNKNOWN
    assert str(raised.value).startswith("2 servable(s) did not become available: ")
    assert "{name: bad version: 1}: UNAVAILABLE: injected failure" in str(raised.value)
    assert "{name: worse version: 1}: UNAVAILABLE: injected failure" in str(raised.value)
    assert world.ready("good") == [1]
    assert world.manager.num_load_threads == 1


def test_wait_is_bounded(world: ManagerWorld) -> None:
    with pytest.raises(ServingError) as raised:
        load(world, ServableRequest.latest("never"), timeout=0)
    assert raised.value.code is StatusCode.DEADLINE_EXCEEDED
    assert str(raised.value) == "1 servable(s) did not become available: Latest(never): no answer in time"


def test_sources_that_cannot_be_connected_leave_the_old_number_of_threads(world: ManagerWorld) -> None:
    def broken() -> None:
        raise RuntimeError("no source")

    with pytest.raises(RuntimeError, match="no source"):
        load(world, connect=broken)
    assert world.manager.num_load_threads == 1
