"""A call with more rows than one run may have: cut into calls of its own rows, and answered as one.

cut(call, ...) -> pieces -> Joined(call, pieces) -> its calls are queued like any -> one answer to the call
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
from tfs_lite.schedulers.batching.assembly import rows_fault
from tfs_lite.schedulers.batching.rules import Array

Answer = Mapping[str, Tensor] | Status


@dataclass(frozen=True, slots=True)
class Split:
    """Some rows of a call: views of its inputs."""

    inputs: Mapping[str, Tensor]
    rows: int


def split(call: PredictCall, rows: int, room: int, largest: int) -> list[Split]:
    """Pieces of ``call``, in order: the first has at most ``room`` rows, to fill a batch that waits already (0: there
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


def nobody_abandons(calls: Sequence[PredictCall]) -> None:
    """For owners that let every piece run."""


class SplitCall:
    """One call as several, ``pieces``, which wait and run like any other.

    Order: every piece is submitted and answered once, on any thread, at the same time too. Promises: the call is
    answered exactly once: with the rows of all pieces as soon as the last is answered, or with the failure of the first
    piece that fails, at once; what other pieces answer is dropped. Before it answers with a failure it hands the pieces
    that are not answered yet to ``abandon``, which may cancel them and must not raise. Nothing is held after the last
    piece's answer. Errors of its own: FAILED_PRECONDITION if the answers do not fit together, RESOURCE_EXHAUSTED if
    there is no memory for them.

    ``queue_seconds`` of the call is that of the first piece, ``run_seconds`` the sum.
    """

    __slots__ = ("_abandon", "_answers", "_call", "_left", "_lock", "_pieces", "_rows", "_run_seconds")

    def __init__(
        self,
        call: PredictCall,
        pieces: Sequence[Split],
        abandon: Callable[[Sequence[PredictCall]], None] = nobody_abandons,
    ) -> None:
        """``pieces`` as :func:`cut` makes them."""
        self._lock = threading.Lock()  # guards all below
        self._call: PredictCall | None = call  # None: it is answered
        self._abandon = abandon
        self._rows = tuple(piece.rows for piece in pieces)
        self._pieces = {
            index: PredictCall(
                call.signature,
                piece.inputs,
                call.outputs,
                call.deadline,
                partial(self._answered, index),
                priority=call.priority,
                timeout=call.timeout,
            )
            for index, piece in enumerate(pieces)
        }
        self._answers: dict[int, Mapping[str, Tensor]] = {}
        self._run_seconds = 0.0

    @property
    def pieces(self) -> tuple[PredictCall, ...]:
        """The calls to submit, in order. Those that are answered are not among them."""
        return self.unanswered()

    def unanswered(self) -> tuple[PredictCall, ...]:
        """What there is to cancel when the caller has lost interest. Any thread, also after the answer."""
        with self._lock:
            return tuple(self._pieces.values())

    def _answered(self, index: int, result: Answer) -> None:
        with self._lock:
            piece = self._pieces.pop(index, None)
            call = self._call
            if piece is None or call is None:
                return
            if index == 0:
                call.queue_seconds = piece.queue_seconds
            self._run_seconds += piece.run_seconds
            if isinstance(result, Status):
                abandoned = tuple(self._pieces.values())
            else:
                self._answers[index] = result
                if self._pieces:
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
