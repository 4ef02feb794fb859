"""The questions that come as a JSON body: what a config, or a version that is not there yet, would change.

{"model_config_list": {"config": [...]}}                                     a config, as in a YAML file
{"publish": {"model": "ranker", "version": 9, "directory": "/new/ranker"}}   files on the server's machine
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.config.settings import Document, build
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.operations.what_if.feature import Forecasts
from tfs_lite.operations.what_if.forecast import WhatIf
from tfs_lite.protocols.json import text as json_text
from tfs_lite.protocols.json.values import present
from tfs_lite.serving.config_checks import base_directory
from tfs_lite.serving.server_core import ServerCore

_FIELDS = ("model", "version", "directory")
MOST_MODELS = 10_000
"""The most models in a config whose effect is asked."""


def read_body(body: bytes) -> dict[str, Any]:
    """A JSON object, without the members that are null, at any depth. INVALID_ARGUMENT for anything else."""
    asked = json_text.loads(body) if body else None
    if not isinstance(asked, dict):
        raise invalid_argument('expected a JSON object with "model_config_list" or "publish"')
    found: dict[str, Any] = _without_nulls(asked)
    return found


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in present(value).items()}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def what_if(core: ServerCore, asked: Mapping[str, Any]) -> WhatIf:
    """The answer. Reads the disk. Raises ServingError."""
    forecasts = core.find(Forecasts)
    if forecasts is None:
        raise failed_precondition("this server makes no forecasts")
    if "publish" not in asked:
        _check_length(asked)
        return forecasts.config(build(ModelServerConfig, Document(dict(asked)), base_directory(core.options)))
    publish = asked["publish"]
    if len(asked) > 1 or not isinstance(publish, dict):
        raise invalid_argument('"publish" is an object, and stands alone')
    for name in publish:
        if name not in _FIELDS:
            raise invalid_argument(f"publish: field {name[:50]!r} is not known; there are: {', '.join(_FIELDS)}")
    model, version, directory = publish.get("model"), publish.get("version"), publish.get("directory")
    if not isinstance(model, str) or not isinstance(directory, str):
        raise invalid_argument("publish: fields model and directory: expected a text")
    if version is not None and not (type(version) is int and 0 <= version <= MAX_VERSION):
        raise invalid_argument(f"publish: field version: expected a number from 0 to {MAX_VERSION}")
    return forecasts.published(model, version, directory)


def _check_length(config: Mapping[str, Any]) -> None:
    """INVALID_ARGUMENT for more models than are looked at at once. What is no config is found when it is read."""
    models = config.get("model_config_list")
    entries = models.get("config") if isinstance(models, dict) else None
    if isinstance(entries, list) and len(entries) > MOST_MODELS:
        raise invalid_argument(
            f"model_config_list: {len(entries)} models are too many to look at at once, at most {MOST_MODELS}; "
            "ask about parts of the config"
        )
