"""Everything of V2 that is no inference: values of :mod:`tfs_lite.server.v2.control` <-> messages. Pure translation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.shared_memory import CudaRegionStatus, RegionStatus

if TYPE_CHECKING:
    from tfs_lite.server.v2.control import ModelMetadata, ServerMetadata
    from tfs_lite.server.v2.index import IndexEntry
    from tfs_lite.serving.repository.requests import RepositoryValue
    from tfs_lite.serving.statistics.values import (
        InferBatchStatistics,
        InferResponseStatistics,
        InferStatistics,
        LogSettings,
        ModelStatistics,
        StatisticDuration,
        TraceSettings,
    )

CONFIG = "config"
FILE = "file:"
UNLOAD_DEPENDENTS = "unload_dependents"


def server_metadata(found: ServerMetadata) -> Message:
    return v2.ServerMetadataResponse(name=found.name, version=found.version, extensions=found.extensions)


def model_metadata(found: ModelMetadata) -> Message:
    response = v2.ModelMetadataResponse(name=found.name, versions=found.versions, platform=found.platform)
    for messages, tensors in ((response.inputs, found.inputs), (response.outputs, found.outputs)):
        for tensor in tensors:
            messages.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
    return response


def statistics(found: Iterable[ModelStatistics]) -> Message:
    return v2.ModelStatisticsResponse(model_stats=[_model_statistics(model) for model in found])


def _model_statistics(model: ModelStatistics) -> Message:
    message = v2.ModelStatistics(
        name=model.name,
        version=model.version,
        last_inference=model.last_inference,
        inference_count=model.inference_count,
        execution_count=model.execution_count,
        inference_stats=_infer_statistics(model.inference_stats),
        batch_stats=[_batch_statistics(batch) for batch in model.batch_stats],
    )
    for usage in model.memory_usage:
        message.memory_usage.add(type=usage.type, id=usage.id, byte_size=usage.byte_size)
    for key, response in model.response_stats.items():
        message.response_stats[key].CopyFrom(_response_statistics(response))
    return message


def _infer_statistics(stats: InferStatistics) -> Message:
    return v2.InferStatistics(
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        queue=_duration(stats.queue),
        compute_input=_duration(stats.compute_input),
        compute_infer=_duration(stats.compute_infer),
        compute_output=_duration(stats.compute_output),
        cache_hit=_duration(stats.cache_hit),
        cache_miss=_duration(stats.cache_miss),
    )


def _response_statistics(stats: InferResponseStatistics) -> Message:
    return v2.InferResponseStatistics(
        compute_infer=_duration(stats.compute_infer),
        compute_output=_duration(stats.compute_output),
        success=_duration(stats.success),
        fail=_duration(stats.fail),
        empty_response=_duration(stats.empty_response),
        cancel=_duration(stats.cancel),
    )


def _batch_statistics(stats: InferBatchStatistics) -> Message:
    return v2.InferBatchStatistics(
        batch_size=stats.batch_size,
        compute_input=_duration(stats.compute_input),
        compute_infer=_duration(stats.compute_infer),
        compute_output=_duration(stats.compute_output),
    )


def _duration(duration: StatisticDuration) -> Message:
    return v2.StatisticDuration(count=duration.count, ns=duration.ns)


def index(entries: Iterable[IndexEntry]) -> Message:
    response = v2.RepositoryIndexResponse()
    for entry in entries:
        response.models.add(name=entry.name, version=entry.version, state=entry.state, reason=entry.reason)
    return response


def load_parameters(request: Message) -> dict[str, RepositoryValue]:
    """``config`` is a text and files are bytes. INVALID_ARGUMENT for others."""
    found: dict[str, RepositoryValue] = {}
    for key, parameter in request.parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        expected = "string_param" if key == CONFIG else "bytes_param" if key.startswith(FILE) else ""
        if not expected:
            raise invalid_argument(f"unrecognized parameter '{key:.128}' of a load call; known: config, file:<path>")
        if choice != expected:
            raise invalid_argument(f"parameter '{key:.128}' of a load call is of another type than {expected}")
        found[key] = getattr(parameter, choice)
    return found


def unload_dependents(request: Message) -> bool:
    """INVALID_ARGUMENT if it is no bool, or for another parameter."""
    wanted = False
    for key, parameter in request.parameters.items():
        if key != UNLOAD_DEPENDENTS:
            raise invalid_argument(f"unrecognized parameter '{key:.128}' of an unload call; known: {UNLOAD_DEPENDENTS}")
        if parameter.WhichOneof("parameter_choice") != "bool_param":
            raise invalid_argument(f"parameter '{key}' of an unload call is of another type than bool_param")
        wanted = parameter.bool_param
    return wanted


def system_region(request: Message) -> RegionStatus:
    return RegionStatus(request.name, request.key, request.offset, request.byte_size)


def system_regions(found: Iterable[RegionStatus]) -> Message:
    response = v2.SystemSharedMemoryStatusResponse()
    for region in found:
        message = response.regions[region.name]
        message.name, message.key = region.name, region.key
        message.offset, message.byte_size = region.offset, region.byte_size
    return response


def cuda_region(request: Message) -> CudaRegionStatus:
    return CudaRegionStatus(request.name, request.device_id, request.byte_size)


def cuda_regions(found: Iterable[CudaRegionStatus]) -> Message:
    response = v2.CudaSharedMemoryStatusResponse()
    for region in found:
        message = response.regions[region.name]
        message.name, message.device_id, message.byte_size = region.name, region.device_id, region.byte_size
    return response


def trace_changes(request: Message) -> dict[str, tuple[str, ...]]:
    return {key: tuple(setting.value) for key, setting in request.settings.items()}


def trace_settings(found: TraceSettings) -> Message:
    response = v2.TraceSettingResponse()
    for key, values in found.items():
        response.settings[key].value.extend(values)
    return response


def log_changes(request: Message) -> dict[str, bool | int | str]:
    """INVALID_ARGUMENT for a setting without a value."""
    found: dict[str, bool | int | str] = {}
    for key, setting in request.settings.items():
        choice = setting.WhichOneof("parameter_choice")
        if choice is None:
            raise invalid_argument(f"log setting '{key:.128}' has no value")
        found[key] = getattr(setting, choice)
    return found


def log_settings(found: LogSettings) -> Message:
    response = v2.LogSettingsResponse()
    for key, value in found.items():
        setting = response.settings[key]
        if isinstance(value, bool):
            setting.bool_param = value
        elif isinstance(value, int):
            setting.uint32_param = value
        else:
            setting.string_param = value
    return response
