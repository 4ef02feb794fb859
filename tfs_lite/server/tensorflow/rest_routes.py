"""TensorFlow Serving's REST paths: ``/v1/models/NAME[/versions/N|/labels/L][:VERB | /metadata]``. Pure.

A trailing slash, or a query after a verb, is malformed; a query after a name is part of the name. The list of models,
``/v1/models``, is an addition of ours.
"""

from __future__ import annotations

import enum
import re
from functools import lru_cache
from urllib.parse import unquote

from tfs_lite.core.servable import MAX_VERSION, ModelRef
from tfs_lite.core.status import ServingError, invalid_argument

ROOT = "/v1/"
CACHED_TARGETS, MAX_CACHED_LENGTH = 256, 256
"""Targets of predictions that are cached, and the most characters of such a target."""
_LIST = re.compile(r"/v1/models", re.IGNORECASE)
_MODEL = r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>[0-9]+)|/labels/(?P<label>[^/:]+))?"
_GET = re.compile(_MODEL + r"(?P<metadata>/metadata)?", re.IGNORECASE)
_POST = re.compile(_MODEL + r":(?P<verb>(?-i:predict|classify|regress))", re.IGNORECASE)


class Action(enum.Enum):
    """What a path asks for. The value of a POST action is its verb."""

    LIST = "list"
    STATUS = "status"
    METADATA = "metadata"
    PREDICT = "predict"
    CLASSIFY = "classify"
    REGRESS = "regress"


def is_rest(path: str) -> bool:
    return path[: len(ROOT)].lower() == ROOT


def parse_path(method: str, path: str) -> tuple[Action, ModelRef]:
    """``path`` is still percent-encoded, with its query. The model of the list has an empty name. INVALID_ARGUMENT
    ``Malformed request`` for paths outside the grammar."""
    if method == "GET" and _LIST.fullmatch(path):
        return Action.LIST, ModelRef("")
    pattern = {"GET": _GET, "POST": _POST}.get(method)
    match = pattern.fullmatch(path) if pattern else None
    if match is None:
        raise invalid_argument(f"Malformed request: {method} {path}")
    found = match.groupdict()
    ref = ModelRef(unquote(found["name"]), _version(found["version"]), _decoded(found["label"]))
    if method == "GET":
        return (Action.METADATA if found["metadata"] else Action.STATUS), ref
    return Action(found["verb"]), ref


def prediction_of(target: str) -> ModelRef | None:
    """The model, if a POST to this target is a prediction; else, or if it is malformed, None."""
    return _cached_prediction(target) if len(target) <= MAX_CACHED_LENGTH else None


@lru_cache(CACHED_TARGETS)
def _cached_prediction(target: str) -> ModelRef | None:
    try:
        action, ref = parse_path("POST", target)
    except ServingError:
        return None
    return ref if action is Action.PREDICT else None


def _version(digits: str | None) -> int | None:
    if digits is None:
        return None
    significant = digits.lstrip("0") or "0"
    if len(significant) > 19 or int(significant) > MAX_VERSION:
        raise invalid_argument(f"Failed to convert version: {significant:.40} is more than {MAX_VERSION}")
    return int(significant)


def _decoded(label: str | None) -> str | None:
    return None if label is None else unquote(label)
