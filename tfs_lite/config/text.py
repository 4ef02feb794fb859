"""Files to settings: one entry point for both syntaxes.

A name that ends in ``.yaml`` or ``.yml`` is YAML, everything else is protobuf's text format. Every mistake, in syntax
or in sense, raises one ServingError that names file, line, column and field.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.config.settings import Document, build, config_error
from tfs_lite.config.syntax import check_keys, read_proto_text, read_yaml
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.protocols import messages

MAX_FILE_BYTES = 4 * 1024 * 1024
YAML_ENDINGS = (".yaml", ".yml")


def parse_model_server_config(
    text: str, name: str, working_directory: Path | None = None, platforms: Collection[str] | None = None
) -> ModelServerConfig:
    """The served models that ``text`` asks for. ``name`` decides the syntax and stands in messages.

    Relative base paths are resolved against ``working_directory``; without one they are refused. ``platforms`` are
    those of the server; None if only the server can tell.
    """
    return build(ModelServerConfig, read_document(text, name, messages.ModelServerConfig), working_directory, platforms)


def read_model_server_config(
    path: str, working_directory: Path | None = None, platforms: Collection[str] | None = None
) -> ModelServerConfig:
    """The same, from a file. A relative ``path`` is below ``working_directory``; messages show it as given."""
    text = read_text((working_directory or Path()) / path, path)
    return parse_model_server_config(text, path, working_directory, platforms)


def parse_model_settings(text: str, name: str) -> ModelSettings:
    """The settings of one model. ``name`` decides the syntax and stands in messages."""
    document = read_document(text, name, messages.TritonModelConfig)
    if not name.endswith(YAML_ENDINGS):
        check_keys(document)
    return build(ModelSettings, document)


def load_model_settings(version_directory: Path, model: str) -> ModelSettings:
    """What the operator said about this version: the file in it, else the file beside it, else all defaults.

    Two files in one directory, or a file that names another model, raise INVALID_ARGUMENT.
    """
    for directory, prefix in ((version_directory, f"{version_directory.name}/"), (version_directory.parent, "")):
        found = [name for name in MODEL_SETTINGS_FILES if os.path.lexists(directory / name)]
        if len(found) > 1:
            raise invalid_argument(f"model {model} has both {' and '.join(prefix + name for name in found)}; keep one")
        if found:
            shown = prefix + found[0]
            settings = parse_model_settings(read_model_config(directory / found[0], shown), shown)
            if settings.name not in ("", model):
                raise invalid_argument(f'{shown}: name is "{settings.name}", but the model is called "{model}"')
            return settings
    return ModelSettings()


def read_document(text: str, name: str, message_class: Any) -> Document:
    """``text`` as plain data with positions. ``name`` decides the syntax; ``message_class`` is that of text format."""
    if name.endswith(YAML_ENDINGS):
        return read_yaml(text, name)
    return read_proto_text(text, message_class, name)


def read_model_config(path: Path, name: str) -> str:
    """:func:`read_text`, but FAILED_PRECONDITION for what is no file, such as a pipe, which might never end."""
    if path.exists() and not path.is_file():
        raise failed_precondition(f"{name}: cannot be read: it is no file")
    return read_text(path, name)


def read_text(path: Path, name: str) -> str:
    """What is in a file. Without, NOT_FOUND, FAILED_PRECONDITION or INVALID_ARGUMENT says so with ``name``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ServingError(StatusCode.NOT_FOUND, f"{name}: there is no such file") from None
    except OSError as error:
        raise failed_precondition(f"{name}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise invalid_argument(f"{name}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise config_error(name, data.count(b"\n", 0, error.start) + 1, 1, "not UTF-8 text") from None
