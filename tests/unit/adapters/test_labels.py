"""Files of class labels, and that a config cannot read other files with them."""

import os
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters import labels
from tfs_lite.adapters.labels import read_labels
from tfs_lite.core.status import ServingError


@pytest.fixture
def version(tmp_path: Path) -> Path:
    directory = tmp_path / "base" / "1"
    directory.mkdir(parents=True)
    return directory


def refused(version: Path, name: str = "labels.txt") -> str:
    message = refusal(read_labels, str(version), name)
    assert str(version.parent) not in message
    return message


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"cat\ndog\n", [b"cat", b"dog"]),
        (b"cat\ndog", [b"cat", b"dog"]),
        (b"cat\r\ndog\r\n", [b"cat", b"dog"]),
        ("\ufeffZürich\u2028x\n".encode(), ["Zürich\u2028x".encode()]),
        (b" a \n\n b", [b" a ", b"", b" b"]),
        (b"\n", [b""]),
    ],
)
def test_a_line_is_a_label(version: Path, data: bytes, expected: list[bytes]) -> None:
    (version / "labels.txt").write_bytes(data)
    found = read_labels(str(version), "labels.txt")
    assert found.dtype == object
    assert found.tolist() == expected


def test_the_version_comes_before_the_base_path_and_may_have_directories(version: Path) -> None:
    (version.parent / "labels.txt").write_text("beside")
    assert read_labels(str(version), "labels.txt").tolist() == [b"beside"]
    (version / "labels.txt").write_text("inside")
    assert read_labels(str(version), "labels.txt").tolist() == [b"inside"]
    (version / "assets").mkdir()
    (version / "assets" / "labels.txt").write_text("deep")
    assert read_labels(str(version), "assets/labels.txt").tolist() == [b"deep"]


def test_links_inside_the_model_are_followed(version: Path) -> None:
    (version.parent / "..data").mkdir()
    (version.parent / "..data" / "labels.txt").write_text("linked")
    (version / "labels.txt").symlink_to("../..data/labels.txt")
    assert read_labels(str(version), "labels.txt").tolist() == [b"linked"]


def test_a_version_that_is_a_link_has_its_labels_where_it_leads(version: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (store / "labels.txt").write_text("stored")
    (version.parent / "2").symlink_to(store)
    assert read_labels(str(version.parent / "2"), "labels.txt").tolist() == [b"stored"]


def test_a_link_that_leads_out_of_the_model_is_refused(version: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (version / "labels.txt").symlink_to(tmp_path / "secret.txt")
    assert refused(version) == "labels.txt is a link that leads out of the model's directory"


def test_a_missing_file_is_an_invalid_argument(version: Path) -> None:
    assert refused(version) == "there is no file labels.txt in the version or beside it"


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_not_waited_for(version: Path, make) -> None:
    make(version / "labels.txt")
    refused(version)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "labels.txt has 0 labels, expected 1 to 4"),
        (b"a\nb\nc\nd\ne\n", "labels.txt has 5 labels, expected 1 to 4"),
        (b"\xff\xfe", "labels.txt is no UTF-8 text"),
        (b"x" * 65, "labels.txt is larger than 64 bytes"),
    ],
)
def test_contents_that_are_no_labels_are_refused(version: Path, monkeypatch, data: bytes, reason: str) -> None:
    monkeypatch.setattr(labels, "MAX_BYTES", 64)
    monkeypatch.setattr(labels, "MAX_LABELS", 4)
    (version / "labels.txt").write_bytes(data)
    assert refused(version) == reason


def test_a_file_that_cannot_be_read_says_why(version: Path, monkeypatch) -> None:
    (version / "labels.txt").write_text("a")

    def refuse(path, mode, **how):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(ServingError) as raised:
        read_labels(str(version), "labels.txt")
    monkeypatch.undo()
    assert str(raised.value) == "labels.txt cannot be read: Permission denied"
