"""What is known about a model at one moment, gathered from the manager, the source, the journal and the config.

Every part is read under its own short lock; nothing waits, and nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tfs_lite.core.servable import VersionStatus
from tfs_lite.core.status import OK, Status
from tfs_lite.server.runtime.health import Health
from tfs_lite.serving.server_core import ServerCore


@dataclass(frozen=True, slots=True)
class VersionSnapshot:
    """One version. ``answers``: a lookup finds it, and it can be asked. ``aspired``: the source wants it."""

    version: int
    status: VersionStatus
    answers: bool
    aspired: bool
    since: float | None = None


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One model. ``taken`` is in seconds since 1970."""

    name: str
    taken: float
    configured: bool
    versions: Mapping[int, VersionSnapshot] = field(default_factory=dict)
    labels: Mapping[str, int] = field(default_factory=dict)
    problem: Status = OK
    draining: bool = False


class Snapshots:
    """Any thread but the event loop's may call any method."""

    def __init__(self, core: ServerCore, health: Health) -> None:
        self._core = core
        self._health = health

    def of_model(self, name: str) -> ModelSnapshot:
        core = self._core
        report, states = core.states.report(name), core.states.version_states(name)
        available = core.available_versions(name)
        aspired = {item.version for item in core.states.aspired(name)}
        versions = {
            status.version: VersionSnapshot(
                status.version,
                status,
                status.version in available,
                status.version in aspired,
                states[status.version].time if status.version in states else None,
            )
            for status in report.versions
        }
        return ModelSnapshot(
            name,
            core.clock.time(),
            core.states.is_configured(name),
            versions,
            core.labels.get(name, {}),
            report.problem,
            self._health.draining,
        )

    def of_all(self) -> Iterator[ModelSnapshot]:
        """Of every model of the config, and of each other that still has a version."""
        core = self._core
        for report in core.known_models():
            if core.states.is_configured(report.name) or core.live_versions(report.name):
                yield self.of_model(report.name)
