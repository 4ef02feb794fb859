"""Polls base paths and emits the versions found there: the source the server uses.

Polling is the truth, file-system events only shorten the wait. Each stream is looked at and emitted on its own: a base
path that cannot be read emits nothing and does not disturb the others. A version is offered once it is complete; from
then on it stays offered for as long as its directory exists, whatever happens to the files in it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.executor import Executor, PoolExecutor
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.manifest import parse_version
from tfs_lite.core.periodic import PeriodicThread
from tfs_lite.core.servable import ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.status import Status, StatusCode, invalid_argument
from tfs_lite.sources.disk import Disk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.look import AspiredList, FoundVersions, Look, Stream, look_at
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import WatchPoint, point_below, points_for

__all__ = ["FileSystemStoragePathSource", "ServableToMonitor", "SourceConfig", "SourceReport"]

logger = logging.getLogger(__name__)


class FileSystemStoragePathSource:
    """Emits (name, path of the version directory) of every version that the config wants and the disk has complete.

    Order: construct -> ``set_aspired_versions_callback`` (starts polling, the first poll at once) -> ``update_config``*
    and ``wake``* -> ``close``. Each poll calls the callback once per stream, in alphabetical order, changed or not,
    and ``on_report`` for each stream whose report has changed. Both are called on the thread that polls (the callback
    also on the one that calls ``update_config``), one at a time, and must not call back into the source.

    Threads: any thread may call any method. Polls never overlap. After ``close`` nothing is emitted.
    """

    def __init__(
        self,
        config: SourceConfig,
        disk: Disk,
        clock: Clock,
        on_report: Callable[[SourceReport], None] = lambda report: None,
        watch: bool = True,
        executor: Executor | None = None,
    ) -> None:
        """``executor`` hashes the files of versions with a manifest; by default one thread of the source's own."""
        self._disk = disk
        self._clock = clock
        self._on_report = on_report
        self._watch = watch
        self._owns_executor = executor is None
        self._executor: Executor = PoolExecutor("tfs-digests", 1) if executor is None else executor
        self._lock = threading.Lock()  # guards the next six
        self._config = config
        self._callback: AspiredVersionsCallback[StoragePath] | None = None
        self._streams: dict[str, Stream] = {}
        self._thread: PeriodicThread | None = None
        self._watcher: DirectoryWatcher | None = None
        self._closed = False
        self._emitting = threading.Lock()  # guards no field: held while lists go out, it keeps them in order
        self._polling = threading.Lock()  # serialises polls; guards the next two
        self._inspector = VersionInspector(disk, clock, self._executor, self.wake)
        self._timer: Timer | None = None

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[StoragePath]) -> None:
        """Starts the source. A second call is logged and ignored, unless there is no thread: then it replaces."""
        with self._lock:
            if self._thread is not None or self._closed:
                logger.error("the source is running or closed already: its callback stays as it is")
                return
            self._callback = callback
            interval = self._config.poll_interval
            if interval is None or interval < 0:
                return
            if interval > 0 and self._watch:
                self._watcher = DirectoryWatcher(self.wake, self._clock)
            self._thread = PeriodicThread("tfs-source", self.poll, interval or None)
            self._thread.start()

    def update_config(self, config: SourceConfig) -> None:
        """Replaces the config, all or nothing, and polls at once. Streams that are gone get their empty list before
        this returns; the others get none in between.

        INVALID_ARGUMENT, which leaves everything as it was: a running source cannot change its interval.
        """
        with self._emitting:
            with self._lock:
                old = self._config
                if self._callback is not None and config.poll_interval != old.poll_interval:
                    raise invalid_argument(
                        f"poll_interval: expected {old.poll_interval}, got {config.poll_interval}: "
                        "it cannot change while the source is running"
                    )
                self._config = config
                callback = None if self._closed else self._callback
                removed = sorted(old.by_name.keys() - config.by_name.keys())
                for name in removed:
                    self._streams.pop(name, None)
            for name in removed:
                _emit(callback, name, [])
        _log_moved(old, config)
        self.wake()

    def wake(self) -> None:
        """Polls soon, on the source's own thread. Without one it does nothing."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.wake()

    def found(self, name: str) -> FoundVersions:
        """What the last look at the stream has found; nothing before the first. Any thread."""
        with self._lock:
            stream = self._streams.get(name)
        return stream.found if stream is not None else FoundVersions()

    def checking(self) -> dict[ServableId, LoadProgress]:
        """How far the versions are whose digests are being checked before they are offered."""
        found = self._inspector.hashing
        if not found:
            return {}
        with self._lock:
            servables = self._config.servables
        return {
            ServableId(servable.name, version): progress
            for path, progress in found.items()
            for servable in servables
            if path == os.path.join(servable.base_path, os.path.basename(path))
            and (version := parse_version(os.path.basename(path))) is not None
        }

    def poll(self) -> None:
        """Looks at every stream once and emits. Stops early when the config is replaced meanwhile."""
        with self._polling:
            with self._lock:
                config = self._config
                if self._callback is None or self._closed:
                    return
            looks: list[tuple[ServableToMonitor, Look]] = []
            for servable in config.by_name.values():
                with self._lock:
                    stream = self._streams.setdefault(servable.name, Stream())
                look = self._look(servable, config, stream)
                if not self._conclude(servable, look, stream, config):
                    return
                looks.append((servable, look))
            self._prepare_next(looks)
        self._executor.run_pending()

    def look_ahead(self, config: SourceConfig, disk: Disk | None = None) -> dict[str, Look]:
        """By name, what a poll for ``config`` would find now. It emits nothing, hashes nothing, and the polls do not
        remember it. Waits for a poll in progress. ``disk`` may stand in for the source's own."""
        with self._polling:
            inspector = self._inspector.copy(disk or self._disk)
            with self._lock:
                streams = {name: replace(stream) for name, stream in self._streams.items()}
        return {
            name: look_at(servable, config, streams.get(name, Stream()), disk or self._disk, inspector)
            for name, servable in config.by_name.items()
        }

    def close(self) -> None:
        """Ends polling, watching and hashing; waits for a poll in progress. May be called more than once."""
        with self._emitting, self._lock:
            self._closed = True
            thread, watcher = self._thread, self._watcher
        if thread is not None:
            thread.stop()
        if watcher is not None:
            watcher.close()
        with self._polling:
            self._inspector.close()
            self._set_timer(None)
        if self._owns_executor:
            self._executor.shutdown()

    def _look(self, servable: ServableToMonitor, config: SourceConfig, stream: Stream) -> Look:
        try:
            return look_at(servable, config, stream, self._disk, self._inspector, self._clock.monotonic())
        except Exception:
            logger.exception("model %s: looking at %s failed", servable.name, servable.base_path)
            problem = Status(StatusCode.INTERNAL, f"model {servable.name}: looking at its base path failed")
            return Look(SourceReport(servable.name, problem))

    def _conclude(self, servable: ServableToMonitor, look: Look, stream: Stream, config: SourceConfig) -> bool:
        """Sends out what was found; False if the config that was polled for is no longer the current one."""
        with self._emitting:
            with self._lock:
                callback = self._callback
                if self._closed or self._config is not config:
                    return False
            if look.report != stream.report:
                _log_report(servable, look.report, stream.report)
                stream.report = look.report
                _report(self._on_report, look.report)
            if look.aspired is not None:
                _emit(callback, servable.name, look.aspired)
        return True

    def _prepare_next(self, looks: list[tuple[ServableToMonitor, Look]]) -> None:
        self._inspector.keep_only({path for _, look in looks for path in look.inspected})
        self._set_timer(min((delay for _, look in looks for delay in look.retry_in), default=None))
        if self._watcher is not None and self._watcher.update(_watch_points(looks)):
            self.wake()

    def _set_timer(self, delay: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if delay is None else self._clock.call_later(delay, self.wake)


def _watch_points(looks: list[tuple[ServableToMonitor, Look]]) -> Iterator[WatchPoint]:
    for servable, look in looks:
        yield from points_for(servable.base_path)
        yield from map(point_below, look.unfinished)


def _emit(callback: AspiredVersionsCallback[StoragePath] | None, name: str, versions: AspiredList) -> None:
    if callback is None:
        return
    try:
        callback(name, versions)
    except Exception:
        logger.exception("the target failed on the versions of %s", name)


def _report(on_report: Callable[[SourceReport], None], report: SourceReport) -> None:
    try:
        on_report(report)
    except Exception:
        logger.exception("the receiver failed on the report of %s", report.name)


def _log_report(servable: ServableToMonitor, new: SourceReport, old: SourceReport | None) -> None:
    if not new.problem.ok:
        logger.warning("%s (%s)", new.problem.message, servable.base_path, extra={"model": servable.name})
    elif old is not None and not old.problem.ok:
        text, extra = "model %s: its base path is fine again (%s)", {"model": servable.name}
        logger.info(text, servable.name, servable.base_path, extra=extra)
    for version, reason in sorted(new.waiting.items()):
        if old is None or old.waiting.get(version) != reason:
            where = {"model": servable.name, "version": version}
            logger.info("model %s version %d waits: %s", servable.name, version, reason, extra=where)


def _log_moved(old: SourceConfig, new: SourceConfig) -> None:
    for name, servable in new.by_name.items():
        before = old.by_name.get(name)
        if before is not None and before.base_path != servable.base_path:
            logger.warning(
                "model %s: base path changed from %s to %s; versions with the same number keep the old data",
                *(name, before.base_path, servable.base_path),
            )
