"""Whole and cut archives: made by torch, by zipfile and by hand."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.sources.structure import needs_look, structural_problem


def problem(name: str, data: bytes) -> str:
    return structural_problem(name, len(data), io.BytesIO(data))


def zip_of(members: dict[str, bytes], comment: bytes = b"", compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = comment
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def safetensors_of(tensors: dict[str, bytes], metadata: bool = False) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}} if metadata else {}
    at = 0
    for name, data in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + b"".join(tensors.values())


class Doubled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(Doubled(), (torch.ones(2, 3),)), path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def saved_state(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("model") / "weights.pt"
    torch.save({"weight": torch.zeros(100, 100)}, path)
    return path.read_bytes()


def test_what_torch_writes_is_whole_and_every_part_of_it_is_not(exported: bytes, saved_state: bytes) -> None:
    for data in (exported, saved_state):
        assert problem("model.pt2", data) == ""
        for cut in range(0, len(data), 97):
            assert "truncated" in problem("model.pt2", data[:cut])


members = st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.binary(max_size=60), max_size=4)


@given(members, st.binary(max_size=30), st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]), st.data())
def test_a_zip_is_whole_and_every_beginning_of_it_is_truncated(
    files: dict[str, bytes], comment: bytes, compression: int, data: st.DataObject
) -> None:
    archive = zip_of(files, comment, compression)
    assert problem("model.pt2", archive) == ""
    cut = data.draw(st.integers(0, len(archive) - 1))
    assert "truncated" in problem("model.pt2", archive[:cut])


def test_a_cut_right_behind_an_archive_inside_the_archive_is_noticed() -> None:
    inner = zip_of({"a": b"abc"})
    outer = zip_of({"inner.zip": inner, "b": b"def"})
    assert "truncated" in problem("model.pt2", outer[: outer.index(inner) + len(inner)])


def test_zip64_archives_are_followed_to_their_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 2)
    archive = zip_of(dict.fromkeys("abcdef", b"x" * 50))
    assert b"PK\x06\x06" in archive
    assert problem("model.pt2", archive) == ""
    for cut in range(len(archive)):
        assert "truncated" in problem("model.pt2", archive[:cut])
    damaged = archive.replace(b"PK\x06\x06", b"PK\x00\x00")
    assert "zip64" in problem("model.pt2", damaged)


def test_an_archive_with_a_hole_before_its_directory_is_damaged() -> None:
    archive = zip_of({"a": b"x" * 100})
    assert "damaged" in problem("model.pt2", archive[:40] + archive[60:])


def test_a_preallocated_file_that_is_still_zeros_is_no_archive() -> None:
    archive = zip_of({"a": b"x" * 100})
    assert problem("model.pt2", bytes(50) + archive[50:]) == "model.pt2 is not a zip archive (truncated?)"


def test_a_bare_pickle_is_no_half_of_an_archive() -> None:
    """The loader refuses it, and says what it is."""
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert problem("model.pt2", pickle.dumps({"a": 1}, protocol)) == ""
    assert "not a zip archive" in problem("model.pt2", b"\x80\x00\x00\x00")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 132735373\n"


@pytest.mark.parametrize("name", ["model.pt2", "model.pt", "model.onnx", "model.safetensors", "pytorch_model.bin"])
def test_a_pointer_or_a_web_page_in_the_place_of_a_model_is_told(name: str) -> None:
    assert needs_look(name)
    assert "a pointer of Git LFS" in problem(name, POINTER)
    for page in (
        b"\n<!DOCTYPE html><html>404</html>",
        b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>",
    ):
        assert "a web page" in problem(name, page)


def test_which_names_must_be_archives() -> None:
    text = b"not an archive"
    assert problem("model.pt2", text) == "model.pt2 is not a zip archive (truncated?)"
    assert problem("model.pt", text) == "model.pt is not a zip archive (truncated?)"
    assert problem("parts/encoder.pt2", b"") == "parts/encoder.pt2 is not a zip archive (truncated?)"
    for name in ("weights.pt", "pytorch_model.bin", "model.onnx", "model.py"):
        assert problem(name, text) == ""
    assert "truncated" in problem("pytorch_model.bin", zip_of({"a": b"abc"})[:-1])
    assert needs_look("model.pt2")
    assert needs_look("a/b.safetensors")
    assert not needs_look("model.py")


@given(st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), st.binary(max_size=60)), st.booleans(), st.data())
def test_a_safetensors_file_is_whole_and_every_beginning_of_it_is_not(
    tensors: dict[str, bytes], metadata: bool, data: st.DataObject
) -> None:
    whole = safetensors_of(tensors, metadata)
    assert problem("model.safetensors", whole) == ""
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert "truncated" in problem("model.safetensors", whole[:cut])
    assert "damaged" in problem("model.safetensors", whole + b"\0")


def with_header(header: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header


@pytest.mark.parametrize(
    "data",
    [
        with_header(b"[]"),
        with_header(b'{"a": 3}'),
        with_header(b'{"a": {"data_offsets": [0]}}'),
        with_header(b'{"a": {"data_offsets": [0, Infinity]}}'),
        with_header(b'{"a": {"data_offsets": [0, "x"]}}'),
        with_header(b"\xff\xfe"),
        with_header(b"[" * 100_000),
        struct.pack("<Q", 2**63),
    ],
)
def test_a_safetensors_header_that_makes_no_sense_is_reported(data: bytes) -> None:
    assert "not a safetensors file" in problem("model.safetensors", data)


@examples(300)
@given(st.sampled_from(["model.pt2", "model.safetensors", "a.bin"]), st.binary(max_size=200))
def test_no_bytes_make_the_check_fail(name: str, data: bytes) -> None:
    for prefix in (b"", b"PK\x03\x04", b"PK\x05\x06", struct.pack("<Q", 20)):
        problem(name, prefix + data)


class CountingFile(io.BytesIO):
    """Counts the bytes that were read."""

    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.read_bytes += len(data)
        return data


@pytest.mark.parametrize("make", [lambda: zip_of({"a": bytes(10**7)}), lambda: safetensors_of({"a": bytes(10**7)})])
def test_of_a_large_file_only_the_frame_is_read(make: Callable[[], bytes]) -> None:
    data = make()
    file = CountingFile(data)
    name = "model.pt2" if data.startswith(b"PK") else "model.safetensors"
    assert structural_problem(name, len(data), file) == ""
    assert file.read_bytes < 100_000


def test_a_torchscript_archive_is_whole(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="torch.jit"):
        torch.jit.script(Doubled()).save(str(tmp_path / "model.pt"))
    assert problem("model.pt", (tmp_path / "model.pt").read_bytes()) == ""
