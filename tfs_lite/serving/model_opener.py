"""Opens the instances of a model: in this process, or each in a process of its own.

The model's ``instance_group`` says how many there are and where; the server's ``--worker`` decides what it leaves open.
Processes come from one supervisor, which starts with the first model that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from tfs_lite.adapters.contract import OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.loader import open_here
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe
from tfs_lite.config.scheduling import InstanceGroup
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.supervisor import Supervisor

PROCESS = "process"


class ModelOpener:
    """Called by loaders, on any thread; ``close`` after the last model was closed."""

    def __init__(self, worker: str, gpu_fraction: float = 0.0) -> None:
        """``worker``: thread or process. ``gpu_fraction``: the share of a GPU's memory for torch in each process that
        uses one; 0: all."""
        self._worker = worker
        self._gpu_fraction = gpu_fraction
        self._supervisor = Supervisor(PRELOAD)

    def __call__(self, platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
        """All instances of a version, or an error and none. INVALID_ARGUMENT if a group wants a GPU and there is
        none."""
        groups = request.settings.instance_group or (InstanceGroup(),)
        count = request.beside + sum(group.count for group in groups)
        models: list[OpenedModel] = []
        try:
            for group in groups:
                models.extend(self._open_group(platform, _placed(request, group), group, count))
        except BaseException:
            for model in models:
                model.close()
            raise
        return models

    def close(self) -> None:
        self._supervisor.close()

    def _open_group(
        self, platform: Platform, request: OpenRequest, group: InstanceGroup, instances: int
    ) -> Iterator[OpenedModel]:
        """``instances`` of the version all together share torch's threads."""
        for _ in range(group.count):
            if platform.in_server or (group.worker or self._worker) != PROCESS:
                yield from open_here(platform, request)
                continue
            if platform.open is None:
                raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {platform.name}: {platform.missing}")
            threads = max(1, torch.get_num_threads() // instances)
            arguments = describe(request, platform.name, threads, self._gpu_fraction)
            yield open_in_process(self._supervisor, label_of(request.id), OPEN_VERSION, arguments)


def _placed(request: OpenRequest, group: InstanceGroup) -> OpenRequest:
    """The request for the device that the group wants."""
    if group.kind == "KIND_CPU":
        return replace(request, device=torch.device("cpu"))
    if group.kind == "KIND_GPU" and request.device.type == "cpu":
        raise invalid_argument("instance_group: KIND_GPU, but this server runs models on the CPU")
    return request
