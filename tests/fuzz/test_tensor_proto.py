"""Hostile tensors: whatever bytes come, decoding answers with an array within bounds or with INVALID_ARGUMENT."""

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.messages import Message, TensorProto
from tfs_lite.protocols.tensorflow.serving import parse
from tfs_lite.protocols.tensorflow.tensor_proto import decode

BOUND = 1 << 16
SLACK = 1 << 18
"""What Python and numpy need besides the array."""

SIZES = st.one_of(st.integers(-2, 5), st.sampled_from([2**16, 2**31, 2**40, 2**62, 2**63 - 1]))


@st.composite
def hostile_tensors(draw: st.DrawFn) -> Message:
    """Every field filled without regard for the others."""
    return TensorProto(
        dtype=draw(st.integers(-1, 35)),
        tensor_shape={
            "dim": [{"size": size} for size in draw(st.lists(SIZES, max_size=6))],
            "unknown_rank": draw(st.booleans()),
        },
        tensor_content=draw(st.binary(max_size=40)),
        float_val=draw(st.lists(st.floats(width=32), max_size=3)),
        double_val=draw(st.lists(st.floats(), max_size=3)),
        int_val=draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)),
        string_val=draw(st.lists(st.binary(max_size=9), max_size=3)),
        scomplex_val=draw(st.lists(st.floats(width=32), max_size=3)),
        int64_val=draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)),
        bool_val=draw(st.lists(st.booleans(), max_size=3)),
        dcomplex_val=draw(st.lists(st.floats(), max_size=3)),
        half_val=draw(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3)),
        uint32_val=draw(st.lists(st.integers(0, 2**32 - 1), max_size=3)),
        uint64_val=draw(st.lists(st.integers(0, 2**64 - 1), max_size=3)),
        float8_val=draw(st.binary(max_size=3)),
    )


def attempt(message: Message) -> Array | ServingError:
    try:
        return decode(message, "x", max_bytes=BOUND)
    except ServingError as error:
        return error


def parsed(data: bytes) -> Message | ServingError:
    try:
        return parse(TensorProto, data)
    except ServingError as error:
        return error


def check(message: Message | ServingError) -> None:
    """Decodes what could be parsed; holds the result and the memory it took against the bounds."""
    outcome = message
    if not isinstance(message, ServingError):
        sent = message.ByteSize()
        tracemalloc.start()
        outcome = attempt(message)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak <= 4 * BOUND + 64 * sent + SLACK
    if isinstance(outcome, ServingError):
        assert outcome.code is StatusCode.INVALID_ARGUMENT
    else:
        assert outcome.shape == tuple(dim.size for dim in message.tensor_shape.dim)
        assert outcome.nbytes <= max(BOUND, 16 * sent)


@given(hostile_tensors())
@examples(400)
def test_contradictory_tensors_never_break_the_decoder(message: Message) -> None:
    check(message)


@given(st.binary(max_size=200))
@examples(400)
def test_random_bytes_never_break_the_decoder(data: bytes) -> None:
    check(parsed(data))


@given(hostile_tensors(), st.data())
@examples(200)
def test_damaged_tensors_never_break_the_decoder(message: Message, data: st.DataObject) -> None:
    wire = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4)) if wire else 0):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    check(parsed(bytes(wire)))
