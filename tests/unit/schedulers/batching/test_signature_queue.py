"""Calls that could not be answered in time are refused: before they wait, or when their turn comes too late."""

from __future__ import annotations

import numpy as np
import pytest

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DataType, ShapeContract, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.batching.signature_queue import MARGIN, SignatureQueue

X = TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"),))
Y = TensorSpec("y", DataType.FLOAT, (SymbolicDim("batch"),))


def queue_with(rows: int, run_seconds: float) -> SignatureQueue:
    """``rows`` calls of one row wait in it; its runs of up to 4 rows take ``run_seconds``."""
    queue = SignatureQueue("s", Signature((X,), (Y,)), BatchSettings(max_batch_size=4), "m-1", BatchRule.of)
    queue.ended(0.0, 4, run_seconds, False)
    for _ in range(rows):
        queue.add(queue.job(call(None), 0.0))
    return queue


def call(deadline: float | None) -> PredictCall:
    return PredictCall("s", {"x": np.zeros(1, np.float32)}, (), deadline, lambda answer: None)


@pytest.mark.parametrize(("workers", "runs"), [(1, 3), (2, 2)])
def test_call_that_could_not_be_answered_in_time_is_refused_at_once(workers: int, runs: int) -> None:
    queue = queue_with(8, run_seconds=1.0)
    late = queue.overload(queue.job(call(runs * MARGIN - 0.01), 0.0), workers)
    assert late is not None
    assert (late.code, late.reason) == (StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)
    assert "8 rows wait" in late.message
    assert queue.overload(queue.job(call(runs * MARGIN), 0.0), workers) is None


@pytest.mark.parametrize(
    ("rows", "deadline"), [pytest.param(400, None, id="no deadline"), pytest.param(3, 0.1, id="no full batch waits")]
)
def test_other_calls_may_wait_however_long(rows: int, deadline: float | None) -> None:
    queue = queue_with(rows, run_seconds=60.0)
    assert queue.overload(queue.job(call(deadline), 0.0), 1) is None


def test_the_last_runs_count_most() -> None:
    queue = queue_with(4, run_seconds=10.0)
    for _ in range(40):
        queue.ended(0.0, 4, 0.01, False)
    assert queue.overload(queue.job(call(0.1), 0.0), 1) is None


def test_jobs_whose_run_would_end_after_their_deadline_make_room_for_those_behind_them() -> None:
    queue = queue_with(0, run_seconds=1.0)
    late, later, good = (queue.job(call(deadline), 0.0) for deadline in (0.5, 0.99, 1.0))
    behind = [queue.job(call(None), 0.0) for _ in range(4)]
    for job in (late, later, good, *behind):
        queue.add(job)
    shed = queue.shed(0.0)
    assert [job for job, _ in shed] == [late, later]
    assert {(status.code, status.reason) for _, status in shed} == {(StatusCode.UNAVAILABLE, Reason.QUEUE_FULL)}
    assert "would not be answered before its deadline" in shed[0][1].message
    assert list(queue) == [good, *behind]


def test_no_job_is_shed_that_leaves_room_in_the_run() -> None:
    """Where nothing else waits for the run, an estimate is no reason not to try."""
    queue = queue_with(0, run_seconds=60.0)
    jobs = [queue.job(call(0.1), 0.0) for _ in range(6)]
    for job in jobs:
        queue.add(job)
    assert [job for job, _ in queue.shed(0.0)] == jobs[:2]
    assert queue.shed(0.0) == []


def test_calls_that_run_alone_are_not_shed() -> None:
    queue = SignatureQueue("s", Signature((X,), (Y,)), BatchSettings(), "m-1", BatchRule.of)
    queue.ended(0.0, 1, 60.0, False)
    queue.add(queue.job(call(0.1), 0.0))
    queue.add(queue.job(call(0.1), 0.0))
    assert queue.shed(0.0) == []


LENGTH = SymbolicDim("length")
HINTS = Signature(
    (TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"), LENGTH)),),
    (TensorSpec("y", DataType.FLOAT, (SymbolicDim("batch"), LENGTH)),),
    contract=ShapeContract.INPUTS,
)


@pytest.mark.parametrize(
    ("lengths", "fills"), [((), False), ((3,), False), ((3, 3), False), ((3, 5), True), ((3, 5, None), False)]
)
def test_inputs_are_filled_up_once_an_output_that_comes_as_it_is_was_as_long_for_two_lengths(
    lengths: tuple[int | None, ...], fills: bool
) -> None:
    settings = BatchSettings(max_batch_size=4, pad_variable_length=True)
    queue = SignatureQueue("s", HINTS, settings, "m-1", BatchRule.of)
    assert queue.sharing.lengths is not None
    for length in lengths:
        inputs, results = {"x": np.zeros((1, length or 4))}, {"y": np.zeros((1, length or 5))}
        queue.sharing.lengths.note(inputs, results)
    keys = {
        queue.job(PredictCall("s", {"x": np.zeros((1, length))}, (), None, lambda answer: None), 0.0).key
        for length in (3, 5)
    }
    assert (len(keys) == 1) is fills
