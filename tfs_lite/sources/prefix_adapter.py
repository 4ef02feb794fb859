"""Puts a directory in front of every emitted path."""

from __future__ import annotations

from tfs_lite.core.servable import StoragePath
from tfs_lite.core.source import UnarySourceAdapter


class PrefixStoragePathSourceAdapter(UnarySourceAdapter[StoragePath, StoragePath]):
    """``/baz`` and ``/baz/`` both turn ``bar`` into ``/baz/bar``; an empty prefix changes nothing."""

    def __init__(self, prefix: str) -> None:
        super().__init__(lambda item: _join(prefix, item.payload))


def _join(prefix: str, path: StoragePath) -> StoragePath:
    return f"{prefix.rstrip('/')}/{path.lstrip('/')}" if prefix else path
