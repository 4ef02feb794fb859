"""The clock is replaced: what counts is when the lock is given away, not how long that takes."""

from tfs_lite.adapters import yielding
from tfs_lite.adapters.yielding import INTERVAL_SECONDS, PAUSE_SECONDS, Yielder


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
