"""Reports of an engine for the metrics: one of every step, and one of every text at its end."""

from __future__ import annotations

from tfs_lite.core.generation import Piece, StepReport, TextReport
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.generation.generation_state import Phase
from tfs_lite.schedulers.generation.job import JobState
from tfs_lite.schedulers.generation.planner import Plan

_OUTCOMES = {StatusCode.CANCELLED: "cancelled", StatusCode.DEADLINE_EXCEEDED: "deadline"}


def step_report(servable_id: ServableId, plan: Plan, began: float, now: float, ok: bool) -> StepReport:
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
            if scheduled.draws and (last := scheduled.text.job_state.last_token_at) is not None
        ),
        preempted=len(plan.preempted),
        ok=ok,
    )


def text_report(servable_id: ServableId, state: JobState, event: Piece | Status, now: float) -> TextReport:
    """``event`` is the one that ended the text."""
    text = state.text
    arrived = text.arrived
    return TextReport(
        id=servable_id,
        outcome=outcome_of(event),
        usage=state.usage,
        cached_asked=text.cached_asked,
        queue_seconds=_since(arrived, text.started),
        first_seconds=_since(arrived, state.first_token_at),
        last_seconds=_since(arrived, state.last_token_at),
        seconds=now - arrived,
        preemptions=text.preemptions,
    )


def outcome_of(event: Piece | Status) -> str:
    if isinstance(event, Status):
        if event.reason is Reason.QUEUE_TIMEOUT:
            return "timeout"
        return _OUTCOMES.get(event.code, "error")
    return event.finish.value if event.finish is not None else "error"


def _since(begin: float, moment: float | None) -> float | None:
    return None if moment is None else moment - begin
