"""The paths that the operator trusts to hold code: the globs of ``--trusted_model_base_paths``.

A glob is matched component by component (``*`` does not cross ``/``) against the real path, so that the target of a
symbolic link below a trusted path is not trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import has_magic

LOST_AND_FOUND = "lost+found"


@dataclass(frozen=True, slots=True)
class TrustedPaths:
    """The globs, absolute, with the links of their plain leading part resolved. Make it with :meth:`of`."""

    globs: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def of(cls, globs: Iterable[str]) -> TrustedPaths:
        return cls(tuple(_parts(_resolve_plain_part(glob)) for glob in globs if glob))

    def allows(self, path: str) -> bool:
        """Whether ``path`` is one of the trusted paths or lies below one."""
        parts = _parts(os.path.realpath(path))
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
