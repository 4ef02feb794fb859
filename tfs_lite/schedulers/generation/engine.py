"""The engine of one language model: continuous batching, in which every running text has rows in every step.

    submit (any thread) -> waiting -> turn: plan -> LanguageModel.step -> detokenize -> deliver (the loop's thread)

A turn of the loop is one step. Cancelled and late texts free their slots before it, and texts that have ended after it.
Beside the model, the cost of a step is in proportion to the number of its texts, and not to their lengths.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.generation import (
    EngineState,
    LanguageModel,
    OnStep,
    OnText,
    Piece,
    SampledToken,
    Step,
    StepReport,
    TextReport,
)
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.generation.detokenizer import Detokenizer
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.planner import StepPlan
from tfs_lite.schedulers.generation.prefill_budget import PrefillBudget
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.step_runner import StepRunner
from tfs_lite.schedulers.generation.text import Phase, ScheduledTokens, StepOutput, Text

CANCELLED = Status(StatusCode.CANCELLED, "the text was cancelled")
_OUTCOMES = {StatusCode.CANCELLED: "cancelled", StatusCode.DEADLINE_EXCEEDED: "deadline"}

logger = logging.getLogger(__name__)


class Engine:
    """Runs texts in the turns that it gets from ``loop``, until ``close``. It does not close the model.

    Each text that was accepted gets exactly one event that ends it: a last piece, or a status, which is CANCELLED,
    DEADLINE_EXCEEDED, UNAVAILABLE (it waited too long, or the engine was closed) or INTERNAL (the model fails on this
    text). The failure of one text does not affect the others.
    """

    def __init__(
        self,
        model: LanguageModel,
        servable_id: ServableId,
        settings: EngineSettings,
        *,
        clock: Clock,
        loop: StepLoop,
        on_step: OnStep = ignore,
        on_text: OnText = ignore,
    ) -> None:
        """``settings`` must not have more slots, or longer ones, than the model."""
        self._model = model
        self._id = servable_id
        self._name = f"model {servable_id.name} version {servable_id.version}"
        self._settings = settings
        self._clock = clock
        self._loop = loop
        self._on_step = on_step
        self._on_text = on_text
        self._eos = model.limits.eos
        self._codec = model.codec
        self._step_runner = StepRunner(model, self._name)
        self._prefill_budget = PrefillBudget(settings.slowdown)
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards the fields below; texts are changed by the loop's thread only
        self._scheduler = SchedulerState(settings)
        self._texts: set[Text] = set()  # that have not ended
        self._cancelled: list[Text] = []
        self._closed = False
        loop.join(self)

    def submit(self, texts: Sequence[Text]) -> Status | None:
        """Accepts all texts or none. A refusal is returned: UNAVAILABLE, with QUEUE_FULL if too many texts wait;
        nothing is delivered then. ValueError for a text that does not fit into a slot. Any thread."""
        for text in texts:
            self._receive(text)
        with self._lock:
            refusal = self._refusal(texts)
            if refusal is not None:
                return refusal
            for text in texts:
                text.number = next(self._numbers)
                self._texts.add(text)
                self._scheduler.add(text)
        self._loop.wake()
        return None

    def cancel(self, texts: Sequence[Text]) -> None:
        """Ends those texts with CANCELLED before the next step that have not ended yet. Any thread."""
        with self._lock:
            cancelled = [text for text in texts if text in self._texts]
            self._cancelled += cancelled
        if cancelled:
            self._loop.wake()

    def state(self) -> EngineState:
        """The state of the engine now. Any thread."""
        with self._lock:
            return self._scheduler.state()

    def close(self) -> None:
        """Ends all texts with UNAVAILABLE, and returns when no turn is under way and none will come. Any thread but the
        loop's; it may be called again."""
        with self._lock:
            self._closed = True
        self._loop.leave(self)
        self._end_all(self._unavailable())

    def turn(self) -> bool:
        """One step, called by the loop. It does not raise: after an unexpected error every text fails, and the engine
        goes on empty."""
        try:
            return self._turn()
        except Exception:
            logger.exception("the engine of %s failed, and all of its texts with it", self._name)
            self._end_all(Status(StatusCode.INTERNAL, f"the engine of {self._name} failed"))
            return True

    def _receive(self, text: Text) -> None:
        length, limit = text.prompt_length, text.limit
        if not length or limit < 0 or length + limit > self._settings.length:
            raise ValueError(f"{length} + {limit} tokens do not fit into a slot of {self._settings.length}")
        text.arrived = self._clock.monotonic()
        text.detokenizer = Detokenizer(text.wanted, text.tokens, limit, self._eos, self._codec)

    def _refusal(self, texts: Sequence[Text]) -> Status | None:
        if self._closed:
            return self._unavailable()
        return self._scheduler.refusal([text.prompt_length for text in texts])

    def _unavailable(self) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")

    def _turn(self) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            ended = self._end_late_and_cancelled(now)
        self._deliver(ended, now)
        with self._lock:
            plan = self._scheduler.plan(now, self._prefill_budget.rows)
        if plan.schedule:
            self._step(plan)
        return bool(plan.schedule)

    def _end_late_and_cancelled(self, now: float) -> list[StepOutput]:
        """Ends these texts before the next step. The caller holds the lock."""
        ending = [*((text, CANCELLED) for text in self._cancelled), *self._scheduler.late(now)]
        self._cancelled.clear()
        ended = []
        for text, status in ending:
            if text in self._texts:
                self._texts.remove(text)
                self._scheduler.remove(text)
                ended.append(StepOutput(text, None, status))
        return ended

    def _step(self, plan: StepPlan) -> None:
        failures = self._step_runner.failures
        began = self._clock.monotonic()
        rows = [scheduled.text.rows(scheduled) for scheduled in plan.schedule]
        sampled = self._step_runner.run(Step(rows, plan.copies))
        now = self._clock.monotonic()
        report = step_report(self._id, plan, began, now, failures == self._step_runner.failures)
        self._update_budget(plan, now - began)
        outputs = [
            self._process_output(scheduled, one, now) for scheduled, one in zip(plan.schedule, sampled, strict=True)
        ]
        with self._lock:
            self._apply(plan, outputs)
        self._report_step(report)
        self._deliver(outputs, now)

    def _update_budget(self, plan: StepPlan, seconds: float) -> None:
        decoding = sum(scheduled.text.phase is Phase.DECODE for scheduled in plan.schedule)
        self._prefill_budget.record(decoding, sum(scheduled.count for scheduled in plan.schedule) - decoding, seconds)

    def _process_output(self, scheduled: ScheduledTokens, sampled: SampledToken | None, now: float) -> StepOutput:
        text = scheduled.text
        if sampled is None:
            return self._failure(text, "failed on this text")
        if sampled.broken or (scheduled.draws and sampled.token is None):
            return self._failure(text, "failed on this text: its logits are no numbers")
        try:
            return text.process_output(scheduled, sampled, now)
        except Exception:
            logger.exception("the tokenizer of %s failed on a text", self._name)
            return self._failure(text, "cannot turn this text's tokens into words")

    def _failure(self, text: Text, what: str) -> StepOutput:
        return StepOutput(text, None, Status(StatusCode.INTERNAL, f"{self._name} {what}"))

    def _apply(self, plan: StepPlan, outputs: Sequence[StepOutput]) -> None:
        """Updates the scheduler; the caller holds the lock. Slots of failed texts hold unknown rows. Texts are
        forgotten last, so that all of them are still known if something raises."""
        for one in outputs:
            if isinstance(one.event, Status):
                self._scheduler.remove(one.text, valid=False)
        self._scheduler.complete(plan)
        for one in outputs:
            if one.token is not None:
                self._scheduler.append(one.text, one.token)
            if one.is_over:
                self._scheduler.remove(one.text)
        for one in outputs:
            if one.is_over:
                self._texts.discard(one.text)

    def _deliver(self, outputs: Sequence[StepOutput], now: float) -> None:
        for one in outputs:
            if one.event is None:
                continue
            if one.is_over:
                self._report_text(one.text, one.event, now)
            try:
                one.text.deliver(one.text, one.event)
            except Exception:
                logger.exception("a caller of %s broke its contract: deliver must not raise", self._name)
            if one.is_over:
                one.text.deliver = ignore  # timeouts may keep the text, and it must not keep its caller

    def _end_all(self, status: Status) -> None:
        """Starts a new scheduler as well, because the state of the old one may be inconsistent."""
        with self._lock:
            left = sorted(self._texts, key=lambda text: text.number)
            self._texts.clear()
            self._cancelled.clear()
            self._scheduler = SchedulerState(self._settings)
        self._deliver([StepOutput(text, None, status) for text in left], self._clock.monotonic())

    def _report_step(self, report: StepReport) -> None:
        try:
            self._on_step(report)
        except Exception:
            logger.exception("a step of %s could not be counted", self._name)

    def _report_text(self, text: Text, event: Piece | Status, now: float) -> None:
        try:
            self._on_text(text_report(self._id, text, event, now))
        except Exception:
            logger.exception("the end of a text of %s could not be counted", self._name)


