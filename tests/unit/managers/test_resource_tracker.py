"""What fits, with bound and unbound entries."""

from __future__ import annotations

import pytest

from tfs_lite.core.resources import GPU, MAIN, NO_RESOURCES, RAM, Resource, ResourceAllocation, ResourceUtil, main_ram
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.testing.errors import refusal

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
