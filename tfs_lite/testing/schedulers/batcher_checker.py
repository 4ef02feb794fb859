"""Who asked a batching servable for what, what became of it, and whether that was right.

:class:`BatcherChecker` knows the settings and the history of a servable of
:mod:`tfs_lite.testing.schedulers.batcher_models`, and raises
:class:`~tfs_lite.testing.schedulers.interleaving.Violation` for what neither allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tfs_lite.core.model import PredictCall
from tfs_lite.core.signature import Tensor
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.forming import form_batch
from tfs_lite.schedulers.batching.settings import BatchSettings, SendWhen, TimeoutAction
from tfs_lite.testing.schedulers.batcher_models import SHIFTS, SPAN, GatedModel, Run, Verdict
from tfs_lite.testing.schedulers.interleaving import InterleavingScheduler, Where

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
class Asked:
    """One call. ``entered`` and ``left``: the moments, in steps, between which it was submitted."""

    call: _Call
    ids: range
    width: int
    level: int
    poisoned: bool
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
    """Used by the director of the stage; answers may come on any actor's thread."""

    def __init__(self, stage: InterleavingScheduler, settings: BatchSettings, servable: BatchingServable) -> None:
        self.stage = stage
        self.settings = settings
        self.servable = servable
        self.models = cast("tuple[GatedModel, ...]", servable.models)
        self.asked: list[Asked] = []
        self.moment = 0
        self.closing = False
        self.losses = 0
        self._next_id = 0
        self._seen = 0
        self._open: list[Asked] = []

    # What happens.

    def ask(
        self, signature: str, rows: int, width: int, outputs: tuple[str, ...], poisoned: bool, **rest: Any
    ) -> Asked:
        """A new call, not submitted yet."""
        ids = range(self._next_id, self._next_id + rows)
        self._next_id += rows
        if poisoned and rows:
            for model in self.models:
                model.poisoned.add(ids[-1])
        numbers = np.arange(ids.start, ids.stop)
        inputs = {"id": numbers, "x": numbers[:, None] * float(SPAN) + np.arange(width)}
        call = _Call(signature, inputs, outputs, on_done=lambda answer: self._answered(asked, answer), **rest)
        levels = self.settings.priority_levels
        level = call.priority if 0 < call.priority <= levels else self.settings.default_priority
        asked = Asked(call, ids, width, level, poisoned and rows > 0, self._tick())
        self.asked.append(asked)
        self._open.append(asked)
        return asked

    def submit(self, asked: Asked) -> None:
        """On the director's or an actor's thread."""
        asked.closed_before = self.closing
        self.servable.submit(asked.call)
        asked.left = self._tick()

    def cancel(self, asked: Asked) -> None:
        asked.cancelled = True
        self.servable.cancel(asked.call)

    def close(self) -> None:
        self.closing = True
        self.servable.close()

    def _answered(self, asked: Asked, answer: Answer) -> None:
        self.see_runs()
        asked.answers.append(answer)
        asked.answered = self._tick()
        self._need(len(asked.answers) == 1, f"answered twice: {asked.answers}")
        self._open.remove(asked)
        if isinstance(answer, Status):
            self._check_status(asked, answer)
        else:
            self._check_rows(asked, answer)
        if self.settings.preserve_ordering and asked.admitted:
            self._check_order(asked)
        self.stage.pause_between()

    def _tick(self) -> int:
        self.moment += 1
        return self.moment

    # Answers.

    def _check_rows(self, asked: Asked, answer: Mapping[str, Tensor]) -> None:
        call = asked.call
        expected = {"id": call.inputs["id"], "y": cast(Any, call.inputs["x"]) + SHIFTS[call.signature]}
        names = call.outputs or ("y", "id")
        self._need(set(answer) == set(names), f"{set(answer)} instead of {names}")
        for name in names:
            self._need(np.array_equal(cast(Any, answer[name]), expected[name]), f"{name} of other rows, or not all")
        fine = {number for run in asked.runs if run.verdict is Verdict.FINE for number in run.ids}
        self._need(not asked.poisoned and fine.issuperset(asked.ids), "answered without a run that went well")

    def _check_status(self, asked: Asked, status: Status) -> None:
        call, now = asked.call, self.stage.clock.monotonic()
        match status.code:
            case StatusCode.CANCELLED:
                self._need(asked.cancelled, "nobody cancelled it")
            case StatusCode.DEADLINE_EXCEEDED:
                self._need(call.deadline is not None and call.deadline <= now, "its deadline has not passed")
            case StatusCode.INVALID_ARGUMENT:
                self._need(
                    not asked.admitted and len(asked.ids) > self._most_rows, f"it is well-formed: {status.message}"
                )
            case StatusCode.INTERNAL:
                self._need(asked.poisoned and self._alone(asked, Verdict.FINE), "its rows did not fail by themselves")
            case StatusCode.RESOURCE_EXHAUSTED:
                self._need(self._alone(asked, Verdict.FAILS), "it has not failed by itself")
            case StatusCode.UNAVAILABLE:
                self._need(self._unavailable(asked, status.message), f"not so: {status.message}")
            case _:
                raise self.stage.violation(f"why {status}?")

    def _alone(self, asked: Asked, verdict: Verdict) -> bool:
        """Whether a run with that verdict had rows of this call only. Calls without rows are not seen."""
        own = set(asked.ids)
        return not own or any(run.verdict is verdict and own.issuperset(run.ids) for run in asked.runs)

    def _unavailable(self, asked: Asked, text: str) -> bool:
        if "Request timeout expired" in text:
            policy = self.settings.policy(asked.level)
            return policy.timeout_action is TimeoutAction.REJECT and policy.default_timeout > 0
        if "being unloaded" in text:
            return self.closing
        if "Exceeds maximum queue size" in text or "is full" in text:
            return not asked.admitted and self._is_full(asked)
        if "is overloaded" in text:
            return not asked.admitted and asked.call.deadline is not None
        if "wait for an earlier one" in text:
            held = len(self._open) >= 2 * self.settings.max_queued_calls + len(self.stage.lanes)
            return not asked.admitted and self.settings.preserve_ordering and (held or self.stage.stepwise)
        if "worker died" in text:
            return self.losses > 0 and (not asked.ids or asked.runs != [])
        away = len(self.stage.lanes) if self.stage.stepwise else 1 + len(self.stage.at(Where.RECOVERING))
        return "lost its worker" in text and self.losses > 0 and away >= len(self.stage.lanes)

    @property
    def _most_rows(self) -> int:
        settings = self.settings
        if settings.split_large:
            return settings.max_request_rows or settings.max_batch_size
        return min(settings.max_request_rows or settings.max_batch_size, settings.max_batch_size)

    def _check_order(self, asked: Asked) -> None:
        for earlier in self._open:
            early = earlier.admitted and 0 <= earlier.left < asked.entered
            self._need(not early, "it was answered before one that was submitted earlier")

    # The queue.

    def waiting(self, signature: str) -> list[Asked]:
        """Calls of which no row has run yet; those without rows may be running."""
        return [
            asked
            for asked in self._open
            if asked.call.signature == signature and asked.admitted and len(self._ran(asked)) < len(asked.ids or "_")
        ]

    def _ran(self, asked: Asked) -> set[int]:
        return set(asked.ids).intersection(number for run in asked.runs for number in run.ids)

    def _is_full(self, asked: Asked) -> bool:
        """Whether a call that was just refused may have found no room."""
        if self.stage.stepwise:
            return True
        settings, merges = self.settings, self.settings.merges
        others = self.waiting(asked.call.signature)
        pieces = sum(self._most_pieces(other) for other in others)
        rows = sum((len(other.ids) or 1) if merges else 1 for other in [*others, asked])
        bound = settings.policy(asked.level).max_queue_size
        same = sum(self._most_pieces(other) for other in others if other.level == asked.level)
        return (
            pieces >= settings.max_queued_calls
            or (settings.max_queued_rows > 0 and rows > settings.max_queued_rows)
            or (bound > 0 and same >= bound)
        )

    def _most_pieces(self, asked: Asked) -> int:
        most = self.settings.max_batch_size
        return 1 if not most or len(asked.ids) <= most else len(asked.ids) // most + 2

    # Runs.

    def see_runs(self) -> None:
        """Holds runs that are new against the settings and the calls."""
        for run in self.models[0].runs[self._seen :]:
            self._seen += 1
            self._see(run)

    def _see(self, run: Run) -> None:
        settings = self.settings
        numbers = set(run.ids)
        inside = [asked for asked in self._open if not numbers.isdisjoint(asked.ids)]
        for asked in inside:
            asked.runs.append(run)
        alone = sum(1 for asked in inside if asked.ids) <= 1
        self._need(settings.merges or alone, "calls share a run although none may")
        if settings.merges:
            self._need(len(run.ids) <= settings.max_batch_size, f"a run of {len(run.ids)} rows")
        for number in numbers.difference(*[asked.ids for asked in inside]):
            self._need(self._is_left_over(number), "rows that nobody waits for")
        self._need(all(asked.call.signature == run.signature for asked in inside), "two signatures in one run")
        if settings.pad_variable_length:
            self._need(not inside or run.width >= max(asked.width for asked in inside), "cut")
        else:
            self._need(all(asked.width == run.width for asked in inside), "two widths in one run")
        padding = len(run.ids) - len(numbers)
        if settings.allowed_sizes and run.ids:
            self._need(
                len(run.ids) in settings.allowed_sizes, f"{len(run.ids)} rows, {settings.allowed_sizes} are allowed"
            )
        self._need(len(set(run.ids[len(numbers) :])) <= 1, "padding of several rows")
        self._need(settings.allowed_sizes != () or not padding, "padding that nobody asked for")
        if not self.stage.stepwise:
            self._check_turn(inside)

    def _is_left_over(self, number: int) -> bool:
        """Whether the row is of a call that ran in pieces, and was answered when one failed or was cancelled."""
        settings = self.settings
        (owner,) = [asked for asked in self.asked if number in asked.ids]
        return settings.split_large and len(owner.ids) > settings.max_batch_size

    def _check_turn(self, inside: Sequence[Asked]) -> None:
        """First come, first served, within a level that is not delayed."""
        for asked in inside:
            if len(asked.runs) > 1 or self.settings.policy(asked.level).timeout_action is TimeoutAction.DELAY:
                continue
            for other in self._open:
                if (
                    other.left >= 0
                    and other.left < asked.entered
                    and (other.call.signature, other.level) == (asked.call.signature, asked.level)
                    and other not in inside
                    and other.admitted
                    and other.ids
                    and not self._may_be_held(other)
                ):
                    self._need(other.runs != [], "a call was overtaken by one of its own level")

    # Whenever everybody stands still.

    def look(self) -> None:
        """Nobody is ready: what is due is under way, and what waits does so for a reason."""
        self.see_runs()
        if self.closing:
            return
        now = self.stage.clock.monotonic()
        asleep = self.stage.at(Where.ASLEEP)
        for line in self.servable._lines.values():
            waiting = self.waiting(line.key)
            certain = [asked for asked in waiting if asked.ids and not self._may_be_held(asked)]
            late = [asked for asked in certain if asked.call.deadline is not None and asked.call.deadline <= now]
            self._need(not late, "a call waits although its deadline has passed")
            self._check_bounds(certain)
            if not asleep or not len(line.queue):
                continue
            patience = line.expectation.patience(line.queue.youngest)
            expects = line.settings.send is SendWhen.EXPECT
            if expects and self.stage.at(Where.RECOVERING):
                continue  # its last run has changed what is expected, and others need not hear of that at once
            decision = form_batch(line.queue, now, line.settings, *([patience] if expects else []))
            self._need(not decision.take, f"{decision.take} calls could run, and a lane is idle")
            wakes = min(lane.wakes for lane in asleep)
            self._need(
                wakes <= decision.wait_until + WIDE, f"a batch is due at {decision.wait_until}, all sleep to {wakes}"
            )
        if not (self.stage.at(Where.IN_RUN) or self.stage.at(Where.RECOVERING)):
            open_calls = sum(asked.left >= 0 and not self._may_be_held(asked) for asked in self._open)
            self._need(
                open_calls <= self.servable.pending,
                f"{open_calls} calls are open, not all of them wait",
            )

    def _may_be_held(self, asked: Asked) -> bool:
        """Whether it may have an answer already, which waits for those of earlier calls."""
        ends = asked.cancelled or asked.call.deadline is not None or self.settings.policy(asked.level).default_timeout
        return self.settings.preserve_ordering and bool(ends or asked.runs or not asked.ids)

    def _check_bounds(self, waiting: Sequence[Asked]) -> None:
        settings = self.settings
        self._need(len(waiting) <= settings.max_queued_calls, "more calls wait than may")
        if settings.max_queued_rows:
            rows = sum(len(asked.ids) - len(self._ran(asked)) for asked in waiting)
            self._need(not settings.merges or rows <= settings.max_queued_rows, f"{rows} rows wait, more than may")
        for level in {asked.level for asked in waiting}:
            most = settings.policy(level).max_queue_size
            self._need(not most or sum(asked.level == level for asked in waiting) <= most, f"too many of level {level}")

    def finish(self) -> None:
        """When everything is over."""
        unanswered = [asked for asked in self.asked if len(asked.answers) != 1]
        self._need(not unanswered, f"{len(unanswered)} calls were never answered")
        self._need(self.servable.pending == 0 == self.servable.pending_rows, "something still waits")
        self._need(all(model.closed == 1 for model in self.models), "a model was not closed, or twice")
        self._need(not any(lane.thread.is_alive() for lane in self.stage.lanes), "a thread is left")
        self._need(self.stage.clock.pending == 0, "a timer is left")

    def _need(self, fact: bool, otherwise: str) -> None:
        if not fact:
            raise self.stage.violation(otherwise)
