"""One look at one base path: which versions are to be emitted, which are waiting, and why.

The look decides nothing by itself: listing, version policy and completeness do. It keeps what has to outlive a poll
in a :class:`Stream`: the versions that have been offered, which stay offered while their directories exist.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tfs_lite.core.manifest import MODEL_SETTINGS_FILES, revision_of, state_of
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.sources.completeness import Complete
from tfs_lite.sources.disk import DirectoryEntry, Disk
from tfs_lite.sources.inspector import VersionInspector
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.version_scan import SpecificPolicy, choose, parse_version, versions_in

logger = logging.getLogger(__name__)
AspiredList = list[ServableData[StoragePath]]


@dataclass(frozen=True, slots=True)
class FoundVersions:
    """What the last look has found: every version directory, and for each that is not complete the time, in seconds
    of ``monotonic``, when the verdict may change by itself (None: it does not)."""

    versions: frozenset[int] = frozenset()
    unfinished: Mapping[int, float | None] = field(default_factory=dict)


@dataclass(slots=True)
class Stream:
    """What the polls remember of one stream. Only the poll touches it."""

    offered: dict[int, str] = field(default_factory=dict)  # version -> revision
    ignored: frozenset[str] = frozenset()  # files with the name of a version, as far as logged
    report: SourceReport | None = None  # the last one that was sent
    found: FoundVersions = FoundVersions()  # replaced as a whole, and read by any thread


@dataclass(slots=True)
class Look:
    """What was found. ``aspired`` None means that the base path cannot be read, so nothing is emitted."""

    report: SourceReport
    aspired: AspiredList | None = None
    inspected: list[str] = field(default_factory=list)  # version directories
    unfinished: list[str] = field(default_factory=list)  # those of them that are not complete
    retry_in: list[float] = field(default_factory=list)  # when a verdict may change by itself


def look_at(
    servable: ServableToMonitor,
    config: SourceConfig,
    stream: Stream,
    disk: Disk,
    by: VersionInspector,
    now: float = 0.0,
) -> Look:
    """Lists the base path and inspects as many versions as the policy needs. Never raises for what is on the disk.
    ``now`` is in seconds of ``monotonic``."""
    try:
        entries = disk.list_directory(servable.base_path)
    except OSError as error:
        stream.found = FoundVersions()
        return Look(SourceReport(servable.name, _base_path_problem(servable, error)))
    _log_ignored(servable, stream, entries)
    children = _version_directories(entries)
    existing = versions_in(children)
    stream.offered = {version: revision for version, revision in stream.offered.items() if version in existing}
    configs = _configs_beside(entries)
    look, waiting, settling = Look(SourceReport(servable.name)), _missing(servable, existing), set[int]()
    unfinished: dict[int, float | None] = {}
    changing: dict[int, str] = {}

    def usable(version: int, child: str) -> bool:
        path = os.path.join(servable.base_path, child)
        look.inspected.append(path)
        verdict = by.inspect(path, config.quiet_period)
        if isinstance(verdict, Complete):
            files = state_of(path, verdict.revision, by.named_beside(path, entries))
            stream.offered[version] = revision_of(files, verdict.configs + configs)
            return True
        look.unfinished.append(path)
        unfinished[version] = None if verdict.retry_in is None else now + verdict.retry_in
        if verdict.retry_in is not None:
            look.retry_in.append(verdict.retry_in)
        offered = version in stream.offered
        if offered:
            changing[version] = _printable(verdict.reason)
        if not (offered and verdict.settling):  # one that failed may have been repaired, but not wholly
            waiting[version] = _printable(verdict.reason)
        settling.update({version} if verdict.settling and not offered else ())
        return offered

    chosen = choose(children, servable.policy, usable)
    on_disk = frozenset(existing)
    stream.found = FoundVersions(on_disk, unfinished)
    problem = _empty_problem(servable, existing)
    look.report = SourceReport(servable.name, problem, waiting, frozenset(settling), on_disk, changing)
    look.aspired = [_offer(servable, stream, version, child) for version, child in chosen]
    return look


def _printable(text: str) -> str:
    """File names may hold bytes that are no text; messages must not."""
    return text.encode("utf-8", "backslashreplace").decode()


def _version_directories(entries: Iterable[DirectoryEntry]) -> list[str]:
    return [entry.name for entry in entries if entry.is_directory and parse_version(entry.name) is not None]


def _configs_beside(entries: Iterable[DirectoryEntry]) -> str:
    """The revision of the configs beside the versions; empty without any."""
    configs = sorted(f"{e.name}\0{e.state}" for e in entries if not e.is_directory and e.name in MODEL_SETTINGS_FILES)
    return hashlib.sha256("\n".join(configs).encode()).hexdigest()[:16] if configs else ""


def _log_ignored(servable: ServableToMonitor, stream: Stream, entries: Iterable[DirectoryEntry]) -> None:
    files = frozenset(e.name for e in entries if not e.is_directory and parse_version(e.name) is not None)
    for name in sorted(files - stream.ignored):
        logger.warning("%s: %s in %s is no directory: ignored", servable.name, name, servable.base_path)
    stream.ignored = files


def _missing(servable: ServableToMonitor, existing: dict[int, str]) -> dict[int, str]:
    """Versions that the config asks for by number and that are not there."""
    if not isinstance(servable.policy, SpecificPolicy):
        return {}
    return {
        version: "there is no such version directory" for version in servable.policy.versions if version not in existing
    }


def _offer(servable: ServableToMonitor, stream: Stream, version: int, child: str) -> ServableData[StoragePath]:
    path = os.path.join(servable.base_path, child)
    return ServableData.ok(ServableId(servable.name, version), path, stream.offered[version])


def _empty_problem(servable: ServableToMonitor, existing: dict[int, str]) -> Status:
    if isinstance(servable.policy, SpecificPolicy) and not servable.policy.versions:
        return Status(StatusCode.NOT_FOUND, f"model {servable.name}: its version policy lists no version")
    if not existing:
        message = f"model {servable.name}: its base path holds no version (a directory whose name is a number)"
        return Status(StatusCode.NOT_FOUND, message)
    return OK


def _base_path_problem(servable: ServableToMonitor, error: OSError) -> Status:
    what = f"model {servable.name}: its base path"
    if isinstance(error, FileNotFoundError):
        return Status(StatusCode.NOT_FOUND, f"{what} does not exist")
    if isinstance(error, NotADirectoryError):
        return Status(StatusCode.FAILED_PRECONDITION, f"{what} is not a directory")
    if isinstance(error, PermissionError):
        return Status(StatusCode.PERMISSION_DENIED, f"{what} cannot be read: permission denied")
    return Status(StatusCode.UNAVAILABLE, f"{what} cannot be read: {error.strerror or type(error).__name__}")
