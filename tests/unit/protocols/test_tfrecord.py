"""The frame of TFRecord files: what is written is read, and every way to damage it has its verdict."""

from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.tfrecord import HEADER_BYTES, frame, read_records, write_record

LIMIT = 4 << 20


def masked_crc(data: bytes) -> bytes:
    """The format's checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) % 2**32)


def header(length: int) -> bytes:
    """A sound header of a record that claims ``length`` bytes."""
    return struct.pack("<Q", length) + masked_crc(struct.pack("<Q", length))


def records(data: bytes, limit: int = LIMIT) -> list[bytes]:
    return list(read_records(io.BytesIO(data), limit))


def failure(data: bytes, limit: int = LIMIT) -> ServingError:
    with pytest.raises(ServingError) as caught:
        records(data, limit)
    return caught.value


def flipped(data: bytes, index: int) -> bytes:
    return data[:index] + bytes([data[index] ^ 1]) + data[index + 1 :]


@pytest.mark.parametrize("data", [b"", b"abc", bytes(range(256))])
def test_a_record_has_the_bytes_of_the_format(data: bytes) -> None:
    assert frame(data) == header(len(data)) + data + masked_crc(data)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_what_is_written_is_read(written: list[bytes]) -> None:
    file = io.BytesIO()
    assert sum(write_record(file, data) for data in written) == len(file.getvalue())
    assert records(file.getvalue()) == written


def test_a_record_longer_than_a_piece_comes_whole() -> None:
    data = bytes(range(251)) * 12_000
    assert records(frame(data) + frame(b"next")) == [data, b"next"]


def test_records_are_read_when_they_are_asked_for() -> None:
    found = read_records(io.BytesIO(frame(b"first") + flipped(frame(b"second"), 0)), LIMIT)
    assert next(found) == b"first"
    with pytest.raises(ServingError):
        next(found)


class Trickle(io.RawIOBase):
    """A file that gives one byte at a time, and cannot seek."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._file.read(min(size, 1))


def test_a_file_that_gives_its_bytes_in_parts_is_read_whole() -> None:
    assert list(read_records(Trickle(frame(b"abc") + frame(b"de")), LIMIT)) == [b"abc", b"de"]


@pytest.mark.parametrize("stray", range(HEADER_BYTES))
def test_fewer_bytes_than_a_header_end_the_file(stray: int) -> None:
    assert records(frame(b"abc") + b"\xff" * stray) == [b"abc"]


@pytest.mark.parametrize("cut", range(HEADER_BYTES, len(frame(b"abc"))))
def test_a_file_that_ends_inside_a_record_is_truncated(cut: int) -> None:
    error = failure(frame(b"first") + frame(b"abc")[:cut])
    assert error.code is StatusCode.DATA_LOSS
    assert str(error).startswith("record 2 is truncated or damaged")


@pytest.mark.parametrize(
    ("index", "what"),
    [(0, "its length"), (7, "its length"), (8, "its length"), (11, "its length"), (12, "its data"), (18, "its data")],
)
def test_a_damaged_byte_is_noticed(index: int, what: str) -> None:
    error = failure(flipped(frame(b"abc"), index))
    assert (error.code, str(error)) == (
        StatusCode.DATA_LOSS,
        f"record 1 is truncated or damaged: the checksum of {what} does not fit",
    )


def test_a_record_above_the_bound_is_refused_before_it_is_read() -> None:
    assert records(frame(b"x" * 10), 10) == [b"x" * 10]
    error = failure(frame(b"x" * 11), 10)
    assert (error.code, str(error)) == (StatusCode.INVALID_ARGUMENT, "record 1 has 11 bytes, at most 10 are allowed")


@pytest.mark.parametrize("length", [LIMIT, 2**40, 2**63, 2**64 - 1])
@pytest.mark.parametrize("make", [io.BytesIO, lambda data: io.BufferedReader(io.BytesIO(data))])
def test_a_length_beyond_the_file_is_truncated_and_allocates_nothing(
    length: int, make: Callable[[bytes], io.BytesIO]
) -> None:
    data = header(length) + b"abc"
    tracemalloc.start()
    try:
        with pytest.raises(ServingError) as caught:
            list(read_records(make(data), LIMIT))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.code is StatusCode.DATA_LOSS
    assert f"it has {length} bytes, and the file ends" in str(caught.value)
    assert peak < 2 << 20
