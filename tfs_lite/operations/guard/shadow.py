"""The shadow of a version: before it answers anybody it runs copies of requests that the old version has answered.

    answer of the old version -> one in flight? anything waiting? -> dropped
                              -> the same runs on the new version -> compared -> ShadowReport

What is found is shown, and decides nothing. No queue grows: a copy runs at once, or never.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from types import MappingProxyType
from typing import Any

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import PredictCall
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import check_input_names, find_signature
from tfs_lite.core.status import ServingError, Status
from tfs_lite.core.trial import NO_TRIALS, Ending, OldAnswer
from tfs_lite.protocols.answers import Comparison, Likeness, compare, nonfinite
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.runs import call_inputs
from tfs_lite.server.inference.shield import Steps, ending_of, may_repeat

logger = logging.getLogger(__name__)
HandleOf = Callable[[ModelRef], ServableHandle]

MOST_SECONDS = 60.0
"""The time that a copy has."""
MOST_BYTES = 64 << 20
"""The inputs and outputs of a request of which a copy runs."""
_VALUE_BYTES = 50
"""About the bytes of a text, whose length is not looked at."""


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What a shadow has shown. ``compared``: copies that both versions answered; of these ``changed`` differ and
    ``nonfinite`` have NaN or inf where the old version has none. ``failed``: the others, by code. ``dropped``: requests
    that were to be copied when the new version had something to do, or that were too large. ``difference``: the largest
    one of two numbers, in ``output`` of the request ``request_id``; ``what``: a sentence about the first answer that
    has changed. Times in a model are means of the compared copies, in milliseconds; None if there are none."""

    compared: int = 0
    changed: int = 0
    nonfinite: int = 0
    failed: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    dropped: int = 0
    difference: float = 0.0
    output: str = ""
    request_id: str = ""
    what: str = ""
    run_ms: float | None = None
    old_run_ms: float | None = None

    @property
    def as_json(self) -> dict[str, Any]:
        """The member ``shadow`` of how a model stands."""
        return {
            "compared": self.compared,
            "changed": self.changed,
            "nonfinite": self.nonfinite,
            "failed": dict(self.failed),
            "dropped": self.dropped,
            "difference": self.difference,
            "output": self.output,
            "request_id": self.request_id,
            "what": self.what,
            "run_ms": {"new": _shown(self.run_ms), "old": _shown(self.old_run_ms)},
            "text": str(self),
        }

    def __str__(self) -> str:
        """For example ``of 120 copies 3 differ, 0 have NaN or inf, and 1 failed (INTERNAL: 1)``."""
        failed = sum(self.failed.values())
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.failed.items()))
        text = f"of {self.compared + failed} copies {self.changed} differ, {self.nonfinite} have NaN or inf, "
        return f"{text}and {failed} failed{f' ({codes})' if codes else ''}"


class ShadowRuns:
    """The copies of one version's shadow. ``take`` on the event loop, the others on any thread. Compares on the thread
    of the new version, which nobody else waits for."""

    def __init__(self, id: ServableId, handle: HandleOf, rtol: float = 0.01, atol: float = 0.0001) -> None:
        """``id``: the new version. ``handle``: of a version by number. ``rtol`` and ``atol``: by how much numbers may
        differ."""
        self.id = id
        self._handle = handle
        self._tolerances = rtol, atol
        self._lock = threading.Lock()  # guards the fields below
        self._running: _Copy | None = None
        self._closed = False
        self._compared = self._changed = self._nonfinite = self._dropped = 0
        self._failed = Counter[str]()
        self._largest = 0.0
        self._where = "", ""  # output and request
        self._what = ""
        self._seconds = self._old_seconds = 0.0

    def take(self, answer: OldAnswer) -> None:
        """Runs a copy of the request, if nothing is in its way."""
        with self._lock:
            if self._closed:
                return
            if self._running is not None or _size(answer) > MOST_BYTES:
                self._dropped += 1
                return
            copy = self._running = _Copy(answer, self._ended)
        try:
            copy.begin(self._handle(ModelRef(self.id.name, self.id.version)), self._handle)
        except ServingError as error:
            self._ended(copy, error.status)
        except Exception:
            logger.exception("a copy of a request cannot run on %s", self.id)
            self._ended(copy, None)

    def close(self) -> None:
        """The shadow is over. A copy that runs is given up; its version is held until it has ended."""
        with self._lock:
            self._closed = True
            copy = self._running
        if copy is not None:
            copy.cancel()

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def report(self) -> ShadowReport:
        with self._lock:
            count, (output, request_id) = self._compared, self._where
            return ShadowReport(
                count,
                self._changed,
                self._nonfinite,
                dict(self._failed),
                self._dropped,
                self._largest,
                output,
                request_id,
                self._what,
                self._seconds * 1e3 / count if count else None,
                self._old_seconds * 1e3 / count if count else None,
            )

    def _ended(self, copy: _Copy, failure: Status | None) -> None:
        """``failure`` None: it was not run, unless it has ``outputs``."""
        found: list[Comparison] = []
        try:
            if failure is None and copy.outputs:
                found = self._compare(copy)
        except Exception:
            logger.exception("a copy of a request on %s cannot be compared", self.id)
        finally:
            with self._lock:
                self._running = None
                if not self._closed:
                    self._count(copy, failure, found)

    def _compare(self, copy: _Copy) -> list[Comparison]:
        found = []
        for run, before, now in zip(copy.answer.runs, copy.answer.outputs, copy.outputs, strict=True):
            specs = copy.specs[run.signature]
            found.append(compare(before, now, specs, *self._tolerances))
        return found

    def _count(self, copy: _Copy, failure: Status | None, found: list[Comparison]) -> None:
        if failure is not None and ending_of(failure) not in (Ending.LOAD, Ending.NOTHING):
            self._failed[failure.code.name] += 1
            return
        if not found:
            self._dropped += 1
            return
        self._compared += 1
        self._seconds += copy.run_seconds
        self._old_seconds += copy.answer.run_seconds
        worst = max(found, key=lambda one: (one.likeness is not Likeness.SAME, one.likeness is Likeness.FAILED))
        if worst.likeness is Likeness.FAILED and any(_is_nonfinite(outputs) for outputs in copy.outputs):
            self._nonfinite += 1
        elif worst.likeness is not Likeness.SAME:
            self._changed += 1
            self._what = self._what or str(worst)
        for one in found:
            if self._largest < one.difference < inf:
                self._largest, self._where = one.difference, (one.output, copy.answer.request_id)


