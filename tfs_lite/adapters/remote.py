"""Opening a version in another process, which gets the request as JSON.

describe(request, platform)  ->  JSON  ->  open_version(JSON) in the other process  ->  OpenedModel
"""

from __future__ import annotations

import logging
import os
from enum import Enum
from typing import Any

import orjson
import torch

from tfs_lite.adapters.cuda.failed_gpu import GPU_WATCH
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.device import configure_torch_threads, limit_gpu_memory
from tfs_lite.adapters.failures import label_of, load_failure, with_detail
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.opening import NeedsProcess, OpenedModel, OpenRequest, Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.manifest import is_text
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError, failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME

OPEN_VERSION = "tfs_lite.adapters.remote:open_version"
"""The function that the other process calls."""
PRELOAD = ("tfs_lite.adapters.remote",)
"""The modules that it imports beforehand."""
_CONFIG_NAMES = {dtype: name for name, dtype in FROM_CONFIG_NAME.items()}
logger = logging.getLogger(__name__)


def describe(
    request: OpenRequest,
    platform: str,
    torch_threads: int = 0,
    gpu_fraction: float = 0.0,
    saved_model_tags: str = "serve",
    reason: str = "",
) -> str:
    """The request as JSON, for :func:`open_version`. ``torch_threads`` is how many threads torch uses inside an
    operator there (0: as in the server), ``gpu_fraction`` the share of each GPU's memory that the process may take (0:
    all of it), ``saved_model_tags`` which graph of a SavedModel is served. ``reason``: why the version has a process,
    where neither its config nor the server asks for one. The files are listed again when the version
    is opened. FAILED_PRECONDITION for a directory whose name is no text."""
    if not is_text(request.files.directory):
        raise failed_precondition("its path is no UTF-8 text, so no other process can be told it; rename the directory")
    return orjson.dumps(
        {
            "name": request.id.name,
            "version": request.id.version,
            "directory": request.files.directory,
            "device": request.device,
            "batch_rows": request.batch_rows,
            "trusted": request.trusted,
            "settings": _plain(request.settings.model_dump(exclude_unset=True)),
            "platform": platform,
            "torch_threads": torch_threads or torch.get_num_threads(),
            "gpu_fraction": gpu_fraction,
            "saved_model_tags": saved_model_tags,
            "reason": reason,
        }
    ).decode()


def request_of(arguments: str) -> tuple[OpenRequest, str]:
    """The request that was described, and the platform's name. NOT_FOUND if the files are gone."""
    fields = orjson.loads(arguments)
    request = OpenRequest(
        ServableId(fields["name"], fields["version"]),
        read_version(fields["directory"]),
        fields["device"],
        fields["trusted"],
        ModelSettings.model_validate(fields["settings"]),
        threads=fields["torch_threads"],
        batch_rows=tuple(fields["batch_rows"]),
    )
    return request, fields["platform"]


def open_version(arguments: str) -> OpenedModel:
    """Opens what :func:`describe` described, in this process, which must serve nothing else: the number of torch's
    threads is set, and it ends when its GPU fails. Every failure is a ServingError with the code that opening it in the
    server has; the server adds model and version to the message."""
    fields = orjson.loads(arguments)
    configure_torch_threads(fields["torch_threads"])
    limit_gpu_memory(fields["gpu_fraction"])
    GPU_WATCH.watch(_end_process)
    request, name = request_of(arguments)
    platform = PLATFORMS.get(name)
    if platform is None:
        raise invalid_argument(f'platform "{name}" is not known; known: {", ".join(sorted(PLATFORMS))}')
    try:
        return _open(platform, request, fields["reason"])
    except ServingError:
        raise
    except BaseException as error:
        failure = load_failure(request.id, error)
    message = failure.status.message.removeprefix(f"{label_of(request.id)} ")
    raise with_detail(ServingError(failure.code, message), failure.detail)


def _end_process(failure: str) -> None:
    """Ends this process: its callers are told that it was lost, and it is started again."""
    logger.error("the GPU of this process failed, it ends: %s", failure)
    logging.shutdown()
    os._exit(1)


def _open(platform: Platform, request: OpenRequest, reason: str) -> OpenedModel:
    """Opens the version in its platform's usual way, or in the other one that is for processes of models. ``reason``:
    why it has a process; empty if config or server want it so."""
    try:
        model = platform.start(request)
    except NeedsProcess as error:
        reason = str(error)
        model = platform.start_in_process(request)
    if isinstance(model, LoadedModel):
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
