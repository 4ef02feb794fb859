"""A process that fetches one version into the cache of its machine, for tests that kill it or run two of them.

    python -m tests.support.remote.fetch_program ROOT SETTINGS

``SETTINGS`` is a JSON object, all fields optional: ``kill_at``, bytes of the version in the cache at which the process
ends itself with SIGKILL; ``kill_before_rename``, whether it does so when all is written; ``pause``, whether it waits
for a line on its standard input after the first piece. It says on its standard output what happens, one JSON object a
line.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from dataclasses import replace
from typing import Any

from tests.support.storage import MemoryStorage
from tfs_lite.storage.fetch import Fetcher, FetchEvent, RemoteVersion, has_all_files, wanted_files
from tfs_lite.storage.files_cache import FilesCache

FILES = {"model.pt2": 3_000_000, "data/words.bin": 900_000, "data/empty": 0, "labels.txt": 100_000}
"""The sizes of the version's files; their bytes are the same in each process."""
SIZE = sum(FILES.values())


def content_of(name: str) -> bytes:
    return random.Random(name).randbytes(FILES[name])


def stored() -> tuple[MemoryStorage, RemoteVersion]:
    storage = MemoryStorage()
    for name in FILES:
        storage.set(f"m/1/{name}", content_of(name))
    files = (replace(file, path=file.path.removeprefix("m/1/")) for file in storage.files("m/1").files)
    return storage, RemoteVersion("s3://bucket/m", "1", "m/1", wanted_files(files))


def kill_oneself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


class _Cache(FilesCache):
    """Ends its process when a version is whole, and has no name yet."""

    def publish(self, key: str, use: int) -> None:
        kill_oneself()


class _Run:
    def __init__(self, root: str, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._read = 0
        self._told: set[str] = set()
        self.storage, self.version = stored()
        kind = _Cache if settings.get("kill_before_rename") else FilesCache
        self.cache = kind(root, 1 << 30, has_all_files)
        self.fetcher = Fetcher(self.storage, self.cache, threading.Event(), self._on_event)

    def _on_event(self, event: FetchEvent) -> None:
        tell(stage=event.stage.value, fetched=event.fetched_bytes, attempts=event.attempts)

    def looks(self) -> bool:
        progress = self.fetcher.progress(self.version.key)
        if progress is not None and progress.waits:
            self._tell_once("waits")
        return False

    def on_read(self, size: int) -> None:
        self._read += size
        if self._read >= self._settings.get("kill_at", SIZE + 1):
            kill_oneself()
        if self._settings.get("pause") and self._tell_once("fetches"):
            sys.stdin.readline()

    def _tell_once(self, what: str) -> bool:
        if what in self._told:
            return False
        self._told.add(what)
        tell(stage=what)
        return True


def main() -> None:
    run = _Run(sys.argv[1], json.loads(sys.argv[2]))
    directory = run.fetcher.fetch(run.version, run.looks, run.on_read)
    tell(stage="ends", directory=directory, gets=run.storage.requests["get"])


if __name__ == "__main__":
    main()
