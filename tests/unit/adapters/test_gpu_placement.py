"""A version whose config names no GPU goes to the one with the most memory that is not reserved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.adapters.gpu_placement import GpuReservations, pick_gpu
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation

MAIN_MEMORY = Resource(MAIN, RAM, 0)


def gpu(number: int | None) -> Resource:
    return Resource(GPU, RAM, number)


def somewhere(quantity: int) -> ResourceAllocation:
    return ResourceAllocation({MAIN_MEMORY: 1, gpu(None): quantity})


def on(number: int, quantity: int) -> ResourceAllocation:
    return ResourceAllocation({gpu(number): quantity})


def test_the_emptiest_is_picked_and_of_equal_ones_the_first() -> None:
    assert pick_gpu({0: 5, 1: 9, 2: 7}) == 1
    assert pick_gpu({2: 9, 1: 9, 0: 7}) == 1


def test_two_loads_at_once_do_not_pick_the_same() -> None:
    gpus = GpuReservations(lambda: {0: 100, 1: 100})
    assert gpus.place("a", somewhere(60)) == (ResourceAllocation({MAIN_MEMORY: 1, gpu(0): 60}), 0)
    assert gpus.place("b", somewhere(50))[1] == 1
    assert gpus.place("c", somewhere(10))[1] == 1
    gpus.release("a")
    assert gpus.place("d", somewhere(10))[1] == 0


def test_what_is_named_counts_and_is_not_moved() -> None:
    gpus = GpuReservations(lambda: {0: 100, 1: 90})
    assert gpus.place("a", on(0, 20)) == (on(0, 20), None)
    both = ResourceAllocation({gpu(None): 5, gpu(1): 5})
    assert gpus.place("b", both) == (on(1, 10), 1)


def test_what_was_measured_replaces_what_was_reserved() -> None:
    gpus = GpuReservations(lambda: {0: 100, 1: 90})
    for quantity, expected in ((60, 1), (5, 0)):
        gpus.place("a", on(0, quantity))
        assert gpus.place("b", somewhere(1))[1] == expected
        gpus.release("b")


def test_on_a_machine_without_gpus_nobody_asks_for_their_memory() -> None:
    main = ResourceAllocation({MAIN_MEMORY: 5})
    assert GpuReservations(lambda: 1 / 0).place("a", main) == (main, None)  # type: ignore[arg-type, return-value]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40) | st.none()), max_size=40))
def test_nothing_is_picked_that_another_gpu_has_more_room_for(steps: list[tuple[int, int | None]]) -> None:
    totals = {0: 100, 1: 80, 2: 100}
    gpus, held = GpuReservations(lambda: totals), dict[int, tuple[int, int]]()
    for holder, quantity in steps:
        held.pop(holder, None)
        if quantity is None:
            gpus.release(holder)
            continue
        free = {number: total - sum(q for n, q in held.values() if n == number) for number, total in totals.items()}
        _, picked = gpus.place(holder, somewhere(quantity))
        assert picked is not None
        assert free[picked] == max(free.values())
        held[holder] = (picked, quantity)
