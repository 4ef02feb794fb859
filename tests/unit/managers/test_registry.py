"""Events in the order of the changes, on whichever thread they are published."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.resources import RunningTotal, main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.harness import HOLDS_RESOURCES, IN_FLIGHT, HarnessState, LoaderHarness
from tfs_lite.managers.registry import Registry
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.loader import FakeLoader

HARNESS = LoaderHarness(ServableId("m", 1), FakeLoader())


def test_events_are_published_in_the_order_in_which_they_were_queued() -> None:
    bus: EventBus[ServableState] = EventBus(VirtualClock())
    seen: list[ManagerState] = []
    bus.subscribe(lambda timed: seen.append(timed.event.state))
    registry = Registry(bus, lambda: None)
    with registry.lock:
        for state in ManagerState:
            registry.queue_event(HARNESS, state)
    assert seen == []
    registry.publish_events()
    assert seen == list(ManagerState)


def test_publishing_returns_when_another_thread_has_published_the_event() -> None:
    bus: EventBus[ServableState] = EventBus(VirtualClock())
    entered, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(timed: object) -> None:
        entered.set()
        go_on.wait(60)
        order.append("published")

    bus.subscribe(slow)
    registry = Registry(bus, lambda: None)
    with registry.lock:
        registry.queue_event(HARNESS, ManagerState.AVAILABLE)
    first = threading.Thread(target=registry.publish_events)
    first.start()
    assert entered.wait(60)
    second = threading.Thread(target=lambda: (registry.publish_events(), order.append("flushed")))
    second.start()
    go_on.set()
    first.join(60)
    second.join(60)
    assert order == ["published", "flushed"]


def test_change_is_told_outside_the_lock() -> None:
    free: list[bool] = []

    def look() -> None:
        free.append(registry.lock.acquire(blocking=False))
        registry.lock.release()

    registry = Registry(None, look)
    registry.changed()
    assert free == [True]


STATES = tuple(HarnessState)


@given(
    st.lists(st.tuples(st.integers(0, 4), st.sampled_from([*STATES, "beside", "remove", "places"]), st.integers(0, 9)))
)
def test_what_is_kept_of_all_versions_is_what_a_look_at_each_would_find(
    steps: list[tuple[int, HarnessState | str, int]],
) -> None:
    registry = Registry(None, lambda: None)
    for number, step, size in steps:
        servable_id = ServableId("m", number)
        harness = registry.harnesses.get(servable_id)
        if step == "beside":
            new = LoaderHarness(servable_id, FakeLoader())
            registry.keep_beside(new)
            new.state = HarnessState.LOADING
            new.estimate = main_ram(size)
        elif step == "remove":
            registry.remove(servable_id)
            for found in [found for found in registry.beside if found.id == servable_id]:
                registry.drop_beside(found)
        elif step == "places":
            new_one = next((found for found in registry.beside if found.id == servable_id), None)
            if harness is not None and new_one is not None:
                registry.change_places(new_one, harness)
        elif isinstance(step, HarnessState):
            if harness is None:
                harness = LoaderHarness(servable_id, FakeLoader())
                registry.add(harness)
            harness.state = step
            harness.status = Status(StatusCode.RESOURCE_EXHAUSTED, "full")
            harness.waits = Reason.WAITS_FOR_MODELS if size == 1 else None
            harness.is_overdue = size == 2
            harness.estimate = main_ram(size)
        everyone = [*registry.harnesses.values(), *registry.beside]
        assert held(registry.leaving) == total(found for found in everyone if found.is_leaving)
        assert held(registry.staying) == total(
            found for found in everyone if found.state in HOLDS_RESOURCES and not found.is_leaving
        )
        assert set(registry.moving) == {found for found in everyone if found.state in IN_FLIGHT}
        assert registry.in_flight == any(found.in_flight for found in everyone)
        assert {*registry.stream("m")} == {*registry.harnesses.values()}
        assert {*registry.exhausted} >= {found for found in everyone if found.state is HarnessState.ERROR}


def held(kept: RunningTotal) -> int:
    return sum(kept.value.entries.values())


def total(harnesses: Iterable[LoaderHarness]) -> int:
    return sum(sum(harness.estimate.entries.values()) for harness in harnesses)


def test_a_stream_has_changed_until_that_was_asked_for() -> None:
    registry = Registry(None, lambda: None)
    harness = LoaderHarness(ServableId("a", 1), FakeLoader())
    registry.add(harness)
    registry.add(LoaderHarness(ServableId("b", 1), FakeLoader()))
    assert registry.take_changed_streams() == {"a", "b"}
    assert registry.take_changed_streams() == set()
    harness.is_aspired = False
    assert registry.take_changed_streams() == {"a"}
    registry.remove(harness.id)
    assert registry.take_changed_streams() == {"a"}
    harness.is_aspired = True
    assert registry.take_changed_streams() == set()
