"""Times at which something ends: the first of them is always known, whatever was set, moved and dropped."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.schedulers.sequence.deadlines import SPARE, KeyDeadlines

KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("set"), KEYS, st.integers(0, 20)),
        st.tuples(st.just("drop"), KEYS, st.just(0)),
        st.tuples(st.just("pop"), st.just(""), st.integers(0, 20)),
    ),
    max_size=80,
)


@given(STEPS)
def test_deadlines_are_a_dictionary_of_times(steps: list[tuple[str, str, int]]) -> None:
    deadlines: KeyDeadlines[str] = KeyDeadlines()
    times: dict[str, float] = {}
    for what, key, time in steps:
        if what == "set":
            deadlines.set(key, time)
            times[key] = time
        elif what == "drop":
            deadlines.drop(key)
            times.pop(key, None)
        else:
            due = deadlines.pop_due(time)
            assert sorted(due) == sorted(key for key, end in times.items() if end <= time)
            ends = [times.pop(key) for key in due]
            assert ends == sorted(ends)
        assert deadlines.next == min(times.values(), default=inf)
        assert len(deadlines) == len(times)


def test_deadlines_are_due_in_order_of_time() -> None:
    deadlines: KeyDeadlines[str] = KeyDeadlines()
    for key, time in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("b", 4.0)):
        deadlines.set(key, time)
    assert deadlines.pop_due(3.5) == ["c", "a"]
    assert (deadlines.pop_due(3.5), deadlines.get("b"), deadlines.get("a")) == ([], 4.0, inf)


def test_outdated_entries_do_not_pile_up() -> None:
    deadlines: KeyDeadlines[int] = KeyDeadlines()
    for number in range(1000):
        deadlines.set(number, 1e6 - number)
        deadlines.set(0, 1e6 - number)
        if number:
            deadlines.drop(number)
        assert len(deadlines._heap) <= 2 * len(deadlines) + SPARE
    assert deadlines.next == 1e6 - 999
