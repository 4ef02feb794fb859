"""Replicas as ``status --verbose`` shows them."""

from __future__ import annotations

import pytest

from tfs_lite.cli.views.replicas import read_replicas, replicas_table
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ReplicaReport, ReplicaStatus

ENTRY = {"name": "m/1/00000000/0#0", "state": "ready", "since": 0.0, "node": "a", "pid": 7, "ongoing": 0, "restarts": 0}


def test_model_without_replicas_has_none() -> None:
    assert read_replicas({"name": "m", "model_version_status": []}) == {}


def test_version_that_is_loaded_beside_itself_has_the_replicas_of_both() -> None:
    of_version = {"version": "1", "summary": "1/1 up", "replicas": [{**ENTRY, "reason": ""}]}
    beside = {**of_version, "summary": "0/1 up, 1 starting"}
    found = read_replicas({"name": "m", "replica_status": [of_version, beside, {**of_version, "version": "2"}]})
    replica = ReplicaStatus(**ENTRY)
    assert found == {
        ("m", 1): ReplicaReport(ServableId("m", 1), "1/1 up; 0/1 up, 1 starting", (replica, replica)),
        ("m", 2): ReplicaReport(ServableId("m", 2), "1/1 up", (replica,)),
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_times_are_told_in_a_suitable_unit(seconds: float, text: str) -> None:
    table = replicas_table(
        [ReplicaReport(ServableId("m", 1), "", (ReplicaStatus("r", "ready", 1000.0),))], 1000.0 + seconds
    )
    assert [str(cell) for cell in table.columns[4].cells] == [text]
