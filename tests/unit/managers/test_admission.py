"""Admit, park or refuse: the decision alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.resources import MAIN, NO_RESOURCES, ResourceAllocation, ResourceUtil, main_ram
from tfs_lite.managers.admission import Admission, Demand, decide
from tfs_lite.managers.resource_tracker import ResourceTracker

TRACKER = ResourceTracker(ResourceUtil({MAIN: 1}), main_ram(15))


def demand(staying: int = 0, leaving: int = 0, ahead: tuple[int, ...] = (), in_flight: bool | None = None) -> Demand:
    held = [main_ram(quantity) for quantity in (staying, leaving)]
    waiting = [main_ram(quantity) for quantity in ahead]
    return Demand([held[0]], [held[1]], waiting, bool(leaving or ahead) if in_flight is None else in_flight)


@pytest.mark.parametrize(
    ("others", "wanted", "verdict"),
    [
        (demand(), 15, Admission.ADMIT),
        (demand(staying=10), 5, Admission.ADMIT),
        (demand(staying=10), 6, Admission.REFUSE),  # nothing is in flight that could make room
        (demand(staying=10, in_flight=True), 6, Admission.PARK),
        (demand(leaving=10), 6, Admission.PARK),
        (demand(leaving=10), 16, Admission.REFUSE),  # never fits: waiting is of no use
        (demand(leaving=10, ahead=(10,)), 5, Admission.ADMIT),  # fits beside who waits, once 10 are gone
        (demand(leaving=10, ahead=(11,)), 5, Admission.PARK),  # would take the place of who waits
        (demand(leaving=10, ahead=(6, 6)), 4, Admission.PARK),
        (demand(staying=4, leaving=8, ahead=(10,)), 3, Admission.PARK),
        (demand(ahead=(10,), in_flight=False), 6, Admission.PARK),  # who is ahead is about to be decided
    ],
)
def test_load_is_admitted_parked_or_refused_by_what_stays_leaves_and_waits(
    others: Demand, wanted: int, verdict: Admission
) -> None:
    assert decide(TRACKER, others, main_ram(wanted)) is verdict


def test_who_wants_nothing_never_waits() -> None:
    assert decide(TRACKER, demand(staying=20, ahead=(15,)), NO_RESOURCES) is Admission.ADMIT


quantities = st.lists(st.integers(1, 8), max_size=2)


def total(quantities: list[int]) -> list[ResourceAllocation]:
    return [main_ram(quantity) for quantity in quantities]


@examples(500)
@given(staying=quantities, leaving=quantities, ahead=quantities, wanted=st.integers(0, 20))
def test_who_is_admitted_fits_and_takes_no_place_of_who_waits(
    staying: list[int], leaving: list[int], ahead: list[int], wanted: int
) -> None:
    verdict = decide(TRACKER, Demand(total(staying), total(leaving), total(ahead), True), main_ram(wanted))
    if verdict is Admission.ADMIT and wanted:
        assert sum(staying) + sum(leaving) + wanted <= 15
        assert not ahead or sum(staying) + sum(ahead) + wanted <= 15
    if verdict is Admission.REFUSE:
        assert wanted > 15
