"""Lookups, and what a live handle holds back."""

from __future__ import annotations

import threading

import pytest

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.managers.serving_map import ServingMap


def serving(*versions: int, name: str = "m") -> ServingMap:
    found = ServingMap()
    for version in versions:
        found.add(ServableId(name, version), f"servable {version}")
    return found


def ids(*versions: int) -> list[ServableId]:
    return [ServableId("m", version) for version in versions]


@pytest.mark.parametrize(("request_", "version"), [(ModelRef("m"), 10), (ModelRef("m", 9), 9), (ModelRef("m", 0), 0)])
def test_request_is_answered_by_number_and_not_by_age(request_: ModelRef, version: int) -> None:
    with serving(9, 10, 0).lookup(request_) as handle:
        assert (handle.id, handle.servable) == (ServableId("m", version), f"servable {version}")


@pytest.mark.parametrize(("request_", "text"), [(ModelRef("x"), "Latest(x)"), (ModelRef("m", 2), "Specific(m, 2)")])
def test_what_is_not_there_is_not_found(request_: ModelRef, text: str) -> None:
    assert refusal(serving(1).lookup, request_, code=StatusCode.NOT_FOUND) == f"Servable not found for request: {text}"


def test_latest_falls_back_to_the_next_lower_version_while_the_highest_drains() -> None:
    found = serving(1, 2)
    old = found.lookup(ModelRef("m"))
    found.withdraw(ServableId("m", 2), lambda: None)
    with found.lookup(ModelRef("m")) as handle:
        assert handle.id.version == 1
    assert old.servable == "servable 2"


def test_unused_version_is_drained_at_once() -> None:
    found, drained = serving(1), []
    found.withdraw(ServableId("m", 1), lambda: drained.append(1))
    assert drained == [1]


def test_version_drains_with_its_last_handle_and_only_once() -> None:
    found, drained = serving(1), []
    handles = [found.lookup(ModelRef("m")) for _ in range(2)]
    found.withdraw(ServableId("m", 1), lambda: drained.append(1))
    handles[0].release()
    handles[0].release()
    assert drained == []
    handles[1].release()
    assert drained == [1]


def test_handles_of_one_version_do_not_hold_up_another() -> None:
    found, drained = serving(1, 2), []
    with found.lookup(ModelRef("m", 1)):
        found.withdraw(ServableId("m", 2), lambda: drained.append(2))
        assert drained == [2]


def test_drained_callback_may_use_the_map() -> None:
    found, seen = serving(1, 2), []
    found.withdraw(ServableId("m", 1), lambda: seen.append(found.ids()))
    assert seen == [ids(2)]


def test_name_whose_last_version_is_withdrawn_is_not_found() -> None:
    found = serving(1)
    found.withdraw(ServableId("m", 1), lambda: None)
    assert found.ids() == []
    refusal(found.lookup, ModelRef("m"), code=StatusCode.NOT_FOUND)


def test_same_id_may_come_back_after_it_was_withdrawn_and_counts_anew() -> None:
    found, drained = serving(1), []
    old = found.lookup(ModelRef("m"))
    found.withdraw(ServableId("m", 1), lambda: drained.append("old"))
    found.add(ServableId("m", 1), "again")
    found.withdraw(ServableId("m", 1), lambda: drained.append("again"))
    assert drained == ["again"]
    old.release()
    assert drained == ["again", "old"]


def test_adding_a_version_twice_is_a_mistake_of_the_manager() -> None:
    with pytest.raises(ValueError, match="already being served"):
        serving(1).add(ServableId("m", 1), "other")


def test_listing_shows_every_version_once_in_order() -> None:
    found = serving(10, 9)
    found.add(ServableId("a", 5), "other")
    assert found.ids() == [ServableId("a", 5), *ids(9, 10)]


def test_handles_to_the_versions_of_some_names_are_to_no_others() -> None:
    found = serving(2, 1)
    found.add(ServableId("a", 5), "other")
    assert list(found.handles({"m", "none"})) == ids(1, 2)
    assert found.handles(()) == {}


def test_handles_to_everything_count_like_any_other() -> None:
    found, drained = serving(2, 1), []
    handles = found.handles()
    assert list(handles) == ids(1, 2)
    found.withdraw(ServableId("m", 1), lambda: drained.append(1))
    assert drained == []
    for handle in handles.values():
        handle.release()
    assert drained == [1]


def test_drained_version_is_not_kept_alive_by_the_map() -> None:
    found = serving(1)
    handle = found.lookup(ModelRef("m"))
    found.withdraw(ServableId("m", 1), lambda: None)
    handle.release()
    assert handle.servable is None


def test_two_threads_releasing_one_handle_count_once() -> None:
    for _ in range(200):
        found, drained = serving(1), []
        handles = [found.lookup(ModelRef("m")) for _ in range(2)]
        barrier = threading.Barrier(2)

        def release(handles=handles, barrier=barrier) -> None:
            barrier.wait()
            handles[0].release()

        threads = [threading.Thread(target=release) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found.withdraw(ServableId("m", 1), lambda drained=drained: drained.append(1))
        assert drained == []
        handles[1].release()
        assert drained == [1]


def latest(found: ServingMap) -> int:
    with found.lookup(ModelRef("m")) as handle:
        return handle.id.version


def test_held_version_answers_by_its_number_and_is_not_the_latest() -> None:
    found = serving(1, 2)
    found.hold(ServableId("m", 2), True)
    assert latest(found) == 1
    with found.lookup(ModelRef("m", 2)) as handle:
        assert handle.id.version == 2
    found.hold(ServableId("m", 2), False)
    assert latest(found) == 2


def test_version_that_is_held_before_it_is_ready_never_becomes_the_latest() -> None:
    found = serving(1)
    found.hold(ServableId("m", 2), True)
    found.add(ServableId("m", 2), "servable 2")
    assert latest(found) == 1
    found.replace(ServableId("m", 2), "servable 2 anew", lambda: None)
    assert latest(found) == 1


def test_where_every_version_is_held_the_highest_answers() -> None:
    found = serving(1, 2)
    for version in (1, 2):
        found.hold(ServableId("m", version), True)
    assert latest(found) == 2
    found.withdraw(ServableId("m", 2), lambda: None)
    assert latest(found) == 1


def test_hold_of_a_name_that_there_is_not_makes_no_name() -> None:
    found = ServingMap()
    for held in (True, False):
        found.hold(ServableId("m", 1), held)
    refusal(found.lookup, ModelRef("m"), code=StatusCode.NOT_FOUND)
