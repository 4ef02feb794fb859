"""The events of one version, for everything that may happen to it, in virtual time."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.harness import HarnessState
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

BAD = Status(StatusCode.INVALID_ARGUMENT, "not a model")


LIFE = ["Start", "Loading", "Available"]


def fixture_with(options: dict | None = None, **loading: object) -> ManagerFixture:
    """A fixture whose version 1 of m loads as ``loading`` says."""
    fixture = ManagerFixture(**(options or {}))
    fixture.loading[ServableId("m", 1)] = loading
    return fixture


def test_version_that_comes_and_goes_and_comes_again_says_all_five_states() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1)
    fixture.serve("m")
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End"]
    assert fixture.state("m", 1) is None
    fixture.serve("m", 1)
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End", *LIFE]


def test_item_that_arrives_with_an_error_only_ends() -> None:
    fixture = ManagerFixture()
    fixture.emit("m", [ServableData.error(ServableId("m", 1), BAD)])
    fixture.settle()
    assert fixture.history("m", 1) == ["End(INVALID_ARGUMENT)"]
    assert fixture.status("m", 1) == BAD


def test_failed_estimate_ends_without_loading() -> None:
    fixture = fixture_with({"ram": 15, "max_num_load_retries": 0}, estimate_failures=-1)
    fixture.serve("m", 1)
    assert fixture.history("m", 1) == ["Start", "End(UNAVAILABLE)"]
    assert fixture.status("m", 1).message.startswith(
        "Error while attempting to reserve resources to load servable {name: m version: 1}: "
    )
    assert fixture.loader("m", 1).loads == 0


@pytest.mark.parametrize(
    ("options", "loading", "history", "loads"),
    [
        ({"ram": 15}, {"estimate": main_ram(16)}, ["Start", "End(RESOURCE_EXHAUSTED)"], 0),
        ({"max_num_load_retries": 2}, {"failures": -1}, ["Start", "Loading", "End(UNAVAILABLE)"], 3),
        ({}, {"failures": 2}, LIFE, 3),
        (
            {"should_retry_model_load": lambda status: status.code is not StatusCode.INVALID_ARGUMENT},
            {"failures": -1, "failure": BAD},
            ["Start", "Loading", "End(INVALID_ARGUMENT)"],
            1,
        ),
    ],
    ids=["too large", "fails in all attempts", "succeeds on a retry", "not to be retried"],
)
def test_load_ends_after_its_attempts(options: dict, loading: dict, history: list[str], loads: int) -> None:
    fixture = fixture_with({"load_retry_interval": 10, **options}, **loading)
    fixture.serve("m", 1)
    for _ in range(5):
        fixture.clock.advance(10)
        fixture.settle()
    assert fixture.history("m", 1) == history
    assert (fixture.loader("m", 1).loads, fixture.loader("m", 1).unloads, fixture.clock.pending) == (loads, 0, 0)


@pytest.mark.parametrize(
    ("failures", "end", "unloads"),
    [(0, "End(CANCELLED)", 1), (-1, "End(UNAVAILABLE)", 0)],
    ids=["the load succeeds", "the load fails"],
)
def test_unaspired_while_loading_ends_with_the_attempt(failures: int, end: str, unloads: int) -> None:
    fixture = fixture_with(failures=failures)
    fixture.aspire_and_tick("m", 1)
    fixture.loads.start()
    fixture.aspire_and_tick("m")
    fixture.loads.finish()
    assert fixture.ready("m") == []
    fixture.settle()
    fixture.clock.advance(600)
    fixture.settle()
    assert fixture.history("m", 1) == ["Start", "Loading", end]
    assert (fixture.loader("m", 1).loads, fixture.loader("m", 1).unloads) == (1, unloads)
    assert fixture.state("m", 1) is None


def test_unaspired_while_waiting_for_a_retry_ends_at_once() -> None:
    fixture = fixture_with(failures=-1)
    fixture.serve("m", 1)
    assert fixture.state("m", 1) is HarnessState.LOADING
    fixture.aspire_and_tick("m")
    assert fixture.history("m", 1) == ["Start", "Loading", "End(UNAVAILABLE)"]
    fixture.clock.advance(600)
    fixture.settle()
    assert fixture.loader("m", 1).loads == 1


def test_unaspired_while_queued_ends_at_once_and_is_never_loaded() -> None:
    fixture = ManagerFixture()
    fixture.aspire_and_tick("m", 1)
    assert fixture.loads.queued == ["load {name: m version: 1}"]
    fixture.aspire_and_tick("m")
    assert fixture.history("m", 1) == ["Start", "End(CANCELLED)"]
    fixture.settle()
    assert fixture.loader("m", 1).loads == 0


def test_unaspired_while_new_ends_when_it_is_dropped() -> None:
    fixture = ManagerFixture()
    fixture.aspire("a", 1)
    fixture.aspire("m", 1)
    fixture.tick()  # the one action goes to a
    fixture.aspire_and_tick("m")
    fixture.tick()
    assert fixture.history("m", 1) == ["Start", "End(CANCELLED)"]
    assert fixture.state("m", 1) is None


def test_unaspired_while_it_waits_for_memory() -> None:
    fixture = ManagerFixture(ram=15, threads=2)
    fixture.loading[ServableId("a", 1)] = fixture.loading[ServableId("m", 1)] = {"estimate": main_ram(10)}
    fixture.aspire("a", 1)
    fixture.aspire_and_tick("m", 1)
    fixture.loads.start()
    fixture.tick()
    assert fixture.loads.start() is False  # parked
    fixture.aspire_and_tick("m")
    assert fixture.history("m", 1) == ["Start", "End(CANCELLED)"]
    fixture.loads.finish()
    fixture.settle()
    assert fixture.loader("m", 1).loads == 0


def test_ready_version_unloads_when_the_manager_closes() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1)
    fixture.manager.close()
    assert fixture.history("m", 1) == [*LIFE, "Unloading", "End"]


def test_handle_held_during_unload_delays_the_end_only() -> None:
    fixture = ManagerFixture()
    fixture.serve("m", 1)
    handle = fixture.manager.get_available_servable_handles()[ServableId("m", 1)]
    fixture.serve("m")
    assert fixture.history("m", 1) == [*LIFE, "Unloading"]
    assert handle.servable.alive
    handle.release()
    fixture.settle()
    assert fixture.history("m", 1)[-1] == "End"


@pytest.mark.parametrize(
    ("policy", "chronicle"),
    [
        ("availability", [("Start", 2), ("Loading", 2), ("Available", 2), ("Unloading", 1), ("End", 1)]),
        ("resource", [("Start", 2), ("Unloading", 1), ("End", 1), ("Loading", 2), ("Available", 2)]),
    ],
)
def test_upgrade_loads_and_unloads_in_the_order_of_its_policy(policy: str, chronicle: list[tuple[str, int]]) -> None:
    fixture = ManagerFixture(policy)
    fixture.serve("m", 1)
    fixture.events.clear()
    fixture.serve("m", 2)
    assert fixture.timeline() == chronicle


def test_available_is_published_when_obtainable_and_before_ready_unloading_while_obtainable() -> None:
    fixture = ManagerFixture()
    seen = []

    def look(timed: object) -> None:
        event = timed.event
        if event.id.version == 1:
            seen.append((event.state.value, fixture.ready("m"), fixture.state("m", 1).value))

    fixture.bus.subscribe(look)
    fixture.serve("m", 1)
    fixture.serve("m")
    assert seen == [
        ("Start", [], "new"),
        ("Loading", [], "loading"),
        ("Available", [1], "loading"),
        ("Unloading", [1], "unload-requested"),
        ("End", [], "disabled"),
    ]


def test_end_comes_after_the_loader_has_unloaded() -> None:
    fixture = ManagerFixture()
    unloads_at_end = []
    fixture.bus.subscribe(
        lambda timed: timed.event.state.value == "End" and unloads_at_end.append(fixture.loader("m", 1).unloads)
    )
    for versions in ([1], []):
        fixture.serve("m", *versions)
    assert unloads_at_end == [1]
