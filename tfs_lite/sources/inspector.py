"""Gathers the evidence that :mod:`completeness` asks for, and remembers it for as long as the files do not change.

A poll stats the files of a version and, while they are as before, does nothing else: no archive is opened and no
byte is hashed twice. Hashing happens on an executor of its own, so that a large model does not hold up the others. For
a disk whose files are elsewhere, fetching them takes the place of hashing.
A version without files is looked at through the config beside it, which may say that it needs none.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import Executor, PoolExecutor, Task
from tfs_lite.core.loader import LoadMeter, LoadPhase, LoadProgress, size_text
from tfs_lite.core.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, Tree, parse_manifest
from tfs_lite.core.status import ServingError
from tfs_lite.sources.base_config import BaseConfigs
from tfs_lite.sources.completeness import Complete, Evidence, Need, Waiting, has_files, judge, unverified
from tfs_lite.sources.disk import DirectoryEntry, Disk
from tfs_lite.sources.structure import needs_look, structural_problem
from tfs_lite.storage.store import StorageError
from tfs_lite.storage.url import folders_of

_TRANSIENT = frozenset({errno.ENOENT, errno.ESTALE})
REOPEN_SECONDS, MAX_REOPEN_SECONDS = 60.0, 3600.0
"""The seconds after which archives that were found damaged over a network are opened again; each time twice as many."""
STALLED_SECONDS = 60.0
"""The seconds after which a check that has read nothing more does not come on."""


@dataclass(slots=True)
class _Record:
    """The memory of one version directory; valid for one fingerprint. ``restless_since``: the moment since which each
    look has found it changed. ``open_at``: when archives that were found damaged over a network are opened again;
    ``opened``: how often they were."""

    tree: Tree
    fingerprint: str
    first_seen: float
    restless_since: float
    evidence: Evidence
    open_at: float = 0.0
    opened: int = 0


@dataclass(slots=True)
class _Check:
    """The check of one state of one version. ``result``: as in :attr:`Evidence.digests`; None while it waits or runs.
    At ``read_at`` a look has found that more was read than before. ``was_told``: a look has told the error that ended
    it, and the next one begins another check. ``before``: that error, which is told until that check reads something,
    so that what fails with each poll is not news twice a poll."""

    read_at: float
    read: int = 0
    meter: LoadMeter = field(default_factory=LoadMeter)
    is_running: bool = False
    result: str | OSError | None = None
    was_told: bool = False
    before: OSError | None = None

    @property
    def has_failed_so_far(self) -> bool:
        return self.before is not None and not self.meter.progress.read_bytes

    def comes_on(self, now: float) -> bool:
        read = self.meter.progress.read_bytes or 0
        if read != self.read:
            self.read, self.read_at = read, now
        return now < self.read_at + STALLED_SECONDS


_Key = tuple[str, str]
"""Path and fingerprint: one state of one version."""


class VersionInspector:
    """Says of a version directory whether it is complete.

    Any thread may call any method; two looks at one version at a time find the same. ``on_progress`` is called on the
    executor's thread, with the version's path, when hashing has ended and another look will find a verdict.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        executor: Executor,
        on_progress: Callable[[str], None] = ignore,
        trusts_stamps: bool = False,
    ) -> None:
        """``trusts_stamps``: the disk's clock is taken to be ours, for looks that serve nothing."""
        self._disk = disk
        self._clock = clock
        self._executor = executor
        self._on_progress = on_progress
        self._trusts_stamps = trusts_stamps
        self._takes_unchecked = False
        self._configs = BaseConfigs(disk)
        self._lock = threading.Lock()  # guards the three below
        self._records: dict[str, _Record] = {}  # by path
        self._lags: dict[int, float] = {}  # by device, how far its clock may be behind ours
        self._checks: dict[_Key, _Check] = {}

    def inspect(self, path: str, quiet_period: float) -> Complete | Waiting:
        """The verdict about the version at ``path``, as of now. Never raises for what is on the disk."""
        try:
            tree = self._disk.stat_tree(path)
            record = self._record(path, tree, quiet_period)
            verdict = judge(tree, record.evidence, quiet_period)
            while isinstance(verdict, Need):
                if not self._gather(verdict, path, tree, record):
                    return Waiting(self._reading(tree), settling=True, fetching=self.comes_on(path))
                verdict = judge(tree, record.evidence, quiet_period)
        except OSError as error:
            return Waiting(_describe(error, path), quiet_period if error.errno in _TRANSIENT else None)
        return verdict

    def named_beside(self, path: str, entries: Sequence[DirectoryEntry]) -> list[tuple[str, str]]:
        """Names and states of the files beside the versions that the config of the version at ``path`` names, which is
        its own or the one among ``entries``. Never raises for what is on the disk."""
        base = os.path.dirname(path)
        with self._lock:
            record = self._records.get(path)
        try:
            if record is not None and record.tree.has_config:
                return self._configs.named(path, base, self._disk.list_directory(path))
            return self._configs.named(base, base, entries)
        except OSError:
            return []

    @property
    def wall_time(self) -> float:
        """Seconds since 1970."""
        return self._clock.time()

    def copy(self, disk: Disk, *, takes_unchecked: bool = False) -> VersionInspector:
        """Another inspector that knows what this one knows, for a look that is to have no effects: it hashes nothing,
        and what it finds out is not known here. ``takes_unchecked``: files on this machine that were not hashed yet
        are taken to be those of the manifest, if they have its sizes."""
        other = VersionInspector(disk, self._clock, PoolExecutor("tfs-look", 0))
        other._takes_unchecked = takes_unchecked
        with self._lock:
            other._records = {path: replace(record) for path, record in self._records.items()}
            other._lags, other._checks = dict(self._lags), {key: replace(c) for key, c in self._checks.items()}
        return other

    def parts(self, path: str) -> tuple[list[str], list[str]]:
        """The paths whose stamps say whether the version at ``path`` may have changed since it was inspected: its
        directories, and its files but for the manifest, which counts for what it says of the others."""
        with self._lock:
            record = self._records.get(path)
        names = [file.name for file in record.tree.files if file.name != MANIFEST_NAME] if record is not None else []
        return [path, *(f"{path}/{name}" for name in sorted(folders_of(names)))], [f"{path}/{name}" for name in names]

    @property
    def hashing(self) -> dict[str, LoadProgress]:
        """The progress of the versions whose files are being hashed, by path. Any thread."""
        with self._lock:
            return {path: check.meter.progress for (path, _), check in self._checks.items() if check.is_running}

    def comes_on(self, path: str) -> bool:
        """Whether the files of the version at ``path`` are being checked, and something was read of them within
        :data:`STALLED_SECONDS`; a fetch has bounds of its own."""
        now = self._clock.monotonic()
        with self._lock:
            checks = [check for (at, _), check in self._checks.items() if at == path and check.result is None]
            return any(not check.has_failed_so_far and (check.comes_on(now) or self._disk.fetches) for check in checks)

    def _reading(self, tree: Tree) -> str:
        size = sum(file.size for file in tree.files)
        return f"fetching {size_text(size)}" if self._disk.fetches else f"checking the digests of {size} bytes"

    def forget(self, paths: Set[str] | None = None) -> None:
        """Forgets these versions (None: all) and stops hashing them."""
        with self._lock:
            gone = self._records.keys() | {path for path, _ in self._checks} if paths is None else paths
            self._forget(gone)
        self._configs.forget({*gone, *map(os.path.dirname, gone)})

    def _forget(self, paths: Set[str]) -> None:
        """Called with the lock held."""
        for path in list(paths):
            self._records.pop(path, None)
        for key in [key for key in self._checks if key[0] in paths]:
            del self._checks[key]

    def close(self) -> None:
        """Stops hashing; the executor itself is its owner's."""
        with self._lock:
            self._checks.clear()

    def _record(self, path: str, tree: Tree, quiet_period: float) -> _Record:
        now, wall = self._clock.monotonic(), self._clock.time()
        fingerprint = tree.fingerprint
        with self._lock:
            known = self._records.get(path)
        if known is None or known.fingerprint != fingerprint:
            manifest, problem = self._manifest(path, tree)
            evidence, since = Evidence(manifest, problem, seen_changing=known is not None), now
            if known is not None:
                since = now if now - known.first_seen >= quiet_period else known.restless_since
                evidence = replace(evidence, restless=next(iter(tree.differences(known.tree)), ""))
            known = _Record(tree, fingerprint, now, since, evidence)
            with self._lock:
                self._forget({path})
                self._records[path] = known
        needs_files = has_files(tree) or self._configs.needs_files(os.path.dirname(path))
        evidence = known.evidence
        if evidence.digests == "" and not tree.is_here:
            evidence = replace(evidence, digests=None)
            with self._lock:
                self._checks.pop((path, fingerprint), None)
        if evidence.structure and self._disk.fetches and now >= known.open_at:  # what lies between may have answered
            evidence = replace(evidence, structure=None)
        known.evidence = replace(
            evidence,
            wall_time=wall,
            unchanged_for=now - known.first_seen,
            restless_for=now - known.restless_since,
            clock_lag=self._lag(tree, wall),
            needs_files=needs_files,
            fetches=self._disk.fetches,
        )
        return known

    def _lag(self, tree: Tree, wall: float) -> float:
        """Seconds by which the clock of the tree's disk may be behind ours: it has given a stamp of that age. Stamps on
        a block device of this machine are those of our own clock."""
        if self._trusts_stamps or os.major(tree.device):
            return 0.0
        age = max(wall - tree.changed_ns / 1e9, 0.0) if tree.changed_ns else math.inf
        with self._lock:
            self._lags[tree.device] = min(self._lags.get(tree.device, math.inf), age)
            return self._lags[tree.device]

    def _manifest(self, path: str, tree: Tree) -> tuple[Manifest | None, str]:
        if all(file.name != MANIFEST_NAME for file in tree.files):
            return None, ""
        with self._disk.open(os.path.join(path, MANIFEST_NAME)) as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
        if len(data) > MAX_MANIFEST_BYTES:
            return None, f"{MANIFEST_NAME} is larger than {MAX_MANIFEST_BYTES} bytes"
        try:
            return parse_manifest(data), ""
        except ServingError as error:
            return None, str(error)

    def _gather(self, need: Need, path: str, tree: Tree, record: _Record) -> bool:
        """Adds the evidence to the record. False: it takes a while and ``on_progress`` will be called."""
        if need is Need.STRUCTURE:
            record.evidence = replace(record.evidence, structure=self._structure(path, tree))
            wait = min(REOPEN_SECONDS * 2.0 ** min(record.opened, 10), MAX_REOPEN_SECONDS)
            record.open_at, record.opened = self._clock.monotonic() + wait, record.opened + 1
            return True
        result = self._digests(path, tree, record)
        record.evidence = replace(record.evidence, digests=result)
        return result is not None

    def _structure(self, path: str, tree: Tree) -> str:
        for stat in tree.files:
            if needs_look(stat.name):
                with self._disk.open(os.path.join(path, stat.name)) as file:
                    problem = structural_problem(stat.name, stat.size, file)
                if problem:
                    return problem
        return ""

    def _digests(self, path: str, tree: Tree, record: _Record) -> str | None:
        """The result of hashing, None while at it. Raises the error that ended it, and starts anew when asked again.
        What was fetched before was checked then."""
        if self._disk.fetches and tree.is_here:
            return ""
        key, before = (path, record.fingerprint), None
        with self._lock:
            check = self._checks.get(key)
            if check is not None and isinstance(check.result, OSError) and check.was_told:
                before, check = check.result, None
            is_new = check is None
            if check is None:
                check = self._checks[key] = _Check(self._clock.monotonic(), before=before)
            result = check.result
            check.was_told = isinstance(result, OSError)
        if result is None and self._takes_unchecked and not self._disk.fetches:
            return ""
        if is_new:
            self._executor.submit(self._check_task(key, check, tree, record.evidence.manifest))
        if isinstance(result, OSError):
            raise result
        if result is None and check.before is not None and check.has_failed_so_far:
            raise check.before
        return result

    def _check_task(self, key: _Key, check: _Check, tree: Tree, manifest: Manifest | None) -> Task:
        path, problems = key[0], list[str]()

        def work() -> None:
            check.meter = LoadMeter()
            check.meter.begin(*self._phase(tree, manifest))
            check.is_running = True
            problems.append(
                self._disk.verify(path, tree, manifest, lambda: not self._is_wanted(key, check), check.meter.add)
            )

        def done(error: BaseException | None) -> None:
            with self._lock:
                check.is_running = False
                check.result = problems[0] if error is None else _as_os_error(error)
                wanted = self._checks.get(key) is check
            if wanted:
                self._on_progress(path)

        return Task(f"digests of {os.path.basename(path)}", lambda: self._is_wanted(key, check), work, done)

    def _phase(self, tree: Tree, manifest: Manifest | None) -> tuple[LoadPhase, int]:
        """The phase in which a version is read, and the bytes."""
        if self._disk.fetches or manifest is None:
            return LoadPhase.FETCHING, sum(file.size for file in tree.files)
        return LoadPhase.CHECKING, sum(file.size for file in unverified(tree, manifest))

    def _is_wanted(self, key: _Key, check: _Check) -> bool:
        with self._lock:
            return self._checks.get(key) is check


def _as_os_error(error: BaseException) -> OSError:
    return error if isinstance(error, OSError) else OSError(errno.EIO, str(error))


def _describe(error: OSError, root: str) -> str:
    """The file that is wrong and its fault, without the place of the version on this machine."""
    if isinstance(error, StorageError):
        return error.sentence
    where = os.fspath(error.filename) if isinstance(error.filename, str) else root
    relative = os.path.relpath(where, root) if where.startswith(root) else os.path.basename(where)
    return f"{'the version directory' if relative == '.' else relative}: {error.strerror or type(error).__name__}"
