"""Is an archive structurally whole? Cheap checks that catch a file whose end has not arrived yet.

Only the frame is read, a few kilobytes of the largest archive: a zip's closing directory, a safetensors file's
header. Whether the contents make sense is the loader's business.
"""

from __future__ import annotations

import json
import os
import struct
from typing import BinaryIO

from tfs_lite.core.manifest import is_pickle

_END = b"PK\x05\x06"
_LOCATOR = b"PK\x06\x07"
_END64 = b"PK\x06\x06"
_END_SIZE, _LOCATOR_SIZE, _END64_SIZE = 22, 20, 56
_TAIL = _LOCATOR_SIZE + _END_SIZE + 0xFFFF
_MAX_SAFETENSORS_HEADER = 100_000_000
_ALWAYS_ZIP = (".pt2",)
_MAYBE_ZIP = (".pt", ".pth", ".zip", ".npz", ".bin", ".ckpt")
_LOOKED_AT = (".safetensors", ".onnx", *_ALWAYS_ZIP, *_MAYBE_ZIP)
_HEAD_BYTES = 64
_LFS_POINTER = b"version https://git-lfs."
_PAGES = (b"<!doctype", b"<html", b"<?xml")


def structural_problem(name: str, size: int, file: BinaryIO) -> str:
    """The reason why this file cannot be whole; empty when nothing speaks against it, as for files of unknown kinds."""
    if not needs_look(name):
        return ""
    head = _read(file, 0, _HEAD_BYTES)
    if instead := _instead(head):
        return f"{name} is {instead}"
    base = os.path.basename(name)
    suffix = os.path.splitext(base)[1]
    if suffix == ".safetensors":
        return _safetensors_problem(name, size, file, head)
    must_be_zip = suffix in _ALWAYS_ZIP or base == "model.pt"
    if must_be_zip or suffix in _MAYBE_ZIP:
        return _zip_problem(name, size, file, head, must_be_zip)
    return ""


def needs_look(name: str) -> bool:
    """Whether the file has to be opened at all."""
    return os.path.splitext(name)[1] in _LOOKED_AT


def _instead(head: bytes) -> str:
    """What came in the place of a model, of which these are the first bytes; empty for anything else."""
    if head.startswith(_LFS_POINTER):
        return "a pointer of Git LFS and not the file itself: fetch that with git lfs pull"
    if head.lstrip().lower().startswith(_PAGES):
        return "a web page, as a download that failed leaves it, and no model: fetch the model again"
    return ""


def _zip_problem(name: str, size: int, file: BinaryIO, head: bytes, must_be_zip: bool) -> str:
    if head[:4] not in (b"PK\x03\x04", _END):
        if is_pickle(head[:4]):
            return ""
        return f"{name} is not a zip archive (truncated?)" if must_be_zip else ""
    start = max(size - _TAIL, 0)
    tail = _read(file, start, _TAIL)
    at = _end_record(tail)
    if at is None:
        return f"{name} is truncated: the zip directory at its end is missing"
    length, offset = struct.unpack_from("<II", tail, at + 12)
    directory_end = start + at
    locator = tail[at - _LOCATOR_SIZE : at] if at >= _LOCATOR_SIZE else b""
    if locator.startswith(_LOCATOR):
        directory_end = struct.unpack_from("<Q", locator, 8)[0]
        record = _read(file, directory_end, _END64_SIZE) if directory_end < size else b""
        if len(record) < _END64_SIZE or not record.startswith(_END64):
            return f"{name} is truncated or damaged: its zip64 directory record is missing"
        length, offset = struct.unpack_from("<QQ", record, 40)
    if offset + length != directory_end:
        found = f"ends at {offset + length}, expected {directory_end}"
        return f"{name} is truncated or damaged: its zip directory {found}"
    return ""


def _end_record(tail: bytes) -> int | None:
    """The offset of the record that closes a zip: the one whose comment reaches exactly to the end."""
    at = tail.rfind(_END)
    while at >= 0:
        if len(tail) - at >= _END_SIZE and struct.unpack_from("<H", tail, at + 20)[0] == len(tail) - at - _END_SIZE:
            return at
        at = tail.rfind(_END, 0, at)
    return None


def _safetensors_problem(name: str, size: int, file: BinaryIO, head: bytes) -> str:
    prefix = head[:8]
    if len(prefix) < 8:
        return f"{name} is truncated: {size} bytes are less than its header"
    (length,) = struct.unpack("<Q", prefix)
    if length > _MAX_SAFETENSORS_HEADER:
        return f"{name} is not a safetensors file: its header claims {length} bytes"
    if 8 + length > size:
        return f"{name} is truncated: its header alone has {length} bytes, the file {size}"
    try:
        expected = 8 + length + _data_bytes(json.loads(_read(file, 8, length)))
        if not 0 <= expected < 2**63:
            raise ValueError
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return f"{name} is not a safetensors file: its header cannot be read"
    if size != expected:
        return f"{name} is {'truncated' if size < expected else 'damaged'}: {size} bytes of {expected}"
    return ""


def _data_bytes(header: dict[str, dict[str, list[int]]]) -> int:
    tensors = (entry for key, entry in header.items() if key != "__metadata__")
    return max((int(entry["data_offsets"][1]) for entry in tensors), default=0)


def _read(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    return file.read(length)