class _Copy:
    """One request on the new version. ``on_end`` is called once, with the first failure, or None and the outputs, or
    None without outputs if it did not run."""

    def __init__(self, answer: OldAnswer, on_end: Callable[[_Copy, Status | None], None]) -> None:
        self.answer = answer
        self.outputs: list[Mapping[str, Array]] = []
        self.specs: dict[str, Any] = {}
        self.run_seconds = 0.0
        self._on_end = on_end
        self._lock = threading.Lock()  # guards the fields below
        self._handle: ServableHandle | None = None
        self._calls: list[PredictCall] = []
        self._left = 0
        self._failure: Status | None = None

    def begin(self, handle: ServableHandle, handle_of: HandleOf) -> None:
        """Owns the handle. Raises ServingError for a request that does not fit the version."""
        try:
            servable, traits = handle.servable, handle.servable.traits
            repeats = may_repeat(traits) and Steps.of(traits.composing, NO_TRIALS, handle_of).repeat
            if not repeats or servable.pending:
                handle.release()
                self._on_end(self, None)
                return
            deadline = monotonic() + MOST_SECONDS
            for index, run in enumerate(self.answer.runs):
                signature = find_signature(servable.signatures, run.signature)
                self.specs[run.signature] = signature.outputs
                check_input_names(signature, run.inputs)
                inputs, done = call_inputs(signature, run), partial(self._done, index)
                self._calls.append(PredictCall(run.signature, inputs, run.outputs, deadline, done))
        except BaseException:
            handle.release()
            raise
        self._handle, self._left = handle, len(self._calls)
        found: list[Mapping[str, Array]] = [{} for _ in self._calls]
        self.outputs = found
        for call in self._calls:
            servable.submit(call)

    def cancel(self) -> None:
        handle = self._handle
        servable = None if handle is None else handle.servable
        if servable is not None:
            for call in self._calls:
                servable.cancel(call)

    def _done(self, index: int, result: Mapping[str, Any] | Status) -> None:
        """On any thread."""
        with self._lock:
            self._left -= 1
            if isinstance(result, Status):
                self._failure = self._failure or result
            else:
                self.outputs[index] = result
            if self._left:
                return
        calls, self._calls = self._calls, []  # they refer to this
        self.run_seconds = sum(call.run_seconds for call in calls)
        assert self._handle is not None
        self._handle.release()
        self._on_end(self, self._failure)


def _shown(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else float(f"{milliseconds:.4g}")


def _is_nonfinite(outputs: Mapping[str, Array]) -> bool:
    return nonfinite(outputs).likeness is Likeness.FAILED


def _size(answer: OldAnswer) -> int:
    """About the bytes that the request takes."""
    arrays = [array for run in answer.runs for array in run.inputs.values()]
    arrays += [array for outputs in answer.outputs for array in outputs.values()]
    return sum(array.size * _VALUE_BYTES if array.dtype.hasobject else array.nbytes for array in arrays)
