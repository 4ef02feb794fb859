"""The plan of a load call: what it finds on disk and what has to happen for that to be served, decided from snapshots.

A version is identified by its *state*, a digest that changes with its path, with every file that it may have read and
with its config; the number of its instances is kept apart. :func:`plan_load` compares these; :func:`failures_of` tells
from the manager's events whether the load is over.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from tfs_lite.adapters.opening import SeenFiles
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import All, ModelConfig, VersionPolicy
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.state import ManagerState, TimedState
from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument
from tfs_lite.serving.config_checks import scan_policy
from tfs_lite.serving.load_journal import LoadAttempt
from tfs_lite.serving.opening.model_configs import settings_digest
from tfs_lite.sources.disk import Disk
from tfs_lite.sources.version_scan import choose, parse_version


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A version directory that is wanted."""

    version: int
    path: StoragePath
    state: str
    instances: str = ""


@dataclass(frozen=True, slots=True)
class OfferedVersion:
    """A version as the manager was offered it."""

    item: ServableData[StoragePath]
    state: str
    instances: str = ""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """``kept``: served as it is on disk. ``added``: not served yet. ``swapped``: served in another state than that on
    disk. ``dropped``: served and not wanted any more. ``resized``: served as it is on disk, with other instances."""

    kept: frozenset[int] = frozenset()
    added: frozenset[int] = frozenset()
    swapped: frozenset[int] = frozenset()
    dropped: frozenset[int] = frozenset()
    resized: frozenset[int] = frozenset()

    @property
    def changes_nothing(self) -> bool:
        return not (self.added or self.swapped or self.dropped or self.resized)


@dataclass(frozen=True, slots=True)
class Past:
    """The facts about a model's versions from before they were offered. It says nothing about the load."""

    states: Mapping[int, TimedState] = field(default_factory=dict)
    attempts: Mapping[int, LoadAttempt] = field(default_factory=dict)


def find_versions(model: ModelConfig, settings: ModelSettings, disk: Disk) -> list[FoundVersion]:
    """Those that the policy wants. INVALID_ARGUMENT if there is none, UNAVAILABLE for files that cannot be read."""
    base = model.base_path
    try:
        entries = disk.list_directory(base)
        versions = [entry.name for entry in entries if entry.is_directory and parse_version(entry.name) is not None]
        chosen = choose(versions, scan_policy(model))
        found = [(version, os.path.join(base, child)) for version, child in chosen]
        states = [_state(path, settings) for _, path in found]
    except OSError as error:
        raise ServingError(StatusCode.UNAVAILABLE, f"its files cannot be read: {error.strerror}") from None
    if not found:
        raise invalid_argument(
            f"load failed for model '{model.name}': at least one version must be available under the version policy "
            f"of model '{model.name}'"
        )
    instances = repr(settings.instance_group)
    return [FoundVersion(version, path, state, instances) for (version, path), state in zip(found, states, strict=True)]


def every_version(model: ModelConfig, settings: ModelSettings, disk: Disk) -> list[FoundVersion]:
    """Those that are there, wanted or not. Errors as of :func:`find_versions`."""
    every = VersionPolicy(all=All())
    return find_versions(model.model_copy(update={"model_version_policy": every}), settings, disk)


def _state(path: StoragePath, settings: ModelSettings) -> str:
    seen = SeenFiles.look(path, settings)
    return _digest([seen.state, seen.tree.configs.fingerprint, settings_digest(settings)])


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()[:16]


def plan_load(
    found: Iterable[FoundVersion], offered: Mapping[int, OfferedVersion], available: Collection[int]
) -> LoadPlan:
    """``available``: the versions that are served now. A version that was offered and has failed is tried again."""
    items = {item.version: item for item in found}
    wanted = {version: item.state for version, item in items.items()}
    serving = {version: offer.state for version, offer in offered.items() if version in available}
    same = frozenset(version for version, state in wanted.items() if serving.get(version) == state)
    resized = frozenset(version for version in same if items[version].instances != offered[version].instances)
    return LoadPlan(
        kept=same - resized,
        added=frozenset(wanted.keys() - serving.keys()),
        swapped=frozenset(wanted.keys() & serving.keys()) - same,
        dropped=frozenset(offered.keys() - wanted.keys()),
        resized=resized,
    )


def failures_of(
    versions: Iterable[int], states: Mapping[int, TimedState], attempts: Mapping[int, LoadAttempt], past: Past
) -> dict[int, Status] | None:
    """The failures by version: empty once all are available, None while a version is still loading and none has failed.
    ``past`` is what was known before the versions were offered."""
    failures, pending = dict[int, Status](), False
    for version in versions:
        timed, attempt = states.get(version), attempts.get(version)
        state = timed.state if timed is not None and timed != past.states.get(version) else None
        if state is not None and state.state is ManagerState.AVAILABLE:
            continue
        if state is not None and state.state is ManagerState.END and _is_failure(state.health):
            failures[version] = state.health
        elif attempt is not None and attempt != past.attempts.get(version) and not attempt.status.ok:
            failures[version] = attempt.status
        else:
            pending = True
    return failures if failures or not pending else None


def _is_failure(health: Status) -> bool:
    """The end of an earlier incarnation that was unloaded or no longer wanted is no failure."""
    return not health.ok and health.code is not StatusCode.CANCELLED


def load_failure(name: str, failures: Mapping[int, Status]) -> ServingError:
    """The error of a load call, in the words that clients look for."""
    parts = "".join(
        f" version {version} is at UNAVAILABLE state: {category(status.code)}: {status.message};"
        for version, status in sorted(failures.items())
    )
    return invalid_argument(f"load failed for model '{name}':{parts}")


def category(code: StatusCode) -> str:
    """``Invalid argument``"""
    return code.name.replace("_", " ").capitalize()
