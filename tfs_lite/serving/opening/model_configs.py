"""The config that counts for a model: the one of a load call, or the one on disk.

The config of a call replaces the file as a whole, until the model is unloaded, or until it is loaded again after the
file on disk has become newer.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from tfs_lite.config.guard import GuardSettings
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_json import settings_of_json
from tfs_lite.config.model_server import VersionPolicy
from tfs_lite.config.text import MAX_FILE_BYTES, load_model_settings, parse_model_settings, read_text
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.status import invalid_argument


@dataclass(frozen=True, slots=True)
class ConfigOverride:
    """The config of a load call. ``time_ns``: when the call came, in nanoseconds since the epoch."""

    settings: ModelSettings
    time_ns: int


class ModelConfigs:
    """Gives loaders the settings of a version. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the overrides
        self._overrides: dict[str, ConfigOverride] = {}

    def __call__(self, directory: str, model: str) -> ModelSettings:
        """The settings of the version in ``directory``. ServingError for a file that is wrong."""
        override = self.override(model)
        return override.settings if override is not None else load_model_settings(Path(directory), model)

    def override(self, model: str) -> ConfigOverride | None:
        with self._lock:
            return self._overrides.get(model)

    def set_override(self, model: str, override: ConfigOverride | None) -> None:
        """None means that the files on disk count again."""
        with self._lock:
            if override is None:
                self._overrides.pop(model, None)
            else:
                self._overrides[model] = override


def base_settings(base: str, model: str) -> ModelSettings:
    """The settings beside the versions; defaults without a file. INVALID_ARGUMENT for a file that is wrong."""
    found = config_files(base)
    if len(found) > 1:
        raise invalid_argument(f"model {model} has both {' and '.join(found)}; keep one")
    if not found:
        return ModelSettings()
    settings = parse_model_settings(read_text(Path(base, found[0]), found[0]), found[0])
    return _for_model(settings, model, found[0])


def config_files(base: str) -> list[str]:
    """The names of the configs beside the versions."""
    return [name for name in MODEL_SETTINGS_FILES if os.path.lexists(os.path.join(base, name))]


def newest_config(base: str) -> int:
    """The moment when a config beside the versions was last written, in nanoseconds since the epoch; 0 without one."""
    times = [0]
    for name in config_files(base):
        try:
            times.append(os.stat(os.path.join(base, name)).st_mtime_ns)
        except FileNotFoundError:
            continue
    return max(times)


def settings_from_json(text: str, model: str) -> ModelSettings:
    """A config as clients of V2 send it: a ``ModelConfig`` message in JSON. INVALID_ARGUMENT says what is wrong."""
    if len(text) > MAX_FILE_BYTES:
        raise invalid_argument(f"the config is longer than {MAX_FILE_BYTES} characters")
    return _for_model(settings_of_json(text, "config"), model, "config")


def settings_digest(settings: ModelSettings) -> str:
    """Equal for settings with which a version is loaded alike, the number of its instances aside. The version policy
    does not count, because it does not matter to a single version, and ``guard`` does not, which is for pushes."""
    unread = {"name": "", "version_policy": None, "instance_group": (), "guard": GuardSettings()}
    text = repr(settings.model_copy(update=unread))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def wanted_by(settings: ModelSettings) -> VersionPolicy:
    """The version policy in a model's own config: the latest version where it says nothing."""
    return settings.version_policy or VersionPolicy()


def _for_model(settings: ModelSettings, model: str, source: str) -> ModelSettings:
    if settings.name not in ("", model):
        raise invalid_argument(f'{source}: name is "{settings.name}", but the model is called "{model}"')
    return settings
