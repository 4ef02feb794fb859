"""Whether a request of a sequence is let in: every check, its words, and which comes first."""

from __future__ import annotations

import pytest

from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.sequence.request import MAX_ID_LENGTH, STOPPING, Admitted, SequenceSlot, checked
from tfs_lite.schedulers.sequence.settings import SequenceSettings
from tfs_lite.schedulers.sequence.slots import SequenceTable

ROWS = "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
NO_ID = "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
STOPPED = "Server is stopping, scheduler for model has stopped accepting new inference requests"
NO_START = (
    "inference request for sequence {} to model 'm' must specify the START flag on the first request of the sequence"
)
BAD, GONE, UNSUPPORTED = StatusCode.INVALID_ARGUMENT, StatusCode.UNAVAILABLE, StatusCode.UNIMPLEMENTED
LONG = "x" * (MAX_ID_LENGTH + 1)
START = SequenceFlags(5, start=True)


@pytest.mark.parametrize(
    ("flags", "rows", "known", "stopping", "wanted"),
    [
        (START, 2, False, False, Status(BAD, ROWS)),
        (START, 2, True, True, Status(BAD, ROWS)),
        (None, 2, False, False, Status(BAD, ROWS)),
        (None, 1, False, False, Status(BAD, NO_ID)),
        (SequenceFlags(0, start=True), 1, False, True, Status(BAD, NO_ID)),
        (SequenceFlags("", start=True), 1, False, False, Status(BAD, NO_ID)),
        (START, 1, False, True, Status(GONE, STOPPED)),
        (START, 1, True, True, Status(GONE, STOPPED)),
        (SequenceFlags(5), 1, False, False, Status(BAD, NO_START.format(5))),
        (SequenceFlags(5, end=True), 1, False, True, Status(BAD, NO_START.format(5))),
        (SequenceFlags("a b"), 1, False, False, Status(BAD, NO_START.format("a b"))),
    ],
    ids=str,
)
def test_first_check_that_fails_tells_why(
    flags: SequenceFlags | None, rows: int, known: bool, stopping: bool, wanted: Status
) -> None:
    assert checked(flags, rows, "m", known=known, stopping=stopping) == wanted


@pytest.mark.parametrize(
    ("flags", "rows", "known", "stopping"),
    [
        (START, 1, False, False),
        (START, 0, False, False),
        (START, 1, True, False),
        (SequenceFlags(5), 1, True, False),
        (SequenceFlags(5, end=True), 1, True, True),
        (SequenceFlags(5, start=True, end=True), 1, False, False),
        (SequenceFlags(2**64 - 1, start=True), 1, False, False),
        (SequenceFlags("x" * MAX_ID_LENGTH, start=True), 1, False, False),
    ],
    ids=str,
)
def test_request_of_a_sequence_is_let_in(flags: SequenceFlags, rows: int, known: bool, stopping: bool) -> None:
    assert checked(flags, rows, "m", known=known, stopping=stopping) is flags


@pytest.mark.parametrize("known", [False, True])
def test_text_that_is_too_long_is_no_id(known: bool) -> None:
    refused = checked(SequenceFlags(LONG, start=True), 1, "m", known=known, stopping=True)
    assert isinstance(refused, Status)
    assert refused.code is UNSUPPORTED
    assert "'m' has 129 characters, more than 128" in refused.message
    assert LONG not in refused.message


def sequences(slots_per_instance: int = 1, max_backlog: int = 100, max_queued: int = 100) -> SequenceTable[str]:
    settings = SequenceSettings(slots_per_instance, max_backlog=max_backlog, max_queued=max_queued)
    return SequenceTable(settings, 1, "m")


def test_number_and_text_are_different_sequences() -> None:
    all_of = sequences(slots_per_instance=2)
    assert all_of.admit("a", SequenceFlags(5, start=True), 1, 0.0, 0.0) == Admitted(SequenceSlot(0, 0))
    assert all_of.admit("b", SequenceFlags("5"), 1, 0.0, 0.0) == Status(BAD, NO_START.format(5))
    assert all_of.admit("b", SequenceFlags("5", start=True), 1, 0.0, 0.0) == Admitted(SequenceSlot(1, 0))
    assert all_of.live == 2


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"max_queued": 3}, "3 requests wait in slots and backlog of model 'm'"),
        ({"max_backlog": 1}, "1 requests wait in the backlog of model 'm'"),
    ],
    ids=["all", "backlog"],
)
def test_full_queue_refuses_and_changes_nothing(settings: dict[str, int], where: str) -> None:
    full = sequences(**settings)
    full.admit("a", SequenceFlags(1, start=True), 1, 0.0, 0.0)
    full.admit("b", SequenceFlags(1), 1, 0.0, 0.0)
    full.admit("c", SequenceFlags(2, start=True), 1, 0.0, 0.0)
    for flags in (SequenceFlags(3, start=True), SequenceFlags(2, end=True)):
        refused = full.admit("d", flags, 1, 0.0, 0.5)
        assert isinstance(refused, Status)
        assert (refused.code, refused.reason) == (GONE, Reason.QUEUE_FULL)
        assert refused.message.startswith("Exceeds maximum queue size")
        assert where in refused.message
    assert (full.pending, full.live, full.knows(3), full.knows(2)) == (3, 2, False, True)
    assert full.cancel("d") == []
    assert full.next_expiry == 1.0


def test_full_backlog_does_not_concern_sequences_in_slots() -> None:
    full = sequences(max_backlog=1)
    full.admit("a", SequenceFlags(1, start=True), 1, 0.0, 0.0)
    full.admit("b", SequenceFlags(2, start=True), 1, 0.0, 0.0)
    assert full.admit("c", SequenceFlags(1, end=True), 1, 0.0, 0.0) == Admitted(SequenceSlot(0, 0))


def test_taken_requests_do_not_fill_the_queue() -> None:
    small = sequences(max_queued=1)
    small.admit("a", SequenceFlags(1, start=True), 1, 0.0, 0.0)
    small.take(SequenceSlot(0, 0))
    assert small.admit("b", SequenceFlags(1), 1, 0.0, 0.0) == Admitted(SequenceSlot(0, 0))


def test_checks_come_before_the_bound() -> None:
    full = sequences(max_queued=1)
    full.admit("a", SequenceFlags(1, start=True), 1, 0.0, 0.0)
    assert full.admit("b", SequenceFlags(2), 1, 0.0, 0.0) == Status(BAD, NO_START.format(2))
    full.stop()
    assert full.admit("b", SequenceFlags(2, start=True), 1, 0.0, 0.0) == STOPPING


def test_stopping_model_goes_on_with_known_sequences() -> None:
    stopping = sequences()
    stopping.admit("a", SequenceFlags(1, start=True), 1, 0.0, 0.0)
    stopping.admit("b", SequenceFlags(2, start=True), 1, 0.0, 0.0)
    stopping.stop()
    assert stopping.admit("c", SequenceFlags(1, end=True), 1, 0.0, 0.0) == Admitted(SequenceSlot(0, 0))
    assert stopping.admit("d", SequenceFlags(2), 1, 0.0, 0.0) == Admitted(None)
    assert stopping.admit("e", SequenceFlags(2, start=True), 1, 0.0, 0.0) == STOPPING
