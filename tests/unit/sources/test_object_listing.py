"""The objects below a base path as directories: markers, odd names, claims, files beside, and what is not there for one
listing."""

from __future__ import annotations

import pytest

from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.sources.object_listing import (
    BaseListing,
    ListedVersion,
    SavedBase,
    SavedVersion,
    arrange,
    flat_or_deep,
    still_there,
)
from tfs_lite.storage.fetch import CLAIM_NAME
from tfs_lite.storage.store import FlatListing, RemoteFile


def file(path: str, size: int = 3, tag: str = "t", modified_ns: int = 0) -> RemoteFile:
    return RemoteFile(path, size, tag, modified_ns)


def names(version: ListedVersion | None) -> list[str]:
    assert version is not None
    return [each.path for each in version.files]


def test_versions_folders_and_files_beside_are_told_apart() -> None:
    found = arrange("m", [file(f"m/{p}") for p in ("1/model.pt2", "1/a/b", "02/x", "labels.txt", "warmup/x", "3")])
    assert {name: names(version) for name, version in found.versions.items()} == {
        "1": ["a/b", "model.pt2"],
        "02": ["x"],
    }
    assert sorted(found.beside) == ["3", "labels.txt", "warmup/x"]
    assert found.folders == found.read == {"warmup"}


def test_a_base_path_may_be_the_whole_bucket() -> None:
    assert names(arrange("", [file("1/model.pt2")]).versions["1"]) == ["model.pt2"]


def test_markers_of_folders_are_no_files_and_that_of_a_version_makes_one() -> None:
    markers = [file(path, 0) for path in ("m", "m/1", "m/1/a", "m/2", "m/warmup", "m/warmup/b")]
    found = arrange("m", [*markers, file("m/1/a/x"), file("m/warmup/b/x")])
    assert names(found.versions["1"]) == ["a/x"]
    assert names(found.versions["2"]) == []
    assert sorted(found.beside) == ["warmup/b/x"]


@pytest.mark.parametrize("name", [".hidden", "__pycache__/x", "train.log", CLAIM_NAME])
def test_what_is_litter_on_a_disk_is_no_part_of_a_version(name: str) -> None:
    assert names(arrange("m", [file("m/1/model.pt2"), file(f"m/1/{name}")]).versions["1"]) == ["model.pt2"]


def test_hidden_names_beside_the_versions_are_left_out() -> None:
    found = arrange("m", [file("m/1/x"), file("m/.git/x"), file("m/.tfs-lite-2/x"), file("m/.DS_Store")])
    assert (list(found.versions), dict(found.beside), found.folders) == (["1"], {}, frozenset())


@pytest.mark.parametrize("names_of", [["a", "a/b"], ["a" * 256], ["a\0b"]])
def test_names_that_cannot_be_those_of_files_are_a_problem_of_their_own_version(names_of: list[str]) -> None:
    found = arrange("m", [file("m/1/model.pt2"), *(file(f"m/2/{name}") for name in names_of)])
    broken, whole = found.versions["2"], found.versions["1"]
    assert broken is not None
    assert broken.problem
    assert names(whole) == ["model.pt2"]


def test_a_claim_counts_until_the_manifest_is_there() -> None:
    claimed = arrange("m", [file("m/1/x"), file(f"m/1/{CLAIM_NAME}")]).versions["1"]
    published = arrange("m", [file("m/1/x"), file(f"m/1/{CLAIM_NAME}"), file(f"m/1/{MANIFEST_NAME}")]).versions["1"]
    assert claimed is not None
    assert claimed.claim == file(CLAIM_NAME)
    assert published is not None
    assert published.claim is None


def test_of_a_deep_listing_only_the_first_level_is_known() -> None:
    found = arrange("m", [file("m/labels.txt"), file("m/3", 0)], ["1", "2", "warmup", ".git"])
    assert found.versions == {"1": None, "2": None, "3": None}
    assert (sorted(found.beside), found.folders, found.read) == (["labels.txt"], {"warmup"}, frozenset())


def test_a_flat_listing_that_is_a_part_is_followed_by_deep_ones() -> None:
    assert not flat_or_deep(FlatListing(()))
    assert flat_or_deep(FlatListing((), is_whole=False))


def test_times_make_no_other_state_and_tags_and_sizes_do() -> None:
    state = arrange("m", [file("m/1/x"), file("m/l")]).state
    assert arrange("m", [file("m/l"), file("m/1/x", modified_ns=9)]).state == state
    others = [
        [file("m/1/x", tag="u"), file("m/l")],
        [file("m/1/x", 4), file("m/l")],
        [file("m/1/x"), file("m/l", tag="u")],
        [file("m/1/x")],
        [file("m/1/x"), file("m/l"), file("m/2", 0)],
        [file("m/1/x"), file("m/l"), file("m/a/x")],
        [file("m/1/x"), file("m/l"), file(f"m/1/{CLAIM_NAME}")],
    ]
    assert len({state, *(arrange("m", files).state for files in others)}) == len(others) + 1


# What is missing.


def listing(*versions: str) -> BaseListing:
    return arrange("m", [file(f"m/{version}/x") for version in versions])


def test_a_version_that_is_missing_beside_others_is_reported_once_more_with_its_files() -> None:
    first = listing("1", "2")
    second = still_there(first, listing("2"), 100.0, 30.0)
    assert second.versions == first.versions
    third = still_there(second, listing("2"), 160.0, 30.0)
    assert list(third.versions) == ["2"]
    assert third.missing == {}


def test_two_listings_within_a_moment_are_one() -> None:
    second = still_there(listing("1", "2"), listing("2"), 100.0, 30.0)
    third = still_there(second, listing("2"), 101.0, 30.0)
    assert sorted(third.versions) == ["1", "2"]
    assert list(still_there(third, listing("2"), 130.0, 30.0).versions) == ["2"]


def test_a_version_that_is_back_begins_anew() -> None:
    second = still_there(listing("1", "2"), listing("2"), 100.0, 30.0)
    back = still_there(second, listing("1", "2"), 160.0, 30.0)
    assert back.missing == {}
    assert sorted(still_there(back, listing("2"), 220.0, 30.0).versions) == ["1", "2"]


def test_without_polls_the_second_listing_counts_whenever_it_comes() -> None:
    second = still_there(listing("1", "2"), listing("2"), 100.0, 0.0)
    assert sorted(second.versions) == ["1", "2"]
    assert list(still_there(second, listing("2"), 100.0, 0.0).versions) == ["2"]


# Notes.


def test_a_noted_listing_is_read_as_it_was() -> None:
    beside = (file("labels.txt"), file("warmup/x"))
    saved = SavedBase("s3://b/m", {"1": SavedVersion("k" * 32, (file("a/b"), file("model.pt2", 9, "u", 7)))}, beside)
    assert SavedBase.from_json(saved.to_json(), "s3://b/m") == saved
    assert names(saved.listing.versions["1"]) == ["a/b", "model.pt2"]
    assert saved.listing.folders == {"warmup"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"format":1,"url":"s3://b/m"}', '{"format":2}', "[" * 99_999]
)
def test_notes_that_cannot_be_read_are_none(text: str) -> None:
    assert SavedBase.from_json(text, "s3://b/m") == SavedBase("s3://b/m", {})


def test_notes_of_another_base_path_or_with_a_path_out_of_it_are_no_versions() -> None:
    saved = SavedBase("s3://b/m", {"1": SavedVersion("k", (file("../x"),))})
    assert SavedBase.from_json(saved.to_json(), "s3://b/n").versions == {}
    assert names(saved.listing.versions["1"]) == []
