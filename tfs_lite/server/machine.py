"""What this machine has for models, and what they take of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from tfs_lite.adapters.device import check_device, machine_resources
from tfs_lite.adapters.loader import AdapterSettings
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.resources import NO_RESOURCES, ResourceUtil
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.server.lifecycle_metrics import ResourceUse
from tfs_lite.server.loads import LoadJournal
from tfs_lite.server.options import ServerOptions
from tfs_lite.workers.thread import thread_servable_factory

_PERMANENT = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.PERMISSION_DENIED, StatusCode.UNIMPLEMENTED, StatusCode.DATA_LOSS}
)


def may_be_retried(status: Status) -> bool:
    """Whether another attempt at the same files may end differently. An artefact that was inspected and refused stays
    refused until its files change, and then it is looked at anew in any case."""
    return status.code not in _PERMANENT


def adapter_settings(options: ServerOptions) -> AdapterSettings:
    """How models run here: where, on whose trust, and on a thread of their own. Raises if there is no such device."""
    check_device(options.device)
    return AdapterSettings(
        servable_factory=thread_servable_factory(options.max_queued_requests),
        device=options.device,
        trusted=TrustedPaths.of(options.trusted_model_base_paths),
        model_settings=lambda directory, model: load_model_settings(Path(directory), model),
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """Its devices with their memory. ``tracker`` decides with them whether one more version fits."""

    util: ResourceUtil
    tracker: ResourceTracker

    @classmethod
    def measure(cls, memory_limit_bytes: int) -> Machine:
        """``memory_limit_bytes`` lowers main memory; 0: no limit but the machine's own."""
        devices, total = machine_resources(memory_limit_bytes or None)
        util = ResourceUtil(devices)
        return cls(util, ResourceTracker(util, total))

    def use(self, journal: LoadJournal) -> Iterable[ResourceUse]:
        """What the versions in memory hold now, as their loaders know it."""
        used = reduce(self.util.add, journal.held(), NO_RESOURCES)
        for resource, total in self.tracker.total.entries.items():
            yield ResourceUse(resource.device, resource.instance or 0, used.entries.get(resource, 0), total)
