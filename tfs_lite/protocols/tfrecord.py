"""TFRecord files: byte strings one after the other, each with its length and two checksums.

    uint64 length · uint32 checksum of the length · data · uint32 checksum of the data      (little-endian)

A checksum is a CRC32C, rotated and shifted ("masked"), because a plain one would be weak on data that ends with its own
checksum, such as records in records. Records are read one by one, in blocks: nothing is allocated for a claimed length
before the bytes are there, and Python's lock is released between blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

import google_crc32c

from tfs_lite.core.status import ServingError, StatusCode, invalid_argument

HEADER_BYTES = 12
FOOTER_BYTES = 4
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8
_BLOCK = 1 << 20


def frame(data: bytes) -> bytes:
    """The bytes of one record in a file."""
    length = _LENGTH.pack(len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def write_record(file: BinaryIO, data: bytes) -> int:
    """Appends one record and returns the bytes written. Raises what the file raises."""
    return file.write(frame(data))


def read_records(file: BinaryIO, max_record_bytes: int) -> Iterator[bytes]:
    """The records from the file's position on, read one by one.

    Up to 11 bytes at the end of the file are ignored. DATA_LOSS if a checksum does not fit, or the file ends inside a
    record. INVALID_ARGUMENT for a record of more than ``max_record_bytes`` that the file seems to have in full.
    Messages number the records from 1.
    """
    number = 1
    while len(header := _read(file, HEADER_BYTES)) == HEADER_BYTES:
        length_bytes = header[: _LENGTH.size]
        if header[_LENGTH.size :] != _checksum(length_bytes):
            raise _data_loss(number, "the checksum of its length does not fit")
        (length,) = _LENGTH.unpack(length_bytes)
        if length > max_record_bytes:
            raise _too_long(file, number, length, max_record_bytes)
        yield _read_data(file, number, length)
        number += 1


def _read_data(file: BinaryIO, number: int, length: int) -> bytes:
    blocks: list[bytes] = []
    missing, crc = length, 0
    while missing:
        block = file.read(min(missing, _BLOCK))
        if not block:
            raise _data_loss(number, f"it has {length} bytes, and the file ends {missing} bytes before its end")
        crc = google_crc32c.extend(crc, block)
        blocks.append(block)
        missing -= len(block)
    footer = _read(file, FOOTER_BYTES)
    if len(footer) < FOOTER_BYTES:
        raise _data_loss(number, "the file ends inside its checksum")
    if footer != _masked(crc):
        raise _data_loss(number, "the checksum of its data does not fit")
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _read(file: BinaryIO, count: int) -> bytes:
    """``count`` bytes, or fewer at the end of the file; a raw file may return them in parts."""
    data = file.read(count)
    while data and len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data


def _too_long(file: BinaryIO, number: int, length: int, limit: int) -> ServingError:
    if file.seekable():
        position = file.tell()
        missing = position + length + FOOTER_BYTES - file.seek(0, 2)
        if missing > 0:
            return _data_loss(number, f"it has {length} bytes, and the file ends {missing} bytes before its end")
    return invalid_argument(f"record {number} has {length} bytes, at most {limit} are allowed")


def _checksum(data: bytes) -> bytes:
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> bytes:
    return _CHECKSUM.pack(((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF)


def _data_loss(number: int, reason: str) -> ServingError:
    return ServingError(StatusCode.DATA_LOSS, f"record {number} is truncated or damaged: {reason}")
