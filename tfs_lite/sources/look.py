"""One look at one base path: which versions are to be emitted, which are waiting, and why.

The look decides nothing by itself: listing, version policy and completeness do. It keeps what has to outlive a poll in
a :class:`LookStream`: the versions of the last list, which stay in it while they are wanted and their directories
exist.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from tfs_lite.core.manifest import FILES_ABOUT_LOADS_BESIDE, MODEL_SETTINGS_FILES, revision_of, state_of
from tfs_lite.core.publish import HIDDEN_PREFIX, LEFTOVER_SECONDS
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.status import OK, Status, StatusCode, printable
from tfs_lite.sources.completeness import Complete, Waiting
from tfs_lite.sources.disk import DirectoryEntry, Disk, list_in_place
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.version_scan import (
    AllPolicy,
    SpecificPolicy,
    choose,
    parse_version,
    stand_ins,
    versions_in,
    why_no_version,
)
from tfs_lite.storage.store import StorageError

logger = logging.getLogger(__name__)
AspiredList = list[ServableData[StoragePath]]
MAX_PASSED_OVER = 10
"""The most names of each kind beside the versions that a report has."""
FIRST_WAIT_SECONDS = 30.0
"""The seconds that a list waits for newer versions that are not being written, where nothing is left of the last
one."""
LEFT_COPY = "a publication that did not end has left it; the next one to this base path removes it"


@dataclass(frozen=True, slots=True)
class FoundVersions:
    """The findings of the last look: every version directory, and for each that is not complete the time, in seconds of
    ``monotonic``, when the verdict may change by itself (None: it does not). ``config`` is the name of the config
    beside the versions, empty without one."""

    versions: frozenset[int] = frozenset()
    unfinished: Mapping[int, float | None] = field(default_factory=dict)
    config: str = ""


@dataclass(slots=True)
class LookStream:
    """The memory of the polls about one stream. Only the poll touches it."""

    offered: dict[int, str] = field(default_factory=dict)  # version -> revision, of the last list that was emitted
    gone: dict[int, tuple[str, float]] = field(default_factory=dict)
    """The offered versions whose directories are gone, each with its child and since when, in seconds of
    ``monotonic``; replaced as a whole."""
    base_path: str = ""  # the base path of the offered versions
    moved: frozenset[int] = frozenset()  # versions that were offered below another one, and not below this one yet
    place: str | None = None  # the identity of the base path when it last held versions that may be loaded
    empty_since: float | None = None  # for which it has held none since, in seconds of ``monotonic``
    waits_since: float | None = None  # for which newer versions have been waited for since, likewise
    failed: frozenset[int] = frozenset()  # and not available since; replaced as a whole, by any thread
    rejected: frozenset[int] = frozenset()  # must not answer, and counts as failed; likewise
    report: SourceReport | None = None  # the last one that was sent
    inspected: Mapping[int, str] = field(default_factory=dict)  # version -> directory; replaced as a whole
    found: FoundVersions = FoundVersions()  # replaced as a whole, and read by any thread

    def move_to(self, base_path: str) -> None:
        """Moves the stream to another base path, and forgets what was offered below the last one: it is not what lies
        below this one."""
        if self.base_path != base_path:
            self.base_path, self.moved, self.offered = base_path, self.moved | self.offered.keys(), {}
            self.gone = {}

    @property
    def offers(self) -> tuple[str, dict[int, str], frozenset[int]]:
        """What the last list has offered, and below which base path. A look replaces these values and changes none."""
        return self.base_path, self.offered, self.moved

    @offers.setter
    def offers(self, offers: tuple[str, dict[int, str], frozenset[int]]) -> None:
        self.base_path, self.offered, self.moved = offers

    def copy(self) -> LookStream:
        """Another one that a look may change."""
        return replace(self, offered=dict(self.offered))


@dataclass(slots=True)
class Look:
    """The result of a look. ``aspired`` None: nothing is emitted, because the base path cannot be read, or because the
    report says why the last list goes on counting."""

    report: SourceReport
    aspired: AspiredList | None = None
    inspected: list[str] = field(default_factory=list)  # version directories that the inspector goes on to know
    unfinished: list[str] = field(default_factory=list)  # those of them that are not complete
    retry_in: list[float] = field(default_factory=list)  # when a verdict may change by itself
    beside: list[str] = field(default_factory=list)  # paths of the files beside the versions that count


def look_at(
    servable: ServableToMonitor,
    config: SourceConfig,
    stream: LookStream,
    disk: Disk,
    by: VersionInspector,
    now: float = 0.0,
) -> Look:
    """Lists the base path and inspects as many versions as the policy needs. Never raises for what is on the disk.
    ``now`` is in seconds of ``monotonic``."""
    try:
        place, entries = list_in_place(disk, servable.base_path)
    except OSError as error:
        stream.found, stream.empty_since = FoundVersions(), None
        return look_nowhere(servable, stream, by, _base_path_problem(servable, error))
    failed, rejected, inspected = stream.failed | stream.rejected, stream.rejected, dict[int, str]()
    children = _version_directories(entries)
    existing = versions_in(children)
    stream.move_to(servable.base_path)
    stream.gone = _lately_gone(stream, existing, config, now)
    there = existing and existing | {version: child for version, (child, _) in stream.gone.items()}
    stream.offered = {v: revision for v, revision in stream.offered.items() if v in existing or v in stream.gone}
    before, moved = dict(stream.offered), stream.moved
    configs = _configs_beside(entries)
    look, waiting, settling = Look(SourceReport(servable.name)), _missing(servable, existing), dict[int, Waiting]()
    look.retry_in = _time_left(stream, config, now)
    look.beside = [os.path.join(servable.base_path, e.name) for e in entries if e.name in FILES_ABOUT_LOADS_BESIDE]
    unfinished: dict[int, float | None] = {}
    changing = dict.fromkeys(stream.gone, f"its directory has been gone for less than {config.quiet_period:g} s")
    fetching: set[int] = set()
    coming = set(stream.gone)  # versions that are complete, or will be once they are fetched

    def usable(version: int, child: str) -> bool:
        path = os.path.join(servable.base_path, child)
        inspected[version] = path
        verdict = by.inspect(path, config.quiet_period)
        if isinstance(verdict, Complete):
            named = by.named_beside(path, entries)
            look.beside.extend(os.path.join(servable.base_path, name) for name, _ in named)
            files = state_of(path, verdict.revision, named)
            stream.offered[version] = revision_of(files, verdict.configs + configs)
            stream.moved -= {version}
            coming.add(version)
            return True
        look.unfinished.append(path)
        unfinished[version] = None if verdict.retry_in is None else now + verdict.retry_in
        if verdict.retry_in is not None:
            look.retry_in.append(verdict.retry_in)
        offered = version in stream.offered
        if offered or version in stream.moved:
            changing[version] = printable(verdict.reason)
        if not (offered and verdict.settling):  # one that failed may have been repaired, but not wholly
            waiting[version] = printable(verdict.reason)
        settling.update({version: verdict} if verdict.settling and not offered else {})
        fetching.update({version} if verdict.fetching else ())
        coming.update(fetching)
        return offered

    in_time = _unless_in_vain(usable, servable, stream, disk, coming)
    chosen = choose(there.values(), servable.policy, in_time, stream.failed, rejected)
    stream.inspected, look.inspected = inspected, list(inspected.values())
    on_disk = frozenset(there)
    stream.found = FoundVersions(on_disk, unfinished, _config_name(entries))
    problem, keeps = _empty_problem(servable, existing), ""
    if existing:
        stream.place, stream.empty_since = place, None
        keeps = _why_not_yet(servable, chosen, before, settling, stream, now, look)
    elif not _orders_nothing(servable):
        problem, keeps = _judge_empty(servable, config, stream, place, now, look)
    numbers = [version for version, _ in chosen]
    look.report = SourceReport(
        servable.name,
        problem,
        waiting,
        frozenset(settling),
        on_disk,
        keeps,
        (failed - rejected).intersection(numbers),
        stand_ins(numbers, servable.policy, failed),
        _passed_over(entries) | _left_copies(servable, entries, disk, by.wall_time),
        changing,
        frozenset(fetching),
        rejected.intersection(numbers),
    )
    if keeps:  # what is not emitted has not been offered
        stream.offered, stream.moved = before, moved
    else:
        stream.offered = {version: stream.offered[version] for version in numbers}
        look.aspired = [_offer(servable, stream, version, child, version in failed) for version, child in chosen]
    return look


def _lately_gone(
    stream: LookStream, existing: Mapping[int, str], config: SourceConfig, now: float
) -> dict[int, tuple[str, float]]:
    """The offered versions that count as there although their directories are gone: one whose files are replaced is
    gone for a moment, in which no older one is to take its place. One that has failed has no place to lose."""
    found = dict[int, tuple[str, float]]()
    for version in stream.offered.keys() - existing.keys() - stream.failed - stream.rejected:
        child = os.path.basename(stream.inspected.get(version, str(version)))
        entry = stream.gone.get(version, (child, now))
        if now < entry[1] + config.quiet_period:
            found[version] = entry
    return found


def _time_left(stream: LookStream, config: SourceConfig, now: float) -> list[float]:
    """The seconds for which they still count as there."""
    return [since + config.quiet_period - now for _, since in stream.gone.values()]


def _unless_in_vain(
    usable: Callable[[int, str], bool], servable: ServableToMonitor, stream: LookStream, disk: Disk, coming: Set[int]
) -> Callable[[int, str], bool]:
    """``usable``, without a look at versions that are gone, which stay as they were offered; and without one at
    versions that would have to be fetched although others, which are complete or will be once they are fetched
    (``coming``), take all places of the policy, or although they must not answer."""
    policy, failed = servable.policy, stream.failed | stream.rejected

    def is_usable(version: int, child: str) -> bool:
        return version in stream.gone or usable(version, child)

    if not disk.fetches or isinstance(policy, AllPolicy):
        return is_usable
    named = policy.versions if isinstance(policy, SpecificPolicy) else ()
    places = 1 if isinstance(policy, SpecificPolicy) else max(policy.num_versions, 1)

    def is_here(child: str) -> bool:
        with contextlib.suppress(OSError):
            return disk.is_ready(os.path.join(servable.base_path, child))
        return False

    def usable_in_time(version: int, child: str) -> bool:
        has_place = len(coming - failed - set(named)) < places and version not in stream.rejected
        is_wanted = has_place or version in stream.offered or version in named
        return (is_wanted or is_here(child)) and is_usable(version, child)

    return usable_in_time


def look_nowhere(servable: ServableToMonitor, stream: LookStream, by: VersionInspector, problem: Status) -> Look:
    """The look when the base path cannot be listed. That says nothing of the versions: what is known of them stays, and
    files that are being read are read on."""
    before = stream.report or SourceReport(servable.name)
    known = {v: path for v, path in stream.inspected.items() if os.path.dirname(path) == servable.base_path}
    fetching = frozenset(version for version, path in known.items() if by.comes_on(path))
    reasons = {version: reason for version, reason in before.waiting.items() if version in fetching}
    report = SourceReport(servable.name, problem, reasons, fetching=fetching)
    return Look(report, inspected=list(known.values()))


def _orders_nothing(servable: ServableToMonitor) -> bool:
    """Whether the config says itself that no version is wanted."""
    return isinstance(servable.policy, SpecificPolicy) and not servable.policy.versions


def _why_not_yet(
    servable: ServableToMonitor,
    chosen: Sequence[tuple[int, str]],
    before: Mapping[int, str],
    settling: Mapping[int, Waiting],
    stream: LookStream,
    now: float,
    look: Look,
) -> str:
    """The reason why the chosen versions are not emitted; empty if they are. Where nothing is there that was offered
    ``before``, as at a start and when a volume has come back, newer ones that are not being written are waited for: one
    of them may be what every request was answered by."""
    if not chosen:
        return "" if _orders_nothing(servable) else "nothing that is wanted now is there yet"
    newest = max(version for version, _ in chosen)
    newer = [version for version, verdict in settling.items() if version > newest and not verdict.being_written]
    if not newer or before:
        stream.waits_since = None
        return ""
    stream.waits_since = now if stream.waits_since is None else stream.waits_since
    left = stream.waits_since + FIRST_WAIT_SECONDS - now
    if left <= 0:
        return ""
    look.retry_in.append(left)
    return f"version {max(newer)} is newer than those that are complete, and needs only a moment"


def _judge_empty(
    servable: ServableToMonitor, config: SourceConfig, stream: LookStream, place: str, now: float, look: Look
) -> tuple[Status, str]:
    """A base path without versions: what to say of it, and why that withdraws nothing. It withdraws what was loaded
    from it if it is the same directory as before, and stays empty: a version that is replaced is gone for a moment."""
    problem = _empty_problem(servable, {})
    if stream.place is None:
        return problem, ""
    if stream.place != place:
        message = (
            f"model {servable.name}: its base path has become another directory, which holds no version; "
            "what was loaded before stays until versions appear or the model is removed from the config"
        )
        return Status(StatusCode.NOT_FOUND, message), "its base path has become another directory, which is empty"
    if config.versions_always_present:
        return problem, "its base path is empty, and --servable_versions_always_present is set"
    stream.empty_since = now if stream.empty_since is None else stream.empty_since
    left = stream.empty_since + config.quiet_period - now
    if left > 0:
        look.retry_in.append(left)
        return problem, f"its base path has been empty for less than {config.quiet_period:g} s"
    stream.place, stream.empty_since = None, None
    return problem, ""


def _version_directories(entries: Iterable[DirectoryEntry]) -> list[str]:
    return [entry.name for entry in entries if entry.is_directory and parse_version(entry.name) is not None]


def _config_name(entries: Iterable[DirectoryEntry]) -> str:
    return next((entry.name for entry in entries if entry.name in MODEL_SETTINGS_FILES), "")


def _configs_beside(entries: Iterable[DirectoryEntry]) -> str:
    """The revision of the configs and the recorded answers beside the versions; empty without any."""
    files = sorted(f"{e.name}\0{e.state}" for e in entries if not e.is_directory and e.name in FILES_ABOUT_LOADS_BESIDE)
    return hashlib.sha256("\n".join(files).encode()).hexdigest()[:16] if files else ""


def _passed_over(entries: Sequence[DirectoryEntry]) -> dict[str, str]:
    """Names that look like versions and are none, each with the reason; a few of them."""
    found = {e.name: why_no_version(e.name, [o.name for o in entries], is_directory=e.is_directory) for e in entries}
    named = sorted((printable(name), why) for name, why in found.items() if why)
    return dict(named[:MAX_PASSED_OVER])


def _left_copies(
    servable: ServableToMonitor, entries: Iterable[DirectoryEntry], disk: Disk, wall_time: float
) -> dict[str, str]:
    """The hidden copies that have not changed for an hour, each with what becomes of it; a few of them. A publication
    in progress touches its directory every minute."""
    found: list[str] = []
    for entry in entries:
        if entry.is_directory and entry.name.startswith(HIDDEN_PREFIX) and len(found) < MAX_PASSED_OVER:
            with contextlib.suppress(OSError):  # it was committed or removed this moment
                newest = disk.stat_tree(os.path.join(servable.base_path, entry.name), 0).newest_ns / 1e9
                found += [entry.name] if wall_time - newest >= LEFTOVER_SECONDS else []
    return dict.fromkeys(sorted(map(printable, found)), LEFT_COPY)


def _missing(servable: ServableToMonitor, existing: dict[int, str]) -> dict[int, str]:
    """Versions that the config asks for by number and that are not there."""
    if not isinstance(servable.policy, SpecificPolicy):
        return {}
    return {
        version: "there is no such version directory" for version in servable.policy.versions if version not in existing
    }


def _offer(
    servable: ServableToMonitor, stream: LookStream, version: int, child: str, given_up: bool
) -> ServableData[StoragePath]:
    path = os.path.join(servable.base_path, child)
    return ServableData.ok(ServableId(servable.name, version), path, stream.offered[version], given_up)


def _empty_problem(servable: ServableToMonitor, existing: dict[int, str]) -> Status:
    if _orders_nothing(servable):
        return Status(StatusCode.NOT_FOUND, f"model {servable.name}: its version policy lists no version")
    if not existing:
        message = f"model {servable.name}: its base path holds no version (a directory whose name is a number)"
        return Status(StatusCode.NOT_FOUND, message)
    return OK


def _base_path_problem(servable: ServableToMonitor, error: OSError) -> Status:
    what = f"model {servable.name}: its base path"
    if isinstance(error, StorageError):
        return Status(error.code, f"{what} cannot be read: {error.sentence}")
    if isinstance(error, FileNotFoundError):
        return Status(StatusCode.NOT_FOUND, f"{what} does not exist")
    if isinstance(error, NotADirectoryError):
        return Status(StatusCode.FAILED_PRECONDITION, f"{what} is not a directory")
    if isinstance(error, PermissionError):
        return Status(StatusCode.PERMISSION_DENIED, f"{what} cannot be read: permission denied")
    return Status(StatusCode.UNAVAILABLE, f"{what} cannot be read: {error.strerror or type(error).__name__}")
