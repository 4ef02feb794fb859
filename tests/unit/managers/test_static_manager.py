"""Objects that are served as they are."""

from __future__ import annotations

import pytest

from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.servable import ServableId, ServableRequest
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.managers.static_manager import StaticManagerBuilder
from tfs_lite.testing.clock import VirtualClock

ID = ServableId("m", 1)


def code_of(call) -> StatusCode:
    with pytest.raises(ServingError) as raised:
        call()
    return raised.value.code


def test_objects_are_served() -> None:
    builder = StaticManagerBuilder()
    builder.add_servable(ID, "one")
    builder.add_servable(ServableId("m", 2), "two")
    manager = builder.build()
    assert manager.list_available_servable_ids() == [ID, ServableId("m", 2)]
    with manager.get_servable_handle(ServableRequest.latest("m")) as handle:
        assert handle.servable == "two"
    handles = manager.get_available_servable_handles()
    assert [handle.servable for handle in handles.values()] == ["one", "two"]
    for handle in handles.values():
        handle.release()
    manager.close()


def test_nothing_cannot_be_served() -> None:
    assert code_of(lambda: StaticManagerBuilder().add_servable(ID, None)) is StatusCode.INVALID_ARGUMENT


def test_id_is_taken_once() -> None:
    builder = StaticManagerBuilder()
    builder.add_servable(ID, "one")
    assert code_of(lambda: builder.add_servable(ID, "other")) is StatusCode.FAILED_PRECONDITION
    with builder.build().get_servable_handle(ServableRequest.latest("m")) as handle:
        assert handle.servable == "one"


def test_built_manager_does_not_change_any_more() -> None:
    builder = StaticManagerBuilder()
    assert builder.build() is not None
    assert code_of(lambda: builder.add_servable(ID, "late")) is StatusCode.FAILED_PRECONDITION
    assert builder.build() is None


def test_closing_unloads_and_says_so() -> None:
    events = []
    bus = EventBus(VirtualClock())
    bus.subscribe(lambda timed: events.append(timed.event.state.value))
    builder = StaticManagerBuilder(bus)
    builder.add_servable(ID, "one")
    builder.build().close()
    assert events == ["Start", "Loading", "Available", "Unloading", "End"]
