"""The events of a server's models, as its features hear of them.

The core publishes each event once, in the order of its cause, on the thread where it happened: a list of the source, a
state of the manager, an attempt of a loader, a config. Features take the events that concern them:

    def on_event(self, event: LifecycleEvent) -> None:
        match event:
            case StateChanged(timed): ...
            case ModelGone(name): ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tfs_lite.adapters.warmup import WarmupReport
from tfs_lite.config.diff import ConfigDiff
from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.state import TimedState
from tfs_lite.core.status import Status
from tfs_lite.managers.labels import Labels
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.sources.source_config import SourceReport


@dataclass(frozen=True, slots=True)
class SourceReported:
    """The source has looked at a model's base path."""

    report: SourceReport


@dataclass(frozen=True, slots=True)
class FetchBegun:
    """The files of a version, ``size`` bytes in all, are being brought from a storage to this machine."""

    id: ServableId
    size: int


@dataclass(frozen=True, slots=True)
class FetchDone:
    """The files of a version, ``size`` bytes in all, have come. ``fetched``: the bytes that the storage has sent, fewer
    where a fetch before this one had left some. ``attempts`` counts from 1."""

    id: ServableId
    size: int
    fetched: int
    seconds: float
    attempts: int


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A fetch has ended without all of the files. A later poll may begin another one."""

    id: ServableId
    status: Status
    fetched: int
    attempts: int


@dataclass(frozen=True, slots=True)
class CacheEvicted:
    """Files that nothing uses, ``size`` bytes in all, were removed from the cache of files for others. ``key`` names
    what they were there."""

    key: str
    size: int


@dataclass(frozen=True, slots=True)
class StorageAsked:
    """A request to a storage has ended; see :data:`~tfs_lite.storage.store.OnRequest`."""

    scheme: str
    operation: str
    result: str


@dataclass(frozen=True, slots=True)
class VersionsAspired:
    """The source wants exactly these versions of the model from now on. Published before anything acts on it."""

    name: str
    versions: Sequence[ServableData[StoragePath]]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """A version has another state. Published inside the manager's bus, so that states come in their order."""

    timed: TimedState


@dataclass(frozen=True, slots=True)
class LoadAttempted:
    """A loader has been called once, with this outcome."""

    attempt: LoadAttempt


@dataclass(frozen=True, slots=True)
class LoadParked:
    """The load of a version waits for memory, as much as ``needs``."""

    id: ServableId
    needs: ResourceAllocation


@dataclass(frozen=True, slots=True)
class StepOverdue:
    """The load or the unload of a version takes longer than its bound, and goes on."""

    id: ServableId
    status: Status


@dataclass(frozen=True, slots=True)
class Drained:
    """The last handle to a load that leaves is gone, at this moment in seconds since 1970."""

    id: ServableId
    time: float


@dataclass(frozen=True, slots=True)
class LoadWantedAnew:
    """The origin of this thread wants another load of a version that serves."""

    id: ServableId


@dataclass(frozen=True, slots=True)
class Replaced:
    """Another load of a version has taken its place. ``old`` gives the servable that had it, or None once nothing holds
    it."""

    id: ServableId
    old: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class LoadGivenUp:
    """The version gets no further load: neither its first one nor another one while it serves."""

    id: ServableId


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """A process or replica of a version has ended, for this ``cause``; None: it runs again."""

    id: ServableId
    cause: str | None


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A version has run the requests of its warm-up."""

    report: WarmupReport


@dataclass(frozen=True, slots=True)
class ConfigApplied:
    """A config is about to take effect. ``before`` and ``labels``: every label until now, and from now on."""

    difference: ConfigDiff
    summary: str
    before: Labels
    labels: Labels


@dataclass(frozen=True, slots=True)
class ConfigRefused:
    """A config was refused and nothing changed. ``model``: the one that a load call is about; empty for a config of
    all models."""

    status: Status
    model: str = ""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """A config was applied, by a call or because its file has changed; or it was not, or not completely."""

    ok: bool


@dataclass(frozen=True, slots=True)
class ModelAdded:
    """The model is in the config from now on."""

    name: str


@dataclass(frozen=True, slots=True)
class ModelGone:
    """The model has been out of the config for so long that nothing about it is kept."""

    name: str


LifecycleEvent: TypeAlias = (
    SourceReported
    | FetchBegun
    | FetchDone
    | FetchFailed
    | CacheEvicted
    | StorageAsked
    | VersionsAspired
    | StateChanged
    | LoadAttempted
    | LoadParked
    | StepOverdue
    | Drained
    | LoadWantedAnew
    | Replaced
    | LoadGivenUp
    | WorkerChanged
    | WarmedUp
    | ConfigApplied
    | ConfigRefused
    | Reloaded
    | ModelAdded
    | ModelGone
)
