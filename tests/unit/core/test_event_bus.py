"""One total order of events for everybody who listens."""

from __future__ import annotations

import threading

from tfs_lite.core.event_bus import EventBus, TimedEvent
from tfs_lite.testing.lifecycle.clock import VirtualClock


def test_event_is_stamped_once_and_reaches_subscribers_in_the_order_of_subscription() -> None:
    clock = VirtualClock(100)
    bus: EventBus[str] = EventBus(clock)
    seen: list[tuple[str, TimedEvent[str]]] = []
    bus.subscribe(lambda event: (seen.append(("first", event)), clock.advance(5)))
    bus.subscribe(lambda event: seen.append(("second", event)))
    bus.publish("e")
    assert seen == [("first", TimedEvent("e", 100.0)), ("second", TimedEvent("e", 100.0))]


def test_publishing_without_subscribers_does_nothing() -> None:
    EventBus(VirtualClock()).publish("e")


def test_closed_subscription_hears_nothing_and_may_be_closed_again() -> None:
    bus: EventBus[str] = EventBus(VirtualClock())
    seen: list[str] = []
    subscription = bus.subscribe(lambda event: seen.append(event.event))
    bus.publish("1")
    subscription.close()
    subscription.close()
    bus.publish("2")
    assert seen == ["1"]


def test_subscriber_that_raises_disturbs_neither_the_others_nor_the_publisher(caplog) -> None:
    bus: EventBus[str] = EventBus(VirtualClock())
    seen: list[str] = []

    def broken(event: object) -> None:
        raise RuntimeError("mine")

    bus.subscribe(broken)
    bus.subscribe(lambda event: seen.append(event.event))
    bus.publish("e")
    assert seen == ["e"]
    assert "a subscriber failed on" in caplog.text


def test_callback_that_calls_the_bus_is_told_so_instead_of_hanging(caplog) -> None:
    bus: EventBus[str] = EventBus(VirtualClock())
    seen: list[str] = []
    subscription = bus.subscribe(lambda event: None)
    for attempt in (lambda: bus.publish("again"), lambda: bus.subscribe(print), subscription.close):
        bus.subscribe(lambda event, attempt=attempt: attempt())
    bus.subscribe(lambda event: seen.append(event.event))
    bus.publish("e")
    assert seen == ["e"]
    assert caplog.text.count("must not call the bus") >= 3


def test_closing_waits_for_a_callback_that_runs() -> None:
    bus: EventBus[str] = EventBus(VirtualClock())
    entered, go_on = threading.Event(), threading.Event()
    order: list[str] = []

    def slow(event: object) -> None:
        entered.set()
        go_on.wait(60)
        order.append("callback")

    subscription = bus.subscribe(slow)
    publishing = threading.Thread(target=bus.publish, args=("e",))
    closing = threading.Thread(target=lambda: (subscription.close(), order.append("closed")))
    publishing.start()
    assert entered.wait(60)
    closing.start()
    go_on.set()
    publishing.join(60)
    closing.join(60)
    assert order == ["callback", "closed"]


def test_all_subscribers_see_the_events_of_many_threads_in_one_order() -> None:
    bus: EventBus[tuple[int, int]] = EventBus(VirtualClock())
    seen: list[list[tuple[int, int]]] = [[], []]
    for mine in seen:
        bus.subscribe(lambda event, mine=mine: mine.append(event.event))
    threads = [
        threading.Thread(target=lambda index=index: [bus.publish((index, step)) for step in range(100)])
        for index in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen[0] == seen[1]
    assert len(seen[0]) == 400
    for index in range(4):
        assert [step for thread, step in seen[0] if thread == index] == list(range(100))
