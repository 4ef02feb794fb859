"""Compressed messages: what went in comes out, and nothing grows beyond its bound."""

from __future__ import annotations

import asyncio
import gzip
import threading
import tracemalloc
import zlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED, UNAVAILABLE
from tfs_lite.transport.grpc.compression import Inflater, inflate
from tfs_lite.transport.grpc.messages import MessageFault

MIB = 1024 * 1024

encodings = st.sampled_from(["gzip", "deflate"])
both = pytest.mark.parametrize("encoding", ["gzip", "deflate"])
contents = st.one_of(
    st.binary(max_size=3000), st.builds(lambda byte, n: byte * n, st.binary(max_size=3), st.integers(0, 9999))
)


def deflate(data: bytes, encoding: str) -> bytes:
    return zlib.compress(data, wbits={"deflate": 15, "gzip": 31}[encoding])


def outcome(data: bytes, encoding: str, max_bytes: int) -> bytes | int:
    """The message, or the status of the fault."""
    try:
        return inflate(data, encoding, max_bytes)
    except MessageFault as fault:
        return fault.code


def fault_of(data: bytes, encoding: str, max_bytes: int = MIB) -> MessageFault:
    with pytest.raises(MessageFault) as fault:
        inflate(data, encoding, max_bytes)
    return fault.value


@given(contents, encodings)
def test_what_was_deflated_comes_out_again_under_a_bound_of_its_size(content: bytes, encoding: str) -> None:
    assert inflate(deflate(content, encoding), encoding, len(content)) == content


@given(contents.filter(bool), encodings, st.data())
def test_one_byte_above_the_bound_is_too_large(content: bytes, encoding: str, data: st.DataObject) -> None:
    bound = data.draw(st.integers(0, len(content) - 1))
    fault = fault_of(deflate(content, encoding), encoding, bound)
    assert fault.code == RESOURCE_EXHAUSTED
    assert f"larger than max ({bound} bytes)" in fault.text


@given(contents, encodings, st.data())
def test_a_message_that_is_cut_off_is_a_fault(content: bytes, encoding: str, data: st.DataObject) -> None:
    whole = deflate(content, encoding)
    cut = whole[: data.draw(st.integers(1, len(whole) - 1))]
    assert fault_of(cut, encoding).code == INTERNAL


@given(contents, encodings, st.binary(min_size=1, max_size=50))
@example(b"one", "gzip", gzip.compress(b"two"))
def test_bytes_behind_the_end_are_a_fault(content: bytes, encoding: str, rest: bytes) -> None:
    fault = fault_of(deflate(content, encoding) + rest, encoding)
    assert (fault.code, f"{len(rest)} bytes come behind the end" in fault.text) == (INTERNAL, True)


@given(st.binary(max_size=200), encodings)
def test_any_bytes_at_all_are_a_message_or_a_fault(data: bytes, encoding: str) -> None:
    found = outcome(data, encoding, 1000)
    assert found in (INTERNAL, RESOURCE_EXHAUSTED) or (isinstance(found, bytes) and len(found) <= 1000)


@given(contents, st.data())
def test_a_damaged_byte_never_gives_another_message(content: bytes, data: st.DataObject) -> None:
    """The checksum sees it; the header has bytes that mean nothing to us."""
    whole = bytearray(deflate(content, "gzip"))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    assert outcome(bytes(whole), "gzip", MIB) in (content, INTERNAL, RESOURCE_EXHAUSTED)


@both
def test_a_bomb_takes_no_more_memory_than_its_bound(encoding: str) -> None:
    bomb = deflate(bytes(64 * MIB), encoding)
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        assert fault_of(bomb, encoding, MIB).code == RESOURCE_EXHAUSTED
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


@both
def test_no_bytes_are_an_empty_message(encoding: str) -> None:
    assert inflate(b"", encoding, 0) == b""


def test_the_wrong_format_and_data_that_needs_a_dictionary_are_faults() -> None:
    bare, with_words = zlib.compressobj(wbits=-15), zlib.compressobj(zdict=b"hello world")
    assert fault_of(zlib.compress(b"text"), "gzip").code == INTERNAL
    for data in (
        gzip.compress(b"text"),
        bare.compress(b"text") + bare.flush(),
        with_words.compress(b"hello world") + with_words.flush(),
    ):
        assert fault_of(data, "deflate").code == INTERNAL


def test_a_flag_without_an_encoding_is_a_fault() -> None:
    fault = fault_of(b"text", "identity")
    assert (fault.code, "no grpc-encoding" in fault.text) == (INTERNAL, True)


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


async def test_large_message_while_the_system_has_no_thread_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inflater = Inflater(asyncio.get_running_loop(), 100 * MIB)
    packed = deflate(bytes(8 * MIB), "gzip")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(MessageFault, match="cannot be inflated now: can't start new thread") as fault:
            await inflater.inflate(packed, "gzip")
        assert fault.value.code == UNAVAILABLE
    assert await inflater.inflate(packed, "gzip") == bytes(8 * MIB)
    inflater.close()
