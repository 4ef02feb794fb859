"""What an engine tells those who count: a report of every step, and one of every text at its end."""

from __future__ import annotations

from tfs_lite.core.generation import Piece, StepReport, TextReport
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.schedulers.generation.entries import Entry
from tfs_lite.schedulers.generation.planner import Plan
from tfs_lite.schedulers.generation.text import Phase

_OUTCOMES = {StatusCode.CANCELLED: "cancelled", StatusCode.DEADLINE_EXCEEDED: "deadline"}


def step_report(servable_id: ServableId, plan: Plan, began: float, now: float, ok: bool) -> StepReport:
    """Of a step that is over and whose answers nobody has heard yet, so that phases and times are those before it."""
    decoding = sum(share.text.phase is Phase.DECODE for share in plan.shares)
    mixed = "mixed" if decoding else "prefill"
    return StepReport(
        id=servable_id,
        kind="decode" if decoding == len(plan.shares) else mixed,
        rows=sum(share.count for share in plan.shares),
        texts=len(plan.shares),
        seconds=now - began,
        gaps=tuple(now - last for share in plan.shares if share.draws and (last := share.text.work.last) is not None),
        preempted=len(plan.preempted),
        ok=ok,
    )


def text_report(servable_id: ServableId, entry: Entry, event: Piece | Status, now: float) -> TextReport:
    """``event``: the one that ended it."""
    text = entry.text
    arrived = text.arrived
    return TextReport(
        id=servable_id,
        outcome=outcome_of(event),
        usage=entry.usage(entry.words.count),
        cached_asked=text.cached_asked,
        queue_seconds=_since(arrived, text.started),
        first_seconds=_since(arrived, entry.first),
        last_seconds=_since(arrived, entry.last),
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
