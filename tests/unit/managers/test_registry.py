"""Events in the order of the changes, on whichever thread they are published."""

from __future__ import annotations

import threading

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.managers.harness import LoaderHarness
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
