"""Wrong tokens of one peer are few, and the table of peers is bounded."""

from __future__ import annotations

from tfs_lite.server.access.guesses import MAX_PEERS, MOST, PAUSE, WINDOW, Guesses


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def wrong(guesses: Guesses, address: str, times: int) -> None:
    for _ in range(times):
        guesses.wrong(address)


def test_peer_waits_after_too_many_wrong_tokens() -> None:
    guesses = Guesses(clock := Clock())
    wrong(guesses, "a", MOST - 1)
    assert guesses.seconds_blocked("a") == 0
    wrong(guesses, "a", 1)
    assert guesses.seconds_blocked("a") == PAUSE
    assert guesses.seconds_blocked("b") == 0
    clock.now += PAUSE - 1
    assert guesses.seconds_blocked("a") == 1
    clock.now += 1
    assert guesses.seconds_blocked("a") == 0


def test_wrong_tokens_are_counted_anew_after_the_window() -> None:
    guesses = Guesses(clock := Clock())
    wrong(guesses, "a", MOST - 1)
    clock.now += WINDOW
    wrong(guesses, "a", MOST - 1)
    assert guesses.seconds_blocked("a") == 0
    wrong(guesses, "a", 1)
    assert guesses.seconds_blocked("a") == PAUSE


def test_peer_that_was_wrong_the_longest_ago_is_forgotten() -> None:
    guesses = Guesses(Clock())
    wrong(guesses, "first", MOST)
    for number in range(MAX_PEERS - 1):
        guesses.wrong(str(number))
    assert guesses.seconds_blocked("first") == PAUSE
    guesses.wrong("last")
    assert guesses.seconds_blocked("first") == 0
