"""Runs failures of versions on trial again, on both versions, and tells the evidence of each trial how they went."""

from __future__ import annotations

import random
from collections.abc import Callable

from tfs_lite.core.clock import Clock
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef
from tfs_lite.operations.guard.evidence import Evidence

HandleOf = Callable[[ModelRef], ServableHandle]


class Reruns:
    """Runs one pair at a time, of any trial, on the thread ``tfs-guard-runs``. Any thread may call any method.

    ``start`` -> ``watch``* and ``forget``* -> ``close``. The thread sleeps while no trial is watched."""

    def __init__(self, handle: HandleOf, clock: Clock, random: random.Random) -> None:
        """``handle``: of a version by number, as ``ServerCore.handle``. ``random`` chooses the side that runs first."""

    def start(self) -> None:
        """UNAVAILABLE if the system refuses the thread."""

    def watch(self, evidence: Evidence) -> None:
        """Runs the failures of this trial from now on."""

    def forget(self, evidence: Evidence) -> None:
        """The trial is over: no more pairs of it begin. One that runs goes on, and its outcome is told."""

    def close(self) -> None:
        """Cancels the calls that run and ends the thread, within :data:`~tfs_lite.core.threads.JOIN_SECONDS`."""
