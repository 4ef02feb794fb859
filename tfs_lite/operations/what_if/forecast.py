"""The forecast of changes: values, as JSON and as lines for people."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.serving.reload import ConfigRefusal


class Fate(enum.Enum):
    """The fates of a version."""

    LOAD = "load"
    """Its load begins, and nothing speaks against it."""
    FAIL = "fail"
    """Its load begins, and would fail."""
    REFUSE = "refuse"
    """It is wanted, and its load does not begin: it has no room, or its platform is unknown."""
    WAIT = "wait"
    """It is wanted, and not complete."""
    STAY = "stay"
    """It answers requests, and goes on doing so."""
    KEEP = "keep"
    """It is wanted no more, and goes on answering because no other version of the model is available."""
    UNLOAD = "unload"
    """It answers requests, and is unloaded."""
    FINISH = "finish"
    """Its load is under way already, and goes on."""
    CALL_OFF = "call off"
    """Its load is under way or has failed, and is wanted no more."""
    LEAVE = "leave"
    """It is on its way out already."""
    FAILED = "failed"
    """It has failed, and is not tried again before its files change."""


BEGIN = (Fate.LOAD, Fate.FAIL)
"""The fates in which a load begins."""


@dataclass(frozen=True, slots=True)
class VersionForecast:
    """One version. ``needs`` is what a load reserves; ``fits_now`` is None where nothing is to be reserved. ``after``
    are the versions whose load or unload has to come first. ``requests`` and ``sequences`` are those inside it now."""

    version: int
    fate: Fate
    why: str = ""
    needs: ResourceAllocation = NO_RESOURCES
    fits_now: bool | None = None
    after: tuple[ServableId, ...] = ()
    requests: int = 0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class LabelMove:
    """A label that would name another version; None: no version, before or after."""

    label: str
    before: int | None
    after: int | None


@dataclass(frozen=True, slots=True)
class ModelForecast:
    """One model, highest version first.

    ``change``: added, removed, changed or unchanged, with the ``fields`` that differ. ``problem`` says why the source
    has nothing to offer. ``gap`` says why there would be a time in which no version answers; empty: there is none.
    """

    name: str
    change: str
    fields: tuple[str, ...] = ()
    versions: tuple[VersionForecast, ...] = ()
    labels: tuple[LabelMove, ...] = ()
    problem: str = ""
    gap: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The whole answer. With ``refusals`` nothing would change, and there are no ``models``."""

    models: tuple[ModelForecast, ...] = ()
    refusals: tuple[ConfigRefusal, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it is accepted, and every version that is wanted is complete and would load."""
        bad = (Fate.FAIL, Fate.REFUSE, Fate.WAIT)
        return not self.refusals and all(v.fate not in bad for model in self.models for v in model.versions)

    def of(self, *fates: Fate) -> set[ServableId]:
        """The versions with one of these fates."""
        return {ServableId(m.name, v.version) for m in self.models for v in m.versions if v.fate in fates}

    def as_json(self) -> dict[str, Any]:
        """The body of ``POST /v1/config:explain``."""
        return {
            "ok": self.ok,
            "refused": [
                {"model": r.model, "code": r.status.code.name, "text": r.status.message} for r in self.refusals
            ],
            "models": [_model_json(model) for model in self.models],
        }


def _model_json(model: ModelForecast) -> dict[str, Any]:
    return {
        "name": model.name,
        "change": model.change,
        "fields": list(model.fields),
        "problem": model.problem,
        "gap": model.gap,
        "remarks": list(model.remarks),
        "labels": [{"label": m.label, "before": m.before, "after": m.after} for m in model.labels],
        "versions": [
            {
                "version": v.version,
                "fate": v.fate.value,
                "why": v.why,
                "needs": {str(resource): quantity for resource, quantity in v.needs.entries.items()},
                "fits_now": v.fits_now,
                "after": [{"model": id.name, "version": id.version} for id in v.after],
                "requests": v.requests,
                "sequences": v.sequences,
            }
            for v in model.versions
        ],
    }
