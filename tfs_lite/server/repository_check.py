"""Whether a version that is to be loaded by call is all there: if it has a manifest, its files must be those listed."""

from __future__ import annotations

import os

from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.sources.completeness import Waiting
from tfs_lite.sources.disk import Disk
from tfs_lite.sources.inspector import VersionInspector


def nobody_waits() -> None:
    """Digests are made on the caller's thread."""


class ManifestCheck:
    """One thread at a time; ``close`` once at the end."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._executor = PoolExecutor("tfs-load-digests", 0)
        self._inspector = VersionInspector(disk, clock, self._executor, nobody_waits)

    def problem(self, path: str) -> Status:
        """OK for a version that is whole, and for one without a manifest: its load will tell. Reads all its files."""
        if not os.path.isfile(os.path.join(path, MANIFEST_NAME)):
            return OK
        try:
            verdict = self._inspector.inspect(path, 0.0)
            if isinstance(verdict, Waiting) and verdict.settling:
                self._executor.run_pending()
                verdict = self._inspector.inspect(path, 0.0)
        finally:
            self._inspector.keep_only(set())
        return Status(StatusCode.UNAVAILABLE, verdict.reason) if isinstance(verdict, Waiting) else OK

    def close(self) -> None:
        self._inspector.close()
        self._executor.shutdown()
