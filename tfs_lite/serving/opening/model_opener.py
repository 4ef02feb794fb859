"""Opens the instances of a model: in this process, each in a process of its own, or in replicas of a cluster.

The model's ``instance_group`` says how many there are and where; the server's ``--worker`` decides what it leaves open.
Versions that need a process (:class:`~tfs_lite.adapters.opening.NeedsProcess`) get one in any case. Processes come
from supervisors, which start with the first model that needs them: one whose processes share torch, and one whose
processes have imported little, for platforms that bring another library along.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import torch

from tfs_lite.adapters.failures import label_of
from tfs_lite.adapters.instances import devices_of
from tfs_lite.adapters.loader import open_here
from tfs_lite.adapters.opening import NeedsProcess, OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.remote import OPEN_VERSION, PRELOAD, describe
from tfs_lite.adapters.tensorflow.platform import SERVE
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.config.scheduling import InstanceGroup, replica_options
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.model import close_models
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.serving.opening.sandboxes import Sandboxes, asks_for_sandbox
from tfs_lite.workers.process import open_in_process
from tfs_lite.workers.supervisor import Supervisor, Unanswered

AUTO, PROCESS, THREAD = "auto", "process", "thread"
OpenReplicas: TypeAlias = Callable[[Platform, OpenRequest, ReplicaOptions], Sequence[OpenedModel] | None]
logger = logging.getLogger(__name__)


def no_replicas(platform: Platform, request: OpenRequest, replicas: ReplicaOptions) -> None:
    """No replicas: the answer of a server that belongs to no cluster."""


class ModelOpener:
    """Called by loaders, on any thread; ``close`` after the last model was closed."""

    def __init__(
        self,
        worker: str,
        gpu_fraction: float = 0.0,
        open_replicas: OpenReplicas = no_replicas,
        on_worker: Callable[[ServableId, str | None], None] = ignore,
        sandbox: str = "auto",
        saved_model_tags: str = SERVE,
    ) -> None:
        """``worker``: auto, thread, process or ray. ``gpu_fraction``: the share of a GPU's memory for torch in each
        process that uses one; 0: all. ``open_replicas`` opens the instances of a version whose config wants replicas;
        None from it: this server belongs to no cluster. ``on_worker`` is told why a process of a version has ended, and
        None when it runs again. ``sandbox``: auto, require or off; see :mod:`~tfs_lite.serving.opening.sandboxes`.
        ``saved_model_tags``: which graph of a SavedModel is opened."""
        self._worker = worker
        self._gpu_fraction = gpu_fraction
        self._open_replicas = open_replicas
        self._on_worker = on_worker
        self._saved_model_tags = saved_model_tags
        self._sandboxes = Sandboxes(sandbox)
        self._supervisor = Supervisor(PRELOAD)
        self._bare_supervisor = Supervisor(as_program=True)
        self._preload: tuple[str, ...] = ()  # for processes to share once one has needed it

    def __call__(self, platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
        """All instances of a version, or an error and none. INVALID_ARGUMENT if a group wants a GPU and there is
        none."""
        joined = _joined(request.settings.instance_group)
        groups = joined or (InstanceGroup(),)
        replicas = replica_options(groups, self._worker)
        if replicas is not None:
            self._sandboxes.check_replicas(platform, request)
            settings = request.settings.model_copy(update={"instance_group": joined})
            opened = self._open_replicas(platform, replace(request, settings=settings), replicas)
            if opened is None:
                raise failed_precondition('instance_group: worker "ray" needs a server with --cluster')
            return opened
        placed = [(group, device) for group in groups for device in devices_of(group, request.device)]
        instances = len(request.beside) + sum(group.count for group, _ in placed)
        request = replace(request, threads=max(1, torch.get_num_threads() // instances))
        models: list[OpenedModel] = []
        try:
            for group, device in placed:
                for _ in range(group.count):
                    there = replace(request, device=device, beside=(*request.beside, *models))
                    models.extend(self._open_instance(platform, there, group))
        except BaseException:
            close_models(models, label_of(request.id))
            raise
        return models

    def unanswered(self, servable_id: ServableId) -> Unanswered | None:
        """The fork server that was asked for a process of the version and has not answered; None: there is none."""
        label = label_of(servable_id)
        supervisors = (self._supervisor, self._bare_supervisor)
        return next((found for each in supervisors if (found := each.unanswered().get(label)) is not None), None)

    def end_unneeded(self) -> None:
        """Ends the process that was forked to fork those of models, if no model has needed one yet: it and the server
        have some 25 MB twice. A model that needs a process later waits for a new program, which takes seconds."""
        self._supervisor.end_if_unused()

    def close(self) -> None:
        self._supervisor.close()
        self._bare_supervisor.close()

    def _open_instance(self, platform: Platform, request: OpenRequest, group: InstanceGroup) -> Sequence[OpenedModel]:
        """Opens an instance on the request's device, with the weights of an instance that is open already where that is
        possible."""
        asked = asks_for_sandbox(request.settings.parameters)
        if asked and (group.worker == THREAD or platform.home == "server"):
            raise invalid_argument("parameters: worker_sandbox is true, and a model in the server's process has none")
        worker, reason = _home(platform, group.worker or self._worker, request)
        if asked or worker == PROCESS:
            return [self._open_in_process(platform, request, reason)]
        sharing = (model.another(request.device) for model in request.beside)
        if (found := next(filter(None, sharing), None)) is not None:
            return [found]
        try:
            return open_here(platform, request)
        except NeedsProcess:
            self._preload = platform.shared
            return [self._open_in_process(platform, request)]

    def _open_in_process(self, platform: Platform, request: OpenRequest, reason: str = "") -> OpenedModel:
        if platform.open is None:
            raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {platform.name}: {platform.missing}")
        arguments = describe(
            request, platform.name, request.threads, self._gpu_fraction, self._saved_model_tags, reason
        )
        model = open_in_process(
            self._bare_supervisor if platform.program else self._supervisor,
            label_of(request.id),
            platform.program or OPEN_VERSION,
            arguments,
            preload=() if platform.program else self._preload,
            on_worker=partial(self._on_worker, request.id),
            sandbox=self._sandboxes.choose(platform, request),
            require_files=request.require_files,
        )
        if reason := model.worker.reason:
            self._preload = platform.shared
            logger.info("%s was %s", label_of(request.id), reason)
        return model


def _home(platform: Platform, wanted: str, request: OpenRequest) -> tuple[str, str]:
    """The home of an instance that ``wanted`` places, a process of its own or this one, and why it was chosen here."""
    if platform.home != "any":
        return platform.home, ""
    if wanted != AUTO:
        return wanted, ""
    reason = platform.apart(request)
    return (PROCESS, reason) if reason else (THREAD, "")


def _joined(groups: tuple[InstanceGroup, ...]) -> tuple[InstanceGroup, ...]:
    """Equal groups are one."""
    if len(groups) < 2 or any(group != groups[0] for group in groups):
        return groups
    return (groups[0].model_copy(update={"count": sum(group.count for group in groups)}),)
