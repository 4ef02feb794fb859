"""What a server is to serve when it starts: from the source of models that its options name."""

from __future__ import annotations

from pathlib import Path

from tfs_lite.config.model_server import ModelServerConfig, one_model
from tfs_lite.config.text import read_model_server_config
from tfs_lite.core.status import invalid_argument
from tfs_lite.server.options import ServerOptions
from tfs_lite.server.plan import base_directory
from tfs_lite.server.topology import Platforms


def read_first_config(options: ServerOptions) -> ModelServerConfig:
    """From the config file or the base path. Raises INVALID_ARGUMENT or NOT_FOUND in one line that says where and
    what. A model repository is looked through by its follower instead."""
    directory = working_directory(options)
    if options.model_config_file:
        return read_config_file(options.model_config_file, directory)
    if options.model_base_path:
        return one_model(options.model_name, options.model_base_path, directory)
    raise invalid_argument(
        "nothing to serve: set model_base_path, model_config_file or model_repository (--model_base_path=DIR ...)"
    )


def read_config_file(path: str, directory: Path) -> ModelServerConfig:
    """A config file of this server: every mistake in it, an unsupported platform too, is told with its place."""
    return read_model_server_config(path, directory, Platforms.known().named)


def working_directory(options: ServerOptions) -> Path:
    """What relative base paths in flags and files are below."""
    return base_directory(options) or Path.cwd()
