"""What fits, with bound and unbound entries."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.resources import (
    GPU,
    MAIN,
    NO_RESOURCES,
    RAM,
    GroupMemory,
    Resource,
    ResourceAllocation,
    ResourceUtil,
    main_ram,
)
from tfs_lite.managers.resource_tracker import MAIN_MEMORY, ModelShare, ResourceTracker, default_reserve

UTIL = ResourceUtil({MAIN: 1, GPU: 2})
TOTAL = ResourceAllocation({Resource(MAIN, RAM): 100, Resource(GPU, RAM, 0): 16, Resource(GPU, RAM, 1): 16})
TRACKER = ResourceTracker(UTIL, TOTAL)


def gpu(quantity: int, instance: int | None = None) -> ResourceAllocation:
    return ResourceAllocation({Resource(GPU, RAM, instance): quantity})


def test_totals_are_normalised() -> None:
    assert TRACKER.total.entries[Resource(MAIN, RAM, 0)] == 100


def test_total_that_does_not_name_its_instance_is_refused() -> None:
    refusal(ResourceTracker, UTIL, gpu(16))


def test_total_of_an_unknown_device_is_refused() -> None:
    assert "no device 'tpu'" in refusal(ResourceTracker, UTIL, ResourceAllocation({Resource("tpu", RAM, 0): 1}))


def test_estimate_of_an_unknown_device_is_invalid() -> None:
    assert "no device 'tpu'" in refusal(TRACKER.verify, ResourceAllocation({Resource("tpu", RAM): 1}))


@pytest.mark.parametrize(
    ("used", "wanted", "fits"),
    [
        ([], main_ram(100), True),
        ([], main_ram(101), False),
        ([main_ram(60)], main_ram(40), True),
        ([main_ram(60)], main_ram(41), False),
        ([main_ram(30), main_ram(30)], main_ram(41), False),
        ([], gpu(16), True),
        ([], gpu(17), False),
        ([gpu(12, 0)], gpu(12), True),
        ([gpu(12, 0)], gpu(12, 0), False),
        ([gpu(12, 0), gpu(12, 1)], gpu(5), False),
        ([gpu(12)], gpu(12), False),  # somewhere, not decided yet: counts on both
        ([gpu(12)], gpu(4, 1), True),
        ([gpu(12)], NO_RESOURCES, True),
        ([main_ram(200)], gpu(4), True),  # what is overcommitted elsewhere does not matter here
        ([main_ram(200)], main_ram(1), False),
    ],
)
def test_wanted_fits_when_what_is_free_covers_it_on_some_instance(
    used: list[ResourceAllocation], wanted: ResourceAllocation, fits: bool
) -> None:
    assert TRACKER.fits(used, wanted) is fits


def test_reservation_adds_up_and_keeps_unbound_entries_unbound() -> None:
    used = TRACKER.reserve(NO_RESOURCES, gpu(8))
    assert used == gpu(8)
    assert TRACKER.reserve(used, gpu(8, 1)) == ResourceAllocation({Resource(GPU, RAM): 8, Resource(GPU, RAM, 1): 8})
    assert TRACKER.reserve(used, gpu(9, 1)) is None


def test_used_is_the_sum_of_all() -> None:
    assert TRACKER.recompute_used([main_ram(1), main_ram(2), gpu(3, 1)]) == ResourceAllocation(
        {Resource(MAIN, RAM, 0): 3, Resource(GPU, RAM, 1): 3}
    )


def test_explanation_names_wanted_used_and_total_of_each_resource() -> None:
    wanted = ResourceAllocation({Resource(MAIN, RAM): 50, Resource(GPU, RAM): 20})
    assert TRACKER.explain([main_ram(60), gpu(4, 1)], wanted) == (
        "main/0/ram_in_bytes wanted 50, used 60, total 100; "
        "gpu/ram_in_bytes wanted 20 (gpu/0 used 0, total 16; gpu/1 used 4, total 16)"
    )


# Inside a control group.

MIB = 1 << 20


class Group:
    """A control group that holds what the test says."""

    def __init__(self, limit: int, held: int) -> None:
        self.memory: GroupMemory | None = GroupMemory(limit, held)

    def __call__(self) -> GroupMemory | None:
        return self.memory


def shared(group: Group, reserve: int = 10) -> ResourceTracker:
    return ResourceTracker(UTIL, TOTAL, ModelShare(group, lambda limit: reserve))


def holds(tracker: ResourceTracker, group: Group, held: int, reserved: int, in_flight: bool = False) -> int:
    """The total for models when the group holds so much, and versions have reserved so much."""
    group.memory = GroupMemory(90, held)
    tracker.measure()
    tracker.settle([main_ram(reserved)], in_flight=in_flight)
    return tracker.total.entries[MAIN_MEMORY]


def test_models_get_what_the_process_and_the_reserve_leave_of_the_limit() -> None:
    assert shared(Group(90, 25)).total.entries[MAIN_MEMORY] == 90 - 25 - 10


def test_the_own_limit_of_models_counts_where_it_is_lower() -> None:
    assert shared(Group(500, 25)).total.entries[MAIN_MEMORY] == 100


def test_what_loaded_versions_hold_counts_once() -> None:
    group = Group(90, 25)
    tracker = shared(group)
    assert holds(tracker, group, held=25 + 30, reserved=30) == 55
    assert tracker.fits([main_ram(30)], main_ram(25))
    assert not tracker.fits([main_ram(30)], main_ram(26))


def test_weights_that_are_only_mapped_and_count_as_cache_make_no_room_for_others() -> None:
    group = Group(90, 25)
    assert holds(shared(group), group, held=25, reserved=30) == 80  # of which 30 are reserved for them


def test_what_the_process_holds_is_followed_up_and_down_while_nothing_loads() -> None:
    group = Group(90, 25)
    tracker = shared(group)
    assert holds(tracker, group, held=45, reserved=0) == 35
    assert holds(tracker, group, held=20, reserved=0) == 60


def test_memory_that_a_load_has_not_taken_yet_hides_nothing_that_others_hold() -> None:
    group = Group(90, 25)
    tracker = shared(group)
    assert holds(tracker, group, held=30, reserved=40, in_flight=True) == 55
    assert holds(tracker, group, held=70, reserved=40, in_flight=True) == 50


def test_a_group_that_is_full_already_has_no_room_rather_than_less_than_none() -> None:
    assert shared(Group(90, 200)).total.entries[MAIN_MEMORY] == 0


def test_a_limit_that_goes_or_comes_while_the_server_runs_is_followed() -> None:
    group = Group(90, 25)
    tracker = shared(group)
    group.memory = None
    tracker.measure()
    assert (tracker.total.entries[MAIN_MEMORY], tracker.beside_models) == (100, "")
    assert holds(tracker, group, held=25, reserved=0) == 55


def test_refusal_says_what_is_held_beside_models() -> None:
    assert shared(Group(90, 25)).explain([main_ram(30)], main_ram(26)) == (
        "main/0/ram_in_bytes wanted 26, used 30, total 55; of the 90 bytes of the control group 25 are held beside "
        "models, and 10 are kept back (--memory_reserve_bytes)"
    )


@pytest.mark.parametrize(("limit", "reserve"), [(128, 32), (512, 51.2), (4096, 409.6), (100_000, 1024)])
def test_a_tenth_is_kept_back_from_32_mib_to_1_gib(limit: int, reserve: float) -> None:
    assert default_reserve(limit * MIB) == int(reserve * MIB)
