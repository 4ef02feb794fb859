"""What the KServe V2 services ask for besides inference, as values, and whom they ask.

:class:`V2Control` is the one thing that both V2 services (gRPC and HTTP) call for health, metadata, configs,
statistics, the model repository, settings and shared memory; they only translate to and from the wire. Behind it stand
smaller parts: :class:`StatisticsProvider`, :class:`SettingsControl` and :class:`MemoryControl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tfs_lite.core.servable import ServableId
from tfs_lite.protocols.messages import Message
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.statistics.values import LogSettings, ModelStatistics, TraceSettings

NAME = "tfs_lite"
"""What the server calls itself."""
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
SYSTEM_MEMORY, CUDA_MEMORY = "system_shared_memory", "cuda_shared_memory"


@dataclass(frozen=True, slots=True)
class ServerMetadata:
    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """``datatype`` in V2's words (FP32, BYTES, ...). ``shape``: -1 for a dimension of any size; the batch is the first
    one of a model that batches."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """``versions``: those that are ready, ascending, as decimal numbers; or just the one asked for."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One version of a model; of a model that was never loaded only the name is set."""

    name: str
    version: str = ""
    state: str = ""
    """UNKNOWN, LOADING, READY, UNLOADING or UNAVAILABLE."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RegionStatus:
    """A region of the system's shared memory; sizes in bytes."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class CudaRegionStatus:
    """A region of a GPU's memory; its size in bytes."""

    name: str
    device_id: int
    byte_size: int


class StatisticsProvider(Protocol):
    """Counts what the versions did. Any thread."""

    def statistics(self, servable_ids: Iterable[ServableId]) -> list[ModelStatistics]:
        """One entry for each, in the same order; zeros for a version that nobody called."""


class SettingsControl(Protocol):
    """Trace and log settings. ``model``: None for those of the server. An update changes all of it or nothing, and
    returns the full set. Any thread; ServingError."""

    def trace_settings(self, model: str | None) -> TraceSettings: ...

    def update_trace_settings(self, model: str | None, changes: Mapping[str, tuple[str, ...]]) -> TraceSettings:
        """An empty tuple clears a setting: back to the server's, or for the server to the value of the start."""

    def log_settings(self) -> LogSettings: ...

    def update_log_settings(self, changes: LogSettings) -> LogSettings: ...


class MemoryControl(Protocol):
    """Registered regions of shared memory. ``name``: None for all. Any thread; ServingError."""

    @property
    def extensions(self) -> tuple[str, ...]:
        """Which of ``system_shared_memory`` and ``cuda_shared_memory`` are really there."""

    def system_status(self, name: str | None) -> list[RegionStatus]: ...

    def system_register(self, region: RegionStatus) -> None: ...

    def system_unregister(self, name: str | None) -> None: ...

    def cuda_status(self, name: str | None) -> list[CudaRegionStatus]: ...

    def cuda_register(self, region: CudaRegionStatus, raw_handle: bytes) -> None: ...

    def cuda_unregister(self, name: str | None) -> None: ...


class V2Control(SettingsControl, MemoryControl, Protocol):
    """Everything of V2 that is no inference. All methods raise ServingError and return at once, but for ``load`` and
    ``unload``, which are coroutines of the event loop. ``version``: None for the newest that is ready; services check
    that the text of a request is a whole number from 0."""

    def server_live(self) -> bool: ...

    def server_ready(self) -> bool: ...

    def model_ready(self, name: str, version: int | None) -> bool:
        """False for a model or version that is known and not ready; NOT_FOUND for one that is not known."""

    def server_metadata(self) -> ServerMetadata: ...

    def model_metadata(self, name: str, version: int | None) -> ModelMetadata: ...

    def model_config(self, name: str, version: int | None) -> Message:
        """An ``inference.ModelConfig`` with everything that was inferred filled in."""

    def model_config_json(self, name: str, version: int | None) -> dict[str, Any]:
        """The same as JSON: names as in the message, defaults printed."""

    def statistics(self, name: str | None, version: int | None) -> list[ModelStatistics]:
        """``name`` None: every model with a version that is ready."""

    def index(self, ready: bool) -> list[IndexEntry]:
        """``ready``: only versions that are ready."""

    async def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        """Returns once every wanted version is ready. Parameters: ``config`` (str: a model config as JSON) and
        ``file:<version>/<path>`` (bytes); another one, or one of another type, is INVALID_ARGUMENT."""

    async def unload(self, name: str, unload_dependents: bool = False) -> None: ...
