"""The KServe V2 routes over HTTP that are no inference: health, metadata, statistics, repository, settings, memory.

They only translate; the :class:`V2Control` does the work.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.json.values import read_base64, shorten, type_name
from tfs_lite.protocols.v2.json_values import TOO_DEEP, Members, read_object, read_parameters, read_size, read_text
from tfs_lite.server.http.encoded_bodies import EncodedBodies
from tfs_lite.server.http.replies import HttpError, json_reply
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.http_paths import Action, Target
from tfs_lite.server.v2.shared_memory import CudaRegionStatus, RegionStatus
from tfs_lite.serving.repository.requests import RepositoryValue
from tfs_lite.serving.statistics.values import LogSettings

FILE = "file:"
LIST_SETTING = "trace_level"
"""The one setting that is a list over HTTP."""
_READY_ERROR = "Invalid value for 'ready': expected a boolean"


class V2HttpRoutes:
    """On the event loop. Raises ServingError."""

    def __init__(self, control: V2Control, bodies: EncodedBodies) -> None:
        self._control = control
        self._bodies = bodies
        self._reads: dict[Action, Callable[[Target], Any]] = {
            Action.SERVER_METADATA: lambda target: control.server_metadata(),
            Action.LIVE: self._live,
            Action.READY: self._ready,
            Action.MODEL_READY: self._model_ready,
            Action.MODEL_METADATA: lambda target: control.model_metadata(_model(target), target.version),
            Action.CONFIG: lambda target: control.model_config_json(_model(target), target.version),
            Action.STATISTICS: self._statistics,
            Action.TRACE: lambda target: _trace_tree(control.settings.trace_settings(target.model)),
            Action.LOGGING: lambda target: dict(control.settings.log_settings()),
            Action.SYSTEM_STATUS: lambda target: control.memory.system_status(target.region),
            Action.CUDA_STATUS: lambda target: control.memory.cuda_status(target.region),
            Action.NAMED_REPOSITORY: _no_named_repository,
        }
        self._writes: dict[Action, Callable[[Target, Members], Any]] = {
            Action.TRACE: self._change_trace,
            Action.LOGGING: self._change_logging,
            Action.SYSTEM_REGISTER: self._register_system,
            Action.SYSTEM_UNREGISTER: lambda target, body: control.memory.system_unregister(target.region),
            Action.CUDA_REGISTER: self._register_cuda,
            Action.CUDA_UNREGISTER: lambda target, body: control.memory.cuda_unregister(target.region),
        }
        self._slow: dict[Action, Callable[[Request, Target], Awaitable[Any]]] = {
            Action.INDEX: self._index,
            Action.LOAD: self._load,
            Action.UNLOAD: self._unload,
        }

    async def answer(self, request: Request, target: Target) -> Response:
        """Answers every action that is no prediction."""
        action = target.action
        if action in self._slow:
            tree = await self._slow[action](request, target)
        elif action in self._writes and request.method == "POST":
            tree = self._writes[action](target, await self._bodies.read(request, None, _read_optional))
        else:
            tree = self._reads[action](target)
        return Response(status_code=200) if tree is None else json_reply(tree)

    def _live(self, target: Target) -> Any:
        return _health("live", self._control.server_live(), "server is not live")

    def _ready(self, target: Target) -> Any:
        return _health("ready", self._control.server_ready(), "server is not ready")

    def _model_ready(self, target: Target) -> Any:
        name = _model(target)
        ready = self._control.model_ready(name, target.version)
        return {"name": name, **_health("ready", ready, f"model '{shorten(name)}' is not ready")}

    def _statistics(self, target: Target) -> Any:
        return {"model_stats": self._control.statistics(target.model, target.version)}

    async def _index(self, request: Request, target: Target) -> Any:
        ready = await self._bodies.read(request, None, _read_ready)
        entries = self._control.index(ready)
        members = [
            {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
            for entry in entries
        ]
        return [{key: value for key, value in entry.items() if value or key == "name"} for entry in members]

    async def _load(self, request: Request, target: Target) -> None:
        parameters = await self._bodies.read(request, None, _read_load)
        await self._control.load(_model(target), parameters)

    async def _unload(self, request: Request, target: Target) -> None:
        parameters = await self._bodies.read(request, None, lambda text: read_parameters(_read_optional(text)))
        dependents = parameters.get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise invalid_argument(
                f"parameter 'unload_dependents' has invalid type {type_name(dependents)}, expected a boolean"
            )
        await self._control.unload(_model(target), dependents)

    def _change_trace(self, target: Target, body: Members) -> Any:
        changes = {name: _trace_values(name, value) for name, value in body.items()}
        return _trace_tree(self._control.settings.update_trace_settings(target.model, changes))

    def _change_logging(self, target: Target, body: Members) -> Any:
        changes: dict[str, bool | int | str] = {}
        for name, value in body.items():
            if not isinstance(value, bool | int | str):
                raise invalid_argument(f"log setting '{shorten(name)}' has invalid type {type_name(value)}")
            changes[name] = value
        settings: LogSettings = self._control.settings.update_log_settings(changes)
        return dict(settings)

    def _register_system(self, target: Target, body: Members) -> None:
        key, offset, size = read_text(body, "key"), read_size(body, "offset", default=0), read_size(body, "byte_size")
        self._control.memory.system_register(RegionStatus(_region(target), key, offset, size))

    def _register_cuda(self, target: Target, body: Members) -> None:
        handle, device, size = body.get("raw_handle"), read_size(body, "device_id"), read_size(body, "byte_size")
        self._control.memory.cuda_register(CudaRegionStatus(_region(target), device, size), read_base64(handle))


def _model(target: Target) -> str:
    assert target.model is not None
    return target.model


def _region(target: Target) -> str:
    assert target.region is not None
    return target.region


def _health(word: str, well: bool, otherwise: str) -> dict[str, bool]:
    if not well:
        raise HttpError(StatusCode.UNAVAILABLE, otherwise, 400)
    return {word: True}


def _no_named_repository(target: Target) -> Any:
    raise ServingError(StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported")


def _read_optional(text: bytes) -> Members:
    """The members of a body that may be missing."""
    return read_object(text) if text.strip() else {}


def _read_ready(text: bytes) -> bool:
    try:
        ready = _read_optional(text).get("ready", False)
    except ServingError as error:
        if TOO_DEEP in str(error):  # whatever it is
            raise invalid_argument(f"{_READY_ERROR}; {error}") from None
        raise
    if not isinstance(ready, bool):
        raise invalid_argument(f"{_READY_ERROR}, got {type_name(ready)}")
    return ready


def _read_load(text: bytes) -> dict[str, RepositoryValue]:
    """Contents of files are in base64. The control checks the other parameters."""
    parameters: dict[str, RepositoryValue] = {}
    for name, value in read_parameters(_read_optional(text)).items():
        if not isinstance(value, bool | int | str):
            raise invalid_argument(
                f"attempt to access JSON non-string as string: parameter '{shorten(name)}' has invalid type "
                f"{type_name(value)}"
            )
        parameters[name] = _file(name, value) if name.startswith(FILE) else value
    return parameters


def _file(name: str, value: bool | int | str) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise invalid_argument(f"failed to decode the content of '{shorten(name)}': expected a string in base64")


def _trace_tree(settings: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {
        name: list(values) if name == LIST_SETTING else (values[0] if values else "")
        for name, values in settings.items()
    }


def _trace_values(name: str, value: Any) -> tuple[str, ...]:
    """None and an empty list reset the setting."""
    if value is None:
        return ()
    if isinstance(value, str) and name != LIST_SETTING:
        return (value,)
    if isinstance(value, list) and name == LIST_SETTING and all(isinstance(item, str) for item in value):
        return tuple(value)
    expected = "an array of strings" if name == LIST_SETTING else "a string"
    raise invalid_argument(f"trace setting '{shorten(name)}' has invalid type {type_name(value)}, expected {expected}")
