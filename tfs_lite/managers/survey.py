"""A manager's report on its versions at one moment: not only their states, but also what each of them waits for.

The values are for explanations. Times are in seconds of the manager's ``clock.monotonic``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, Status
from tfs_lite.managers.harness import Overdue, ServableStateSnapshot


class LoadStage(enum.Enum):
    """The stages of a load that was requested."""

    QUEUED = "queued"
    """It waits for a thread."""
    AT_WORK = "at work"
    """A thread estimates or loads it."""
    NEEDS_MEMORY = "needs memory"
    """It waits until memory comes free."""
    NEEDS_OTHERS = "needs others"
    """Its last attempt said what has to come first."""
    BETWEEN_ATTEMPTS = "between attempts"
    """Its last attempt failed, and it waits for the next."""


@dataclass(frozen=True, slots=True)
class LoadView:
    """A load that is not decided yet. ``since`` is when it came into this stage, ``ahead`` how many loads go first,
    ``retry_at`` when it is tried again. ``failures`` of ``max_attempts`` attempts have failed, the last with
    ``failure``; ``waits`` says what has to come first."""

    stage: LoadStage
    since: float
    ahead: int = 0
    retry_at: float | None = None
    failures: int = 0
    max_attempts: int = 1
    failure: Status | None = None
    waits: Reason | None = None


@dataclass(frozen=True, slots=True)
class VersionView:
    """One managed version. ``estimate`` is the memory that it needs or holds; ``attempts`` counts its loads so far;
    ``handles`` are live, ``leaving`` of them hold what was withdrawn or replaced. ``answers``: lookups find it.
    ``beside``: another load of it, which takes its place or has had it, is in memory too. ``unloads_ahead``: how many
    unloads go first, None unless its own is queued. ``hangs_beside``: the steps of its other loads that take longer
    than their bound, and since when they, or the drain before them, go on."""

    state: ServableStateSnapshot
    estimate: ResourceAllocation = NO_RESOURCES
    attempts: int = 0
    load: LoadView | None = None
    answers: bool = False
    handles: int = 0
    beside: bool = False
    unloads_ahead: int | None = None
    leaving: int = 0
    hangs_beside: tuple[tuple[Overdue, float], ...] = ()


@dataclass(frozen=True, slots=True)
class ManagerView:
    """All versions of one manager. ``now`` is when this was seen; ``load_threads``: how many load at a time;
    ``closing``: everything is being unloaded."""

    now: float
    versions: Mapping[ServableId, VersionView] = field(default_factory=dict)
    load_threads: int = 1
    closing: bool = False
