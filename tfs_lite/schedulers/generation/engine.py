"""Many texts of one language model, all of which go on in every step.

    submit (any thread) -> waiting -> turn: plan -> LanguageModel.step -> words -> deliver (the loop's thread)

A turn of the loop is one step. Before it, whoever was cancelled or is late leaves, so that the step's places are free
of them; after it, whoever has ended leaves, so that the next step's are. What a step costs here, beside the model, is
in proportion to its texts, and never to how long they are.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Sequence

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
    nobody_counts_steps,
    nobody_counts_texts,
)
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.schedulers.generation.detokenizer import Detokenizer
from tfs_lite.schedulers.generation.entries import Entry, Job, StepOutput
from tfs_lite.schedulers.generation.loop import StepLoop
from tfs_lite.schedulers.generation.planner import Plan, ScheduledTokens
from tfs_lite.schedulers.generation.prefill_budget import PrefillBudget
from tfs_lite.schedulers.generation.reports import step_report, text_report
from tfs_lite.schedulers.generation.scheduler_state import SchedulerState
from tfs_lite.schedulers.generation.settings import EngineSettings
from tfs_lite.schedulers.generation.step_runner import StepRunner
from tfs_lite.schedulers.generation.text import GenerationState, Phase

__all__ = ["Engine", "Job"]

CANCELLED = Status(StatusCode.CANCELLED, "the text was cancelled")

logger = logging.getLogger(__name__)


class Engine:
    """Gets its turns from ``loop``, from the beginning until ``close``. The model is its owner's, who closes it.

    Promises: each job that was taken gets exactly one event that ends it, a last piece or a status: CANCELLED,
    DEADLINE_EXCEEDED, UNAVAILABLE (waited too long, closed), INTERNAL (the model fails on this text). The failure of
    one text is nobody else's.
    """

    def __init__(
        self,
        model: LanguageModel,
        servable_id: ServableId,
        settings: EngineSettings,
        *,
        clock: Clock,
        loop: StepLoop,
        on_step: OnStep = nobody_counts_steps,
        on_text: OnText = nobody_counts_texts,
    ) -> None:
        """``settings`` has no more places, and no longer ones, than the model."""
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
        self._attempts = StepRunner(model, self._name)
        self._pace = PrefillBudget(settings.slowdown)
        self._numbers = itertools.count()
        self._lock = threading.Lock()  # guards the fields below; texts are changed by the loop's thread only
        self._roster = SchedulerState(settings)
        self._entries: dict[Job, Entry] = {}  # of those that have not ended
        self._dropped: list[Job] = []
        self._closed = False
        loop.join(self)

    def submit(self, jobs: Sequence[Job]) -> Status | None:
        """All of them or none. A refusal comes back, UNAVAILABLE, with QUEUE_FULL if too many wait; then nothing is
        delivered. ValueError for a job that does not fit into a place. Any thread."""
        entries = [self._enter(job) for job in jobs]
        with self._lock:
            refusal = self._refusal(jobs)
            if refusal is not None:
                return refusal
            for entry in entries:
                entry.text.number = next(self._numbers)
                self._entries[entry.job] = entry
                self._roster.add(entry.text)
        self._loop.wake()
        return None

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Those that have not ended yet end with CANCELLED, before the next step. Any thread, also too late."""
        with self._lock:
            dropped = [job for job in jobs if job in self._entries]
            self._dropped += dropped
        if dropped:
            self._loop.wake()

    def state(self) -> EngineState:
        """Any thread."""
        with self._lock:
            return self._roster.state()

    def close(self) -> None:
        """Whatever is left ends with UNAVAILABLE. Returns when no turn is under way and none will come. Any thread but
        the loop's, also again."""
        with self._lock:
            self._closed = True
        self._loop.leave(self)
        self._end_all(self._unavailable())

    def turn(self) -> bool:
        """For the loop: one step. Does not raise: if it has to, every text fails and the engine begins anew."""
        try:
            return self._turn()
        except Exception:
            logger.exception("the engine of %s failed, and all of its texts with it", self._name)
            self._end_all(Status(StatusCode.INTERNAL, f"the engine of {self._name} failed"))
            return True

    def _enter(self, job: Job) -> Entry:
        length, wanted = len(job.tokens), job.wanted
        if not length or job.limit < 0 or length + job.limit > self._settings.length:
            raise ValueError(f"{length} + {job.limit} tokens do not fit into a place of {self._settings.length}")
        text = GenerationState(
            number=-1,
            tokens=list(job.tokens),  # it grows
            prompt_length=length,
            limit=job.limit,
            priority=wanted.priority,
            arrived=self._clock.monotonic(),
            deadline=job.deadline,
            reusable=not wanted.score_prompt,
        )
        return Entry(job, text, Detokenizer(wanted, job.tokens, job.limit, self._eos, self._codec))

    def _refusal(self, jobs: Sequence[Job]) -> Status | None:
        if self._closed:
            return self._unavailable()
        return self._roster.refusal([len(job.tokens) for job in jobs])

    def _unavailable(self) -> Status:
        return Status(StatusCode.UNAVAILABLE, f"{self._name} is being unloaded")

    def _turn(self) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            ended = self._drop(now)
        self._deliver(ended, now)
        with self._lock:
            plan = self._roster.plan(now, self._pace.rows)
        if plan.shares:
            self._step(plan)
        return bool(plan.shares)

    def _drop(self, now: float) -> list[StepOutput]:
        """Who has to leave before the next step; under the lock."""
        leaving = [(self._entries[job], CANCELLED) for job in self._dropped if job in self._entries]
        self._dropped.clear()
        leaving += [(text.work, status) for text, status in self._roster.late(now)]
        ended = []
        for entry, status in leaving:
            if self._entries.pop(entry.job, None) is not None:
                self._roster.remove(entry.text)
                ended.append(StepOutput(entry, None, status))
        return ended

    def _step(self, plan: Plan) -> None:
        failures = self._attempts.failures
        began = self._clock.monotonic()
        rows = [share.text.work.rows(share.start, share.count, share.draws) for share in plan.shares]
        drawn = self._attempts.run(Step(rows, plan.copies))
        now = self._clock.monotonic()
        report = step_report(self._id, plan, began, now, failures == self._attempts.failures)
        self._learn(plan, now - began)
        heard = [self._hear(share, one, now) for share, one in zip(plan.shares, drawn, strict=True)]
        with self._lock:
            self._settle(plan, heard)
        self._tell(report)
        self._deliver(heard, now)

    def _learn(self, plan: Plan, seconds: float) -> None:
        decoding = sum(share.text.phase is Phase.DECODE for share in plan.shares)
        self._pace.took(decoding, sum(share.count for share in plan.shares) - decoding, seconds)

    def _hear(self, share: ScheduledTokens, drawn: SampledToken | None, now: float) -> StepOutput:
        entry: Entry = share.text.work
        if drawn is None:
            return self._failure(entry, "failed on this text")
        if drawn.broken or (share.draws and drawn.token is None):
            return self._failure(entry, "failed on this text: its logits are no numbers")
        try:
            return entry.hear(share.start, share.count, share.draws, drawn, now)
        except Exception:
            logger.exception("the tokenizer of %s failed on a text", self._name)
            return self._failure(entry, "cannot turn this text's tokens into words")

    def _failure(self, entry: Entry, what: str) -> StepOutput:
        return StepOutput(entry, None, Status(StatusCode.INTERNAL, f"{self._name} {what}"))

    def _settle(self, plan: Plan, heard: Sequence[StepOutput]) -> None:
        """The step's outcome; under the lock. Nobody knows what is in the places of those that failed."""
        for one in heard:
            if isinstance(one.event, Status):
                self._roster.remove(one.entry.text, sound=False)
        self._roster.ran(plan)
        for one in heard:
            if one.token is not None:
                self._roster.append(one.entry.text, one.token)
            if one.is_over:
                self._roster.remove(one.entry.text)
        for one in heard:
            if one.is_over:
                self._entries.pop(one.entry.job, None)

    def _deliver(self, heard: Sequence[StepOutput], now: float) -> None:
        for one in heard:
            if one.event is None:
                continue
            if one.is_over:
                self._tell_end(one.entry, one.event, now)
            try:
                one.entry.job.deliver(one.entry.job, one.event)
            except Exception:
                logger.exception("a caller of %s broke its contract: deliver must not raise", self._name)
            if one.is_over:
                one.entry.text.work = None  # they know each other, and would lie about until the next collection

    def _end_all(self, status: Status) -> None:
        """With a roster that knows of nothing, because the old one may be in disorder."""
        with self._lock:
            left = list(self._entries.values())
            self._entries.clear()
            self._dropped.clear()
            self._roster = SchedulerState(self._settings)
        self._deliver([StepOutput(entry, None, status) for entry in left], self._clock.monotonic())

    def _tell(self, report: StepReport) -> None:
        try:
            self._on_step(report)
        except Exception:
            logger.exception("a step of %s could not be counted", self._name)

    def _tell_end(self, entry: Entry, event: Piece | Status, now: float) -> None:
        try:
            self._on_text(text_report(self._id, entry, event, now))
        except Exception:
            logger.exception("the end of a text of %s could not be counted", self._name)
