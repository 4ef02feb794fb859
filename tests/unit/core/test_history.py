"""The history: what is kept, what repeats, who wanted it, and that its bounds hold."""

from __future__ import annotations

import gc
import json
import sys
import threading
import tracemalloc

import pytest

from tfs_lite.core.history import (
    Cause,
    Event,
    EventKind,
    History,
    HistoryBounds,
    Origin,
    acting,
    current_origin,
    iso_time,
    parse_time,
)
from tfs_lite.core.status import Status, StatusCode

K = EventKind
MISSING = Status(StatusCode.NOT_FOUND, "no such file")


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def history():
    return History(Time())


def small(**bounds):
    return History(Time(), HistoryBounds(**bounds))


def versions(history, model=None):
    return [event.version for event in history.after(0, model)]


def test_events_are_kept_in_their_order_with_growing_numbers(history):
    for version in (1, 2, 3):
        history.append(K.ASPIRED, "m", version)
    events = history.after(0)
    assert [event.version for event in events] == [1, 2, 3]
    assert [event.seq for event in events] == sorted({event.seq for event in events})


def test_a_reader_gets_what_came_after_the_number_it_knows(history):
    first = history.append(K.ASPIRED, "m", 1)
    history.append(K.LOAD_BEGUN, "m", 1)
    assert [event.kind for event in history.after(first.seq)] == [K.LOAD_BEGUN]
    assert history.after(history.last_seq) == []


def test_numbers_of_a_later_server_are_higher():
    before, after = History(lambda: 1000.0), History(lambda: 1010.0)
    assert before.append(K.SERVER_STARTED).seq < after.append(K.SERVER_STARTED).seq


def test_events_are_found_by_model_kind_and_number(history):
    history.append(K.SERVER_STARTED)
    history.append(K.ASPIRED, "a", 1)
    history.append(K.ASPIRED, "b", 1)
    history.append(K.ENDED, "a", 1)
    assert [event.kind for event in history.of_model("a")] == [K.ASPIRED, K.ENDED]
    assert [event.kind for event in history.after(0, "")] == [K.SERVER_STARTED]
    assert [event.model for event in history.after(0, kinds=[K.ASPIRED])] == ["a", "b"]
    assert len(history.after(0, limit=2)) == 2
    assert history.of_model("unknown") == []


def test_equal_events_in_a_row_count_up_and_come_again(history):
    first = history.append(K.LOAD_ATTEMPT_FAILED, "m", 1, status=MISSING, details={"attempt": 1})
    last = history.append(K.LOAD_ATTEMPT_FAILED, "m", 1, status=MISSING, details={"attempt": 2})
    (event,) = history.of_model("m")
    assert (event.count, event.time, event.last) == (2, first.time, last.last)
    assert event.last > event.time
    assert event.details["attempt"] == 2  # numbers are those of the latest
    assert history.after(first.seq) == [event]


def test_events_of_other_models_in_between_do_not_matter(history):
    for _ in range(3):
        history.append(K.LOAD_ATTEMPT_FAILED, "a", 1, status=MISSING)
        history.append(K.LOAD_ATTEMPT_FAILED, "b", 1, status=MISSING)
    assert [(event.model, event.count) for event in history.after(0)] == [("a", 3), ("b", 3)]


@pytest.mark.parametrize(
    "other",
    [
        {"version": 2},
        {"status": Status(StatusCode.NOT_FOUND, "another file")},
        {"origin": Origin(Cause.POLL)},
        {"details": {"why": "other"}},
    ],
)
def test_events_that_say_something_else_are_events_of_their_own(history, other):
    history.append(K.ENDED, "m", 1, status=MISSING, details={"why": "gone"})
    history.append(
        **{"kind": K.ENDED, "model": "m", "version": 1, "status": MISSING, "details": {"why": "gone"}, **other}
    )
    assert len(history) == 2


def test_the_oldest_of_a_model_goes_first():
    history = small(of_model=3)
    history.append(K.ASPIRED, "other", 9)
    for version in range(5):
        history.append(K.ASPIRED, "m", version)
    assert versions(history, "m") == [2, 3, 4]
    assert versions(history, "other") == [9]
    assert history.dropped == 2


def test_the_model_that_was_silent_longest_goes_first():
    history = small(models=2)
    for model in ("a", "b", "a", "c"):
        history.append(K.ASPIRED, model, 1)
        history.append(K.ENDED, model, 1)
    assert history.of_model("b") == []
    assert history.of_model("a")
    assert history.of_model("c")
    assert history.dropped == 2


