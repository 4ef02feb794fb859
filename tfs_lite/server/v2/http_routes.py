"""The KServe V2 routes over HTTP that are no inference: health, metadata, statistics, repository, settings, memory.

The handlers only translate; the :class:`V2Control` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tfs_lite.core.history import Cause, Origin, acting
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.protocols.json.values import decode_base64, read_base64, shorten, type_name
from tfs_lite.protocols.v2.json_values import (
    TOO_DEEP,
    Members,
    read_members,
    read_object,
    read_parameters,
    read_size,
    read_text,
)
from tfs_lite.protocols.v2.message_json import message_json
from tfs_lite.server.http.bodies import Bodies
from tfs_lite.server.http.message import Request, Response
from tfs_lite.server.http.replies import HttpError, json_reply
from tfs_lite.server.v2.control import V2Control
from tfs_lite.server.v2.http_paths import V2Target
from tfs_lite.server.v2.shared_memory import CudaRegionStatus, RegionStatus
from tfs_lite.serving.repository.requests import RepositoryValue

FILE = "file:"
STATS = "stats"
LIST_SETTING = "trace_level"
"""The one setting that is a list over HTTP."""
_READY_ERROR = "Invalid value for 'ready': expected a boolean"


class V2HttpRoutes:
    """V2's routes over HTTP, on the event loop. Raises ServingError."""

    def __init__(self, control: V2Control, bodies: Bodies) -> None:
        self._control = control
        self._bodies = bodies

    def server_metadata(self, request: Request, target: V2Target) -> Response:
        return json_reply(message_json(self._control.server_metadata()))

    def live(self, request: Request, target: V2Target) -> Response:
        return json_reply(_health("live", self._control.server_live(), "server is not live"))

    def ready(self, request: Request, target: V2Target) -> Response:
        response = json_reply(_health("ready", self._control.server_ready(), "server is not ready"))
        response.headers.update(self._control.ready_headers)
        return response

    def model_ready(self, request: Request, target: V2Target) -> Response:
        name = target.name
        ready = self._control.model_ready(name, target.version)
        return json_reply({"name": name, **_health("ready", ready, f"model '{shorten(name)}' is not ready")})

    def model_metadata(self, request: Request, target: V2Target) -> Response:
        return json_reply(self._metadata(target.name, target.version))

    def _metadata(self, name: str, version: int | None) -> dict[str, Any]:
        tree = message_json(self._control.model_metadata(name, version))
        del tree["properties"]  # only gRPC has them
        return tree

    def model_config(self, request: Request, target: V2Target) -> Response:
        return json_reply(message_json(self._control.model_config(target.name, target.version)))

    def statistics(self, request: Request, target: V2Target) -> Response:
        return json_reply(self._statistics(target.model, target.version))

    def _statistics(self, name: str | None, version: int | None) -> dict[str, Any]:
        return message_json(self._control.statistics(name, version), order=int)  # responses are numbered

    def all_statistics(self, request: Request, target: V2Target) -> Response:
        """The statistics of every model. The path also names a model called ``stats``: where there is one, its metadata
        is added."""
        metadata: dict[str, Any] = {}
        with suppress(ServingError):
            metadata = self._metadata(STATS, None)
        return json_reply({**metadata, **self._statistics(None, None)})

    async def index(self, request: Request, target: V2Target) -> Response:
        ready = await self._bodies.read(request, _read_ready)
        entries = message_json(self._control.index(ready))["models"]
        return json_reply([{key: value for key, value in entry.items() if value or key == "name"} for entry in entries])

    async def load(self, request: Request, target: V2Target) -> Response:
        parameters = await self._bodies.read(request, _read_load)
        with acting(Origin(Cause.REPOSITORY_CALL, request.caller)):
            await self._control.load(target.name, parameters)
        return Response()

    async def unload(self, request: Request, target: V2Target) -> Response:
        parameters = await self._bodies.read(request, lambda text: read_parameters(_read_optional(text)))
        dependents = parameters.get("unload_dependents", False)
        if not isinstance(dependents, bool):
            raise invalid_argument(
                f"parameter 'unload_dependents' has invalid type {type_name(dependents)}, expected a boolean"
            )
        with acting(Origin(Cause.REPOSITORY_CALL, request.caller)):
            await self._control.unload(target.name, dependents)
        return Response()

    def named_repository(self, request: Request, target: V2Target) -> Response:
        raise ServingError(StatusCode.UNIMPLEMENTED, "'repository_name' specification is not supported")

    async def trace(self, request: Request, target: V2Target) -> Response:
        settings = self._control.settings
        if request.head.method != "POST":
            return json_reply(_trace_tree(settings.trace_settings(target.model)))
        body = await self._bodies.read(request, _read_trace)
        changes = {name: _trace_values(name, value) for name, value in body.items()}
        return json_reply(_trace_tree(settings.update_trace_settings(target.model, changes)))

    async def logging(self, request: Request, target: V2Target) -> Response:
        if request.head.method != "POST":
            return json_reply(dict(self._control.settings.log_settings()))
        body = await self._bodies.read(request, _read_optional)
        changes: dict[str, bool | int | str] = {}
        for name, value in body.items():
            if not isinstance(value, bool | int | str):
                raise invalid_argument(f"log setting '{shorten(name)}' has invalid type {type_name(value)}")
            changes[name] = value
        return json_reply(dict(self._control.settings.update_log_settings(changes)))

    def system_status(self, request: Request, target: V2Target) -> Response:
        return json_reply(self._control.memory.system_status(target.region))

    async def register_system(self, request: Request, target: V2Target) -> Response:
        body = await self._bodies.read(request, _read_optional)
        key, offset, size = read_text(body, "key"), read_size(body, "offset", default=0), read_size(body, "byte_size")
        self._control.memory.system_register(RegionStatus(_region(target), key, offset, size))
        return Response()

    async def unregister_system(self, request: Request, target: V2Target) -> Response:
        await self._bodies.read(request, _read_optional)
        self._control.memory.system_unregister(target.region)
        return Response()

    def cuda_status(self, request: Request, target: V2Target) -> Response:
        return json_reply(self._control.memory.cuda_status(target.region))

    async def register_cuda(self, request: Request, target: V2Target) -> Response:
        body = await self._bodies.read(request, _read_optional)
        handle, device, size = body.get("raw_handle"), read_size(body, "device_id"), read_size(body, "byte_size")
        self._control.memory.cuda_register(CudaRegionStatus(_region(target), device, size), read_base64(handle))
        return Response()

    async def unregister_cuda(self, request: Request, target: V2Target) -> Response:
        await self._bodies.read(request, _read_optional)
        self._control.memory.cuda_unregister(target.region)
        return Response()


def _region(target: V2Target) -> str:
    assert target.region is not None
    return target.region


def _health(word: str, well: bool, otherwise: str) -> dict[str, bool]:
    if not well:
        raise HttpError(StatusCode.UNAVAILABLE, otherwise, 400)
    return {word: True}


def _read_optional(text: bytes) -> Members:
    """The members of a body that may be missing."""
    return read_object(text) if text.strip() else {}


def _read_trace(text: bytes) -> Members:
    """The same with the members that are null, which reset a setting."""
    return read_members(text) if text.strip() else {}


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
            return decode_base64(value)
    except ValueError:
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
