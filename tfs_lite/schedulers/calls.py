"""The handling of a call that every scheduler has: answer it, count its run, and put an exception into a status."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TypeAlias

from tfs_lite.core.model import BatchReport, OnBatch, PredictCall, ServableCall
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import ServingError, Status, StatusCode

Answer: TypeAlias = Mapping[str, Tensor] | Status
"""The outputs by name, or why there are none."""
CANCELLED = Status(StatusCode.CANCELLED, "the caller cancelled the request")
LOST_PROCESS = "has lost its worker process"
"""What the answer of a call says whose model has no process at the moment."""
logger = logging.getLogger(__name__)


def finish(call: ServableCall, answer: Answer, name: str) -> None:
    """Answers a call; ``name`` is the servable it was sent to, for the log."""
    try:
        call.on_done(answer)
    except Exception:
        logger.exception("a caller of %s broke its contract: on_done must not raise", name)


def complete(call: PredictCall, answer: Answer, wanted: Collection[str], model: str) -> Answer:
    """The answer; INTERNAL if it lacks one of the ``wanted`` outputs, unless the call says that it may. ``model`` has
    the name and version for the message."""
    if isinstance(answer, Status) or call.may_lack:
        return answer
    missing = next((output for output in wanted if output not in answer), None)
    if missing is None:
        return answer
    found = ", ".join(sorted(answer))
    returned = f"it returned: {found}" if found else "the log says what it returned"
    return Status(StatusCode.INTERNAL, f"{model} did not return output {missing}; {returned}")


def rows_of(inputs: Mapping[str, Tensor]) -> int:
    """The rows of a request to a model whose first dimension is the batch; 1 if no input has a dimension."""
    return next((array.shape[0] for array in inputs.values() if array.shape), 1)


def count_run(on_batch: OnBatch, report: BatchReport, name: str) -> None:
    """Reports a run; an observer that raises is logged."""
    try:
        on_batch(report)
    except Exception:
        logger.exception("a run of %s could not be counted", name)


def failure_of(error: BaseException, name: str) -> Status:
    """The answer when a model has raised ``error``. INTERNAL, and logged, for errors that it must not raise."""
    if isinstance(error, ServingError):
        return error.status
    logger.exception("%s broke its contract: it may only raise ServingError", name, exc_info=error)
    return Status(StatusCode.INTERNAL, f"{name} failed: {type(error).__name__}")
