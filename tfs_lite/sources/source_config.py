"""The config of the file-system source and its reports. Values only; building one checks it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from tfs_lite.core.status import OK, Status, invalid_argument
from tfs_lite.sources.version_scan import LatestPolicy, VersionPolicy


@dataclass(frozen=True, slots=True)
class ServableToMonitor:
    """One stream: its name, the directory that holds its version directories, and which of them are wanted."""

    name: str
    base_path: str
    policy: VersionPolicy = field(default_factory=LatestPolicy)

    def __post_init__(self) -> None:
        if not self.name:
            raise invalid_argument("servable: field name: expected a name, got none")
        if not self.base_path:
            raise invalid_argument(f"servable {self.name}: field base_path: expected a directory, got none")
        if "\0" in self.base_path:
            raise invalid_argument(f"servable {self.name}: field base_path: expected a path, got one with a NUL in it")


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """All streams of one source. Invalid values raise ServingError (INVALID_ARGUMENT).

    ``poll_interval``: seconds from the start of one poll to the start of the next, with watching in between; 0: one
    poll at the start and one after each update, disregarding what happens on the disk in between (versions that are
    only waiting to become quiet are still taken); None or negative: no thread, the owner calls ``poll``.

    ``versions_always_present``: a base path without versions never withdraws those that are loaded.
    """

    servables: tuple[ServableToMonitor, ...]
    poll_interval: float | None = 1.0
    quiet_period: float = 1.0
    versions_always_present: bool = False

    def __post_init__(self) -> None:
        names = [servable.name for servable in self.servables]
        for name in names:
            if names.count(name) > 1:
                raise invalid_argument(f"servable {name} is listed more than once")
        if not (math.isfinite(self.quiet_period) and self.quiet_period >= 0):
            raise invalid_argument(f"quiet_period: expected 0 or more seconds, got {self.quiet_period}")
        if self.poll_interval is not None and not math.isfinite(self.poll_interval):
            raise invalid_argument(f"poll_interval: expected a number of seconds, got {self.poll_interval}")

    @property
    def by_name(self) -> dict[str, ServableToMonitor]:
        """The models in alphabetical order."""
        return {servable.name: servable for servable in sorted(self.servables, key=lambda servable: servable.name)}


@dataclass(frozen=True, slots=True)
class SourceReport:
    """The obstacles of a stream. Meant for clients too: no server paths.

    ``problem``: OK, or why the stream has nothing to offer (base path missing, unreadable or without versions).
    ``waiting``: versions that are wanted and not offered yet -> the reason.
    ``settling``: those of them that will be offered soon if nothing else happens to their files.
    ``fetching``: versions whose files are being read before they are offered, for as long as that comes on; also while
    the base path cannot be read.
    ``on_disk``: the versions that have a directory, wanted or not.
    ``keeps``: why the last list goes on counting; empty where this look has given one, or could not read the base path.
    ``failed``: versions of the list that are known to have failed, ``rejected``: those of it that must not answer;
    ``stand_ins`` are wanted in their place.
    ``passed_over``: names beside the versions that look like versions and are none, each with the reason.
    ``changing``: versions that have been offered, and whose files are not complete as they are now -> why.
    """

    name: str
    problem: Status = OK
    waiting: Mapping[int, str] = field(default_factory=dict)
    settling: frozenset[int] = frozenset()
    on_disk: frozenset[int] = frozenset()
    keeps: str = ""
    failed: frozenset[int] = frozenset()
    stand_ins: frozenset[int] = frozenset()
    passed_over: Mapping[str, str] = field(default_factory=dict)
    changing: Mapping[int, str] = field(default_factory=dict)
    fetching: frozenset[int] = frozenset()
    rejected: frozenset[int] = frozenset()

    def stands_in_for(self, version: int) -> str:
        """What it is there for: ``version 3, whose load failed``, ``versions 2 and 3, which must not answer``."""
        failed = sorted(each for each in self.failed | self.rejected if each > version)
        why = {"which must not answer" if each in self.rejected else "whose load failed" for each in failed}
        numbers = " and ".join(", ".join(map(str, failed)).rsplit(", ", 1))
        what = f"{'versions' if failed[1:] else 'version'} {numbers}"
        return f"{what}, {' or '.join(sorted(why))}"
