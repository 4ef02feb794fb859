"""Two processes with one cache, in any order of fetches, faults, holds, releases, evictions and kills.

What is held is never removed; what has a name is whole; the bound is never passed; a part is a beginning; no byte is
asked for twice.
"""

from __future__ import annotations

import random
import tempfile
import threading
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.support.profiles import examples
from tests.support.storage import PIECE, MemoryStorage, unavailable
from tfs_lite.core.status import StatusCode
from tfs_lite.storage.fetch import Fetcher, RemoteVersion, has_all_files, wanted_files
from tfs_lite.storage.files_cache import FilesCache
from tfs_lite.storage.store import StorageError

SIZES = (1, 2, 3, 4)
"""Pieces of each version; one byte more is a file of its own."""
MOST = 6 * PIECE
PROCESSES = st.integers(0, 1)
VERSIONS = st.integers(0, len(SIZES) - 1)


class _Killed(BaseException):
    """The process ends here."""


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._root = Path(self._directory.name) / "cache"
        self._storage = MemoryStorage()
        self._versions = [self._publish(f"m{number}/1", size) for number, size in enumerate(SIZES)]
        self._processes = [self._start(), self._start()]
        self._held: list[list[int]] = [[], []]

    def _publish(self, prefix: str, size: int) -> RemoteVersion:
        self._storage.set(f"{prefix}/model.pt2", random.Random(prefix).randbytes(size * PIECE))
        self._storage.set(f"{prefix}/labels.txt", b"l")
        files = self._storage.files(prefix).files
        cut = len(prefix) + 1
        inside = wanted_files(type(file)(file.path[cut:], file.size, file.tag) for file in files)
        return RemoteVersion(f"s3://b/{prefix[:-2]}", "1", prefix, inside)

    def _start(self) -> Fetcher:
        cache = FilesCache(str(self._root), MOST, has_all_files)
        return Fetcher(self._storage, cache, threading.Event(), sleep=lambda seconds: None)

    def _cache(self, process: int) -> FilesCache:
        cache = self._processes[process]._cache
        assert isinstance(cache, FilesCache)
        return cache

    def _fetch(self, process: int, number: int) -> StatusCode:
        version = self._versions[number]
        try:
            found = self._processes[process].fetch(version)
        except StorageError as error:
            return error.code
        assert has_all_files(found, version.key)
        return StatusCode.OK

    @rule(process=PROCESSES, number=VERSIONS)
    def fetch(self, process: int, number: int) -> None:
        left = self._part(number)
        here = has_all_files(str(self._root / self._versions[number].key / "1"), self._versions[number].key)
        asked: list[int] = []
        self._storage.cut = lambda path, given: asked.append(given)
        code = self._fetch(process, number)
        used = sum(self._versions[other].size for other in {*self._held[0], *self._held[1]} - {number})
        fits = self._versions[number].size + used <= MOST
        assert code is (StatusCode.OK if here or fits else StatusCode.RESOURCE_EXHAUSTED)
        if here:
            assert asked == []
        elif fits:
            assert len(asked) <= SIZES[number] + 1 - left // PIECE

    @rule(process=PROCESSES, number=VERSIONS, pieces=st.integers(0, 4))
    def fetch_in_a_storm(self, process: int, number: int, pieces: int) -> None:
        given_all = 0

        def cut(path: str, given: int) -> StorageError | None:
            nonlocal given_all
            given_all += 1
            return unavailable() if given_all > pieces else None

        self._storage.cut = cut
        code = self._fetch(process, number)
        assert code in (StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED)

    @rule(process=PROCESSES, number=VERSIONS, pieces=st.integers(0, 4))
    def fetch_and_is_killed(self, process: int, number: int, pieces: int) -> None:
        given_all = 0

        def cut(path: str, given: int) -> None:
            nonlocal given_all
            given_all += 1
            if given_all > pieces:
                raise _Killed

        self._storage.cut = cut
        try:
            self._fetch(process, number)
        except _Killed:
            for held in self._held[process]:
                self._cache(process).release(self._versions[held].key)
            self._held[process] = []
            self._processes[process] = self._start()

    @rule(process=PROCESSES, number=VERSIONS)
    def hold(self, process: int, number: int) -> None:
        key = self._versions[number].key
        is_there = (self._root / key).exists()
        assert is_there or number not in self._held[process]
        if self._root.exists():
            assert self._cache(process).hold(key) is is_there
            if is_there:
                self._held[process].append(number)

    @rule(process=PROCESSES, number=VERSIONS)
    def fetch_and_hold(self, process: int, number: int) -> None:
        self.fetch(process, number)
        self.hold(process, number)

    @rule(process=PROCESSES, data=st.data())
    def release(self, process: int, data: Any) -> None:
        if self._held[process]:
            number = data.draw(st.sampled_from(self._held[process]))
            self._held[process].remove(number)
            self._cache(process).release(self._versions[number].key)

    @rule(process=PROCESSES, pieces=st.integers(0, 4))
    def full_disk(self, process: int, pieces: int) -> None:
        if self._root.exists():
            self._cache(process).evict(pieces * PIECE)

    def _part(self, number: int) -> int:
        path = self._root / f"{self._versions[number].key}.partial" / "1" / "model.pt2"
        return path.stat().st_size if path.exists() else 0

    @invariant()
    def held_versions_are_whole(self) -> None:
        for number in {*self._held[0], *self._held[1]}:
            key = self._versions[number].key
            assert has_all_files(str(self._root / key / "1"), key)

    @invariant()
    def what_has_a_name_is_whole_and_a_part_is_a_beginning(self) -> None:
        for version in self._versions:
            for name, is_whole in ((version.key, True), (f"{version.key}.partial", False)):
                for file in version.files:
                    path = self._root / name / "1" / file.path
                    data, _ = self._storage.objects[f"{version.prefix}/{file.path}"]
                    if is_whole and (self._root / name).exists():
                        assert path.read_bytes() == data
                    elif path.exists():
                        assert data.startswith(path.read_bytes())

    @invariant()
    def bound_holds(self) -> None:
        listed = 200 * len(SIZES)  # the lists of sizes
        assert self._cache(0).bytes_held <= MOST + listed

    def teardown(self) -> None:
        for process, held in enumerate(self._held):
            for number in held:
                self._cache(process).release(self._versions[number].key)
        self._directory.cleanup()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(examples(150), stateful_step_count=20)
