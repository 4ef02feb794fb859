"""The paths that the operator trusts to hold code: the globs of ``--trusted_model_base_paths``.

A glob is matched component by component (``*`` does not cross ``/``) against the real path, so that the target of a
symbolic link below a trusted path is not trusted. Files that were fetched from a URL are trusted by globs of URLs
alone, wherever on this machine they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic

from tfs_lite.storage.url import is_url, matches

LOST_AND_FOUND = "lost+found"


def of_this_machine(path: str) -> None:
    """The origin of every path where nothing is fetched."""


@dataclass(frozen=True, slots=True)
class TrustedPaths:
    """The globs, absolute, with the links of their plain leading part resolved, and the globs of URLs. ``origin_of``:
    the URL that the files at a real path were fetched from, empty if nobody knows it any more; None: they are this
    machine's own. Make it with :meth:`of`."""

    globs: tuple[tuple[str, ...], ...] = ()
    urls: tuple[str, ...] = ()
    origin_of: Callable[[str], str | None] = of_this_machine

    @classmethod
    def of(cls, globs: Iterable[str]) -> TrustedPaths:
        given = [glob for glob in globs if glob]
        paths = tuple(_parts(_resolve_plain_part(glob)) for glob in given if not is_url(glob))
        return cls(paths, tuple(filter(is_url, given)))

    def allows(self, path: str) -> bool:
        """Whether ``path`` is one of the trusted paths or lies below one, or was fetched from a trusted URL."""
        real = os.path.realpath(path)
        origin = self.origin_of(real)
        if origin is not None:
            return any(matches(origin, glob) for glob in self.urls)
        parts = _parts(real)
        return any(_matches(glob, parts) for glob in self.globs)

    def allows_all_of(self, directory: str) -> bool:
        """Whether the directory is trusted, and every file and folder in it at any depth: links are followed, because
        one may lead out of a trusted path. A folder that cannot be listed is not trusted, except the one that a file
        system has for itself."""
        waiting, seen = [directory], set[str]()
        while waiting:
            path = os.path.realpath(waiting.pop())
            if path in seen:
                continue
            seen.add(path)
            if not self.allows(path):
                return False
            try:
                waiting += (os.path.join(path, name) for name in os.listdir(path))
            except (NotADirectoryError, FileNotFoundError):
                continue
            except OSError:
                if os.path.basename(path) != LOST_AND_FOUND:
                    return False
        return True


NO_TRUST = TrustedPaths()


def _matches(glob: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    return len(glob) <= len(parts) and all(fnmatchcase(part, rule) for rule, part in zip(glob, parts, strict=False))


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split(os.sep) if part)


def _resolve_plain_part(glob: str) -> str:
    parts = os.path.abspath(glob).split(os.sep)
    plain = next((index for index, part in enumerate(parts) if has_magic(part)), len(parts))
    return os.path.join(os.path.realpath(os.sep.join(parts[:plain]) or os.sep), *parts[plain:])
