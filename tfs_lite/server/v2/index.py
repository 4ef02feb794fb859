"""The states of all versions in the words of the V2 protocol, and the errors of a lookup that found none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import ServingError, Status, StatusCode, not_found
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.serving.model_states import ModelReport

LOADING, READY, UNLOADING, UNAVAILABLE = "LOADING", "READY", "UNLOADING", "UNAVAILABLE"
UNLOADED = "unloaded"

_STATES = {
    VersionState.START: LOADING,
    VersionState.LOADING: LOADING,
    VersionState.AVAILABLE: READY,
    VersionState.UNLOADING: UNLOADING,
    VersionState.END: UNAVAILABLE,
}
_UNWANTED = (StatusCode.OK, StatusCode.CANCELLED)


def index_entries(
    reports: Iterable[ModelReport],
    others: Iterable[str],
    ready: bool,
    refused: Mapping[str, Mapping[int, Status]] = MappingProxyType({}),
) -> list[Message]:
    """A ModelIndex for every version, by name, then by version. ``others``: models that could be loaded; those without
    a report have a name only. ``ready``: only versions that are. ``refused``: why versions were not even begun to load,
    by name; it counts for those that are not in memory."""
    found = {report.name: {item.version: item for item in report.versions} for report in reports}
    for name, problems in refused.items():
        versions = found.setdefault(name, {})
        for version, problem in problems.items():
            if version not in versions or _is_unloaded(versions[version]):
                versions[version] = VersionStatus(version, VersionState.END, problem)
    entries = {
        name: [_entry(name, item) for item in found.get(name, {}).values()] or [v2.ModelIndex(name=name)]
        for name in {*found, *others}
    }
    listed = [entry for name in sorted(entries) for entry in sorted(entries[name], key=_number)]
    return [entry for entry in listed if not ready or entry.state == READY]


def lookup_error(name: str, version: int | None, known: Collection[int]) -> ServingError:
    """The error that says why no version was found. ``known``: the versions of the model that the server ever heard
    of."""
    if not known:
        return not_found(f"Request for unknown model: '{name:.500}' is not found")
    if version is None:
        return not_found(f"Request for unknown model: '{name:.500}' has no available versions")
    if version not in known:
        return not_found(f"Request for unknown model: '{name:.500}' version {version} is not found")
    return ServingError(
        StatusCode.UNAVAILABLE, f"Request for unknown model: '{name:.500}' version {version} is not at ready state"
    )


def _entry(name: str, item: VersionStatus) -> Message:
    reason = UNLOADED if _is_unloaded(item) else item.status.message
    return v2.ModelIndex(name=name, version=str(item.version), state=_STATES[item.state], reason=reason)


def _is_unloaded(item: VersionStatus) -> bool:
    """Whether it ended because it was not wanted any more."""
    return item.state is VersionState.END and item.status.code in _UNWANTED


def _number(entry: Message) -> int:
    return int(entry.version or -1)
