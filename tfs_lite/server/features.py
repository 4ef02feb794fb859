"""Every feature of a server, in the order in which they hear what happens.

The only file of the server that knows them. Another package adds one by an entry point of the group
``tfs_lite.features`` that names a function from the core to the feature, or to None where the options do not want it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from tfs_lite.operations.access_log.feature import AccessLogging
from tfs_lite.operations.admin.feature import admin
from tfs_lite.operations.dashboard.feature import dashboard
from tfs_lite.operations.explain.feature import Explain
from tfs_lite.operations.failed_requests.feature import Failures
from tfs_lite.operations.guard.feature import Guard
from tfs_lite.operations.history.feature import LifecycleHistory
from tfs_lite.operations.storage.feature import StorageMetrics
from tfs_lite.operations.traces.feature import Traces
from tfs_lite.operations.what_if.feature import Forecasts
from tfs_lite.serving.feature import Feature, starting
from tfs_lite.serving.server_core import MakeFeature

if TYPE_CHECKING:
    from tfs_lite.serving.server_core import ServerCore

GROUP = "tfs_lite.features"
FEATURES: tuple[MakeFeature, ...] = (
    LifecycleHistory,
    Guard,
    StorageMetrics,
    Failures,
    Traces,
    AccessLogging,
    Forecasts,
    Explain,
    admin,
    dashboard,
)


def cluster(core: ServerCore) -> Feature | None:
    """A server without ``--cluster`` imports nothing of one."""
    options = core.options.cluster_options
    if options is None:
        return None
    from tfs_lite.cluster.feature import join

    return join(core, options)


def all_features() -> tuple[MakeFeature, ...]:
    """The features of this package and of other installed packages. FAILED_PRECONDITION if one cannot be imported."""
    return (*FEATURES, cluster, *map(_load, entry_points(group=GROUP)))


def _load(point: EntryPoint) -> MakeFeature:
    with starting(point.name, "be imported"):
        found: MakeFeature = point.load()
    return found