def test_the_oldest_of_all_goes_first():
    history = small(events=3)
    for model in ("a", "b", "c", "d"):
        history.append(K.ASPIRED, model, 1)
    assert [event.model for event in history.after(0)] == ["b", "c", "d"]
    assert history.of_model("a") == []
    assert history.first_seq == history.after(0)[0].seq


def test_large_events_make_room_for_themselves_and_one_always_stays():
    history = small(size=5000)
    for version in range(10):
        history.append(K.ASPIRED, "m", version, details={"why": "x" * 400})
    assert history.size <= 5000
    assert 0 < len(history) < 10
    tiny = small(size=10)
    tiny.append(K.ASPIRED, "m", 1)
    assert len(tiny) == 1


def test_long_texts_are_cut(history):
    event = history.append(K.ENDED, "m", 1, status=Status(StatusCode.UNKNOWN, "x" * 9999), details={"why": "y" * 9999})
    assert len(event.status.message) == 500
    assert len(event.details["why"]) == 500


def append_many(history, numbers):
    """Events that press on every bound: models, events of a model, events in all, bytes."""
    for number in numbers:
        history.append(
            K.ENDED if number % 2 else K.ASPIRED,
            f"model-{number % 1500 if number % 3 else 7}",
            number % 50,
            origin=Origin(Cause.POLL),
            status=Status(StatusCode.UNKNOWN, f"failure {number}"),
            details={"why": "x" * (number % 300), "seconds": 0.5},
        )


def test_its_size_is_about_what_it_takes():
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    history = small()
    append_many(history, range(2000))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken / 1.5 < history.size < taken * 1.5


@pytest.mark.load
def test_after_a_million_events_it_is_as_large_as_after_the_first_hundred_thousand():
    history = History(Time())
    append_many(history, range(100_000))
    gc.collect()
    before = sys.getallocatedblocks()
    append_many(history, range(100_000, 1_000_000))
    gc.collect()
    blocks = sys.getallocatedblocks() - before
    bounds = HistoryBounds()
    assert len(history) <= bounds.events
    assert history.size <= bounds.size
    assert all(len(history.of_model(f"model-{number}")) <= bounds.of_model for number in range(1500))
    assert abs(blocks) < 10_000  # of some hundred bytes at most: less than a MiB
    assert history.dropped >= 900_000


def test_who_acts_is_noted_and_the_innermost_counts(history):
    with acting(Origin(Cause.RELOAD_RPC, "deploy")):
        event = history.append(K.CONFIG_APPLIED)
        with acting(Origin(Cause.FILES)):
            inner = history.append(K.LOAD_BEGUN, "m", 1)
        explicit = history.append(K.ENDED, "m", 1, origin=Origin(Cause.POLL))
    assert (event.cause, event.by) == (Cause.RELOAD_RPC, "deploy")
    assert inner.cause is Cause.FILES
    assert explicit.cause is Cause.POLL
    assert history.append(K.ASPIRED, "m", 2).cause is None
    assert current_origin() is None