def step_report(servable_id: ServableId, plan: StepPlan, began: float, now: float, ok: bool) -> StepReport:
    """The report of a step, to be made before its output is processed: phases and times must be those before it."""
    decoding = sum(scheduled.text.phase is Phase.DECODE for scheduled in plan.schedule)
    mixed = "mixed" if decoding else "prefill"
    return StepReport(
        id=servable_id,
        kind="decode" if decoding == len(plan.schedule) else mixed,
        rows=sum(scheduled.count for scheduled in plan.schedule),
        texts=len(plan.schedule),
        seconds=now - began,
        gaps=tuple(
            now - last
            for scheduled in plan.schedule
            if scheduled.draws and (last := scheduled.text.last_token_at) is not None
        ),
        preempted=len(plan.preempted),
        ok=ok,
    )


def text_report(servable_id: ServableId, text: Text, event: Piece | Status, now: float) -> TextReport:
    """The report of a text that has ended. ``event`` is the one that ended it."""
    arrived = text.arrived
    return TextReport(
        id=servable_id,
        outcome=_outcome(event),
        usage=text.usage,
        cached_asked=text.cached_asked,
        queue_seconds=_since(arrived, text.started),
        first_seconds=_since(arrived, text.first_token_at),
        last_seconds=_since(arrived, text.last_token_at),
        seconds=now - arrived,
        preemptions=text.preemptions,
    )


def _outcome(event: Piece | Status) -> str:
    if isinstance(event, Status):
        if event.reason is Reason.QUEUE_TIMEOUT:
            return "timeout"
        return _OUTCOMES.get(event.code, "error")
    return event.finish.value if event.finish is not None else "error"


def _since(begin: float, moment: float | None) -> float | None:
    return None if moment is None else moment - begin
