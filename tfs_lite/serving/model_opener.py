"""Opens the instances of a model: in this process, each in a process of its own, or in replicas of a cluster.

The model's ``instance_group`` says how many there are and where; the server's ``--worker`` decides what it leaves open.
Versions that need a process (:class:`~tfs_lite.adapters.opening.NeedsProcess`) get one in any case. Processes come
from one supervisor, which starts with the first model that needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.loader import open_here
from tfs_lite.adapters.opening import NeedsProcess, OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe
from tfs_lite.config.scheduling import InstanceGroup, replica_options
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.serving.sandboxes import Sandboxes, asks_for_sandbox
from tfs_lite.workers.launch import fork_early
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.supervisor import Supervisor

if TYPE_CHECKING:
    from tfs_lite.serving.cluster.cluster import Cluster

PROCESS, THREAD = "process", "thread"
logger = logging.getLogger(__name__)


def prepare_processes(worker: str) -> None:
    """For the command line, after its imports and before its first thread: where models live in processes, these then
    share with the server what it has imported, and the first of them starts seconds sooner."""
    if worker == PROCESS:
        fork_early(PRELOAD)


class ModelOpener:
    """Called by loaders, on any thread; ``close`` after the last model was closed."""

    def __init__(
        self,
        worker: str,
        gpu_fraction: float = 0.0,
        cluster: Cluster | None = None,
        on_worker: Callable[[ServableId, str | None], None] = ignore,
        sandbox: str = "auto",
    ) -> None:
        """``worker``: thread, process or ray. ``gpu_fraction``: the share of a GPU's memory for torch in each process
        that uses one; 0: all. ``cluster`` is where replicas live; None: this server belongs to none.
        ``on_worker`` is told why a process of a version has ended, and None when it runs again. ``sandbox``: auto,
        require or off; see :mod:`~tfs_lite.serving.sandboxes`."""
        self._worker = worker
        self._gpu_fraction = gpu_fraction
        self._cluster = cluster
        self._on_worker = on_worker
        self._sandboxes = Sandboxes(sandbox)
        self._supervisor = Supervisor(PRELOAD)
        self._preload: tuple[str, ...] = ()  # for processes to share once one has needed it

    def __call__(self, platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
        """All instances of a version, or an error and none. INVALID_ARGUMENT if a group wants a GPU and there is
        none."""
        joined = _joined(request.settings.instance_group)
        groups = joined or (InstanceGroup(),)
        replicas = replica_options(groups, self._worker)
        if replicas is not None:
            if self._cluster is None:
                raise failed_precondition('instance_group: worker "ray" needs a server with --cluster')
            self._sandboxes.check_replicas(platform, request)
            settings = request.settings.model_copy(update={"instance_group": joined})
            return self._cluster.open(platform, replace(request, settings=settings), replicas)
        count = request.beside + sum(group.count for group in groups)
        models: list[OpenedModel] = []
        try:
            for group in groups:
                models.extend(self._open_group(platform, _placed(request, group, count), group))
        except BaseException:
            for model in models:
                model.close()
            raise
        return models

    def close(self) -> None:
        self._supervisor.close()

    def _open_group(self, platform: Platform, request: OpenRequest, group: InstanceGroup) -> Iterator[OpenedModel]:
        asked = asks_for_sandbox(request.settings.parameters)
        if asked and (group.worker == THREAD or platform.home == "server"):
            raise invalid_argument("parameters: worker_sandbox is true, and a model in the server's process has none")
        for _ in range(group.count):
            if asked or _home(platform, group.worker or self._worker) == PROCESS:
                yield self._open_in_process(platform, request)
                continue
            try:
                models = open_here(platform, request)
            except NeedsProcess:
                self._preload = platform.shared
                models = [self._open_in_process(platform, request)]
            yield from models

    def _open_in_process(self, platform: Platform, request: OpenRequest) -> OpenedModel:
        if platform.open is None:
            raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {platform.name}: {platform.missing}")
        arguments = describe(request, platform.name, request.threads, self._gpu_fraction)
        model = open_in_process(
            self._supervisor,
            label_of(request.id),
            OPEN_VERSION,
            arguments,
            preload=self._preload,
            on_worker=partial(self._on_worker, request.id),
            sandbox=self._sandboxes.choose(platform, request),
        )
        if reason := model.worker.reason:
            self._preload = platform.shared
            logger.info("%s was %s", label_of(request.id), reason)
        return model


def _home(platform: Platform, wanted: str) -> str:
    """Where instances of the platform live that ``wanted`` places: in processes, or in this one."""
    return wanted if platform.home == "any" else platform.home


def _joined(groups: tuple[InstanceGroup, ...]) -> tuple[InstanceGroup, ...]:
    """Equal groups are one."""
    if len(groups) < 2 or any(group != groups[0] for group in groups):
        return groups
    return (groups[0].model_copy(update={"count": sum(group.count for group in groups)}),)


def _placed(request: OpenRequest, group: InstanceGroup, instances: int) -> OpenRequest:
    """The request for the device that the group wants. ``instances`` of the version all together share torch's
    threads."""
    request = replace(request, threads=max(1, torch.get_num_threads() // instances))
    if group.kind == "KIND_CPU":
        return replace(request, device="cpu")
    if group.kind == "KIND_GPU" and not request.on_gpu:
        raise invalid_argument("instance_group: KIND_GPU, but this server runs models on the CPU")
    return request
