"""What was asked of a batching servable, what became of it, and whether that was right.

:class:`BatcherChecker` knows the settings and the history of a servable of
:mod:`tests.support.schedulers.batcher_models`, and raises
:class:`~tests.support.schedulers.interleaving.Violation` for what neither allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import numpy as np

from tests.support.schedulers.batcher_models import NOT_RUN, SHIFTS, SPAN, GatedModel, Run, Verdict
from tests.support.schedulers.interleaving import InterleavingScheduler, ThreadState
from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.batcher import PATIENCE, BatchingServable
from tfs_lite.schedulers.batching.forming import form_batch
from tfs_lite.schedulers.batching.retries import POISON_SECONDS
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen, TimeoutAction

WIDE = 2e-9
"""Seconds: how far two sums of the same times may differ."""

Answer = Mapping[str, Tensor] | Status


class _Call(PredictCall):
    """Remembers that it was let in, also when it has been answered."""

    admitted = False

    @property
    def ticket(self) -> object:
        return self._ticket

    @ticket.setter
    def ticket(self, ticket: object) -> None:
        self._ticket = ticket
        self.admitted = self.admitted or ticket is not None


@dataclass(eq=False)
class CheckedCall:
    """One call. It was submitted between the moments ``entered`` and ``left``, in steps."""

    call: _Call
    ids: range
    width: int
    level: int
    poisoned: bool
    deadly: bool
    entered: int
    left: int = -1
    cancelled: bool = False
    closed_before: bool = False
    answers: list[Answer] = field(default_factory=list)
    answered: int = -1
    runs: list[Run] = field(default_factory=list)

    @property
    def admitted(self) -> bool:
        return self.call.admitted


class BatcherChecker:
    """Used by the test; answers may come on any stepped thread. ``retries``: None if the servable queues nothing again,
    else whether it may queue again what was lost while it ran."""

    def __init__(
        self,
        scheduler: InterleavingScheduler,
        settings: BatchSettings,
        servable: BatchingServable,
        retries: bool | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.retries = retries
        self.settings = settings
        self.servable = servable
        self.models = cast("tuple[GatedModel, ...]", servable.models)
        self.requests: list[CheckedCall] = []
        self.moment = 0
        self.closing = False
        self.losses = 0
        self._up = 0.0  # when there was a worker that had not lost its process
        self._next_id = 0
        self._seen = 0
        self._open: list[CheckedCall] = []

    # What happens.

    def make_call(
        self,
        signature: str,
        rows: int,
        width: int,
        outputs: tuple[str, ...],
        poisoned: bool,
        deadly: bool = False,
        **rest: Any,
    ) -> CheckedCall:
        """A new call, not submitted yet."""
        ids = range(self._next_id, self._next_id + rows)
        self._next_id += rows
        if poisoned and rows:
            for model in self.models:
                model.poisoned.add(ids[-1])
        if deadly and rows:
            for model in self.models:
                model.deadly.add(ids[-1])
        numbers = np.arange(ids.start, ids.stop)
        inputs = {"id": numbers, "x": numbers[:, None] * float(SPAN) + np.arange(width)}
        call = _Call(signature, inputs, outputs, on_done=lambda answer: self._answered(request, answer), **rest)
        levels = self.settings.priority_levels
        level = call.priority if 0 < call.priority <= levels else self.settings.default_priority
        request = CheckedCall(call, ids, width, level, poisoned and rows > 0, deadly and rows > 0, self._tick())
        self.requests.append(request)
        self._open.append(request)
        return request

    def submit(self, request: CheckedCall) -> None:
        """On the test's or a stepped thread."""
        request.closed_before = self.closing
        self.servable.submit(request.call)
        request.left = self._tick()

    def cancel(self, request: CheckedCall) -> None:
        request.cancelled = True
        self.servable.cancel(request.call)

    def close(self) -> None:
        self.closing = True
        self.servable.close()

    def _answered(self, request: CheckedCall, answer: Answer) -> None:
        self.see_runs()
        request.answers.append(answer)
        request.answered = self._tick()
        self._need(len(request.answers) == 1, f"answered twice: {request.answers}")
        self._open.remove(request)
        if isinstance(answer, Status):
            self._check_status(request, answer)
        else:
            self._check_rows(request, answer)
        if self.settings.preserve_ordering and request.admitted:
            self._check_order(request)
        self.scheduler.pause_between()

    def _tick(self) -> int:
        self.moment += 1
        return self.moment

    # Answers.

    def _check_rows(self, request: CheckedCall, answer: Mapping[str, Tensor]) -> None:
        call = request.call
        expected = {"id": call.inputs["id"], "y": cast(Any, call.inputs["x"]) + SHIFTS[call.signature]}
        names = call.outputs or ("y", "id")
        self._need(set(answer) == set(names), f"{set(answer)} instead of {names}")
        for name in names:
            self._need(np.array_equal(cast(Any, answer[name]), expected[name]), f"{name} of other rows, or not all")
        fine = {number for run in request.runs if run.verdict is Verdict.FINE for number in run.ids}
        self._need(
            not (request.poisoned or request.deadly) and fine.issuperset(request.ids),
            "answered without a run that went well",
        )

    def _check_status(self, request: CheckedCall, status: Status) -> None:
        call, now = request.call, self.scheduler.clock.monotonic()
        match status.code:
            case StatusCode.CANCELLED:
                self._need(request.cancelled, "it was not cancelled")
            case StatusCode.DEADLINE_EXCEEDED:
                self._need(call.deadline is not None and call.deadline <= now, "its deadline has not passed")
            case StatusCode.INVALID_ARGUMENT:
                self._need(
                    not request.admitted and len(request.ids) > self._most_rows, f"it is well-formed: {status.message}"
                )
            case StatusCode.INTERNAL:
                self._need(
                    request.poisoned and self._alone(request, Verdict.FINE), "its rows did not fail by themselves"
                )
            case StatusCode.RESOURCE_EXHAUSTED:
                busy = self.retries is None and any(run.verdict is Verdict.BUSY for run in request.runs)
                behind = self.retries is None and self._was_behind(request, Verdict.BUSY)
                self._need(busy or behind or self._alone(request, Verdict.FAILS), "it has not failed by itself")
            case StatusCode.UNAVAILABLE:
                self._need(self._unavailable(request, status.message), f"not so: {status.message}")
            case _:
                raise self.scheduler.violation(f"why {status}?")

    def _alone(self, request: CheckedCall, verdict: Verdict) -> bool:
        """Whether a run with that verdict had rows of this call only. Calls without rows are not seen."""
        own = set(request.ids)
        return not own or any(run.verdict is verdict and own.issuperset(run.ids) for run in request.runs)

    def _unavailable(self, request: CheckedCall, text: str) -> bool:
        if "Request timeout expired" in text:
            policy = self.settings.policy(request.level)
            return policy.timeout_action is TimeoutAction.REJECT and policy.default_timeout > 0
        if "being unloaded" in text:
            return self.closing
        if "Exceeds maximum queue size" in text or "is full" in text:
            return not request.admitted and self._is_full(request)
        if "is overloaded" in text:
            return request.call.deadline is not None
        if "wait for an earlier one" in text:
            held = len(self._open) >= 2 * self.settings.max_queued_calls + len(self.scheduler.workers)
            return not request.admitted and self.settings.preserve_ordering and (held or self.scheduler.stepwise)
        if "worker died" in text:
            return self._has_losses and (not request.ids or self._was_lost_for_good(request))
        away = (
            len(self.scheduler.workers)
            if self.scheduler.stepwise
            else 1 + len(self.scheduler.in_state(ThreadState.RECOVERING))
        )
        patience = 0.0 if self.retries is None or self.scheduler.stepwise else PATIENCE
        waited = self.scheduler.clock.monotonic() - self._up >= patience - WIDE
        return "lost its worker" in text and self._has_losses and away >= len(self.scheduler.workers) and waited

    def note_time(self) -> None:
        """Called before time passes."""
        if len(self.scheduler.in_state(ThreadState.RECOVERING)) < len(self.scheduler.workers):
            self._up = self.scheduler.clock.monotonic()

    # Losses.

    @property
    def _has_losses(self) -> bool:
        return self.losses > 0 or any(model.losses for model in self.models)

    @property
    def _lost_runs(self) -> list[Run]:
        runs = [run for model in self.models for run in model.losses]
        return sorted(runs, key=lambda run: run.ended)

    def _was_lost_for_good(self, request: CheckedCall) -> bool:
        """Whether a call that was lost with a worker had to be answered so, and may not have been queued again."""
        lost = [run for run in request.runs if run.verdict is Verdict.LOST]
        unread = any(run.verdict is Verdict.UNREAD for run in request.runs)
        if self.retries is None:
            return bool(lost or unread) or self._was_behind(request, Verdict.LOST, Verdict.UNREAD)
        now = self.scheduler.clock.monotonic()
        late = request.call.deadline is not None and request.call.deadline <= now
        twice = any(sum(number in run.ids for run in lost) > 1 for number in request.ids)
        return self.closing or (bool(lost) and (not self.retries or twice or late or self._are_off(now)))

    def _was_behind(self, request: CheckedCall, *verdicts: Verdict) -> bool:
        """Whether a batch with the call was tried again in parts, and an earlier part than its own ended so: then
        nothing runs the call where nothing is queued again."""
        parts = [set(run.ids) for run in self.models[0].runs if run.verdict in verdicts]
        return any(part < set(run.ids) for run in request.runs for part in parts)

    def _are_off(self, now: float) -> bool:
        """Whether two batches that were lost for the second time have switched retries off."""
        seen: set[int] = set()
        poison: list[float] = []
        for run in self._lost_runs:
            if not seen.isdisjoint(run.ids):
                poison.append(run.ended)
            seen.update(run.ids)
        return any(
            second - first <= POISON_SECONDS and second <= now < second + POISON_SECONDS
            for first, second in pairwise(poison)
        )

    def _check_losses(self, run: Run) -> None:
        """No row is in a third run after two were lost with it, and none in a second one that may not be."""
        for number in set(run.ids):
            lost = [before for before in self._lost_runs if number in before.ids and before is not run]
            self._need(len(lost) < 2, "a call runs that was lost twice")
            self._need(not lost or bool(self.retries), "a call runs again that must not")
            for before in lost:
                off = not self.scheduler.stepwise and self._are_off(before.ended)
                self._need(not off, "a call runs again while retries are off")

    @property
    def _most_rows(self) -> int:
        settings = self.settings
        if settings.split_large:
            return settings.max_request_rows or settings.max_batch_size
        return min(settings.max_request_rows or settings.max_batch_size, settings.max_batch_size)

    def _check_order(self, request: CheckedCall) -> None:
        for earlier in self._open:
            early = earlier.admitted and 0 <= earlier.left < request.entered
            self._need(not early, "it was answered before one that was submitted earlier")

    # The queue.

    def waiting(self, signature: str) -> list[CheckedCall]:
        """Calls of which no row has run to the end, or runs; those without rows may be running."""
        return [
            request
            for request in self._open
            if request.call.signature == signature
            and request.admitted
            and len(self._ran(request)) < len(request.ids or "_")
        ]

    def _ran(self, request: CheckedCall) -> set[int]:
        runs = [run for run in request.runs if run.verdict not in NOT_RUN]
        return set(request.ids).intersection(number for run in runs for number in run.ids)

    def _is_full(self, request: CheckedCall) -> bool:
        """Whether a call that was just refused may have found no room."""
        if self.scheduler.stepwise:
            return True
        settings, merges = self.settings, self.settings.merges
        others = self.waiting(request.call.signature)
        splits = sum(self._most_splits(other) for other in others)
        rows = sum((len(other.ids) or 1) if merges else 1 for other in [*others, request])
        bound = settings.policy(request.level).max_queue_size
        same = sum(self._most_splits(other) for other in others if other.level == request.level)
        return (
            splits >= settings.max_queued_calls
            or (settings.max_queued_rows > 0 and rows > settings.max_queued_rows)
            or (bound > 0 and same >= bound)
        )

    def _most_splits(self, request: CheckedCall) -> int:
        most = self.settings.max_batch_size
        return 1 if not most or len(request.ids) <= most else len(request.ids) // most + 2

    # Runs.

    def see_runs(self) -> None:
        """Holds runs that are new against the settings and the calls."""
        for run in self.models[0].runs[self._seen :]:
            self._seen += 1
            self._see(run)

    def _see(self, run: Run) -> None:
        settings = self.settings
        self._check_losses(run)
        numbers = set(run.ids)
        inside = [request for request in self._open if not numbers.isdisjoint(request.ids)]
        for request in inside:
            request.runs.append(run)
        alone = sum(1 for request in inside if request.ids) <= 1
        self._need(settings.merges or alone, "calls share a run although none may")
        if settings.merges:
            self._need(len(run.ids) <= settings.max_batch_size, f"a run of {len(run.ids)} rows")
        for number in numbers.difference(*[request.ids for request in inside]):
            self._need(self._is_left_over(number), "rows of no open call")
        self._need(all(request.call.signature == run.signature for request in inside), "two signatures in one run")
        if settings.pad_variable_length:
            self._need(not inside or run.width >= max(request.width for request in inside), "cut")
        else:
            self._need(all(request.width == run.width for request in inside), "two widths in one run")
        padding = len(run.ids) - len(numbers)
        if settings.allowed_sizes and run.ids:
            self._need(
                len(run.ids) in settings.allowed_sizes, f"{len(run.ids)} rows, {settings.allowed_sizes} are allowed"
            )
        self._need(len(set(run.ids[len(numbers) :])) <= 1, "padding of several rows")
        self._need(settings.allowed_sizes != () or not padding, "padding that was not asked for")
        if not self.scheduler.stepwise:
            self._check_turn(inside)

    def _is_left_over(self, number: int) -> bool:
        """Whether the row is of a call that was split, and was answered when one failed or was cancelled."""
        settings = self.settings
        (owner,) = [request for request in self.requests if number in request.ids]
        return settings.split_large and len(owner.ids) > settings.max_batch_size

    def _check_turn(self, inside: Sequence[CheckedCall]) -> None:
        """First come, first served, within a level that is not delayed."""
        for request in inside:
            if len(request.runs) > 1 or self.settings.policy(request.level).timeout_action is TimeoutAction.DELAY:
                continue
            for other in self._open:
                if (
                    other.left >= 0
                    and other.left < request.entered
                    and (other.call.signature, other.level) == (request.call.signature, request.level)
                    and other not in inside
                    and other.admitted
                    and other.ids
                    and not self._may_be_held(other)
                ):
                    self._need(other.runs != [], "a call was overtaken by one of its own level")

    # Whenever no thread can go on.

    def check_idle(self) -> None:
        """No thread is ready: what is due is under way, and what waits does so for a reason."""
        self.see_runs()
        if self.closing:
            return
        now = self.scheduler.clock.monotonic()
        asleep = self.scheduler.in_state(ThreadState.ASLEEP)
        for queue in self.servable._queues.values():
            waiting = self.waiting(queue.key)
            certain = [request for request in waiting if request.ids and not self._may_be_held(request)]
            late = [
                request for request in certain if request.call.deadline is not None and request.call.deadline <= now
            ]
            self._need(not late, "a call waits although its deadline has passed")
            self._check_bounds(certain)
            if not asleep or not queue.count:
                continue
            delay = queue.delay.current(queue.youngest)
            expects = queue.settings.send is SendWhen.EXPECT
            if expects and self.scheduler.in_state(ThreadState.RECOVERING):
                continue  # its last run has changed what is expected, and others need not hear of that at once
            decision = form_batch(queue, now, queue.settings, *([delay] if expects else []))
            self._need(not decision.take, f"{decision.take} calls could run, and a worker is idle")
            wakes = min(worker.wakes_at for worker in asleep)
            self._need(
                wakes <= decision.wait_until + WIDE, f"a batch is due at {decision.wait_until}, all sleep to {wakes}"
            )
        if not (self.scheduler.in_state(ThreadState.IN_RUN) or self.scheduler.in_state(ThreadState.RECOVERING)):
            open_calls = sum(request.left >= 0 and not self._may_be_held(request) for request in self._open)
            self._need(open_calls <= self.servable.pending, f"{open_calls} calls are open, not all of them wait")

    def _may_be_held(self, request: CheckedCall) -> bool:
        """Whether it may have an answer already, which waits for those of earlier calls."""
        ends = (
            request.cancelled
            or request.call.deadline is not None
            or self.settings.policy(request.level).default_timeout
        )
        return self.settings.preserve_ordering and bool(ends or request.runs or not request.ids)

    def _check_bounds(self, waiting: Sequence[CheckedCall]) -> None:
        settings = self.settings
        waiting = [request for request in waiting if not any(run.verdict in NOT_RUN for run in request.runs)]
        self._need(len(waiting) <= settings.max_queued_calls, "more calls wait than may")
        if settings.max_queued_rows:
            rows = sum(len(request.ids) - len(self._ran(request)) for request in waiting)
            self._need(not settings.merges or rows <= settings.max_queued_rows, f"{rows} rows wait, more than may")
        for level in {request.level for request in waiting}:
            most = settings.policy(level).max_queue_size
            self._need(
                not most or sum(request.level == level for request in waiting) <= most, f"too many of level {level}"
            )

    def finish(self) -> None:
        """When everything is over."""
        unanswered = [request for request in self.requests if len(request.answers) != 1]
        self._need(not unanswered, f"{len(unanswered)} calls were never answered")
        self._need(self.servable.pending == 0 == self.servable.pending_rows, "something still waits")
        self._need(all(model.closed == 1 for model in self.models), "a model was not closed, or twice")
        self._need(not any(worker.thread.is_alive() for worker in self.scheduler.workers), "a thread is left")
        self._need(self.scheduler.clock.pending == 0, "a timer is left")

    def _need(self, fact: bool, otherwise: str) -> None:
        if not fact:
            raise self.scheduler.violation(otherwise)
