"""The devices of this machine: how models are loaded on them, and how much memory they have and hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from tfs_lite.adapters.device import check_device, gpu_bytes, group_memory, limit_gpu_memory, machine_resources
from tfs_lite.adapters.gpu_placement import GpuReservations
from tfs_lite.adapters.loader import AdapterSettings, MakeServable, Opens, open_here
from tfs_lite.adapters.model_warmup import warm_models
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.trust import TrustedPaths
from tfs_lite.adapters.warmup import Warmup, WarmupReport
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import load_model_settings
from tfs_lite.core.resources import NO_RESOURCES, ResourceUtil
from tfs_lite.core.status import Reason, Status, StatusCode
from tfs_lite.managers.resource_tracker import ModelShare, ResourceTracker, default_reserve
from tfs_lite.serving.load_journal import LoadJournal
from tfs_lite.serving.options import ServerOptions

_PERMANENT = frozenset(
    {StatusCode.INVALID_ARGUMENT, StatusCode.PERMISSION_DENIED, StatusCode.UNIMPLEMENTED, StatusCode.DATA_LOSS}
)
_LASTING = (Reason.FILES_REFUSED, Reason.NO_PLATFORM, Reason.HELD_BACK)


def may_be_retried(status: Status) -> bool:
    """Whether another attempt at the same files may end differently. An artefact that was inspected and refused, or
    that no platform serves, stays so until its files change, and one that was held back until those or what it is held
    against do; the source offers it anew then."""
    return status.code not in _PERMANENT and status.reason not in _LASTING


def read_settings(directory: str, model: str) -> ModelSettings | None:
    """Reads the settings from the files of the version in ``directory``."""
    return load_model_settings(Path(directory), model)


def adapter_settings(
    options: ServerOptions,
    servable_factory: MakeServable,
    opens: Opens = open_here,
    on_warm_up: Callable[[WarmupReport], None] | None = None,
    model_settings: Callable[[str, str], ModelSettings | None] = read_settings,
    batch_rows: Callable[[OpenRequest], tuple[int, ...]] = lambda request: (1,),
) -> AdapterSettings:
    """The settings for loading models here: the device, the code that is trusted, and the warm-up. Raises ServingError
    if there is no such device."""
    check_device(options.device)
    warm_up = Warmup(
        options.num_request_iterations_for_warmup,
        on_warm_up,
        check_method_names=options.enable_signature_method_name_check,
    )
    return AdapterSettings(
        warm_up=warm_up if options.enable_model_warmup else None,
        warm_models=warm_models if options.enable_model_warmup else None,
        drop_file_caches=options.flush_filesystem_caches,
        servable_factory=servable_factory,
        opens=opens,
        device=options.device,
        trusted=TrustedPaths.of(options.trusted_model_base_paths),
        model_settings=model_settings,
        worker=options.worker,
        batch_rows=batch_rows,
        gpus=GpuReservations(lambda: gpu_bytes(options.per_process_gpu_memory_fraction)),
    )


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """One kind of memory on one device, in bytes."""

    device: str
    instance: int
    used: int
    total: int


@dataclass(frozen=True, slots=True)
class DeviceResources:
    """The devices with their memory. ``tracker`` decides whether one more version fits."""

    util: ResourceUtil
    tracker: ResourceTracker

    @classmethod
    def measure(cls, options: ServerOptions) -> DeviceResources:
        """The machine's devices, as far as the options let models have them. In a control group models share main
        memory with what else is measured there."""
        fraction, reserve = options.per_process_gpu_memory_fraction, options.memory_reserve_bytes
        limit_gpu_memory(fraction)
        devices, total = machine_resources(options.total_model_memory_limit_bytes or None, fraction)
        util = ResourceUtil(devices)
        share = ModelShare(group_memory, default_reserve if reserve < 0 else lambda limit: reserve)
        return cls(util, ResourceTracker(util, total, share))

    def use(self, journal: LoadJournal) -> Iterable[ResourceUse]:
        """The resources that the versions in memory hold now, as their loaders estimate them."""
        used = reduce(self.util.add, journal.held(), NO_RESOURCES)
        for resource, total in self.tracker.total.entries.items():
            yield ResourceUse(resource.device, resource.instance or 0, used.entries.get(resource, 0), total)
