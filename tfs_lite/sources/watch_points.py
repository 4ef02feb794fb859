"""The directories that have to be watched to notice a change at a path.

A path may pass through symbolic links that are switched, may not exist yet, and may be replaced as a whole; each of
these is a change of a name in some other directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class WatchPoint:
    """A directory and what matters in it: one name, or (None) everything that is not hidden."""

    directory: str
    name: str | None = None
    recursive: bool = False


def points_for(path: str) -> Iterator[WatchPoint]:
    """The directories to watch for changes of what is in the directory ``path``, or of which directory that is.

    Follows the path as the system does. Each symbolic link on the way may be switched; the first part that is missing
    may appear; the last part may be replaced.
    """
    here, pending, links = os.sep, _parts(os.path.abspath(path)), 0
    while pending:
        name = pending.pop()
        if name == "..":
            here = os.path.dirname(here)
            continue
        full = os.path.join(here, name)
        target, is_directory = _link_target(full), os.path.isdir(full)
        if target is not None or not pending or not is_directory:
            yield WatchPoint(here, name)
        if target is not None and links < _MAX_LINKS:
            links += 1
            here = os.sep if os.path.isabs(target) else here
            pending.extend(_parts(target))
        elif is_directory:
            here = full
        else:
            return
    yield WatchPoint(here)


def point_below(path: str) -> WatchPoint:
    """The directory to watch for changes of anything below ``path``."""
    return WatchPoint(os.path.realpath(path), recursive=True)


@dataclass(frozen=True, slots=True)
class WatchTarget:
    """All watch points of one directory. ``identity`` changes when another directory takes its place."""

    directory: str
    names: frozenset[str] | None
    recursive: bool
    identity: tuple[int, int]


def targets_of(points: Iterable[WatchPoint]) -> dict[str, WatchTarget]:
    """One target for each directory that is there and readable."""
    merged: dict[str, WatchTarget] = {}
    for point in points:
        known = merged.get(point.directory)
        names = None if point.name is None else frozenset({point.name})
        recursive = point.recursive
        if known is not None:
            names = None if names is None or known.names is None else names | known.names
            recursive = recursive or known.recursive
        elif not os.access(point.directory, os.R_OK | os.X_OK):
            continue
        try:
            status = os.stat(point.directory)
        except OSError:
            continue
        merged[point.directory] = WatchTarget(point.directory, names, recursive, (status.st_dev, status.st_ino))
    return merged


def _parts(path: str) -> list[str]:
    """The components of a path, the first one last."""
    return [part for part in reversed(path.split(os.sep)) if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None
