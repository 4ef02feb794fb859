"""The record of a core's parts, by which each of them knows the others.
:class:`~tfs_lite.serving.server_core.ServerCore` has them all."""

from __future__ import annotations

from typing import Protocol

from prometheus_client import CollectorRegistry

from tfs_lite.core.clock import SystemClock
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.threads import BoundedCalls
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.labels import VersionLabels
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.serving.change_notifier import ChangeNotifier
from tfs_lite.serving.feature import Features
from tfs_lite.serving.lifecycle_events import LifecycleEvent
from tfs_lite.serving.load_journal import LoadJournal
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.opening.device_resources import DeviceResources
from tfs_lite.serving.opening.model_configs import ModelConfigs
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.source_chain import SourceChain


class Parts(Protocol):
    """``sources``, and all of ``features``, are there once the core is made; all else is before."""

    options: ServerOptions
    registry: CollectorRegistry
    clock: SystemClock
    disk_calls: BoundedCalls
    changes: ChangeNotifier
    monitor: ServableStateMonitor
    journal: LoadJournal
    states: ModelStates
    labels: VersionLabels
    resources: DeviceResources
    model_configs: ModelConfigs
    manager: AspiredVersionsManager
    sources: SourceChain
    features: Features

    def handle(self, ref: ModelRef) -> ServableHandle: ...

    def publish(self, event: LifecycleEvent) -> None: ...
