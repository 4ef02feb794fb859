"""The clock is replaced: what counts is when the lock is given away, not how long that takes."""

import sys

import pytest

from tfs_lite.core import yielding
from tfs_lite.core.yielding import INTERVAL_SECONDS, PAUSE_SECONDS, SWITCH_SECONDS, Yielder, giving_way


def test_the_lock_is_given_away_about_once_an_interval(monkeypatch):
    now, pauses = [0.0], []
    monkeypatch.setattr(yielding.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(yielding.time, "sleep", pauses.append)
    yielder = Yielder()
    for _ in range(100):
        now[0] += INTERVAL_SECONDS / 10
        yielder()
    assert 8 <= len(pauses) <= 10
    assert set(pauses) == {PAUSE_SECONDS}


def test_the_lock_is_asked_for_a_hundred_times_as_often_until_the_last_thread_is_done():
    before = sys.getswitchinterval()
    with giving_way():
        with pytest.raises(OSError, match="gone"), giving_way():
            raise OSError("gone")
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    assert before == sys.getswitchinterval() >= 100 * SWITCH_SECONDS


def test_an_interval_that_is_shorter_already_stays():
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS / 10)
    try:
        with giving_way():
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS / 10)
    finally:
        sys.setswitchinterval(before)
