"""A call with more rows than one run may have: split into calls of its own rows, and answered as one.

split(call, ...) -> splits -> SplitCall(call, splits) -> its calls are queued like any -> one answer to the call
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.schedulers.batching.assembly import rows_fault
from tfs_lite.schedulers.calls import Answer


@dataclass(frozen=True, slots=True)
class Split:
    """A range of rows of a call: views of its inputs."""

    inputs: Mapping[str, Tensor]
    rows: int


def split(call: PredictCall, rows: int, room: int, largest: int) -> list[Split]:
    """Splits ``call`` in order. The first split has at most ``room`` rows, to fill a batch that waits already (0: there
    is none), all others at most ``largest`` (at least 1). ``rows`` is the first dimension of every input."""
    first = min(room or largest, largest)
    if rows <= first:
        return [Split(call.inputs, rows)]
    ends = [*range(first, rows, largest), rows]
    inputs = cast("Mapping[str, Array]", call.inputs)
    return [
        Split({name: array[start:end] for name, array in inputs.items()}, end - start)
        for start, end in zip([0, *ends], ends, strict=False)
    ]


class SplitCall:
    """One call as several, one for each split, which wait and run like any other.

    Order: every one of them is submitted and answered once, on any thread, at the same time too. Promises: the call is
    answered exactly once: with the rows of all splits as soon as the last is answered, or with the first failure, at
    once; later answers are dropped. Before it answers with a failure it hands the calls that are not answered yet to
    ``abandon``, which may cancel them and must not raise. Nothing is held after the last answer. Errors of its own:
    FAILED_PRECONDITION if the answers do not fit together, RESOURCE_EXHAUSTED if there is no memory for them.

    ``queue_seconds`` of the call is that of the first split, ``run_seconds`` the sum.
    """

    __slots__ = ("_abandon", "_answers", "_call", "_calls", "_lock", "_rows", "_run_seconds")

    def __init__(
        self, call: PredictCall, splits: Sequence[Split], abandon: Callable[[Sequence[PredictCall]], None]
    ) -> None:
        """``splits`` as :func:`split` makes them."""
        self._lock = threading.Lock()  # guards all below
        self._call: PredictCall | None = call  # None when it is answered
        self._abandon = abandon
        self._rows = tuple(each.rows for each in splits)
        self._calls = {
            index: PredictCall(
                call.signature,
                each.inputs,
                call.outputs,
                call.deadline,
                partial(self._answered, index),
                priority=call.priority,
                timeout=call.timeout,
                may_lack=call.may_lack,
                trace=call.trace,
            )
            for index, each in enumerate(splits)
        }
        self._answers: dict[int, Mapping[str, Tensor]] = {}
        self._run_seconds = 0.0

    def unanswered(self) -> tuple[PredictCall, ...]:
        """The calls of the splits, in order, that are not answered: at first all of them, which have to be submitted.
        Any thread, also after the answer."""
        with self._lock:
            return tuple(self._calls.values())

    def _answered(self, index: int, result: Answer) -> None:
        with self._lock:
            answered = self._calls.pop(index, None)
            call = self._call
            if answered is None or call is None:
                return
            if index == 0:
                call.queue_seconds = answered.queue_seconds
            self._run_seconds += answered.run_seconds
            if isinstance(result, Status):
                abandoned = tuple(self._calls.values())
            else:
                self._answers[index] = result
                if self._calls:
                    return
                abandoned = ()
            answers = [self._answers[index] for index in sorted(self._answers)]
            self._call, self._answers = None, {}
            call.run_seconds = self._run_seconds
        if abandoned:
            self._abandon(abandoned)
        call.on_done(result if isinstance(result, Status) else _joined(answers, self._rows))


def _joined(answers: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> Answer:
    for answer, rows in zip(answers, sizes, strict=True):
        fault = rows_fault(answer, rows)
        if fault is not None:
            return fault
    parts = cast("Sequence[Mapping[str, Array]]", answers)
    try:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    except MemoryError:
        rows = sum(sizes)
        return Status(StatusCode.RESOURCE_EXHAUSTED, f"there is no memory to join the outputs of {rows} rows")
    except (KeyError, TypeError, ValueError):
        return Status(
            StatusCode.FAILED_PRECONDITION,
            f"the request was run in {len(parts)} pieces, whose outputs differ in name, shape or type: "
            + "; ".join(_shown(part) for part in parts[:2]),
        )


def _shown(answer: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in answer.items())
