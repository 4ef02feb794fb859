"""Which children of a base path are versions, and which of them a version policy wants. Pure functions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tfs_lite.core.manifest import parse_version
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import invalid_argument

__all__ = ["AllPolicy", "LatestPolicy", "SpecificPolicy", "VersionPolicy", "candidates", "choose", "parse_version"]


@dataclass(frozen=True, slots=True)
class LatestPolicy:
    """The ``num_versions`` highest versions; 0 means 1."""

    num_versions: int = 1

    def __post_init__(self) -> None:
        if self.num_versions < 0:
            raise invalid_argument(f"version policy latest: num_versions: expected 1 or more, got {self.num_versions}")


@dataclass(frozen=True, slots=True)
class AllPolicy:
    """Every version there is."""


@dataclass(frozen=True, slots=True)
class SpecificPolicy:
    """Exactly these versions, as far as they are there."""

    versions: tuple[int, ...]

    def __post_init__(self) -> None:
        for version in self.versions:
            if not 0 <= version <= MAX_VERSION:
                raise invalid_argument(f"version policy specific: versions: {version} is not in 0..2^63-1")


VersionPolicy = LatestPolicy | AllPolicy | SpecificPolicy


def versions_in(children: Iterable[str]) -> dict[int, str]:
    """Version -> child. Of several spellings of one number the lexicographically last one counts."""
    return {version: name for name in sorted(children) if (version := parse_version(name)) is not None}


def candidates(children: Iterable[str], policy: VersionPolicy) -> list[tuple[int, str]]:
    """The versions that may be emitted, in order: latest by falling number, all by name, specific as configured."""
    found = versions_in(children)
    match policy:
        case LatestPolicy():
            return sorted(found.items(), reverse=True)
        case AllPolicy():
            return sorted(found.items(), key=lambda item: item[1])
        case SpecificPolicy():
            return [(version, found[version]) for version in dict.fromkeys(policy.versions) if version in found]


def choose(
    children: Iterable[str], policy: VersionPolicy, usable: Callable[[int, str], bool] = lambda version, child: True
) -> list[tuple[int, str]]:
    """The versions to emit, in that order, as (version, child).

    ``usable`` tells whether a version is all there. It is asked from the most wanted down and no more often than
    needed, so an unfinished newest version leaves its predecessor in place, and old ones are not looked at.
    """
    wanted = candidates(children, policy)
    limit = max(policy.num_versions, 1) if isinstance(policy, LatestPolicy) else None
    return list(itertools.islice((item for item in wanted if usable(*item)), limit))
