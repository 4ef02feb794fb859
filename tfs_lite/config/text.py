"""Files to settings: one entry point for both syntaxes.

A name that ends in ``.yaml`` or ``.yml`` is YAML, everything else is protobuf's text format. Every mistake, in syntax
or in sense, raises one ServingError that names file, line, column and field.

A file that is read again while the server runs may be met half written. So a change counts only once the file has not
changed for a while: :class:`FileState`, :class:`QuietFile`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.config.settings import Document, build, config_error
from tfs_lite.config.syntax import check_keys, read_proto_text, read_yaml
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, open_plain
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.protocols import messages

MAX_FILE_BYTES = 4 * 1024 * 1024
YAML_ENDINGS = (".yaml", ".yml")
QUIET_SECONDS = 0.2
"""The seconds for which a file must not have changed before it is read again."""
REMOVAL_SECONDS = 2.0
"""The same where the file says less than the one in force: it may not be written to its end."""


class FileState(NamedTuple):
    """Two equal states mean equal contents of the file. A link counts as the file that it leads to."""

    modified_ns: int
    changed_ns: int
    size: int
    inode: int
    device: int
    mode: int

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> FileState | None:
        """None if the file is missing, or cannot be looked at."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        return cls(found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode)


class QuietFile:
    """The clock that knows how long a file has not changed. One thread at a time."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float] | None = None) -> None:
        """Both clocks are in seconds; ``wall`` counts since 1970, and is for those who look only when they have to: a
        file that changed long before their first look is quiet. A file server whose clock is behind may mislead it."""
        self._monotonic = monotonic
        self._wall = wall
        self._state: FileState | None = None
        self._since = monotonic()

    def seconds(self, state: FileState | None) -> float:
        """The seconds of quiet at a look that has found this state: since the first such look, or since the change of
        the file where its time is earlier."""
        now = self._monotonic()
        if state != self._state:
            self._state, self._since = state, now
        age = 0.0 if state is None or self._wall is None else self._wall() - state.changed_ns / 1e9
        return max(now - self._since, age)


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


@lru_cache(maxsize=16)
def parse_model_settings(text: str, name: str) -> ModelSettings:
    """The settings of one model. ``name`` decides the syntax and stands in messages. Those who look at a version, admit
    it, account for it and open it read its config one after the other: the latest texts are parsed once."""
    document = read_document(text, name, messages.TritonModelConfig)
    if not name.endswith(YAML_ENDINGS):
        check_keys(document)
    return build(ModelSettings, document)


def load_model_settings(version_directory: Path, model: str) -> ModelSettings:
    """Loads the operator's settings of this version: the file in it, else the file beside it, else all defaults.

    Two files in one directory, or a file that names another model, raise INVALID_ARGUMENT.
    """
    for directory, prefix in ((version_directory, f"{version_directory.name}/"), (version_directory.parent, "")):
        found = [name for name in MODEL_SETTINGS_FILES if os.path.lexists(directory / name)]
        if len(found) > 1:
            raise invalid_argument(f"model {model} has both {' and '.join(prefix + name for name in found)}; keep one")
        if found:
            shown = prefix + found[0]
            settings = parse_model_settings(read_text(directory / found[0], shown), shown)
            if settings.name not in ("", model):
                raise invalid_argument(f'{shown}: name is "{settings.name}", but the model is called "{model}"')
            return settings
    return ModelSettings()


def read_document(text: str, name: str, message_class: Any) -> Document:
    """``text`` as plain data with positions. ``name`` decides the syntax; ``message_class`` is that of text format."""
    if name.endswith(YAML_ENDINGS):
        return read_yaml(text, name)
    if text.lstrip().startswith("{"):
        told = "JSON is read from a file called *.yaml; that of OpenVINO Model Server: docs/from-openvino.md"
        raise config_error(name, 1, 1, told)
    return read_proto_text(text, message_class, name)


def read_text(path: Path, name: str, *, takes_pipe: bool = False) -> str:
    """Reads the text of a plain file. Without one, NOT_FOUND, FAILED_PRECONDITION or INVALID_ARGUMENT says so with
    ``name``; a pipe, which might never end, is waited for only with ``takes_pipe``: where a user has just named it."""
    try:
        with path.open("rb") if takes_pipe else open_plain(path) as file:
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