def test_another_thread_does_not_act_for_this_one():
    seen = []
    with acting(Origin(Cause.OPERATOR)):
        thread = threading.Thread(target=lambda: seen.append(current_origin()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_listeners_are_told_of_each_event_until_they_close(history):
    told = []
    subscription = history.listen(told.append)
    event = history.append(K.ASPIRED, "m", 1)
    subscription.close()
    history.append(K.ENDED, "m", 1)
    assert told == [event]


def test_a_listener_that_fails_disturbs_nobody(history, caplog):
    told = []
    history.listen(lambda event: 1 / 0)
    history.listen(told.append)
    assert history.append(K.ASPIRED, "m", 1) == told[0]
    assert "a listener of the history failed" in caplog.text


def test_threads_append_at_once_and_no_event_is_lost():
    history = small(of_model=10_000)
    listened = []
    history.listen(lambda event: listened.append(event.seq))

    def work(model):
        for version in range(500):
            history.append(K.ASPIRED, model, version)

    threads = [threading.Thread(target=work, args=(f"m{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history) == 2000
    assert sorted(listened) == [event.seq for event in history.after(0)]


def test_an_event_survives_json(history):
    with acting(Origin(Cause.REPOSITORY_CALL, "127.0.0.1")):
        event = history.append(K.ENDED, "m", 7, status=MISSING, details={"seconds": 1.5, "memory": {"leaked": 0}})
    back = Event.from_json(json.loads(json.dumps(event.as_json())))
    assert (back.seq, back.kind, back.model, back.version) == (event.seq, K.ENDED, "m", 7)
    assert (back.cause, back.by, back.status, dict(back.details)) == (
        event.cause,
        event.by,
        MISSING,
        dict(event.details),
    )
    assert back.time == pytest.approx(event.time, abs=0.001)


def test_a_repeated_event_says_how_often_and_when_last(history):
    history.append(K.WORKER_LOST, "m", 1)
    event = history.append(K.WORKER_LOST, "m", 1)
    shown = event.as_json()
    assert shown["count"] == 2
    assert shown["last"] == iso_time(event.last)
    assert Event.from_json(shown).count == 2


def test_paths_are_for_those_who_manage(history):
    event = history.append(K.ASPIRED, "m", 1, details={"path": "/models/m/1", "why": "it is there"})
    assert event.as_json()["details"] == {"path": "/models/m/1", "why": "it is there"}
    assert event.as_json(manage=False)["details"] == {"why": "it is there"}


BY_POLL, BY_DEPLOY = {"origin": Origin(Cause.POLL)}, {"origin": Origin(Cause.RELOAD_RPC, "deploy")}
WORDS = [
    (K.UNASPIRED, BY_POLL, {"why": "directory 8 is gone"}, "no longer wanted (POLL): directory 8 is gone"),
    (K.DRAINED, {}, {"seconds": 1.234}, "DRAINED in 1.23 s"),
    (K.ENDED, {}, {}, "ENDED"),
    (K.ENDED, {"status": MISSING}, {}, "ENDED: no such file"),
    (K.AVAILABLE, {}, {"seconds": 0.05}, "AVAILABLE after 0.05 s"),
    (K.AVAILABLE, {}, {"loaded_anew": True}, "AVAILABLE, loaded anew"),
    (K.LOAD_BEGUN, BY_DEPLOY, {}, "load begun, wanted by RELOAD_RPC (deploy)"),
    (K.LOAD_ATTEMPT_FAILED, {"status": MISSING}, {"attempt": 2}, "load attempt 2 failed: no such file"),
    (K.PARKED, {}, {"waits_for": "memory"}, "load waits: memory"),
    (K.LABEL_MOVED, {}, {"label": "stable", "from": 3}, "label 'stable' of version 3 moved"),
    (K.FETCH_BEGUN, {}, {"bytes": 6343}, "fetch begun: 6.2 KiB"),
    (K.BAKE_BEGUN, {}, {"over": 7}, "on trial; version 7 answers what fails on it"),
    (K.TAKEN_BACK, {"status": MISSING}, {"to": 7}, "must not answer any more: no such file; version 7 answers"),
    (
        K.SHIELDED,
        {},
        {"shielded": 31, "requests": 1204, "why": "INTERNAL: no"},
        "requests that it failed were answered by the version before it (31 of 1204): INTERNAL: no",
    ),
    (K.LIFTED, BY_DEPLOY, {"why": "tried again"}, "may answer again by RELOAD_RPC (deploy): tried again"),
    (K.LEAK, {}, {"leaked": {"main": 128 << 20}}, "memory was not given back: 128 MiB on main"),
]


@pytest.mark.parametrize(("kind", "rest", "details", "text"), WORDS)
def test_events_have_words(history, kind, rest, details, text):
    assert history.append(kind, "m", 8, **rest, details=details).text == text


def test_every_kind_has_words(history):
    for kind in EventKind:
        assert history.append(kind, "m", 1).text


def test_what_an_earlier_server_has_left_comes_before_and_numbers_go_on():
    earlier = small()
    for version in range(3):
        earlier.append(K.ASPIRED, "m", version)
    history = History(lambda: 0.0)
    history.restore(earlier.after(0))
    event = history.append(K.SERVER_STARTED)
    assert versions(history) == [0, 1, 2, None]
    assert event.seq > earlier.last_seq


def test_restored_repetitions_are_one_event_and_bounds_hold():
    earlier = small()
    written = [earlier.append(K.WORKER_LOST, "m", 1) for _ in range(4)]
    history = small(of_model=2)
    history.restore(written)
    assert [(event.version, event.count) for event in history.after(0)] == [(1, 4)]
    history.restore(earlier.append(K.ASPIRED, "m", version) for version in range(5))
    assert versions(history, "m") == [3, 4]


def test_times_read_back_as_written():
    assert iso_time(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"
    assert parse_time("2023-11-14T22:13:20.250Z") == 1_700_000_000.25
