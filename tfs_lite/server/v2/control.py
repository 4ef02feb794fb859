"""The answers of the KServe V2 services other than inference: health, metadata, configs, statistics, the model
repository.

Metadata, configs and states come from the versions that are in memory. Loading and unloading block, and run on a thread
of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tfs_lite import __version__
from tfs_lite.adapters.device import uses_gpu
from tfs_lite.config.model_export import config_message
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.protocols.v2.tensors import name_of
from tfs_lite.server.runtime.event_loop import BackgroundRunner
from tfs_lite.server.runtime.health import Health
from tfs_lite.server.v2.index import index_entries, lookup_error
from tfs_lite.server.v2.shared_memory import SharedRegions
from tfs_lite.serving.config_sources import ModelLocator
from tfs_lite.serving.repository.control import RepositoryControl
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.server_core import ServerCore

MAX_PENDING_CALLS = 64
"""Load and unload calls that wait for their turn."""
NAME = "tfs_lite"
"""The name that the server calls itself."""
EXTENSIONS = (
    "classification",
    "sequence",
    "sequence(string_id)",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Those that are always there; shared memory adds its own."""


class V2Control:
    """Everything of V2 that is no inference; answers are messages, which gRPC sends and HTTP prints.

    Methods raise ServingError and return at once, except ``load`` and ``unload``, which are coroutines of the event
    loop. ``version`` None means the newest version that is ready. ``settings`` (of traces and logs) and ``memory`` are
    used directly.
    """

    def __init__(
        self,
        core: ServerCore,
        health: Health,
        locator: ModelLocator,
        repository: RepositoryControl | None,
        runner: BackgroundRunner,
        memory: SharedRegions,
    ) -> None:
        """``repository`` None means that models are not loaded by calls. ``runner`` has one thread, and its owner
        closes it."""
        self.settings = core.statistics.settings
        self.memory = memory
        self._core = core
        self._health = health
        self._locator = locator
        self._repository = repository
        self._runner = runner
        self._statistics = core.statistics.statistics

    # The server.

    def server_live(self) -> bool:
        """True whenever the server can answer at all."""
        return True

    def server_ready(self) -> bool:
        return self._health.ready

    @property
    def ready_headers(self) -> dict[str, str]:
        """See :attr:`Health.headers`."""
        return self._health.headers

    def server_metadata(self) -> Message:
        """A ServerMetadataResponse."""
        extensions = EXTENSIONS + self.memory.extensions
        return v2.ServerMetadataResponse(name=NAME, version=__version__, extensions=extensions)

    # Models.

    def model_ready(self, name: str, version: int | None) -> bool:
        """False for a model or version that is known and not ready; NOT_FOUND for one that is not known. An ensemble is
        ready while its models are."""
        try:
            with self._handle(name, version) as handle:
                servable_id = handle.id
        except ServingError as error:
            if error.code is StatusCode.UNAVAILABLE or (version is None and self._known_versions(name)):
                return False
            raise
        return self._core.view.can_be_asked(servable_id)

    def model_metadata(self, name: str, version: int | None) -> Message:
        """A ModelMetadataResponse. Its versions: those that are ready, ascending; or just the one asked for. -1 stands
        for a dimension of any size; the batch is the first one of a model that batches."""
        with self._handle(name, version) as handle:
            servable, number = handle.servable, handle.id.version
            signature = _main(servable.signatures)
            ready = sorted(self._core.manager.available_versions(name) | {number}) if version is None else [number]
            return v2.ModelMetadataResponse(
                name=name,
                versions=map(str, ready),
                platform=servable.traits.platform,
                inputs=map(tensor_metadata, signature.inputs if signature else ()),
                outputs=map(tensor_metadata, signature.outputs if signature else ()),
            )

    def model_config(self, name: str, version: int | None) -> Message:
        """An ``inference.ModelConfig`` with everything that was inferred filled in."""
        with self._handle(name, version) as handle:
            servable = handle.servable
            return config_message(
                self._core.renewal.settings_of(servable),
                name,
                servable.traits.platform,
                _main(servable.signatures),
                gpu=uses_gpu(self._core.options.device),
            )

    def statistics(self, name: str | None, version: int | None) -> Message:
        """A ModelStatisticsResponse. ``name`` None means every model with a version that is ready. INVALID_ARGUMENT for
        a model or version that is not ready."""
        wanted = list(self._core.manager.list_available_servable_ids())
        if name:
            wanted = [item for item in wanted if item.name == name]
            if not wanted:
                raise invalid_argument(f"requested model '{name:.500}' is not available")
            wanted = [item for item in wanted if version in (None, item.version)]
            if not wanted:
                raise invalid_argument(f"requested model version is not available for model '{name:.500}'")
        return v2.ModelStatisticsResponse(model_stats=self._statistics.statistics(wanted))

    # The repository.

    def index(self, ready: bool) -> Message:
        """A RepositoryIndexResponse; with ``ready`` only of versions that are ready."""
        refused = self._repository.refused if self._repository is not None else {}
        others = () if ready else self._locator.names()
        return v2.RepositoryIndexResponse(models=index_entries(self._core.view.known_models(), others, ready, refused))

    async def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        """Returns once every wanted version is ready. UNAVAILABLE where models are not loaded by calls; see
        :meth:`RepositoryControl.load`."""
        await self._runner.run(partial(self._by_calls().load, name, parameters))

    async def unload(self, name: str, unload_dependents: bool = False) -> None:
        await self._runner.run(partial(self._by_calls().unload, name, unload_dependents))

    # Inside.

    def _by_calls(self) -> RepositoryControl:
        if self._repository is None:
            raise ServingError(
                StatusCode.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled"
            )
        return self._repository

    def _handle(self, name: str, version: int | None) -> ServableHandle:
        """The handle of the version that answers. NOT_FOUND, or UNAVAILABLE for a version that is known and not
        ready."""
        try:
            return self._core.handle(ModelRef(name, version))
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise
        raise lookup_error(name, version, self._known_versions(name))

    def _known_versions(self, name: str) -> set[int]:
        return {item.version for item in self._core.states.report(name).versions}


def _main(signatures: Mapping[str, Signature]) -> Signature | None:
    """The signature that requests without one mean; else the first."""
    return signatures.get(DEFAULT_SIGNATURE) or next(iter(signatures.values()), None)


def tensor_metadata(spec: TensorSpec) -> Message:
    """A rank that is not declared shows as one dimension of any size."""
    shape = (-1,) if spec.shape is None else [dim if isinstance(dim, int) else -1 for dim in spec.shape]
    return v2.TensorMetadata(name=spec.name, datatype=name_of(spec.dtype), shape=shape)
