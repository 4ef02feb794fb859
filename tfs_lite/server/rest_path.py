"""TensorFlow Serving's REST paths: ``/v1/models/NAME[/versions/N|/labels/L][:VERB | /metadata]``. Pure."""

from __future__ import annotations

import enum
import re
from urllib.parse import unquote

from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.serving import ModelRef

_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_GET = re.compile(_MODEL + r"(?P<metadata>/metadata)?", re.IGNORECASE)
_POST = re.compile(_MODEL + r":(?P<verb>predict|classify|regress)", re.IGNORECASE)


class Action(enum.Enum):
    """What a path asks for; the values of the POST ones are their verbs."""

    STATUS = "status"
    METADATA = "metadata"
    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"


def parse_path(method: str, path: str) -> tuple[Action, ModelRef]:
    """``path`` still percent-encoded. INVALID_ARGUMENT ``Malformed request`` for whatever is not in the grammar."""
    pattern = {"GET": _GET, "POST": _POST}.get(method)
    match = pattern.fullmatch(path) if pattern else None
    if match is None:
        raise invalid_argument(f"Malformed request: {method} {path}")
    found = match.groupdict()
    ref = ModelRef(unquote(found["name"]), _version(found["version"]), _decoded(found["label"]))
    if method == "GET":
        return (Action.METADATA if found["metadata"] else Action.STATUS), ref
    return Action(found["verb"].lower()), ref


def _version(digits: str | None) -> int | None:
    if digits is None:
        return None
    if len(digits.lstrip("0")) > 19 or int(digits) > MAX_VERSION:
        raise invalid_argument(f"Failed to convert version: {digits:.40} is more than {MAX_VERSION}")
    return int(digits)


def _decoded(label: str | None) -> str | None:
    return None if label is None else unquote(label)
