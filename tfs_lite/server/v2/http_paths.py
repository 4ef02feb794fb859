"""The paths of the KServe V2 protocol over HTTP: which exist, and which methods each has. Pure.

    (method, path)  ->  parse_path  ->  Target(action, model, version, region)

Names in paths are percent-encoded. An unknown path is 404 for every method; a known one is 405 for a method that it
does not have.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from urllib.parse import unquote

from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.server.http.replies import HttpError

ROOT = "/v2"


class Action(enum.Enum):
    """The operation that a path names."""

    SERVER_METADATA = enum.auto()
    LIVE = enum.auto()
    READY = enum.auto()
    MODEL_METADATA = enum.auto()
    MODEL_READY = enum.auto()
    CONFIG = enum.auto()
    STATISTICS = enum.auto()
    INFER = enum.auto()
    GENERATE = enum.auto()
    GENERATE_STREAM = enum.auto()
    TRACE = enum.auto()
    LOGGING = enum.auto()
    INDEX = enum.auto()
    LOAD = enum.auto()
    UNLOAD = enum.auto()
    NAMED_REPOSITORY = enum.auto()
    SYSTEM_STATUS = enum.auto()
    SYSTEM_REGISTER = enum.auto()
    SYSTEM_UNREGISTER = enum.auto()
    CUDA_STATUS = enum.auto()
    CUDA_REGISTER = enum.auto()
    CUDA_UNREGISTER = enum.auto()


PREDICTIONS = frozenset((Action.INFER, Action.GENERATE, Action.GENERATE_STREAM))


@dataclass(frozen=True, slots=True)
class Target:
    """``model`` and ``region`` None mean all of them. ``version`` None means the newest."""

    action: Action
    model: str | None = None
    version: int | None = None
    region: str | None = None


_GET, _POST, _BOTH = ("GET", "HEAD"), ("POST",), ("GET", "HEAD", "POST")
_ANY = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_MODEL = r"/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?"
_REGION = r"/region/(?P<region>[^/]+)"
_ROUTES = [
    (re.compile(ROOT + pattern), methods, action)
    for pattern, methods, action in (
        ("", _GET, Action.SERVER_METADATA),
        ("/health/live", _GET, Action.LIVE),
        ("/health/ready", _GET, Action.READY),
        ("/models/stats", _GET, Action.STATISTICS),
        (_MODEL + "/infer", _POST, Action.INFER),
        (_MODEL + "/generate", _POST, Action.GENERATE),
        (_MODEL + "/generate_stream", _POST, Action.GENERATE_STREAM),
        (_MODEL, _GET, Action.MODEL_METADATA),
        (_MODEL + "/ready", _GET, Action.MODEL_READY),
        (_MODEL + "/config", _GET, Action.CONFIG),
        (_MODEL + "/stats", _GET, Action.STATISTICS),
        ("(?:/models/(?P<model>[^/]+))?/trace/setting", _BOTH, Action.TRACE),
        ("/logging", _BOTH, Action.LOGGING),
        ("/repository/index", _POST, Action.INDEX),
        ("/repository/models/(?P<model>[^/]+)/load", _POST, Action.LOAD),
        ("/repository/models/(?P<model>[^/]+)/unload", _POST, Action.UNLOAD),
        ("/repository/[^/]+/(?:index|models/[^/]+/(?:load|unload))", _ANY, Action.NAMED_REPOSITORY),
        (f"/systemsharedmemory(?:{_REGION})?/status", _GET, Action.SYSTEM_STATUS),
        (f"/systemsharedmemory{_REGION}/register", _POST, Action.SYSTEM_REGISTER),
        (f"/systemsharedmemory(?:{_REGION})?/unregister", _POST, Action.SYSTEM_UNREGISTER),
        (f"/cudasharedmemory(?:{_REGION})?/status", _GET, Action.CUDA_STATUS),
        (f"/cudasharedmemory{_REGION}/register", _POST, Action.CUDA_REGISTER),
        (f"/cudasharedmemory(?:{_REGION})?/unregister", _POST, Action.CUDA_UNREGISTER),
    )
]


def is_v2(path: str) -> bool:
    """Whether the path belongs to this protocol, known or not."""
    return path == ROOT or path.startswith(ROOT + "/")


def parse_path(method: str, path: str) -> Target:
    """``path`` still percent-encoded, without its query. HttpError 404 ``Not Found``, 405; INVALID_ARGUMENT for a
    version that is no whole number from 0."""
    for pattern, methods, action in _ROUTES:
        match = pattern.fullmatch(path)
        if match is None:
            continue
        if method not in methods:
            raise _wrong_method(method, path, methods)
        found = match.groupdict()
        return Target(action, _decoded(found.get("model")), read_version(found.get("version")), _region(found))
    raise HttpError(StatusCode.NOT_FOUND, "Not Found", 404)


def read_version(text: str | None) -> int | None:
    """None and the empty text name no version. INVALID_ARGUMENT."""
    if not text:
        return None
    if text.isascii() and text.isdigit():
        digits = text.lstrip("0") or "0"
        if len(digits) <= len(str(MAX_VERSION)) and int(digits) <= MAX_VERSION:
            return int(digits)
    raise invalid_argument(
        f"failed to get model version from specified version string '{text:.40}', "
        f"expected a whole number from 0 to {MAX_VERSION}"
    )


def _wrong_method(method: str, path: str, methods: tuple[str, ...]) -> ServingError:
    allowed = ", ".join(methods)
    message = f"Method Not Allowed: {path} answers {allowed}, not {method}"
    return HttpError(StatusCode.UNIMPLEMENTED, message, 405, {"Allow": allowed})


def _decoded(segment: str | None) -> str | None:
    return None if segment is None else unquote(segment)


def _region(found: dict[str, str | None]) -> str | None:
    return _decoded(found.get("region"))
