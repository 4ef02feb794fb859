"""Which models a server could load on request, and where they are: looked up anew for each call.

They come from the model repository, from the config file, or are the one model of a base path, as the options say.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from tfs_lite.config.model_server import ModelConfig, ModelServerConfig
from tfs_lite.config.settings import Document, build
from tfs_lite.core.status import ServingError, failed_precondition
from tfs_lite.server.first_config import read_first_config
from tfs_lite.server.options import ServerOptions
from tfs_lite.sources.disk import Disk, Entry, RealDisk
from tfs_lite.sources.repository import models_in


class Catalogue:
    """Any thread may call any method; each reads files."""

    def __init__(self, options: ServerOptions, disk: Disk | None = None) -> None:
        self._options = options
        self._disk = disk or RealDisk()
        self._root = os.path.abspath(options.model_repository) if options.model_repository else ""

    @property
    def is_repository(self) -> bool:
        """Whether a model's own config says which of its versions are wanted."""
        return bool(self._root)

    def check(self) -> None:
        """FAILED_PRECONDITION if the repository is no directory; the error of a config file that is wrong."""
        if not self._root:
            read_first_config(self._options)
        elif not os.path.isdir(self._root):
            raise failed_precondition("the model repository is no directory (--model_repository)")

    def find(self, name: str) -> ModelConfig | None:
        """None for a model that is not there. ServingError if the place where models are said cannot be read."""
        if not self._root:
            return next((model for model in read_first_config(self._options).models if model.name == name), None)
        listing = {name: self._list(os.path.join(self._root, name))}
        return one_entry(name, os.path.join(self._root, name)) if models_in(listing, ()) else None

    def names(self) -> list[str]:
        """Every model that could be loaded; none where they cannot be read."""
        try:
            if not self._root:
                return [model.name for model in read_first_config(self._options).models]
            children = [entry.name for entry in self._disk.list_directory(self._root) if entry.is_directory]
        except (OSError, ServingError):
            return []
        listing: Mapping[str, list[Entry]] = {child: self._list(os.path.join(self._root, child)) for child in children}
        return models_in(listing, ())

    def _list(self, path: str) -> list[Entry]:
        try:
            return self._disk.list_directory(path)
        except OSError:
            return []


def one_entry(name: str, base_path: str) -> ModelConfig:
    """INVALID_ARGUMENT for a name that a client could not say."""
    data = {"model_config_list": {"config": [{"name": name, "base_path": base_path}]}}
    return build(ModelServerConfig, Document(data)).models[0]
