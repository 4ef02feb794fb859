"""The choice of versions: which children of a base path are versions, and which of them a version policy wants. Pure
functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tfs_lite.core.servable import MAX_VERSION, parse_version
from tfs_lite.core.status import invalid_argument

__all__ = ["AllPolicy", "LatestPolicy", "SpecificPolicy", "VersionPolicy", "candidates", "choose", "parse_version"]


MAX_FAILED = 32
"""Versions that older ones stand in for: where more have failed, it is hardly the fault of each of them."""


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


_LIKE_A_VERSION = re.compile(r"\s*[vV+-]?\d[\d_,.]*\s*")
"""Names that people give to versions; ``3.tmp`` or ``assets`` are none."""
VersionPolicy = LatestPolicy | AllPolicy | SpecificPolicy


def versions_in(children: Iterable[str]) -> dict[int, str]:
    """Version -> child. Of several spellings of one number the lexicographically last one counts."""
    return {version: name for name in sorted(children) if (version := parse_version(name)) is not None}


NO_DIRECTORY = "it is no directory but a file, or a link that leads nowhere"


def why_no_version(name: str, beside: Iterable[str], *, is_directory: bool) -> str:
    """The reason why a child that looks like a version is none, or not the one that counts; empty for any other."""
    version = parse_version(name)
    if version is not None:
        if not is_directory:
            return NO_DIRECTORY
        same = max(other for other in beside if parse_version(other) == version)
        return f"{same} is version {version} too, and counts" if same != name else ""
    if not is_directory or not _LIKE_A_VERSION.fullmatch(name):
        return ""
    if name.isdecimal() and name.isascii():
        return f"the highest version is {MAX_VERSION}"
    return "a version is a whole number in the digits 0 to 9"


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
    children: Iterable[str],
    policy: VersionPolicy,
    usable: Callable[[int, str], bool] = lambda version, child: True,
    failed: Collection[int] = frozenset(),
    rejected: Collection[int] = frozenset(),
) -> list[tuple[int, str]]:
    """The versions to emit, in that order, as (version, child).

    ``usable`` tells whether a version is all there. It is asked from the most wanted down and no more often than
    needed, so an unfinished newest version leaves its predecessor in place, and old ones are not looked at. Versions
    that have ``failed`` are emitted too, and take none of the places of the policy latest: older ones stand in for
    them. After ``MAX_FAILED`` of them no older one is tried. Those that are ``rejected`` are emitted likewise, however
    many they are; in place of each one that the policy specific names, the highest lower one is emitted.
    """
    match policy:
        case LatestPolicy():
            return _latest(candidates(children, policy), max(policy.num_versions, 1), usable, failed, rejected)
        case AllPolicy():
            return [item for item in candidates(children, policy) if usable(*item)]
        case SpecificPolicy():
            found = versions_in(children)
            chosen = {version: child for version, child in candidates(found.values(), policy) if usable(version, child)}
            for version in sorted(chosen.keys() & set(rejected)):
                chosen |= _below(version, found, chosen, usable, {*failed, *rejected})
            return list(chosen.items())


def _latest(
    wanted: Iterable[tuple[int, str]],
    places: int,
    usable: Callable[[int, str], bool],
    failed: Collection[int],
    rejected: Collection[int],
) -> list[tuple[int, str]]:
    chosen: list[tuple[int, str]] = []
    failures = 0
    for version, child in wanted:
        if not places or failures == MAX_FAILED:
            break
        if usable(version, child):
            chosen.append((version, child))
            if version in failed and version not in rejected:
                failures += 1
            elif version not in rejected:
                places -= 1
    return chosen


def _below(
    version: int,
    found: Mapping[int, str],
    chosen: Collection[int],
    usable: Callable[[int, str], bool],
    failed: Collection[int],
) -> dict[int, str]:
    """The version in place of a rejected one: the highest usable one below it that has not failed."""
    lower = sorted((other for other in found if other < version and other not in failed), reverse=True)
    best = next((other for other in lower if other in chosen or usable(other, found[other])), None)
    return {} if best is None else {best: found[best]}


def stand_ins(chosen: Sequence[int], policy: VersionPolicy, failed: Collection[int]) -> frozenset[int]:
    """Those of the chosen versions that are there only because newer ones have failed, or are rejected, which counts
    as ``failed`` here."""
    if isinstance(policy, SpecificPolicy):
        return frozenset(chosen) - frozenset(policy.versions) - frozenset(failed)
    if not isinstance(policy, LatestPolicy):
        return frozenset()
    return frozenset(chosen[max(policy.num_versions, 1) :]) - frozenset(failed)
