"""The request of a load call: its parameters are checked here, and the files that it brings are written.

Nothing here looks at a repository. The files of a call are a model directory of their own, below a private directory of
the server.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

RepositoryValue = bool | int | str | bytes
"""A value of a parameter of a load or unload call."""

CONFIG, FILE_PREFIX = "config", "file:"
MAX_FILES = 10_000
"""The most files in one call."""
MAX_DEPTH = 32
"""Parts of a file's path."""
MAX_NAME = 500
"""Characters of a name that an error repeats."""


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """``config``: a model config as JSON, None for the one on disk. ``files``: contents by path inside the model's
    directory; without any, the directory on disk counts."""

    name: str
    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


def load_request(name: str, parameters: Mapping[str, RepositoryValue], max_bytes: int) -> LoadRequest:
    """INVALID_ARGUMENT for a name that cannot be a directory's and for unknown parameters; INTERNAL for files that
    cannot make a model directory. ``max_bytes`` bounds all files together."""
    check_name(name)
    config, files = None, dict[str, bytes]()
    for key, value in parameters.items():
        if key == CONFIG and isinstance(value, str):
            config = value
        elif key.startswith(FILE_PREFIX) and isinstance(value, bytes):
            files[_inside(name, key.removeprefix(FILE_PREFIX))] = value
        else:
            raise invalid_argument(f"load of model '{name:.{MAX_NAME}}': {_unexpected(key, value)}")
    if files and config is None:
        raise poll_failure(name, "files were sent without a config")
    if len(files) > MAX_FILES or sum(map(len, files.values())) > max_bytes:
        raise invalid_argument(
            f"load of model '{name:.{MAX_NAME}}': at most {MAX_FILES} files of {max_bytes} bytes together"
        )
    return LoadRequest(name, config, files)


def check_name(name: str) -> None:
    """INVALID_ARGUMENT for one that is blank or leads out of the repository."""
    if not name.strip():
        raise invalid_argument("Model name cannot be empty")
    if "/" in name or "\\" in name or "\0" in name or name.strip() in ("..", "."):
        raise invalid_argument("Model name must not contain path traversal characters")


def poll_failure(name: str, why: str) -> ServingError:
    """The model cannot be loaded for a reason that shows before anything is loaded."""
    return ServingError(
        StatusCode.INTERNAL,
        f"failed to load '{name:.{MAX_NAME}}', failed to poll from model repository{why and ': '}{why}",
    )


def _unexpected(key: str, value: RepositoryValue) -> str:
    if key == CONFIG:
        return f"parameter 'config' has to be a string, got {type(value).__name__}"
    if key.startswith(FILE_PREFIX):
        return f"parameter '{key:.200}' has to be bytes, got {type(value).__name__}"
    return f"unrecognized parameter '{key:.200}'; known: 'config' and 'file:<version>/<path>'"


def _inside(name: str, path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\\" in path or "\0" in path:
        raise poll_failure(name, f"'{path:.200}' is no path inside the model's directory")
    if len(parts) > MAX_DEPTH:
        raise poll_failure(name, f"the path '{path:.200}' has {len(parts)} parts, expected at most {MAX_DEPTH} parts")
    return "/".join(parts)


class UploadedModels:
    """The private directory for files of load calls. One thread at a time; ``close`` removes everything."""

    def __init__(self) -> None:
        self._root = ""

    def write(self, request: LoadRequest) -> str:
        """The new model directory. INTERNAL if the files contradict one another or there is no room."""
        base = ""
        try:
            self._root = self._root or tempfile.mkdtemp(prefix="tfs-lite-models-")
            base = tempfile.mkdtemp(dir=self._root)
            for path, content in request.files.items():
                target = os.path.join(base, path)
                os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
                with open(target, "xb") as file:
                    file.write(content)
        except OSError as error:
            self.remove(base)
            raise poll_failure(request.name, f"its files cannot be written: {error.strerror}") from None
        return base

    def remove(self, base: str) -> None:
        if base:
            shutil.rmtree(base, ignore_errors=True)

    def close(self) -> None:
        self.remove(self._root)
        self._root = ""
