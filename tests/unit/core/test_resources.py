"""The arithmetic of resources, bound and unbound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.resources import GPU, MAIN, NO_RESOURCES, RAM, Resource, ResourceAllocation, ResourceUtil, main_ram
from tfs_lite.core.status import ServingError, StatusCode

UTIL = ResourceUtil({MAIN: 1, GPU: 2, "tpu": 0})


def on(device: str, quantity: int, instance: int | None = None, kind: str = RAM) -> ResourceAllocation:
    return ResourceAllocation({Resource(device, kind, instance): quantity})


def both(*parts: ResourceAllocation) -> ResourceAllocation:
    return ResourceAllocation([entry for part in parts for entry in part.entries.items()])


# Allocations.


def test_allocation_lists_a_resource_once() -> None:
    entry = (Resource(MAIN, RAM, 0), 1)
    assert "main/0/ram_in_bytes is listed twice" in refusal(ResourceAllocation, [entry, entry])


def test_quantities_are_not_negative() -> None:
    assert "is negative: -1" in refusal(on, MAIN, -1)


def test_allocations_are_equal_whatever_the_order_of_their_entries() -> None:
    one, other = both(on(MAIN, 1), on(GPU, 2)), both(on(GPU, 2), on(MAIN, 1))
    assert one == other
    assert hash(one) == hash(other)
    assert one != on(MAIN, 1)
    assert one != "something else"


def test_allocation_reads_as_resource_and_quantity() -> None:
    assert repr(both(on(MAIN, 1, 0), on(GPU, 2))) == "{main/0/ram_in_bytes: 1, gpu/ram_in_bytes: 2}"


def test_allocation_is_bound_when_every_entry_is() -> None:
    assert on(GPU, 1, 0).bound
    assert not both(on(GPU, 1, 0), on(GPU, 1)).bound
    assert NO_RESOURCES.bound


# Validity and normal form.


@pytest.mark.parametrize(
    ("allocation", "message"),
    [
        (on("npu", 1), "no device 'npu'"),
        (on("tpu", 1), "no device 'tpu'"),  # a device with no instances is absent
        (on(GPU, 1, 2), "this machine has 2 of 'gpu'"),
        (on(GPU, 1, -1), "this machine has 2 of 'gpu'"),
    ],
)
def test_what_the_machine_does_not_have_is_invalid(allocation: ResourceAllocation, message: str) -> None:
    with pytest.raises(ServingError, match=message) as raised:
        UTIL.verify(allocation)
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("allocation", "normal"),
    [
        (on(MAIN, 5), on(MAIN, 5, 0)),  # the only instance there is
        (on(GPU, 5), on(GPU, 5)),
        (both(on(GPU, 0, 1), on(MAIN, 1, 0)), on(MAIN, 1, 0)),
        (both(on(MAIN, 1), on(MAIN, 2, 0)), on(MAIN, 3, 0)),
        (on(MAIN, 0), NO_RESOURCES),
    ],
)
def test_normal_form_is_bound_where_there_is_one_instance_and_holds_no_zeros(
    allocation: ResourceAllocation, normal: ResourceAllocation
) -> None:
    assert UTIL.normalize(allocation) == normal


# Arithmetic.


def test_sum_keeps_bound_and_unbound_apart() -> None:
    assert UTIL.add(both(on(GPU, 1, 0), on(GPU, 2)), both(on(GPU, 3, 0), on(MAIN, 4))) == both(
        on(GPU, 4, 0), on(GPU, 2), on(MAIN, 4, 0)
    )


@pytest.mark.parametrize(
    ("left", "right", "rest"),
    [
        (on(GPU, 5, 0), on(GPU, 3, 0), on(GPU, 2, 0)),
        (on(GPU, 5, 0), on(GPU, 5, 0), NO_RESOURCES),
        (on(GPU, 5, 0), on(GPU, 6, 0), None),
        (on(GPU, 5, 0), on(GPU, 1, 1), None),
        (on(GPU, 5, 0), on(GPU, 1), None),
        (on(MAIN, 5, 0), on(MAIN, 1), on(MAIN, 4, 0)),
    ],
)
def test_difference_is_none_when_the_right_side_is_not_contained(
    left: ResourceAllocation, right: ResourceAllocation, rest: ResourceAllocation | None
) -> None:
    assert UTIL.subtract(left, right) == rest


@pytest.mark.parametrize(
    ("left", "right", "fits"),
    [
        (NO_RESOURCES, NO_RESOURCES, True),
        (on(GPU, 5, 0), on(GPU, 5, 0), True),
        (on(GPU, 6, 0), on(GPU, 5, 0), False),
        (on(GPU, 5), both(on(GPU, 1, 0), on(GPU, 5, 1)), True),
        (on(GPU, 6), both(on(GPU, 5, 0), on(GPU, 5, 1)), False),
        (both(on(GPU, 3, 0), on(GPU, 5)), both(on(GPU, 5, 0), on(GPU, 4, 1)), False),  # bound entries go first
        (both(on(GPU, 3, 0), on(GPU, 4)), both(on(GPU, 5, 0), on(GPU, 4, 1)), True),
        # each unbound entry by itself: two kinds may find room on different instances
        (
            both(on(GPU, 5), on(GPU, 5, kind="processing_in_millicores")),
            both(on(GPU, 5, 0), on(GPU, 5, 1, kind="processing_in_millicores")),
            True,
        ),
    ],
)
def test_left_side_fits_when_each_of_its_entries_finds_room(
    left: ResourceAllocation, right: ResourceAllocation, fits: bool
) -> None:
    assert UTIL.less_than_or_equal(left, right) is fits


def test_comparison_needs_a_bound_right_side() -> None:
    assert "must be bound" in refusal(UTIL.less_than_or_equal, NO_RESOURCES, on(GPU, 1))


def test_overbinding_counts_unbound_entries_on_every_instance() -> None:
    assert UTIL.overbind(both(on(GPU, 2), on(GPU, 3, 1), on(MAIN, 1))) == both(
        on(GPU, 2, 0), on(GPU, 5, 1), on(MAIN, 1, 0)
    )


def test_main_ram_is_bound_to_the_only_instance() -> None:
    assert main_ram(5) == on(MAIN, 5, 0)


allocations = st.dictionaries(
    st.builds(Resource, st.sampled_from([MAIN, GPU]), st.just(RAM), st.sampled_from([None, 0])), st.integers(0, 9)
).map(ResourceAllocation)


@given(left=allocations, right=allocations)
def test_difference_undoes_the_sum(left: ResourceAllocation, right: ResourceAllocation) -> None:
    assert UTIL.subtract(UTIL.add(left, right), right) == UTIL.normalize(left)


@given(left=allocations, right=allocations)
def test_sum_does_not_depend_on_the_order(left: ResourceAllocation, right: ResourceAllocation) -> None:
    assert UTIL.add(left, right) == UTIL.add(right, left)


@given(one=allocations, total=allocations)
def test_what_fits_still_fits_when_overbound_is_free(one: ResourceAllocation, total: ResourceAllocation) -> None:
    bound = UTIL.overbind(total)
    if UTIL.less_than_or_equal(UTIL.overbind(one), bound):
        assert UTIL.less_than_or_equal(one, bound)
