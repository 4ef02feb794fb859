"""What the config beside the versions says about their files: that of an ensemble says that there need be none.

Only a version directory without files raises the question. The answer is remembered for as long as the config does not
change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from tfs_lite.config.text import MAX_FILE_BYTES, MODEL_SETTINGS_FILES, parse_model_settings
from tfs_lite.core.status import ServingError
from tfs_lite.sources.disk import DirectoryEntry, Disk


@dataclass(frozen=True, slots=True)
class _Answer:
    """``state`` is that of the files that it was read from."""

    state: tuple[tuple[str, str], ...]
    needs_files: bool


class BaseConfigs:
    """Any thread may call any method. Remembers one answer for each base path that was asked about."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._answers: dict[str, _Answer] = {}

    def needs_files(self, base: str) -> bool:
        """Whether versions below ``base`` wait for files. Not with a config of an ensemble, nor with one that has a
        mistake: loading the version says which. Raises OSError."""
        entries = [entry for entry in self._disk.list_directory(base) if _is_config(entry)]
        state = tuple(sorted((entry.name, entry.state) for entry in entries))
        known = self._answers.get(base)
        if known is None or known.state != state or any(not entry.state for entry in entries):
            known = self._answers[base] = _Answer(state, all(self._read(base, name) for name, _ in state))
        return known.needs_files

    def forget(self, bases: Iterable[str]) -> None:
        """What was read for these base paths."""
        for base in bases:
            self._answers.pop(base, None)

    def _read(self, base: str, name: str) -> bool:
        with self._disk.open(os.path.join(base, name)) as file:
            data = file.read(MAX_FILE_BYTES + 1)
        try:
            return parse_model_settings(data.decode("utf-8-sig", "strict"), name).ensemble_scheduling is None
        except (ServingError, UnicodeDecodeError):
            return False


def _is_config(entry: DirectoryEntry) -> bool:
    return not entry.is_directory and entry.name in MODEL_SETTINGS_FILES
