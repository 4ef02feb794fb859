"""Which labels may be given, and what they mean."""

from __future__ import annotations

import pytest

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.labels import VersionLabels, check_labels, instead_of

NOT_AVAILABLE = "which is not currently available for inference"


def accepted(mapped: int | None, available: bool, **options: bool) -> bool:
    """Whether ``stable`` of ``m``, now at ``mapped``, may point to version 2."""
    current = {} if mapped is None else {"m": {"stable": mapped}}
    try:
        check_labels({"m": {"stable": 2}}, current, lambda servable_id: available, **options)
    except ServingError as error:
        assert error.code is StatusCode.FAILED_PRECONDITION  # noqa: PT017
        text = f'Request to assign label "stable" to version 2 of model "m", {NOT_AVAILABLE}'
        assert str(error).startswith(text)  # noqa: PT017
        assert "specific { versions: 2 }" in str(error)  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize(
    ("mapped", "available", "result"),
    [(None, True, True), (None, False, True), (2, True, True), (2, False, True), (1, True, True), (1, False, False)],
)
def test_where_unavailable_versions_are_allowed_a_label_may_not_move_to_one(
    mapped: int | None, available: bool, result: bool
) -> None:
    assert accepted(mapped, available, allow_unavailable=True) is result


@pytest.mark.parametrize("mapped", [None, 1])
@pytest.mark.parametrize("available", [True, False])
def test_by_default_only_available_versions_get_labels(mapped: int | None, available: bool) -> None:
    assert accepted(mapped, available) is available


def test_a_label_that_stays_where_it_is_is_accepted_whatever_became_of_its_version() -> None:
    assert accepted(2, available=False)


def test_first_config_may_label_what_is_about_to_load() -> None:
    assert accepted(None, False, first_config=True)


def test_labels_of_other_models_do_not_count_as_mapped() -> None:
    with pytest.raises(ServingError, match=NOT_AVAILABLE):
        check_labels(
            {"m": {"stable": 2}, "n": {"stable": 3}},
            {"n": {"stable": 4}},
            lambda servable_id: False,
            allow_unavailable=True,
        )


def code_of(labels: VersionLabels, model: str, label: str) -> StatusCode:
    with pytest.raises(ServingError) as raised:
        labels.resolve(model, label)
    return raised.value.code


def test_label_resolves_to_its_version() -> None:
    labels = VersionLabels()
    labels.replace({"m": {"stable": 1, "canary": 2, "same": 2}})
    assert [labels.resolve("m", label) for label in ("stable", "canary", "same")] == [1, 2, 2]


def test_table_is_replaced_whole() -> None:
    labels = VersionLabels()
    labels.replace({"m": {"stable": 1}, "n": {"stable": 1}})
    labels.replace({"m": {"canary": 2}})
    assert labels.table == {"m": {"canary": 2}}
    assert code_of(labels, "m", "stable") is StatusCode.INVALID_ARGUMENT
    assert code_of(labels, "n", "stable") is StatusCode.INVALID_ARGUMENT


def test_unknown_label_is_answered_with_the_known_ones() -> None:
    labels = VersionLabels()
    labels.replace({"m": {"stable": 1, "canary": 2}})
    with pytest.raises(ServingError, match=r"Unrecognized servable version label: x\. .* canary, stable"):
        labels.resolve("m", "x")
    assert "has the labels: none" in refusal(labels.resolve, "unknown", "x")


def test_labels_before_the_first_table_are_unavailable() -> None:
    assert code_of(VersionLabels(), "m", "stable") is StatusCode.UNAVAILABLE


def test_table_in_force_does_not_change_under_its_readers() -> None:
    wanted = {"m": {"stable": 1}}
    labels = VersionLabels()
    labels.replace(wanted)
    wanted["m"]["stable"] = 9
    assert labels.resolve("m", "stable") == 1


def test_label_may_move_to_a_version_that_its_own_config_brings() -> None:
    current = {"m": {"stable": 1}}
    check_labels({"m": {"stable": 2}}, current, lambda servable_id: False, brought=lambda model: {2})
    with pytest.raises(ServingError, match=NOT_AVAILABLE):
        check_labels({"m": {"stable": 3}}, current, lambda servable_id: False, brought=lambda model: {2})


def test_label_may_not_be_set_on_a_version_that_must_not_answer_and_stays_on_one() -> None:
    def check(current: int, *, first_config: bool = False) -> None:
        check_labels(
            {"m": {"stable": 8}},
            {"m": {"stable": current}},
            lambda servable_id: True,
            rejected=lambda model: {8: Status(StatusCode.ABORTED, "taken back after 11 s: it raised")},
            brought=lambda model: {8},
            allow_unavailable=True,
            first_config=first_config,
        )

    text = refusal(check, 7, code=StatusCode.FAILED_PRECONDITION)
    assert "taken back after 11 s: it raised; to load it again: tfs-lite guard retry m@8" in text
    check(8)
    check(7, first_config=True)


def test_label_on_a_version_that_must_not_answer_means_the_highest_one_below_it_that_may() -> None:
    assert instead_of(8, {5, 6, 7, 9}, {7, 8}) == 6
    assert instead_of(8, {8, 9}, {8}) is None
    assert instead_of(0, {0, 1}, {0}) is None


def test_label_that_waits_for_its_version_means_the_one_of_before_until_that_is_available() -> None:
    labels, available = VersionLabels(), set[int]()

    def replace(**table: int) -> None:
        labels.replace({"m": table}, lambda servable_id: servable_id.version in available)

    def meaning(label: str) -> int | None:
        return labels.version(ModelRef("m", label=label))

    replace(stable=1)
    assert meaning("stable") == 1
    replace(stable=2, new=2)
    assert (meaning("stable"), meaning("new"), labels.waiting) == (1, 2, {"m": {"stable": 1}})
    replace(stable=2)
    assert meaning("stable") == 1
    replace(stable=3)
    assert meaning("stable") == 1
    labels.arrived(ServableId("m", 2))
    assert meaning("stable") == 1
    labels.arrived(ServableId("m", 3))
    assert (meaning("stable"), labels.waiting) == (3, {})
    available.add(4)
    replace(stable=4)
    assert (meaning("stable"), labels.waiting) == (4, {})
    replace(other=4)
    assert code_of(labels, "m", "stable") is StatusCode.INVALID_ARGUMENT


def test_label_whose_version_is_loaded_again_means_the_one_that_answers_until_that_is_available() -> None:
    labels, available = VersionLabels(), set[int]()

    def wait(version: int) -> None:
        labels.wait(ServableId("m", version), lambda servable_id: servable_id.version in available)

    def meaning(label: str) -> int | None:
        return labels.version(ModelRef("m", label=label))

    labels.replace({"m": {"stable": 8, "canary": 9}, "n": {"stable": 9}})
    wait(9)
    assert (meaning("stable"), meaning("canary"), labels.version(ModelRef("n", label="stable"))) == (8, None, 9)
    labels.replace({"m": {"stable": 8, "canary": 9}}, lambda servable_id: False)
    assert (meaning("stable"), meaning("canary")) == (8, None)
    labels.arrived(ServableId("m", 9))
    assert (meaning("canary"), labels.waiting) == (9, {})
    wait(7)
    assert labels.waiting == {}
    available.add(8)
    wait(8)
    assert (meaning("stable"), labels.waiting) == (8, {})
