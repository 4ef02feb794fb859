"""What a line of calls promises about waits that could not end in time."""

from __future__ import annotations

import numpy as np
import pytest

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import StatusCode
from tfs_lite.schedulers.batching.rules import BatchRule
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.batching.signature_queue import MARGIN, SignatureQueue

X = TensorSpec("x", DataType.FLOAT, (SymbolicDim("batch"),))
Y = TensorSpec("y", DataType.FLOAT, (SymbolicDim("batch"),))


def line_with(rows: int, run_seconds: float) -> SignatureQueue:
    """A line in which so many calls of one row wait, and whose runs of up to 4 rows take so long."""
    line = SignatureQueue("s", Signature((X,), (Y,)), BatchSettings(max_batch_size=4), "m-1", BatchRule.of)
    line.ended(0.0, 4, run_seconds, False)
    for _ in range(rows):
        line.add(line.job(call(None), 0.0))
    return line


def call(deadline: float | None) -> PredictCall:
    return PredictCall("s", {"x": np.zeros(1, np.float32)}, (), deadline, lambda answer: None)


@pytest.mark.parametrize(("lanes", "runs"), [(1, 3), (2, 2)])
def test_call_that_could_not_be_answered_in_time_is_refused_at_once(lanes: int, runs: int) -> None:
    line = line_with(8, run_seconds=1.0)
    late = line.lateness(line.job(call(runs * MARGIN - 0.01), 0.0), lanes)
    assert late is not None
    assert late.code is StatusCode.UNAVAILABLE
    assert "8 rows wait" in late.message
    assert line.lateness(line.job(call(runs * MARGIN), 0.0), lanes) is None


def test_call_without_a_deadline_may_wait_however_long() -> None:
    line = line_with(400, run_seconds=60.0)
    assert line.lateness(line.job(call(None), 0.0), 1) is None


def test_where_no_full_batch_waits_nobody_is_thought_late() -> None:
    line = line_with(3, run_seconds=60.0)
    assert line.lateness(line.job(call(0.1), 0.0), 1) is None


def test_the_last_runs_count_most() -> None:
    line = line_with(4, run_seconds=10.0)
    for _ in range(40):
        line.ended(0.0, 4, 0.01, False)
    assert line.lateness(line.job(call(0.1), 0.0), 1) is None
