"""Whether the files of a version are still those that it was loaded from.

    load: LoadedFiles -> read everything -> changes? -> note_loaded
    later, a process started again, an instance added: require -> read -> require

One version must not give the answers of two models in turn, so whoever opens a version again opens what was loaded, or
nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tfs_lite.config.model import ModelSettings, files_beside
from tfs_lite.core.status import ServingError, StatusCode, not_found
from tfs_lite.core.version_files import Tree, read_tree, state_of, state_of_file

MAX_SHOWN = 8
GONE = "its directory is gone"
CHANGED = "its files have changed since it was loaded"


@dataclass(frozen=True, slots=True)
class SeenFiles:
    """What the files of a version were at one moment: those in its directory, and those that its config names beside
    it, with their states."""

    directory: str
    tree: Tree
    beside: tuple[tuple[str, str], ...] = ()

    @classmethod
    def look(cls, directory: str, settings: ModelSettings) -> SeenFiles:
        """NOT_FOUND if the directory is gone, UNAVAILABLE if it cannot be read."""
        base = os.path.dirname(directory)
        try:
            tree = read_tree(directory)
        except FileNotFoundError:
            raise not_found(f"version {os.path.basename(directory)}: {GONE}") from None
        except OSError as error:
            raise ServingError(StatusCode.UNAVAILABLE, f"its files cannot be read: {error.strerror}") from None
        found = ((name, state_of_file(os.path.join(base, name))) for name in files_beside(settings))
        return cls(directory, tree, tuple(sorted((name, state) for name, state in found if state)))

    @property
    def state(self) -> str:
        """As sources tell it in their lists."""
        return state_of(self.directory, self.tree.version.fingerprint, self.beside)

    def changes(self, now: SeenFiles) -> list[str]:
        """The names of the files that are others now."""
        before, after = dict(self.beside), dict(now.beside)
        beside = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
        return self.tree.version.differences(now.tree.version) + [f"../{name}" for name in beside]


class LoadedFiles:
    """The files that a version is loaded from, as they were before anything of them was read. Whatever opens the
    version again, or more of it, asks :meth:`require` before and after it has read them. Any thread."""

    def __init__(self, directory: str, settings: ModelSettings) -> None:
        """Raises as :meth:`SeenFiles.look`."""
        self.directory = directory
        self._settings = settings
        self._seen = SeenFiles.look(directory, settings)
        self._loaded = False

    @property
    def state(self) -> str:
        return self._seen.state

    def changes(self) -> list[str]:
        """The names of the files that are others now."""
        return self._seen.changes(SeenFiles.look(self.directory, self._settings))

    def note_loaded(self, accept: bool = False) -> None:
        """The version has been loaded from them. ``accept``: what its own code has written meanwhile is part of it."""
        if accept:
            self._seen = SeenFiles.look(self.directory, self._settings)
        self._loaded = True

    def require(self) -> None:
        """UNAVAILABLE if they are others now, or cannot be read, NOT_FOUND if they are gone: what is opened from them
        would not be what serves. Does nothing while the version is loaded: the end of the load tells."""
        if self._loaded and (changed := self.changes()):
            raise ServingError(StatusCode.UNAVAILABLE, f"{CHANGED} ({shown(changed)})")


def shown(names: Sequence[str]) -> str:
    """File names for a message, the first of them."""
    more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
    return (", ".join(names[:MAX_SHOWN]) + more).encode("utf-8", "backslashreplace").decode()
