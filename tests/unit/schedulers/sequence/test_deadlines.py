"""Times at which something ends: the first of them is always known, whatever was set, moved and dropped."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.schedulers.sequence.deadlines import SPARE, Deadlines
from tfs_lite.schedulers.sequence.settings import SequenceSettings

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("drop"), KEYS, st.just(0)),
        st.tuples(st.just("ring"), st.just(""), st.integers(0, 20)),
    ),
    max_size=80,
)


@given(STEPS)
def test_alarms_are_a_dictionary_of_times(steps: list[tuple[str, str, int]]) -> None:
    alarms: Deadlines[str] = Deadlines()
    times: dict[str, float] = {}
    for what, key, time in steps:
        if what == "set":
            alarms.set(key, time)
            times[key] = time
        elif what == "drop":
            alarms.drop(key)
            times.pop(key, None)
        else:
            due = alarms.ring(time)
            assert sorted(due) == sorted(key for key, end in times.items() if end <= time)
            ends = [times.pop(key) for key in due]
            assert ends == sorted(ends)
        assert alarms.next == min(times.values(), default=inf)
        assert len(alarms) == len(times)


def test_alarms_ring_in_order_of_time() -> None:
    alarms: Deadlines[str] = Deadlines()
    for key, time in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("b", 4.0)):
        alarms.set(key, time)
    assert alarms.ring(3.5) == ["c", "a"]
    assert (alarms.ring(3.5), alarms.get("b"), alarms.get("a")) == ([], 4.0, inf)


def test_outdated_entries_do_not_pile_up() -> None:
    alarms: Deadlines[int] = Deadlines()
    for number in range(1000):
        alarms.set(number, 1e6 - number)
        alarms.set(0, 1e6 - number)
        if number:
            alarms.drop(number)
        assert len(alarms._heap) <= 2 * len(alarms) + SPARE
    assert alarms.next == 1e6 - 999


@pytest.mark.parametrize(
    "wrong",
    [{"slots_per_instance": 0}, {"max_backlog": 0}, {"max_queued": 0}, {"max_idle": 0.0}, {"max_idle": float("nan")}],
    ids=str,
)
def test_settings_without_room_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="not a way to keep sequences"):
        SequenceSettings(**wrong)  # type: ignore[arg-type]
