"""Polls base paths and emits the versions found there: the source the server uses.

Polling is the truth, file-system events only shorten the wait. Each stream is looked at and emitted on its own: a base
path that cannot be read emits nothing and does not disturb the others. A version is offered once it is complete; from
then on it stays offered for as long as it is wanted and its directory exists, whatever happens to the files in it. A
list is an order: a look that finds nothing to offer while something that is wanted is still to come emits none.
"""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.executor import Executor, Patience, PoolExecutor
from tfs_lite.core.loader import LoadProgress
from tfs_lite.core.servable import ServableId, StoragePath, parse_version
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import Reason, Status, StatusCode, invalid_argument
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.sources.disk import Disk, Stamp
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.look import AspiredList, FoundVersions, Look, LookStream, look_at, look_nowhere
from tfs_lite.sources.look_queue import DISK_TIMEOUT_SECONDS, Looked, LookQueue, hangs
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.watch import DirectoryWatcher
from tfs_lite.sources.watch_points import point_below, points_for

__all__ = ["FileSystemStoragePathSource", "ServableToMonitor", "SourceConfig", "SourceReport"]

logger = logging.getLogger(__name__)
FULL_LOOK_SECONDS = 60.0
"""A stream that seems to be at rest is looked at closely at least this often: not every file system keeps its times."""
FILES_SECONDS = 4.0
"""The interval in which the files of complete versions are looked at, if the source polls more often: a version that is
copied, moved or removed changes a directory, and only files that are overwritten where they lie do not."""
HASH_SECONDS, MOST_HASHES = 60.0, 4
"""The seconds after which the digests of one version no longer hold up those of another, and the most versions that are
hashed at once."""
_Seen = tuple[int | None, int | None]
"""The hashes of the stamps of parts and of files; by the next look the stamps of a thousand streams would have left the
caches of the processor. None: nothing may be concluded."""
_NOTHING_SEEN: _Seen = (None, None)


class NotTaken(Exception):
    """Raised by a target that does not take a list now, and has said why itself."""


class _PolledStream(Looked):
    """One stream of one config. The source's lock guards ``forced``; the rest belongs to the look."""

    __slots__ = (
        "_look",
        "_on_hang",
        "emitted",
        "files",
        "files_at",
        "forced",
        "full_at",
        "inspected",
        "memory",
        "parts",
        "refused",
        "seen",
        "servable",
        "timer",
    )

    def __init__(
        self,
        servable: ServableToMonitor,
        memory: LookStream,
        look: Callable[[_PolledStream], None],
        on_hang: Callable[[_PolledStream, str], None],
    ) -> None:
        super().__init__(servable.base_path)
        self.servable, self.memory = servable, memory
        self.forced = True  # the next look emits whatever it finds
        self.parts: tuple[str, ...] = (servable.base_path,)  # the paths that its last look has depended on
        self.files: tuple[str, ...] = ()  # the files of the versions, on which it has, too
        self.files_at = 0.0  # when these are looked at next
        self.seen: _Seen = _NOTHING_SEEN  # the stamps of both
        self.full_at = 0.0  # when it is looked at whatever they say
        self.emitted: AspiredList | None = None
        self.refused = False  # the target has raised on that list
        self.inspected: frozenset[str] = frozenset()  # version directories
        self.timer: Timer | None = None  # for the look that a verdict has asked for
        self._look, self._on_hang = look, on_hang

    def look(self) -> None:
        self._look(self)

    def on_hang(self, what: str) -> None:
        self._on_hang(self, what)

    def on_answer(self, seconds: float) -> None:
        logger.info("model %s: its disk answers again, after %.0f s (%s)", self.servable.name, seconds, self.path)


NOTHING_ENDS: Mapping[ServableId, bool] = MappingProxyType({})


