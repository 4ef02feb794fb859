"""Opening a version in another process, which gets the request as JSON.

describe(request, platform)  ->  JSON  ->  open_version(JSON) in the other process  ->  OpenedModel
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from typing import Any

import orjson
import torch

from tfs_lite.adapters.contract import LoadedModel, NeedsProcess, OpenedModel, OpenRequest
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.device import configure_torch_threads, limit_gpu_memory
from tfs_lite.adapters.failures import label_of, load_failure, story
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME

OPEN_VERSION = "tfs_lite.adapters.remote:open_version"
"""The function that the other process calls."""
PRELOAD = ("tfs_lite.adapters.remote",)
"""The modules that it imports beforehand."""
TORCH_LOADER = ("tfs_lite.adapters.exported.torch_loader",)
"""Those that only torch's own loader needs: 70 MB, and more than a second."""
_CONFIG_NAMES = {dtype: name for name, dtype in FROM_CONFIG_NAME.items()}
logger = logging.getLogger(__name__)


def describe(
    request: OpenRequest,
    platform: str,
    torch_threads: int = 0,
    gpu_fraction: float = 0.0,
    saved_model_tags: str = "serve",
) -> str:
    """The request as JSON, for :func:`open_version`. ``torch_threads`` is how many threads torch uses inside an
    operator there (0: all cores but one), ``gpu_fraction`` the share of each GPU's memory that the process may take (0:
    all of it), ``saved_model_tags`` which graph of a SavedModel is served. The files are listed again when the version
    is opened."""
    return orjson.dumps(
        {
            "name": request.id.name,
            "version": request.id.version,
            "directory": request.files.directory,
            "device": str(request.device),
            "trusted": request.trusted,
            "settings": _plain(request.settings.model_dump(exclude_unset=True)),
            "platform": platform,
            "torch_threads": torch_threads,
            "gpu_fraction": gpu_fraction,
            "saved_model_tags": saved_model_tags,
        }
    ).decode()


def request_of(arguments: str) -> tuple[OpenRequest, str]:
    """The request that was described, and the platform's name. NOT_FOUND if the files are gone."""
    fields = orjson.loads(arguments)
    request = OpenRequest(
        ServableId(fields["name"], fields["version"]),
        read_version(fields["directory"]),
        torch.device(fields["device"]),
        fields["trusted"],
        ModelSettings.model_validate(fields["settings"]),
    )
    return request, fields["platform"]


def open_version(arguments: str) -> OpenedModel:
    """Opens what :func:`describe` described, in this process, which must serve nothing else: the number of torch's
    threads is set. Every failure is a ServingError with the code that opening it in the server has; the server adds
    model and version to the message."""
    fields = orjson.loads(arguments)
    configure_torch_threads(fields["torch_threads"])
    limit_gpu_memory(fields["gpu_fraction"])
    request, name = request_of(arguments)
    platform = PLATFORMS.get(name)
    if platform is None:
        raise invalid_argument(f'platform "{name}" is not known; known: {", ".join(sorted(PLATFORMS))}')
    if platform.open is None:
        raise ServingError(StatusCode.UNIMPLEMENTED, f"platform {platform.name}: {platform.missing}")
    try:
        return _open(platform.open, platform.open_in_process, request)
    except ServingError:
        raise
    except BaseException as error:
        logger.warning("%s\n%s", load_failure(request.id, error), story(error))
        failure = load_failure(request.id, error)
    raise ServingError(failure.code, failure.status.message.removeprefix(f"{label_of(request.id)} "))


def _open(
    usual: Callable[[OpenRequest], OpenedModel],
    otherwise: Callable[[OpenRequest], LoadedModel] | None,
    request: OpenRequest,
) -> OpenedModel:
    """Opens the version in its platform's usual way, or in the other one that is for processes of models."""
    try:
        return usual(request)
    except NeedsProcess as error:
        if otherwise is None:
            raise
        reason = f"loaded by torch's loader in a process: {error}"
    model = otherwise(request)
    model.reason = reason
    return model


def _plain(value: Any) -> Any:
    """Settings as in a config file, with the names of element types."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, DataType):
        return _CONFIG_NAMES[value]
    return value.value if isinstance(value, Enum) else value
