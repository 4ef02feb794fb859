"""What keeps the served set up to date by itself: the config file, or the model repository.

Both end in the change that clients may ask for by a reload, but wait for no model: one that takes long to load must
not hide the next change. What goes wrong is logged once per cause, and tried again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from tfs_lite.config.model_server import ModelServerConfig, VersionPolicy
from tfs_lite.config.settings import Document, build
from tfs_lite.core.clock import Clock
from tfs_lite.core.periodic import PeriodicThread
from tfs_lite.core.status import ServingError, failed_precondition
from tfs_lite.server.first_config import read_config_file
from tfs_lite.server.options import ServerOptions
from tfs_lite.server.repository_policies import RepositoryPolicies
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.repository import ModelRepository

logger = logging.getLogger(__name__)

Apply = Callable[[ModelServerConfig], None]
_Found = tuple[str, VersionPolicy]
"""A base path, and which versions there are wanted."""


class ConfigFileFollower:
    """Reads the file again and again and applies it when it means something else, or when the last time failed."""

    def __init__(
        self, path: str, working_directory: Path, interval: float, applied: ModelServerConfig, apply: Apply
    ) -> None:
        self._path = path
        self._working_directory = working_directory
        self._applied: ModelServerConfig | None = applied
        self._apply = apply
        self._complaint = ""
        self._thread = PeriodicThread("tfs-config-file", self.poll, interval)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._thread.stop()

    def poll(self) -> None:
        """Looks once. Never raises for what is in the file."""
        try:
            config = read_config_file(self._path, self._working_directory)
            if config != self._applied:
                self._applied = None
                self._apply(config)
                self._applied = config
            self._complaint = ""
        except ServingError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                logger.error("config file refused, nothing changed; it is tried again: %s", str(error))


class RepositoryFollower:
    """Serves every model of a directory, also those that appear later, in the versions that its config asks for.
    ``first_look`` -> ``start`` -> ``close``."""

    def __init__(
        self, options: ServerOptions, clock: Clock, check: Callable[[ModelServerConfig], None], apply: Apply
    ) -> None:
        self._check = check
        self._apply = apply
        self._following = threading.Event()
        self._policies = RepositoryPolicies()
        self._found: dict[str, _Found] = {}
        self._skipped: dict[str, str] = {}
        self._path = os.path.abspath(options.model_repository)
        interval = options.file_system_poll_wait_seconds
        self._repository = ModelRepository(
            self._path,
            RealDisk(),
            clock,
            self._on_change,
            poll_interval=interval if interval > 0 else None,
            watch=interval > 0,
            every_look=True,
        )

    def first_look(self) -> ModelServerConfig:
        """What is there now. FAILED_PRECONDITION if there is no such directory."""
        if not os.path.isdir(self._path):
            raise failed_precondition("the model repository is no directory (--model_repository)")
        self._repository.poll()
        return self._config(self._found)

    def start(self) -> None:
        self._following.set()
        self._repository.start()

    def close(self) -> None:
        self._repository.close()

    def _on_change(self, models: Mapping[str, str]) -> None:
        policies = self._policies.read(models)
        before, self._found = self._found, {name: (path, policies[name]) for name, path in models.items()}
        if not self._following.is_set() or self._found == before:
            return
        try:
            self._apply(self._config(self._found))
        except ServingError as error:
            logger.error("the models of the repository were refused, nothing changed: %s", str(error))

    def _config(self, models: Mapping[str, _Found]) -> ModelServerConfig:
        """A model that cannot be served is left out, so that it does not stand in the way of the others."""
        accepted = {name: found for name, found in models.items() if self._accepts(name, found)}
        return _config(accepted)

    def _accepts(self, name: str, found: _Found) -> bool:
        try:
            self._check(_config({name: found}))
        except ServingError as error:
            if self._skipped.get(name) != str(error):
                self._skipped[name] = str(error)
                logger.error("model %r of the repository is not served: %s", name, str(error))
            return False
        self._skipped.pop(name, None)
        return True


def _config(models: Mapping[str, _Found]) -> ModelServerConfig:
    entries = [
        {"name": name, "base_path": path, "model_version_policy": policy} for name, (path, policy) in models.items()
    ]
    return build(ModelServerConfig, Document({"model_config_list": {"config": entries}}))
