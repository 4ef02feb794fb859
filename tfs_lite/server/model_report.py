"""What is known about a model, as clients may see it. Values only; ``view`` makes them."""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.core.status import OK, Status
from tfs_lite.protocols.serving import VersionState, VersionStatus


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model: its versions, the highest first, and why it has nothing to offer if that is so."""

    name: str
    versions: tuple[VersionStatus, ...] = ()
    problem: Status = OK

    @property
    def available(self) -> bool:
        return any(version.state is VersionState.AVAILABLE for version in self.versions)
