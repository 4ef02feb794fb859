"""The files that a model's own config speaks of. The config of an ensemble says that a version needs none; others name
files beside the versions (labels, the data of a warm-up), which then belong to every version.

A config is read again only when its file has changed, and parsed only if it may say one of these.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from tfs_lite.config.model import FIELDS_WITH_FILES, files_beside
from tfs_lite.config.text import MAX_FILE_BYTES, parse_model_settings
from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, NoPlainFileError
from tfs_lite.core.status import ServingError
from tfs_lite.sources.disk import DirectoryEntry, Disk

_State = tuple[tuple[str, str], ...]
"""Names and states of the config files of a directory."""


class BaseConfigs:
    """Any thread may call any method. Remembers its answers for each directory that was asked about."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._need_files: dict[str, tuple[_State, bool]] = {}
        self._named: dict[str, tuple[_State, frozenset[str]]] = {}

    def needs_files(self, base: str) -> bool:
        """Whether versions below ``base`` wait for files. Not with a config of an ensemble, nor with one that has a
        mistake: loading the version says which. Raises OSError."""
        state = _state_of_configs(self._disk.list_directory(base))
        known = self._need_files.get(base)
        if known is None or known[0] != state or not _can_be_told(state):
            needs = all(self._needs_files(base, name) for name, _ in state)
            known = self._need_files[base] = (state, needs)
        return known[1]

    def forget(self, directories: Iterable[str]) -> None:
        """Forgets what was read in these directories."""
        for directory in directories:
            self._need_files.pop(directory, None)
            self._named.pop(directory, None)

    def named(self, directory: str, base: str, entries: Iterable[DirectoryEntry]) -> list[tuple[str, str]]:
        """Names and states of the files below ``base`` that the config among ``entries``, the children of
        ``directory``, names; those that are not there are left out. Raises OSError."""
        state = _state_of_configs(entries)
        known = self._named.get(directory)
        if known is None or known[0] != state or not _can_be_told(state):
            names = frozenset[str]().union(*(self._files_named(directory, name) for name, _ in state))
            known = self._named[directory] = (state, names)
        return [
            found for folder in sorted({*map(os.path.dirname, known[1])}) for found in self._in(base, folder, known[1])
        ]

    def _in(self, base: str, folder: str, names: frozenset[str]) -> Iterator[tuple[str, str]]:
        try:
            entries = self._disk.list_directory(os.path.join(base, folder) if folder else base)
        except OSError:
            return
        for entry in entries:
            path = os.path.join(folder, entry.name)
            if path in names and not entry.is_directory:
                yield path, entry.state

    def _needs_files(self, base: str, name: str) -> bool:
        try:
            return parse_model_settings(self._text(base, name), name).ensemble_scheduling is None
        except (ServingError, UnicodeDecodeError, NoPlainFileError):
            return False

    def _files_named(self, directory: str, name: str) -> frozenset[str]:
        return files_named(lambda: self._read(directory, name), name)

    def _text(self, directory: str, name: str) -> str:
        return _decoded(self._read(directory, name))

    def _read(self, directory: str, name: str) -> bytes:
        with self._disk.open(os.path.join(directory, name)) as file:
            return file.read(MAX_FILE_BYTES + 1)


def files_named(read: Callable[[], bytes], name: str) -> frozenset[str]:
    """The files beside the versions that the config of this name, whose contents ``read`` returns, names; none for a
    config that cannot be read. Raises the other errors of ``read``."""
    try:
        text = _decoded(read())
        if not any(field in text for field in FIELDS_WITH_FILES):
            return frozenset()
        return files_beside(parse_model_settings(text, name))
    except (ServingError, UnicodeDecodeError, NoPlainFileError):
        return frozenset()


def _decoded(data: bytes) -> str:
    return data.decode("utf-8-sig", "strict")


def _state_of_configs(entries: Iterable[DirectoryEntry]) -> _State:
    configs = (entry for entry in entries if not entry.is_directory and entry.name in MODEL_SETTINGS_FILES)
    return tuple(sorted((entry.name, entry.state) for entry in configs))


def _can_be_told(state: _State) -> bool:
    return all(of_file for _, of_file in state)
