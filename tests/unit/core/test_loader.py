"""How far a load is, in bytes and in words."""

from __future__ import annotations

import pytest

from tfs_lite.core.loader import LoadMeter, LoadPhase, LoadProgress, bytes_text


class Now:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def test_a_phase_with_bytes_tells_how_long_it_takes_at_the_pace_until_now() -> None:
    now = Now()
    meter = LoadMeter(now)
    now.seconds += 1.0
    meter.begin(LoadPhase.READING, 1000)
    meter.add(100)
    now.seconds += 2.0
    meter.add(100)
    assert meter.progress == LoadProgress(LoadPhase.READING, 3.0, 2.0, 200, 1000)
    assert meter.progress.seconds_left == pytest.approx(8.0)


def test_a_phase_that_has_just_begun_does_not_guess() -> None:
    now = Now()
    meter = LoadMeter(now)
    meter.begin(LoadPhase.READING, 1000)
    assert meter.progress.seconds_left is None  # nothing read
    meter.add(10)
    now.seconds += 0.1
    assert meter.progress.seconds_left is None  # too early


def test_a_phase_without_bytes_tells_its_name_and_its_seconds() -> None:
    now = Now()
    meter = LoadMeter(now)
    meter.begin(LoadPhase.WARMING_UP)
    meter.add(5)  # of no use without an end
    now.seconds += 12.0
    found = meter.progress
    assert (found.read_bytes, found.expected_bytes, found.seconds_left) == (None, None, None)
    assert str(found) == "warming up for 12 s"
    assert found.as_json() == {"phase": "warming up", "seconds": 12.0, "phase_seconds": 12.0}


def test_a_new_phase_counts_from_nothing_and_the_load_goes_on() -> None:
    now = Now()
    meter = LoadMeter(now)
    meter.begin(LoadPhase.CHECKING, 10)
    meter.add(10)
    now.seconds += 4.0
    meter.begin(LoadPhase.READING, 10)
    assert meter.progress == LoadProgress(LoadPhase.READING, 4.0, 0.0, 0, 10)


def test_a_file_that_grew_is_not_read_beyond_its_end() -> None:
    meter = LoadMeter()
    meter.begin(LoadPhase.READING, 10)
    meter.add(12)
    assert meter.progress.read_bytes == 10


def test_the_words_have_bytes_and_the_time_left() -> None:
    found = LoadProgress(LoadPhase.READING, 12.0, 2.0, 1_288_490_189, 6 << 30)
    assert str(found) == "reading the weights: 1.2 of 6.0 GiB, 8 s left"
    assert found.as_json() == {
        "phase": "reading the weights",
        "seconds": 12.0,
        "phase_seconds": 2.0,
        "read_bytes": 1_288_490_189,
        "expected_bytes": 6 << 30,
        "seconds_left": 8.0,
    }


@pytest.mark.parametrize(
    ("done", "expected", "words"),
    [
        (0, 0, "0 of 0 bytes"),
        (5, 1023, "5 of 1023 bytes"),
        (0, 1024, "0.0 of 1.0 KiB"),
        (700 << 10, 12_900_000, "0.7 of 12.3 MiB"),
        (40_000_000, 2 << 30, "0.0 of 2.0 GiB"),
    ],
)
def test_both_numbers_have_one_unit(done: int, expected: int, words: str) -> None:
    assert bytes_text(done, expected) == words
