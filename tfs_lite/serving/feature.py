"""The seam: how a capability gets into a server without the server's knowing it.

A feature is one folder and one class. It hears what happens to models, it may wrap what loads them, and it lives as
long as the core. What asks for a feature finds it by its class (:meth:`ServerCore.find`); nothing in this room names
one that is not its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.core.loader import Loader
from tfs_lite.core.model import OnBatch, OnCall
from tfs_lite.core.replicas import ReplicaReport
from tfs_lite.core.servable import ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.status import OK, Status
from tfs_lite.serving.lifecycle_events import LifecycleEvent


class Feature:
    """One capability of a server. Every method has an answer that does nothing.

    A feature is made with the core, before its source and its loaders; ``start`` -> events -> ``stopping`` -> more
    events, while versions are unloaded -> ``close``. Any thread may call any other method. What a method raises is a
    defect of the feature; what ``on_event`` raises is logged, and goes no further.

    ``on_run`` is called after each run of a model, on the thread of the run; ``on_call`` when a call has ended, which
    is a request or a step of an ensemble. Both are on a request's way: None, and not a function that does nothing,
    where a feature does not ask.
    """

    on_run: OnBatch | None = None
    on_call: OnCall | None = None

    # The way of a version.

    def observe_lists(self, forward: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        """The callback that gets the source's lists: it looks at them and passes each on to ``forward``. The feature
        that comes first in the list sees a list first."""
        return forward

    def wrap(self, id: ServableId, loader: Loader) -> Loader:
        """The loader that loads and unloads the version, around ``loader``. The feature that comes first is the
        innermost."""
        return loader

    def open(self, platform: Platform, request: OpenRequest, replicas: ReplicaOptions) -> Sequence[OpenedModel] | None:
        """The instances of a version whose config wants replicas; None from a feature that has none. The first one
        that has any is asked. Raises ServingError, and nothing is left behind."""
        return None

    # What happens.

    def on_event(self, event: LifecycleEvent) -> None:
        """Short, and never under a lock that another method of the feature waits with. See
        :mod:`~tfs_lite.serving.lifecycle_events`."""

    # What it says about versions.

    def silence(self, id: ServableId) -> Status:
        """The reason why a version that is available refuses every request, as far as the feature knows; OK if it does
        not."""
        return OK

    def explains(self, name: str, version: int | None) -> Mapping[str, Sequence[Any]]:
        """What the feature adds to an explanation of the model, or of its version: JSON values by the name of their
        member. ``notes`` are sentences, which a terminal shows."""
        return {}

    def replicas(self) -> Iterable[ReplicaReport]:
        """The replicas of every version that lives in replicas of the feature, also while it is loaded."""
        return ()

    # From start to close.

    def start(self) -> None:
        """Starts the feature; nothing is loaded yet."""

    def first_load_ended(self) -> None:
        """Every model that is known at the start is available or has failed."""

    def stopping(self) -> None:
        """No more configs and versions come; what is loaded is about to be unloaded. Has the bound of :meth:`close`."""

    def close(self) -> None:
        """The last version was unloaded. Has a bound of :data:`~tfs_lite.core.threads.JOIN_SECONDS`."""
