"""Ids, data-or-error items and requests."""

from __future__ import annotations

import pytest

from tfs_lite.core.servable import MAX_VERSION, ModelRef, ServableData, ServableId
from tfs_lite.core.status import OK, Status, StatusCode

ID = ServableId("m", 1)
BAD = Status(StatusCode.NOT_FOUND, "gone")


def test_ids_are_ordered_by_name_then_by_number() -> None:
    ids = [ServableId("b", 1), ServableId("a", 10), ServableId("a", 9)]
    assert sorted(ids) == [ServableId("a", 9), ServableId("a", 10), ServableId("b", 1)]


def test_id_reads_as_in_tensorflow_serving() -> None:
    assert str(ServableId("half_plus_two", 123)) == "{name: half_plus_two version: 123}"


@pytest.mark.parametrize("version", [0, MAX_VERSION])
def test_versions_are_int64(version: int) -> None:
    assert ServableId("m", version).version == version


@pytest.mark.parametrize("version", [-1, MAX_VERSION + 1])
def test_version_out_of_range_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match=r"is not in 0..2\^63-1"):
        ServableId("m", version)


def test_item_has_a_payload_or_an_error_never_both() -> None:
    healthy, errored = ServableData.ok(ID, "path"), ServableData.error(ID, BAD)
    assert (healthy.payload, healthy.status) == ("path", OK)
    assert errored.status == BAD
    with pytest.raises(ValueError, match="has no payload"):
        _ = errored.payload


def test_error_needs_a_status_that_is_not_ok() -> None:
    with pytest.raises(ValueError, match="other than OK"):
        ServableData.error(ID, OK)


def test_items_are_equal_when_everything_is() -> None:
    assert ServableData.ok(ID, "p") == ServableData.ok(ID, "p")
    assert ServableData.ok(ID, "p") != ServableData.ok(ID, "q")
    assert ServableData.ok(ID, "p") != ServableData.ok(ServableId("m", 2), "p")
    assert ServableData.error(ID, BAD) == ServableData.error(ID, BAD)
    assert ServableData.error(ID, BAD) != ServableData.error(ID, Status(StatusCode.NOT_FOUND, "other"))


def test_conversion_keeps_id_and_revision() -> None:
    item = ServableData.ok(ID, "path", "r1")
    assert item.with_payload(7) == ServableData.ok(ID, 7, "r1")
    assert item.with_error(BAD) == ServableData.error(ID, BAD, "r1")


@pytest.mark.parametrize(
    ("request_", "text"),
    [(ModelRef("n", 5), "Specific(n, 5)"), (ModelRef("n", 0), "Specific(n, 0)"), (ModelRef("n"), "Latest(n)")],
)
def test_request_reads_as_in_tensorflow_serving(request_: ModelRef, text: str) -> None:
    assert str(request_) == text
