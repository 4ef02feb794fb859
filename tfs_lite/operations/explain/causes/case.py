"""The case that a cause looks at."""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.managers.survey import LoadStage, LoadView
from tfs_lite.operations.explain.explanation import Verdict
from tfs_lite.operations.explain.snapshot import ModelSnapshot, ServerSnapshot, VersionSnapshot
from tfs_lite.operations.explain.verdicts import failure_of, newest_wanted, verdict_of_newest, verdict_of_version

NOTHING = VersionSnapshot(0)
"""A version of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Case:
    """``version`` is None for a model of which no version is meant. ``paths``: whether texts may name paths of the
    server. ``depth`` is 0 for what was asked about."""

    model: ModelSnapshot
    verdict: Verdict
    version: int | None = None
    label: str | None = None
    paths: bool = False
    depth: int = 0

    @classmethod
    def of(cls, model: ModelSnapshot, version: int, paths: bool = False) -> Case:
        """The case of another version than the one that was asked about."""
        return cls(model, verdict_of_version(model, version), version, paths=paths, depth=1)

    @classmethod
    def of_model(cls, model: ModelSnapshot, paths: bool = False, depth: int = 0) -> Case:
        """The case of the newest version that is wanted."""
        return cls(model, verdict_of_newest(model), newest_wanted(model), paths=paths, depth=depth)

    @property
    def server(self) -> ServerSnapshot:
        return self.model.server

    @property
    def found(self) -> VersionSnapshot:
        return self.model.versions.get(self.version, NOTHING) if self.version is not None else NOTHING

    @property
    def load(self) -> LoadView | None:
        return self.found.load

    def load_in(self, stage: LoadStage) -> LoadView | None:
        """Its load, if that is in the stage."""
        load = self.load
        return load if load is not None and load.stage is stage else None

    @property
    def failure(self) -> Status:
        """The status with which the last attempt has failed or the version has ended; OK if neither is so."""
        return failure_of(self.found)

    @property
    def refusal(self) -> Status:
        """The status of files that are refused, that nothing can load, or of which every attempt has failed; OK if none
        is so, and for want of memory."""
        failure = self.failure
        if failure.ok and self.version is not None:
            failure = self.model.refused.get(self.version, OK)
        is_other = self.verdict not in (Verdict.FAILED, Verdict.REFUSED)
        return OK if is_other or failure.code is StatusCode.RESOURCE_EXHAUSTED else failure

    @property
    def problem(self) -> Status:
        """What is wrong with the base path; OK if nothing is, or it is unknown which versions are wanted there."""
        model = self.model
        return model.problem if model.configured and not model.wants_unknown else OK

    @property
    def problem_text(self) -> str:
        where = f" ({self.model.base_path})" if self.paths and self.model.base_path else ""
        return f"{self.model.problem.message}{where}"

    @property
    def next_version(self) -> int:
        """The lowest number above every version."""
        return max((*self.model.versions, self.version or 0)) + 1
