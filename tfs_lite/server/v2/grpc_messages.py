"""The values that gRPC writes in another form than HTTP: parameters of the repository, regions, settings. Pure
translation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.shared_memory import CudaRegionStatus, RegionStatus

if TYPE_CHECKING:
    from tfs_lite.serving.repository.requests import RepositoryValue
    from tfs_lite.serving.statistics.trace_settings import LogSettings, TraceSettings

CONFIG = "config"
FILE = "file:"
UNLOAD_DEPENDENTS = "unload_dependents"
_LOG_FIELDS = {bool: "bool_param", int: "uint32_param", str: "string_param"}


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


def cuda_region(request: Message) -> CudaRegionStatus:
    return CudaRegionStatus(request.name, request.device_id, request.byte_size)


def regions(found: Iterable[RegionStatus | CudaRegionStatus]) -> dict[str, dict[str, Any]]:
    """The regions by name, as messages of either kind have them."""
    return {region.name: asdict(region) for region in found}


def trace_changes(request: Message) -> dict[str, tuple[str, ...]]:
    return {key: tuple(setting.value) for key, setting in request.settings.items()}


def trace_settings(found: TraceSettings) -> Message:
    return v2.TraceSettingResponse(settings={key: {"value": values} for key, values in found.items()})


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
    return v2.LogSettingsResponse(settings={key: {_LOG_FIELDS[type(value)]: value} for key, value in found.items()})
