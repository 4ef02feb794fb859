"""Messages out of bytes that are cut anywhere."""

from __future__ import annotations

import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.transport.grpc.codes import INTERNAL, RESOURCE_EXHAUSTED
from tfs_lite.transport.grpc.messages import SMALL_PIECE, Assembler, MessageFault

MAX = 5000

Message = tuple[bool, bytes]
sizes = st.one_of(st.integers(0, 12), st.integers(SMALL_PIECE - 2, SMALL_PIECE + 2), st.integers(0, MAX))
messages = st.tuples(st.booleans(), st.builds(lambda size, seed: bytes([seed]) * size, sizes, st.integers(0, 255)))
bad_prefixes = st.one_of(
    st.builds(lambda flag, size: (INTERNAL, prefix(flag, size)), st.integers(2, 255), st.integers(0, 2**32 - 1)),
    st.builds(
        lambda flag, size: (RESOURCE_EXHAUSTED, prefix(flag, size)), st.integers(0, 1), st.integers(MAX + 1, 2**32 - 1)
    ),
)


def prefix(flag: int, size: int) -> bytes:
    return bytes([flag]) + size.to_bytes(4, "big")


def on_the_wire(*sent: Message) -> bytes:
    return b"".join(prefix(flag, len(text)) + text for flag, text in sent)


def feed_all(assembler: Assembler, pieces: list[bytes], came: list[Message]) -> None:
    for piece in pieces:
        came += assembler.feed(piece)


def read_whole(data: bytes) -> list[Message]:
    assembler = Assembler(MAX)
    came = assembler.feed(data)
    assembler.finish()
    return came


@st.composite
def cut(draw: st.DrawFn, data: bytes) -> list[bytes]:
    """``data`` in pieces: of any size, of one byte each, or as a whole."""
    step = draw(st.sampled_from([0, 1, 7, SMALL_PIECE]))
    if step and len(data) <= 2000 * step:
        return [data[at : at + step] for at in range(0, len(data), step)]
    ends = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


@given(st.lists(messages, max_size=6), st.data())
def test_any_messages_cut_anywhere_come_out_as_they_went_in(sent: list[Message], data: st.DataObject) -> None:
    assembler = Assembler(MAX)
    came: list[Message] = []
    fed = 0
    for piece in data.draw(cut(on_the_wire(*sent))):
        came += assembler.feed(piece)
        fed += len(piece)
        assert fed == len(on_the_wire(*came)) + assembler.held
    assembler.finish()
    assert came == sent
    assert (assembler.held, assembler.missing) == (0, 0)


@given(st.lists(messages, max_size=3), bad_prefixes, st.data())
def test_a_bad_prefix_is_the_same_fault_wherever_the_bytes_are_cut(
    sent: list[Message], bad: tuple[int, bytes], data: st.DataObject
) -> None:
    code, text = bad
    came: list[Message] = []
    pieces = data.draw(cut(on_the_wire(*sent) + text))
    with pytest.raises(MessageFault) as fault:
        feed_all(Assembler(MAX), pieces, came)
    assert fault.value.code == code
    assert came == sent[: len(came)]


@given(messages, st.data())
def test_the_end_inside_a_message_is_a_fault_and_before_it_none(message: Message, data: st.DataObject) -> None:
    whole = on_the_wire(message)
    came = data.draw(st.integers(0, len(whole) - 1))
    assembler = Assembler(MAX)
    assert assembler.feed(whole[:came]) == []
    assert assembler.held == came
    assert assembler.missing == (len(whole) - came if came >= 5 else 0)
    if not came:
        assembler.finish()
        return
    with pytest.raises(MessageFault, match="the stream ended inside a message") as fault:
        assembler.finish()
    assert fault.value.code == INTERNAL


def test_a_message_of_the_largest_size_is_taken() -> None:
    assert read_whole(on_the_wire((False, bytes(MAX)))) == [(False, bytes(MAX))]


@pytest.mark.parametrize(
    ("begun", "code", "text"),
    [
        (prefix(0, MAX + 1), RESOURCE_EXHAUSTED, r"larger than max \(5001 vs\. 5000 bytes\)"),
        (prefix(0, 2**32 - 1), RESOURCE_EXHAUSTED, "larger than max"),
        (prefix(2, 0), INTERNAL, "0 or 1, not 2"),
        (prefix(0, 100) + bytes(58), INTERNAL, "42 bytes did not come"),
    ],
    ids=["one byte too many", "before any of it comes", "a bad flag", "unfinished"],
)
def test_what_is_no_message_is_explained(begun: bytes, code: int, text: str) -> None:
    with pytest.raises(MessageFault, match=text) as fault:
        read_whole(begun)
    assert fault.value.code == code


def test_no_memory_is_taken_for_what_was_only_announced() -> None:
    assembler = Assembler(1 << 30)
    tracemalloc.start()
    try:
        assembler.feed(prefix(0, 1 << 30))
        announced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert assembler.missing == 1 << 30
    assert announced < 10_000


@pytest.mark.parametrize("step", [1, 10, SMALL_PIECE - 1, SMALL_PIECE])
def test_a_message_in_pieces_takes_little_more_memory_than_its_bytes(step: int) -> None:
    size = 200_000
    text = bytes(size)
    assembler = Assembler(size)
    assembler.feed(prefix(0, size + 1)[:4])
    tracemalloc.start()
    try:
        assembler.feed(prefix(0, size)[4:])
        for at in range(0, size - step, step):
            assembler.feed(text[at : at + step])
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert taken < size * 1.2 + sys.getsizeof(assembler)
