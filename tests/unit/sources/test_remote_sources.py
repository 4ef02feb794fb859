"""The sources of URLs: whose lists count, and what has a lease."""

from __future__ import annotations

import pytest

from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.sources.remote_sources import Lease, OneSourceEach, leases_to_drop

M1, M2 = ServableId("m", 1), ServableId("m", 2)


def lease(id: ServableId, key: str = "k") -> Lease:
    return Lease(id, key, f"/cache/{key}/{id.version}", f"s3://b/{id.name}/{id.version}")


def item(id: ServableId) -> ServableData[str]:
    return ServableData.ok(id, f"/models/{id.version}")


@pytest.fixture
def lists() -> tuple[OneSourceEach, list[tuple[str, list[ServableId]]]]:
    given: list[tuple[str, list[ServableId]]] = []
    found = OneSourceEach()
    found.start(lambda name, versions: given.append((name, [item.id for item in versions])))
    return found, given


def test_list_of_the_source_that_has_the_model_is_passed_on(lists) -> None:
    found, given = lists
    found.assign({"m": "s3://b"})
    assert found.offer("s3://b", "m", [item(M1)])
    assert given == [("m", [M1])]


def test_lists_of_the_source_that_had_a_model_are_dropped_the_empty_one_too(lists) -> None:
    found, given = lists
    found.assign({"m": ""})
    found.offer("", "m", [item(M1)])
    found.assign({"m": "s3://b"})
    assert not found.offer("", "m", [])
    assert not found.offer("", "m", [item(M1)])
    assert found.offer("s3://b", "m", [item(M2)])
    assert given == [("m", [M1]), ("m", [M2])]


def test_empty_list_of_a_model_that_is_gone_is_passed_on_by_its_last_source_alone(lists) -> None:
    found, given = lists
    found.assign({"m": "s3://b"})
    found.assign({})
    assert not found.offer("", "m", [])
    assert found.offer("s3://b", "m", [])
    found.assign({})
    assert not found.offer("s3://b", "m", [])
    assert given == [("m", [])]


def test_version_that_was_ended_and_is_in_no_list_loses_its_lease() -> None:
    held = {lease(M1), lease(M2)}
    assert leases_to_drop(held, {lease(M2)}, {M1: "", M2: ""}) == {lease(M1)}


def test_version_of_which_nothing_is_known_keeps_its_lease() -> None:
    assert leases_to_drop({lease(M1)}, set(), {}) == frozenset()
    assert leases_to_drop({lease(M1)}, set(), {M2: ""}) == frozenset()


def test_version_that_was_loaded_anew_keeps_the_lease_of_what_serves_and_of_what_is_wanted() -> None:
    old, now, wanted = lease(M1, "a"), lease(M1, "b"), lease(M1, "c")
    assert leases_to_drop({old, now, wanted}, {wanted}, {M1: now.path}) == {old}


def test_two_models_of_one_base_have_a_lease_each() -> None:
    other = ServableId("n", 1)
    held = {lease(M1), Lease(other, "k", "/cache/k/1", "s3://b/m/1")}
    assert leases_to_drop(held, set(), {M1: ""}) == {lease(M1)}
