"""The view of ``status --verbose`` on replicas in a cluster, read from the list at ``/v1/models``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeAlias

from tfs_lite.cli.output import table
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport, ReplicaStatus

if TYPE_CHECKING:
    from rich.table import Table

UNKNOWN = "-"
COLUMNS = ("replica", "node", "pid", "state", "since", "ongoing", "restarts", "reason")
_UNITS = (("s", 120), ("min", 120 * 60), ("h", 48 * 3600))


ReplicasByVersion: TypeAlias = Mapping[tuple[str, int], ReplicaReport]
"""Replicas by model and version."""


def read_replicas(item: Mapping[str, Any]) -> dict[tuple[str, int], ReplicaReport]:
    """The replicas in an entry of the list at ``/v1/models``. A version of which two loads are in memory has the
    replicas of both."""
    found: dict[tuple[str, int], ReplicaReport] = {}
    for entry in item.get("replica_status", ()):
        key = (item["name"], int(entry["version"]))
        replicas = tuple(ReplicaStatus(**replica) for replica in entry["replicas"])
        before = found.get(key)
        found[key] = ReplicaReport(
            ServableId(*key),
            f"{before.summary}; {entry['summary']}" if before else entry["summary"],
            (before.replicas if before else ()) + replicas,
        )
    return found


def replicas_json(report: ReplicaReport) -> dict[str, Any]:
    """The replicas of a version that has its own entry, as JSON."""
    return {"summary": report.summary, "replicas": [asdict(replica) for replica in report.replicas]}


def replicas_table(known: Iterable[ReplicaReport], now: float) -> Table:
    """A row for each replica. ``now``: seconds since 1970."""
    rows = [
        (
            replica.name,
            replica.node or UNKNOWN,
            UNKNOWN if replica.pid is None else replica.pid,
            replica.state,
            _ago(now - replica.since),
            UNKNOWN if replica.ongoing is None else replica.ongoing,
            replica.restarts,
            replica.reason,
        )
        for of_version in known
        for replica in of_version.replicas
    ]
    return table(COLUMNS, rows)


def _ago(seconds: float) -> str:
    """``90 s``, ``15 min``, ``30 h``, ``3 d``."""
    seconds = max(seconds, 0.0)
    size = 1
    for unit, until in _UNITS:
        if seconds < until:
            return f"{seconds / size:.0f} {unit}"
        size *= 60
    return f"{seconds / 86400:.0f} d"
