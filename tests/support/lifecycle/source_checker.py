"""What a file-system source must emit, worked out from what a simulation has put on its disk.

The reference knows nothing of fingerprints, evidence or polls. It says of each version on the disk: must be offered,
must not be offered, or (while its files are settling or its digests are being checked) may be. Emissions are compared
with that, in the order in which the version policy wants them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence

from tests.support.lifecycle.simulated_models import ModelStore, StoredVersion
from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import StatusCode
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig, SourceReport
from tfs_lite.sources.version_scan import LatestPolicy, SpecificPolicy, VersionPolicy

Emitted = Mapping[str, Sequence[ServableData[StoragePath]]]


class Offer(enum.Enum):
    """Whether a version belongs into the list now."""

    MUST = "must"
    MAY = "may"
    MUST_NOT = "must not"


class SourceChecker:
    """``config`` is the one the source has now. Complaints are sentences; no complaint, no violation."""

    def __init__(self, store: ModelStore, clock: Clock, config: SourceConfig) -> None:
        self._store, self._clock = store, clock
        self.config = config
        self._offered: dict[str, dict[int, str]] = {}  # stream -> version -> base path it was offered from
        self._gone: dict[str, dict[int, float]] = {}  # stream -> of these, those seen without a directory -> since when
        self._reports: dict[str, SourceReport] = {}
        self._failed: dict[str, set[int]] = {}  # stream -> versions that have failed, and not been available since
        self._places: dict[str, str] = {}  # stream -> the directory that held versions when it was seen last
        self._empty_since: dict[str, float] = {}  # stream -> when that was first seen to hold none any more

    @property
    def reports(self) -> Mapping[str, SourceReport]:
        """The last one of each stream."""
        return self._reports

    def on_report(self, report: SourceReport) -> None:
        self._reports[report.name] = report

    def on_state(self, state: ServableState) -> None:
        """What has become of a version; the next list has to go by it."""
        failed = self._failed.get(state.id.name)
        if failed is None:
            return
        if state.state is ManagerState.AVAILABLE:
            failed.discard(state.id.version)
        elif state.state is ManagerState.END and not state.health.ok and state.health.code is not StatusCode.CANCELLED:
            failed.update({state.id.version} & self._offered.get(state.id.name, {}).keys())

    def judge_update(self, config: SourceConfig, emitted: Emitted) -> list[str]:
        """``config`` has replaced the old one. Streams that are gone get their empty list, others nothing."""
        gone = self.config.by_name.keys() - config.by_name.keys()
        self.config = config
        for name in gone:
            for known in (self._offered, self._gone, self._reports, self._failed, self._places, self._empty_since):
                known.pop(name, None)
        if {name: list(items) for name, items in emitted.items()} == {name: [] for name in gone}:
            return []
        return [f"the update removed {sorted(gone)} and emitted {dict(emitted)}"]

    def judge_poll(self, emitted: Emitted, settled: bool = False) -> list[str]:
        """A poll has ended. ``settled``: the disk has been quiet and was polled often enough, so no MAY is left."""
        complaints = [
            f"a list for {name}, which is not in the config" for name in emitted if name not in self.config.by_name
        ]
        for name, servable in self.config.by_name.items():
            complaints += [f"poll of {name}: {text}" for text in self._judge(servable, emitted.get(name), settled)]
        return complaints

    def _judge(
        self, servable: ServableToMonitor, emitted: Sequence[ServableData[StoragePath]] | None, settled: bool
    ) -> list[str]:
        readable = self._store.is_listable(servable.base_path)
        versions = self._store.bases[servable.base_path] if readable else {}
        complaints = self._judge_report(servable, bool(versions))
        failed = self._failed.setdefault(servable.name, set())
        if not readable:
            self._empty_since.pop(servable.name, None)
            return [
                *complaints,
                *(["(9) a list, although its base path cannot be read"] if emitted is not None else []),
            ]
        offered = self._offered.get(servable.name, {})
        here = servable.base_path
        gone = self._lately_gone(servable.name, {v for v, base in offered.items() if base == here} - versions.keys())
        there = versions.keys() | gone
        failed.intersection_update(versions or failed)
        self._offered[servable.name] = {v: base for v, base in offered.items() if v in there and base == here}
        if not versions:
            return [*complaints, *self._judge_empty(servable, emitted)]
        self._places[servable.name] = self._store.disk.identity(servable.base_path)
        self._empty_since.pop(servable.name, None)
        if emitted is not None and not emitted and servable.policy != SpecificPolicy(()):
            return [*complaints, "(11) an empty list, although there are versions"]
        offers = self._offers(servable, versions, settled)
        if emitted is None and not settled and self._may_wait(servable, versions, offers):
            return complaints
        order, emitted = emitted is not None, emitted or ()
        limit = max(servable.policy.num_versions, 1) if isinstance(servable.policy, LatestPolicy) else None
        found = [item.id.version for item in emitted]
        complaints += judge_list(offers, found, limit, failed)
        complaints += [
            f"(12) {item.id} is {'' if item.given_up else 'not '}given up; failed have {failed}"
            for item in emitted
            if item.given_up is not (item.id.version in failed)
        ]
        complaints += [
            f"{item.id} is offered at {item.payload}"
            for item in emitted
            if item.payload != f"{servable.base_path}/{item.id.version}"
        ]
        if order:  # else the last list goes on counting
            self._offered[servable.name] = dict.fromkeys(found, servable.base_path)
        return complaints

    def _lately_gone(self, name: str, missing: Collection[int]) -> set[int]:
        """Of the offered versions that have no directory, those that have not failed and had one less than the quiet
        period ago, as far as polls have seen: they count as there."""
        now, known = self._clock.monotonic(), self._gone.get(name, {})
        since = {version: known.get(version, now) for version in missing if version not in self._failed[name]}
        self._gone[name] = {version: at for version, at in since.items() if now - at < self.config.quiet_period}
        return set(self._gone[name])

    def _may_wait(
        self, servable: ServableToMonitor, versions: Mapping[int, StoredVersion], offers: Mapping[int, Offer]
    ) -> bool:
        """Whether a first list may wait for a newer version than it would have."""
        newest = max((version for version, offer in offers.items() if offer is Offer.MUST), default=-1)
        settling = [
            version
            for version, stored in versions.items()
            if stored.promised is not None or self._clock.monotonic() - stored.changed < self.config.quiet_period
        ]
        return not (self._offered[servable.name].keys() & offers.keys()) and max(settling, default=-1) > newest

    def _judge_empty(
        self, servable: ServableToMonitor, emitted: Sequence[ServableData[StoragePath]] | None
    ) -> list[str]:
        """An empty list is an order: of the very directory that held versions, once it has been seen empty for long."""
        name, now = servable.name, self._clock.monotonic()
        place, known = self._store.disk.identity(servable.base_path), self._places.get(servable.name)
        order = known is None or servable.policy == SpecificPolicy(())
        if not order and known == place:
            order = now - self._empty_since.setdefault(name, now) >= self.config.quiet_period
            if order:
                del self._places[name], self._empty_since[name]
        listed = None if emitted is None else [item.id.version for item in emitted]
        expected: list[int] | None = [] if order else None
        return [] if listed == expected else [f"(11) of an empty base path {listed}, expected {expected}"]

    def _offers(
        self, servable: ServableToMonitor, versions: Mapping[int, StoredVersion], settled: bool
    ) -> dict[int, Offer]:
        """In the order of the policy. What was offered last stays offered while its directory counts as there."""
        known, gone = self._offered[servable.name], self._gone[servable.name]
        offers = {}
        for version in candidates(versions.keys() | gone.keys(), servable.policy):
            offer = Offer.MUST if version in gone else self._offer(versions[version])
            if version in known and offer is not Offer.MUST:
                offer = Offer.MUST if known[version] == servable.base_path else Offer.MAY
            elif offer is Offer.MAY and settled:
                offer = Offer.MUST
            offers[version] = offer
        return offers

    def _offer(self, stored: StoredVersion) -> Offer:
        if not stored.whole:
            return Offer.MUST_NOT
        if stored.promised is not None:
            return Offer.MAY
        if self._clock.monotonic() - stored.changed < self.config.quiet_period:
            return Offer.MUST_NOT
        return Offer.MAY if self.config.quiet_period else Offer.MUST

    def _judge_report(self, servable: ServableToMonitor, has_versions: bool) -> list[str]:
        lists_none = isinstance(servable.policy, SpecificPolicy) and not servable.policy.versions
        fine = has_versions and not lists_none
        report = self._reports.get(servable.name)
        if report is None or report.problem.ok is not fine:
            return [f"reported {report}, expected {'no' if fine else 'a'} problem"]
        return []


def candidates(versions: Collection[int], policy: VersionPolicy) -> list[int]:
    """What the policy would have, most wanted first. All version directories here have one digit."""
    if isinstance(policy, SpecificPolicy):
        return [version for version in policy.versions if version in versions]
    return sorted(versions, reverse=isinstance(policy, LatestPolicy))


def judge_list(
    offers: Mapping[int, Offer], found: Sequence[int], limit: int | None, failed: Collection[int]
) -> list[str]:
    """``offers`` in the order of the policy; ``limit`` is how many of them a list may hold, those that have ``failed``
    not counted."""
    complaints, taken, good = [], 0, 0
    for version, offer in offers.items():
        if good == limit:
            break
        if taken < len(found) and found[taken] == version:
            taken, good = taken + 1, good + (version not in failed)
            if offer is Offer.MUST_NOT:
                complaints.append(f"version {version} is offered before it is all there")
        elif offer is Offer.MUST:
            complaints.append(f"version {version} is not offered")
    if taken < len(found):
        complaints.append(f"offered {list(found)}, of which {list(found[taken:])} is not wanted")
    return complaints
