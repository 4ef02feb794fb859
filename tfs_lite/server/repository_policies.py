"""Which versions of the models of a repository are wanted: what each model's own config says, read when it changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from tfs_lite.config.model_server import VersionPolicy
from tfs_lite.core.status import ServingError
from tfs_lite.server.model_configs import base_settings, config_files, wanted_by

logger = logging.getLogger(__name__)
_Stamp = tuple[tuple[str, int, int, int], ...]
_LATEST = VersionPolicy()


class RepositoryPolicies:
    """Remembers what it read for as long as the files do not change. One thread."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[_Stamp, VersionPolicy]] = {}

    def read(self, models: Mapping[str, str]) -> dict[str, VersionPolicy]:
        """By name; ``models`` has the base paths. While a config is wrong, the policy stays what it was."""
        for name in self._known.keys() - models.keys():
            del self._known[name]
        return {name: self._read(name, base) for name, base in models.items()}

    def _read(self, name: str, base: str) -> VersionPolicy:
        stamp = _stamp(base)
        before = self._known.get(name)
        if before is not None and before[0] == stamp:
            return before[1]
        policy = before[1] if before is not None else _LATEST
        try:
            policy = wanted_by(base_settings(base, name))
        except ServingError as error:
            logger.error("model %s: its version policy stays as it is, for its config is wrong: %s", name, str(error))
        self._known[name] = (stamp, policy)
        return policy


def _stamp(base: str) -> _Stamp:
    """Another one whenever a config beside the versions was changed."""
    found = []
    for name in config_files(base):
        try:
            stat = os.stat(os.path.join(base, name))
        except FileNotFoundError:
            continue
        found.append((name, stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
