"""The name of a version directory, and the manifest inside it."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.manifest import Manifest, ManifestFile, parse_manifest, sha256_of
from tfs_lite.core.servable import MAX_VERSION, parse_version
from tfs_lite.core.status import ServingError, StatusCode

DIGEST = "0" * 64


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("0", 0),
        ("1", 1),
        ("00017", 17),
        ("20170111173521", 20170111173521),
        ("9223372036854775807", MAX_VERSION),
        ("000000000000000000000000009223372036854775807", MAX_VERSION),
    ],
)
def test_a_decimal_int64_is_a_version(name: str, version: int) -> None:
    assert parse_version(name) == version


@pytest.mark.parametrize(
    "name",
    ["", " 1", "1 ", "+1", "-1", "v1", "1.0", "0x1", "1_0", "٣", "²", "1\n", ".1", "5.denied", "9223372036854775808"],
)
def test_any_other_name_is_no_version(name: str) -> None:
    assert parse_version(name) is None


def test_a_name_of_thousands_of_digits_is_no_version() -> None:
    assert parse_version("1" * 5000) is None


@given(st.integers(0, MAX_VERSION), st.integers(0, 20))
def test_leading_zeros_do_not_change_the_number(version: int, zeros: int) -> None:
    assert parse_version("0" * zeros + str(version)) == version


names = st.from_regex(r"[a-z]{1,8}(/[a-z.]{0,3}[a-z]{1,8}){0,2}", fullmatch=True)
entries = st.builds(
    ManifestFile,
    st.integers(0, 2**60),
    st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    st.from_regex(r"[0-9]{0,9}:?[0-9]{0,9}", fullmatch=True),
)


@given(st.dictionaries(names, entries, min_size=1))
def test_a_written_manifest_is_read_back_the_same(files: dict[str, ManifestFile]) -> None:
    assert parse_manifest(Manifest(files).to_bytes()) == Manifest(files)


@given(st.dictionaries(names, entries, min_size=1), st.data())
def test_the_beginning_of_a_manifest_is_never_taken_for_one(
    files: dict[str, ManifestFile], data: st.DataObject
) -> None:
    whole = Manifest(files).to_bytes().rstrip()
    part = whole[: data.draw(st.integers(0, len(whole) - 1))]
    assert "not whole JSON" in refusal(parse_manifest, part)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "expected an object with format 1"),
        ({"format": 2, "files": {}}, "expected an object with format 1"),
        ({"format": 1}, "field files: expected an object with at least one file"),
        ({"format": 1, "files": {}}, "field files: expected an object with at least one file"),
        ({"format": 1, "files": {"a": 3}}, "file 'a': expected an object"),
        ({"format": 1, "files": {"a": {"size": "3", "sha256": DIGEST}}}, "field size: expected a number of bytes"),
        ({"format": 1, "files": {"a": {"size": True, "sha256": DIGEST}}}, "field size: expected a number of bytes"),
        ({"format": 1, "files": {"a": {"size": -1, "sha256": DIGEST}}}, "field size: expected a number of bytes"),
        ({"format": 1, "files": {"a": {"size": 1, "sha256": "xyz"}}}, "field sha256: expected 64 hexadecimal digits"),
        ({"format": 1, "files": {"a": {"size": 1, "sha256": DIGEST, "stamp": 1}}}, "field stamp: expected a string"),
        ({"format": 1, "files": {"/etc/passwd": {"size": 1, "sha256": DIGEST}}}, "expected a path inside the version"),
        ({"format": 1, "files": {"../a": {"size": 1, "sha256": DIGEST}}}, "expected a path inside the version"),
        ({"format": 1, "files": {"a//b": {"size": 1, "sha256": DIGEST}}}, "expected a path inside the version"),
    ],
)
def test_a_malformed_manifest_is_refused_with_the_field_at_fault(document: object, message: str) -> None:
    with pytest.raises(ServingError, match=message) as caught:
        parse_manifest(json.dumps(document).encode())
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_deeply_nested_and_binary_manifests_are_refused() -> None:
    for data in (b"[" * 200_000, b"\xff\xfe\x00", b""):
        refusal(parse_manifest, data)


def test_sizes_that_differ_are_named_with_what_was_listed_and_found() -> None:
    manifest = Manifest({"model.pt2": ManifestFile(10, DIGEST), "extra/a": ManifestFile(1, DIGEST)})
    assert manifest.size_problem({"model.pt2": 10, "extra/a": 1, "more": 7}) == ""
    assert manifest.size_problem({"model.pt2": 7, "extra/a": 1}) == "manifest lists model.pt2 with 10 bytes, found 7"
    assert manifest.size_problem({"model.pt2": 10}) == "manifest lists extra/a with 1 bytes, found no such file"


def test_hashing_gives_the_sha256_and_can_be_cancelled() -> None:
    assert sha256_of(io.BytesIO(b"abc")).startswith("ba7816bf8f01cfea")
    refusal(sha256_of, io.BytesIO(b"abc"), cancelled=lambda: True, code=StatusCode.CANCELLED)
