"""A version on trial, as the way of a request sees it, and what the end of a request says about a version.

A trial begins when a version that was pushed answers for the first time, and lasts for the bake. Until it is over the
version that answered before, the *old* one, stays loaded: a request that fails on the new one is answered by it
(*shielded*), and may be run again later on both.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, Status


class Ending(enum.Enum):
    """What the end of a request says about the version that ran it."""

    WELL = "answered"
    FAULT = "the version failed"
    REFUSAL = "the version, or the checks by its signature, refused the request"
    NONFINITE = "answered with NaN or inf"
    LATE = "its time was up"
    LOAD = "the server was too busy"
    NOTHING = "it says nothing about the version"


SHIELDED = frozenset({Ending.FAULT, Ending.REFUSAL, Ending.NONFINITE})
"""The endings for which the old version is asked."""
FAILED = SHIELDED | {Ending.LATE}
"""The endings that count as failures of the version, and are run again on both."""


class TrialEnding(NamedTuple):
    """How a request ended on a version under trial.

    ``status``: OK, or the failure of the new version. ``shielded``: the old one answered it. ``old_failed``: the old
    one was asked and failed too, or was gone. ``runs``: what to run again on both, each a key of a signature, its
    inputs and the wanted outputs; empty where it must not run twice. ``cached``: it came from the response cache, and
    counts as nothing. ``run_seconds``: the time in the new model, and in the old one where it was asked. ``asked``: the
    ensemble that was asked, where the version on trial is that of a model of its steps; ``runs`` are the ensemble's
    then, and both sides are calls of it that name their version of the model in ``instead``.
    """

    ending: Ending
    status: Status = OK
    shielded: bool = False
    old_failed: bool = False
    request_id: str = ""
    runs: Sequence[Any] = ()
    cached: bool = False
    run_seconds: float = 0.0
    old_run_seconds: float = 0.0
    asked: ServableId | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """The pair of a trial. ``on_end`` takes how each request ended on the new version; called on the event loop, short,
    and must not raise. ``may_shield``: whether the old version may be asked, and requests may run again later.
    ``nonfinite_fails``: whether NaN and inf are failures, asked after each answer that has any; both versions may mean
    them."""

    old: int
    on_end: Callable[[TrialEnding], None]
    may_shield: bool = True
    nonfinite_fails: Callable[[], bool] = lambda: True


Trials = Mapping[str, Mapping[int, Trial]]
"""By model, and by the version on trial; models in the order in which their trials began, because of two models of one
ensemble the later has the votes. Its owner replaces the inner mapping as a whole; any thread reads."""
NO_TRIALS: Trials = MappingProxyType({})
