"""States in the words of V2, and lookup errors."""

from __future__ import annotations

import pytest

from tfs_lite.core.servable import VersionState, VersionStatus
from tfs_lite.core.status import OK, Status, StatusCode
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.server.v2.index import index_entries, lookup_error
from tfs_lite.serving.model_states import ModelReport

BAD = Status(StatusCode.INTERNAL, "broken")


def report(name: str, *versions: VersionStatus) -> ModelReport:
    return ModelReport(name, versions, OK)


@pytest.mark.parametrize(
    ("state", "status", "shown", "reason"),
    [
        (VersionState.START, OK, "LOADING", ""),
        (VersionState.LOADING, BAD, "LOADING", "broken"),
        (VersionState.AVAILABLE, OK, "READY", ""),
        (VersionState.UNLOADING, OK, "UNLOADING", ""),
        (VersionState.END, OK, "UNAVAILABLE", "unloaded"),
        (VersionState.END, Status(StatusCode.CANCELLED, "not wanted"), "UNAVAILABLE", "unloaded"),
        (VersionState.END, BAD, "UNAVAILABLE", "broken"),
    ],
    ids=["start", "loading", "available", "unloading", "unloaded", "cancelled", "failed"],
)
def test_every_state_has_a_word(state: VersionState, status: Status, shown: str, reason: str) -> None:
    entries = index_entries([report("m", VersionStatus(3, state, status))], (), ready=False)
    assert entries == [v2.ModelIndex(name="m", version="3", state=shown, reason=reason)]


def test_entries_are_by_name_and_version_and_models_never_loaded_have_a_name_only() -> None:
    available = [VersionStatus(version, VersionState.AVAILABLE, OK) for version in (10, 9)]
    entries = index_entries([report("m", *available), report("a")], ["m", "never"], ready=False)
    assert entries == [
        v2.ModelIndex(name="a"),
        v2.ModelIndex(name="m", version="9", state="READY"),
        v2.ModelIndex(name="m", version="10", state="READY"),
        v2.ModelIndex(name="never"),
    ]


def test_only_what_is_ready_when_asked_for() -> None:
    versions = [VersionStatus(2, VersionState.AVAILABLE, OK), VersionStatus(1, VersionState.END, BAD)]
    assert index_entries([report("m", *versions)], ["never"], ready=True) == [
        v2.ModelIndex(name="m", version="2", state="READY")
    ]


@pytest.mark.parametrize(
    ("version", "known", "code", "message"),
    [
        (None, set(), StatusCode.NOT_FOUND, "Request for unknown model: 'm' is not found"),
        (1, set(), StatusCode.NOT_FOUND, "Request for unknown model: 'm' is not found"),
        (None, {1}, StatusCode.NOT_FOUND, "Request for unknown model: 'm' has no available versions"),
        (2, {1}, StatusCode.NOT_FOUND, "Request for unknown model: 'm' version 2 is not found"),
        (1, {1}, StatusCode.UNAVAILABLE, "version 1 is not at ready state"),
    ],
    ids=["model", "version of no model", "nothing ready", "version", "not ready"],
)
def test_lookup_errors_say_what_is_missing(
    version: int | None, known: set[int], code: StatusCode, message: str
) -> None:
    error = lookup_error("m", version, known)
    assert error.code is code
    assert message in str(error)


def test_versions_that_were_refused_say_why_unless_they_are_in_memory() -> None:
    refused = {"e": {1: BAD}, "m": {1: BAD, 2: BAD}}
    versions = [VersionStatus(2, VersionState.AVAILABLE, OK), VersionStatus(1, VersionState.END, OK)]
    assert index_entries([report("m", *versions)], ["e"], ready=False, refused=refused) == [
        v2.ModelIndex(name="e", version="1", state="UNAVAILABLE", reason="broken"),
        v2.ModelIndex(name="m", version="1", state="UNAVAILABLE", reason="broken"),
        v2.ModelIndex(name="m", version="2", state="READY"),
    ]