class FileSystemStoragePathSource:
    """Emits (name, path of the version directory) of every version that the config wants and the disk has complete.

    Order: construct -> ``set_aspired_versions_callback`` (starts polling, the first poll at once) -> ``update_config``*
    and ``wake``* -> ``close``. A look that was asked for, by ``wake``, ``poll`` or a changed config, calls the callback
    whatever it finds; one at an interval or after an event does so if something has changed. A list that the callback
    has raised on is sent again with the next close look, within :data:`FULL_LOOK_SECONDS`, and has offered nothing that
    was not offered before. ``on_report`` is called for
    each stream whose report has changed. Both are called on the thread that looks (the callback also on the one that
    calls ``update_config``), one at a time, and must not call back into the source.

    Looks run one after the other. One that does not answer for ``disk_timeout`` seconds is left alone
    (:mod:`tfs_lite.sources.look_queue`): the report of its stream says so (``Reason.DISK_HANGS``), and the stream is
    taken up again when the disk answers.

    Any thread may call any method. After ``close`` nothing is emitted.
    """

    def __init__(
        self,
        config: SourceConfig,
        disk: Disk,
        clock: Clock,
        on_report: Callable[[SourceReport], None] = lambda report: None,
        watch: bool = True,
        executor: Executor | None = None,
        disk_timeout: float = DISK_TIMEOUT_SECONDS,
    ) -> None:
        """``executor`` hashes the files of versions with a manifest; by default one thread of the source's own."""
        self._disk = disk
        self._clock = clock
        self._on_report = on_report
        self._watch = watch
        self._owns_executor = executor is None
        hashing = Patience(HASH_SECONDS, MOST_HASHES, clock)
        self._executor: Executor = PoolExecutor("tfs-digests", 1, hashing) if executor is None else executor
        interval = config.poll_interval
        self._is_threaded = interval is not None and interval >= 0
        self._looks = LookQueue("tfs-look", disk, clock, disk_timeout, threaded=self._is_threaded)
        self._lock = threading.Lock()  # guards the fields below, and the ``failed`` of each stream
        self._config = config
        self._callback: AspiredVersionsCallback[StoragePath] | None = None
        self._streams: dict[str, _PolledStream] = {}  # in alphabetical order
        self._rejected: dict[str, frozenset[int]] = {}  # by name, also of streams that there are not
        self._inspected: set[str] = set()  # the version directories that the inspector is to know
        self._is_tidy = True  # whether it knows no others
        self._thread: PeriodicThread | None = None
        self._watcher: DirectoryWatcher | None = None
        self._closed = False
        self._emitting = threading.Lock()  # guards no field: held while lists go out, it keeps them in order
        self._inspector = VersionInspector(disk, clock, self._executor, self._on_hashed)
        self._replace_streams(config)

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[StoragePath]) -> None:
        """Starts the source. A second call is logged and ignored, unless there is no thread: then it replaces."""
        with self._lock:
            if self._thread is not None or self._closed:
                logger.error("the source is running or closed already: its callback stays as it is")
                return
            self._callback = callback
            if not self._is_threaded:
                return
            interval = self._config.poll_interval
            if interval and self._watch:
                self._watcher = DirectoryWatcher(self._look_at, self._clock)
            self._thread = PeriodicThread("tfs-source", self._sweep, interval or None)
            self._thread.start()

    def update_config(self, config: SourceConfig) -> None:
        """Replaces the config, all or nothing, and looks at what has changed at once. Streams that are gone get their
        empty list before this returns; the others get none in between.

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
                removed = sorted(self._streams.keys() - config.by_name.keys())
                changed, watcher = self._replace_streams(config), self._watcher
            for name in removed:
                _emit(callback, name, [])
                if watcher is not None:
                    watcher.update((), name)
        self.wake(changed)

    def wake(self, names: Collection[str] | None = None) -> None:
        """Looks soon at these streams (None: at all), on the source's own thread, and emits what it finds. Without a
        thread it does nothing."""
        if self._is_threaded:
            self._look_at(names, forced=True)

    def found(self, name: str) -> FoundVersions:
        """The findings of the last look at the stream; empty before the first. Any thread."""
        with self._lock:
            stream = self._streams.get(name)
        return stream.memory.found if stream is not None else FoundVersions()

    def on_state(self, state: ServableState) -> None:
        """Takes note of the state that an offered version has reached. Any thread; short."""
        if state.state is ManagerState.AVAILABLE:
            self._mark(state.id, failed=False)
        elif state.state is ManagerState.END and not state.health.ok and state.health.code is not StatusCode.CANCELLED:
            self._mark(state.id, failed=True)

    def on_failed_attempt(self, servable_id: ServableId) -> None:
        """A load of a version that was offered has failed, for good or not. Any thread; short."""
        self._mark(servable_id, failed=True)

    def reject(self, name: str, versions: Collection[int]) -> None:
        """These versions, and no others, must not answer: until a later call they are offered as versions that have
        failed, and others stand in for them, whatever becomes of the stream. Any thread; short."""
        rejected = frozenset(versions)
        with self._lock:
            if self._rejected.get(name, frozenset()) == rejected:
                return
            self._rejected.pop(name, None)
            if rejected:
                self._rejected[name] = rejected
            if (stream := self._streams.get(name)) is not None:
                stream.memory.rejected = rejected
        self.wake({name})

    def _mark(self, servable_id: ServableId, *, failed: bool) -> None:
        """Marks a version that has failed: it takes no other version's place until it is available, and the next look,
        which this causes, has others stand in for it. A version that this stream has not offered is not marked: the
        failed one was another of the same number."""
        version = frozenset((servable_id.version,))
        with self._lock:
            stream = self._streams.get(servable_id.name)
            if stream is None or failed is (servable_id.version in stream.memory.failed):
                return
            if failed and servable_id.version not in stream.memory.offered:
                return
            known = stream.memory.failed
            stream.memory.failed = known | version if failed else known - version
        self.wake({servable_id.name})

    def checking(self) -> dict[ServableId, LoadProgress]:
        """The progress of the versions whose digests are being checked before they are offered."""
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

    def hanging(self) -> dict[str, float]:
        """The streams whose look has not answered in time, and for how many seconds it has not."""
        looks = self._looks.hanging()
        return {item.servable.name: seconds for item, seconds in looks if isinstance(item, _PolledStream)}

    def poll(self) -> None:
        """Asks for a look at every stream; without a thread, the looks have run when this returns."""
        self._sweep(forced=True)

    def look_ahead(
        self,
        config: SourceConfig,
        disk: Disk | None = None,
        outcomes: Mapping[ServableId, bool] = NOTHING_ENDS,
        *,
        takes_unchecked: bool = False,
    ) -> dict[str, Look]:
        """The findings, by name, that a poll for ``config`` would have now, if the ``outcomes`` were that versions had
        become available (True) or had failed (False). It emits nothing, hashes nothing, and the polls do not remember
        it. ``disk`` may stand in for the source's own. A stream that hangs is not looked at. ``takes_unchecked``: see
        :meth:`VersionInspector.copy`."""
        inspector = self._inspector.copy(disk or self._disk, takes_unchecked=takes_unchecked)
        with self._lock:
            streams, rejected = dict(self._streams), dict(self._rejected)
        looks, now = dict[str, Look](), self._clock.monotonic()
        for name, servable in config.by_name.items():
            known = streams.get(name)
            report = known.memory.report if known is not None and known.servable == servable else None
            if report is not None and _hangs(report):
                looks[name] = Look(report)
                continue
            memory = known.memory.copy() if known is not None else LookStream()
            memory.rejected = rejected.get(name, frozenset())
            ended = {id.version: works for id, works in outcomes.items() if id.name == name}
            memory.failed = memory.failed - ended.keys() | {version for version, works in ended.items() if not works}
            looks[name] = look_at(servable, config, memory, disk or self._disk, inspector, now)
        return looks

    def close(self) -> None:
        """Ends polling, watching and hashing; waits for a look in progress, for a bounded time. May be called more than
        once."""
        with self._emitting, self._lock:
            self._closed = True
            thread, watcher = self._thread, self._watcher
            timers = [stream.timer for stream in self._streams.values() if stream.timer is not None]
        for timer in timers:
            timer.cancel()
        if thread is not None:
            thread.stop()
        self._looks.close()
        if watcher is not None:
            watcher.close()
        self._inspector.close()
        if self._owns_executor:
            self._executor.shutdown()

    # When a stream is looked at.

    def _replace_streams(self, config: SourceConfig) -> set[str]:
        """Called with the lock held. Returns the streams that are new or differ. What still looks at a stream as it was
        before has no effect any more."""
        before, self._streams = self._streams, {}
        changed = set()
        for name, servable in config.by_name.items():
            known = before.get(name)
            if known is None or known.servable != servable:
                changed.add(name)
                memory = known.memory.copy() if known is not None else LookStream()
                memory.rejected = self._rejected.get(name, frozenset())
                self._streams[name] = _PolledStream(servable, memory, self._look, self._on_hang)
            else:
                self._streams[name] = known
        gone = [stream for name, stream in before.items() if self._streams.get(name) is not stream]
        self._looks.drop(gone)
        self._is_tidy = self._is_tidy and not gone
        return changed

    def _sweep(self, forced: bool = False) -> None:
        """The work of each interval."""
        self._look_at(None, forced)
        self._looks.run_pending()
        self._tidy()
        self._executor.run_pending()

    def _look_at(self, names: Collection[str] | None, forced: bool = False) -> None:
        with self._lock:
            if self._callback is None or self._closed:
                return
            if names is None:
                streams = list(self._streams.values())
            else:
                streams = [self._streams[name] for name in sorted(names) if name in self._streams]
            if forced:
                for stream in streams:
                    stream.forced = True
        self._looks.ask(streams)

    def _on_hashed(self, path: str) -> None:
        with self._lock:
            names = [name for name, stream in self._streams.items() if path in stream.inspected]
        self.wake(names)

    def _tidy(self) -> None:
        """The inspector forgets the versions that no stream asks about any more."""
        with self._lock:
            if self._is_tidy:
                return
            self._is_tidy = True
            inspected = set[str]().union(*(stream.inspected for stream in self._streams.values()))
            gone, self._inspected = self._inspected - inspected, inspected
        self._inspector.forget(gone)

    # One look, on a thread of the queue. All that asks the disk is here, and may hang.

    def _look(self, stream: _PolledStream) -> None:
        now = self._clock.monotonic()
        stamps = self._stamp(stream.parts)
        rests = stream.seen[0] == hash(stamps)
        if rests and not stream.forced and now < stream.files_at and now < stream.full_at:  # mostly; without the lock
            return
        stream.files_at = now + FILES_SECONDS * (1.0 if stream.files_at else random.random())  # not all at once
        seen = hash(stamps), hash(self._stamp(stream.files))
        rests = stream.seen == seen
        if rests and not stream.forced and now < stream.full_at:
            return
        with self._lock:
            forced, stream.forced, config = stream.forced, False, self._config
        before = stream.memory.offers
        look = self._look_closely(stream, config)
        if self._conclude(stream, look, forced or (stream.refused and now >= stream.full_at), seen):
            if stream.refused and look.aspired is not None:
                stream.memory.offers = before
            stream.device = stamps[0][0] if stamps[0] else 0
            if now >= stream.full_at:
                share = 1.0 if stream.full_at else random.random()  # not all at once
                stream.full_at = now + FULL_LOOK_SECONDS * share
            self._prepare_next(stream, look, rests)

    def _stamp(self, paths: Iterable[str]) -> tuple[Stamp, ...]:
        found, stamp = list[Stamp](), self._disk.stamp
        for path in paths:
            try:
                found.append(stamp(path))
            except OSError as error:
                found.append((0, error.errno or 0, hash(error.strerror)))  # storages have one number for all errors
        return tuple(found)

    def _look_closely(self, stream: _PolledStream, config: SourceConfig) -> Look:
        servable = stream.servable
        try:
            return look_at(servable, config, stream.memory, self._disk, self._inspector, self._clock.monotonic())
        except Exception:
            logger.exception("model %s: looking at %s failed", servable.name, servable.base_path)
            problem = Status(StatusCode.INTERNAL, f"model {servable.name}: looking at its base path failed")
            return look_nowhere(servable, stream.memory, self._inspector, problem)

    def _conclude(self, stream: _PolledStream, look: Look, forced: bool, seen: _Seen) -> bool:
        """Sends out what was found; False if the stream is not looked at any more. When a look has found nothing new,
        the stamps from before it stand for what it has found."""
        found = [self._inspector.parts(path) for path in look.inspected]
        parts = (stream.path, *look.beside, *(path for directories, _ in found for path in directories))
        files = tuple(path for _, inner in found for path in inner)
        is_as_before = (look.report, parts, files) == (stream.memory.report, stream.parts, stream.files)
        settled = is_as_before and not (look.retry_in or look.unfinished)
        with self._emitting:
            with self._lock:
                callback = self._callback
                if self._closed or self._streams.get(stream.servable.name) is not stream:
                    return False
                if look.report.on_disk:
                    stream.memory.failed &= look.report.on_disk
                inspected = frozenset(look.inspected)
                self._is_tidy = self._is_tidy and inspected == stream.inspected
                self._inspected |= inspected
                stream.inspected = inspected
                stream.parts, stream.files = parts, files
                stream.seen = seen if settled and look.aspired == stream.emitted else _NOTHING_SEEN
            self._tell(stream, look.report)
            if look.aspired is not None and (forced or look.aspired != stream.emitted):
                stream.emitted = look.aspired
                stream.refused = not _emit(callback, stream.servable.name, look.aspired)
        return True

    def _tell(self, stream: _PolledStream, report: SourceReport) -> None:
        """Called while nothing else goes out."""
        before = stream.memory.report
        if report != before:
            _log_report(stream.servable, report, before)
            stream.memory.report = report
            _report(self._on_report, report)

    def _on_hang(self, stream: _PolledStream, what: str) -> None:
        """The last report stays true as far as is known."""
        name = stream.servable.name
        with self._emitting:
            with self._lock:
                if self._closed or self._streams.get(name) is not stream:
                    return
                stream.seen = _NOTHING_SEEN  # the next look that answers takes the report back
            before = stream.memory.report or SourceReport(name)
            self._tell(stream, replace(before, problem=hangs(name, what), fetching=frozenset()))

    def _prepare_next(self, stream: _PolledStream, look: Look, rests: bool) -> None:
        """A stream that rests is watched already, as far as that can be."""
        if stream.timer is not None:
            stream.timer.cancel()
        name = stream.servable.name
        delay = min(look.retry_in, default=None)
        stream.timer = self._clock.call_later(delay, lambda: self.wake({name})) if delay is not None else None
        if self._watcher is not None and not rests:
            points = (*points_for(stream.path), *map(point_below, look.unfinished))
            if self._watcher.update(points, name):
                self._look_at({name})


def _hangs(report: SourceReport | None) -> bool:
    return report is not None and report.problem.reason is Reason.DISK_HANGS


def _emit(callback: AspiredVersionsCallback[StoragePath] | None, name: str, versions: AspiredList) -> bool:
    """Whether the target has taken the list."""
    try:
        if callback is not None:
            callback(name, versions)
    except NotTaken:
        return False
    except Exception:
        logger.exception("the target failed on the versions of %s", name)
        return False
    return True


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
    if new.keeps and (old is None or new.keeps != old.keeps):
        logger.info("model %s: nothing is withdrawn: %s", servable.name, new.keeps, extra={"model": servable.name})
    for name, why in new.passed_over.items():
        if old is None or old.passed_over.get(name) != why:
            logger.warning("%s: %s in %s is passed over: %s", servable.name, name, servable.base_path, why)
    for version in sorted(new.stand_ins - (old.stand_ins if old is not None else frozenset())):
        logger.info("model %s: version %d stands in for %s", servable.name, version, new.stands_in_for(version))
    for version in sorted(old.changing.keys() - new.on_disk) if old is not None else ():
        text, of_version = "model %s: the directory of version %d is gone", {"model": servable.name, "version": version}
        logger.info(text, servable.name, version, extra=of_version)
    _log_versions(servable, new, old)


def _log_versions(servable: ServableToMonitor, new: SourceReport, old: SourceReport | None) -> None:
    for version, reason in sorted(new.waiting.items()):
        if old is None or old.waiting.get(version) != reason:
            of_version = {"model": servable.name, "version": version}
            logger.info("model %s version %d waits: %s", servable.name, version, reason, extra=of_version)
    for version, reason in sorted(new.changing.items()):
        if version not in new.waiting and (old is None or old.changing.get(version) != reason):
            of_version = {"model": servable.name, "version": version}
            text = "model %s version %d stays as it was loaded: %s"
            logger.info(text, servable.name, version, reason, extra=of_version)
