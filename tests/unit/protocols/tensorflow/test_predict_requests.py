"""Requests recognised by their bytes: what is read out of them is what a parser would have read, or they are not
recognised at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.profiles import examples
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import TABLE, Array, from_numpy
from tfs_lite.protocols.messages import Message, PredictRequest, TensorProto
from tfs_lite.protocols.tensorflow.predict_requests import Layouts, PredictLayout
from tfs_lite.protocols.tensorflow.serving import read_model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode
from tfs_lite.protocols.varints import encode_varints
from tfs_lite.protocols.wire_layouts import MAX_KNOWN_BYTES, MAX_LENGTHS, MAX_OF_LENGTH

NUMBERS = [row.numpy for row in TABLE if row.dtype not in (DataType.STRING, DataType.BOOL)]
FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes whose typed fields are runs of numbers."""
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=4)


def field(number: int, payload: bytes, kind: int = 2) -> bytes:
    """One field of a message; ``kind`` is its wire type."""
    tag = encode_varints(np.array([number << 3 | kind]))
    return tag + (encode_varints(np.array([len(payload)])) if kind == 2 else b"") + payload


def tensor_bytes(array: Array, *values: bytes) -> bytes:
    """A TensorProto with the array's dtype and shape, and these fields for its values."""
    head: bytes = TensorProto(
        dtype=from_numpy(array.dtype), tensor_shape=encode(array).tensor_shape
    ).SerializeToString()
    return head + b"".join(values)


def as_content(array: Array) -> bytes:
    return tensor_bytes(array, field(4, array.tobytes()))


def as_packed(array: Array) -> bytes:
    return tensor_bytes(array, field(5 if array.dtype == np.float32 else 6, array.tobytes()))


def as_unpacked(array: Array) -> bytes:
    """Every number with a tag of its own, as old clients write them."""
    number, kind = (5, 5) if array.dtype == np.float32 else (6, 1)
    return tensor_bytes(array, *(field(number, value.tobytes(), kind) for value in array.ravel()))


FORMS = {"content": as_content, "packed": as_packed, "unpacked": as_unpacked}


def entry(name: str, tensor: bytes) -> bytes:
    return field(2, field(1, name.encode()) + field(2, tensor))


def spec(name: str = "m", **rest: Any) -> bytes:
    version = rest.pop("version", None)
    request = PredictRequest(model_spec={"name": name, **rest})
    if version is not None:
        request.model_spec.version.value = version
    encoded: bytes = request.SerializeToString()
    return encoded


def message(*parts: bytes, head: bytes = spec()) -> bytes:
    return head + b"".join(parts)


def decoded(request: Message) -> dict[str, Array]:
    return {name: decode(tensor, name) for name, tensor in request.inputs.items()}


def learn(layouts: Layouts, data: bytes) -> PredictLayout | None:
    request = PredictRequest.FromString(data)
    inputs = decoded(request)
    return layouts.learn(data, request, read_model_spec(request), inputs)


def learned(data: bytes) -> tuple[Layouts, PredictLayout]:
    layouts = Layouts()
    layout = learn(layouts, data)
    assert layout is not None
    return layouts, layout


def assert_same(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        assert got[name].tobytes() == array.tobytes()


def assert_told_like_a_parser(layouts: Layouts, data: bytes) -> PredictLayout | None:
    """What is recognised is a PredictRequest, and says what a parser finds in it."""
    layout = layouts.find(data)
    if layout is not None:
        request = PredictRequest.FromString(data)
        assert layout.model == read_model_spec(request)
        assert layout.outputs == tuple(request.output_filter)
        assert_same(layout.inputs(data), decoded(request))
    return layout


def numbers(draw: st.DrawFn, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    """Any bit pattern but signalling NaNs, which protobuf turns into quiet ones."""
    size = int(np.prod(shape)) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return np.where(np.isnan(array), dtype.type(0), array) if dtype in FLOATS else array


@st.composite
def alike(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Two messages that differ in nothing but their numbers."""
    names = draw(st.lists(st.text(max_size=8), min_size=1, max_size=4, unique=True))
    one, other = [], []
    for name in names:
        dtype = draw(st.sampled_from(NUMBERS))
        shape = draw(st.just(()) | SHAPES)
        forms = ["content", "packed"] if dtype in FLOATS else ["content"]
        if dtype in FLOATS and shape == ():
            forms.append("unpacked")
        form = FORMS[draw(st.sampled_from(forms))]
        one.append(entry(name, form(numbers(draw, dtype, shape))))
        other.append(entry(name, form(numbers(draw, dtype, shape))))
    choice = draw(
        st.sampled_from([{}, {"version": 0}, {"version": 2**40}, {"version_label": "stable"}]).map(dict[str, Any])
    )
    head = spec(draw(st.text(min_size=1, max_size=8)), signature_name=draw(st.text(max_size=8)), **choice)
    wanted = [field(3, name.encode()) for name in draw(st.lists(st.text(max_size=8), max_size=3))]
    order = draw(st.permutations([head, *range(len(names)), *wanted]))
    first, second = ([part if isinstance(part, bytes) else inputs[part] for part in order] for inputs in (one, other))
    return b"".join(first), b"".join(second)


@given(alike())
def test_numbers_of_another_message_of_the_layout_are_those_a_parser_finds(messages: tuple[bytes, bytes]) -> None:
    one, other = messages
    layouts, layout = learned(one)
    for data in (one, other):
        assert assert_told_like_a_parser(layouts, data) is layout


@given(alike(), st.data())
def test_a_message_with_any_byte_changed_is_told_like_a_parser_or_not_at_all(
    messages: tuple[bytes, bytes], data: st.DataObject
) -> None:
    one, other = messages
    layouts, layout = learned(one)
    outside = set(range(len(one))) - set(inside(layout))
    position = data.draw(st.integers(0, len(other) - 1))
    changed = bytearray(other)
    changed[position] ^= data.draw(st.integers(1, 255))
    found = layouts.find(bytes(changed))
    assert (found is None) == (position in outside)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_only_the_bytes_of_numbers_may_differ(form: str, dtype: np.dtype[Any]) -> None:
    shape = () if form == "unpacked" else (2, 2)
    two = [entry(name, FORMS[form](np.full(shape, 1.5, dtype))) for name in ("one", "other")]
    data = message(*two, field(3, b"y"), head=spec("model", version=3, signature_name="s"))
    layouts, layout = learned(data)
    for position in range(len(data)):
        for bits in range(1, 256):
            changed = bytes([*data[:position], data[position] ^ bits, *data[position + 1 :]])
            assert (layouts.find(changed) is layout) == (position in inside(layout))
            if position in inside(layout) and bits in (1, 128):
                assert_told_like_a_parser(layouts, changed)


def inside(layout: PredictLayout) -> Iterator[int]:
    """The offsets of all bytes of numbers."""
    for _, dtype, count, offset, _ in layout.numbers:
        yield from range(offset, offset + count * dtype.itemsize)


@given(alike(), st.binary(max_size=4), st.integers(0, 200))
def test_a_message_of_another_length_is_not_recognised(
    messages: tuple[bytes, bytes], more: bytes, position: int
) -> None:
    layouts, _ = learned(messages[0])
    other = messages[1]
    assume(more)
    assert layouts.find(other[:position] + more + other[position:]) is None
    assert layouts.find(other[: -len(more)]) is None


ONES = np.ones(2, np.float32)
X = entry("x", as_content(ONES))
PACKED = entry("x", as_packed(ONES))
BITS = np.array([True, False])

NOT_PLAIN = {
    "one input twice": message(X, X),
    "one input twice, in other forms": message(PACKED, X),
    "value in two pieces": message(field(2, field(1, b"x") + field(2, as_content(ONES)) + field(2, b"\x08\x01"))),
    "two names in an entry": message(field(2, field(1, b"y") + field(1, b"x") + field(2, as_content(ONES)))),
    "value before name": message(field(2, field(2, as_content(ONES)) + field(1, b"x"))),
    "no name": message(field(2, field(2, as_content(ONES)))),
    "unknown field in an entry": message(field(2, field(1, b"x") + field(2, as_content(ONES)) + field(9, b"\x08\x01"))),
    "both forms": message(entry("x", as_content(ONES) + field(5, ONES.tobytes()))),
    "content twice": message(entry("x", tensor_bytes(ONES, field(4, b"abcd"), field(4, ONES.tobytes())))),
    "two runs": message(entry("x", tensor_bytes(ONES, *[field(5, ONES[:1].tobytes())] * 2))),
    "unpacked": message(entry("x", as_unpacked(ONES))),
    "unpacked and packed": message(
        entry("x", tensor_bytes(ONES, field(5, ONES[:1].tobytes(), 5), field(5, ONES[:1].tobytes())))
    ),
    "values of another dtype": message(entry("x", as_content(ONES) + field(6, b"12345678"))),
    "unknown field after the values": message(entry("x", as_content(ONES) + field(99, b"abc"))),
    "too few values": message(entry("x", tensor_bytes(ONES, field(5, ONES[:1].tobytes())))),
    "too many values": message(entry("x", tensor_bytes(ONES, field(5, ONES.tobytes() * 2)))),
    "no values": message(entry("x", tensor_bytes(ONES))),
    "no elements": message(entry("x", as_content(np.empty((0, 3), np.float32)))),
    "group in a tensor": message(entry("x", as_content(ONES) + b"\xa3\x06\xa4\x06")),
    "group in an entry": message(field(2, field(1, b"x") + field(2, as_content(ONES)) + b"\xa3\x06\xa4\x06")),
    "group beside the inputs": message(X, b"\xa3\x06\xa4\x06"),
    "group around an input": message(X, b"\x13" + field(1, b"y") + b"\x14"),
    "bool content": message(entry("x", as_content(BITS))),
    "bool values": message(entry("x", tensor_bytes(BITS, field(11, b"\x01\x00")))),
    "bool beside numbers": message(X, entry("y", as_content(BITS))),
    "text": message(X, entry("y", tensor_bytes(np.array([b"a"], object), field(8, b"a")))),
    "text as content": message(entry("x", tensor_bytes(np.array([b"a"], object), field(4, b"\x01a")))),
    "integers one by one": message(entry("x", encode(np.ones(2, np.int32)).SerializeToString())),
    "halves one by one": message(entry("x", encode(np.ones(2, np.float16)).SerializeToString())),
    "float8 values": message(entry("x", encode(np.ones(2, TABLE[-1].numpy)).SerializeToString())),
    "no inputs": message(),
    "content as fixed32": message(entry("x", tensor_bytes(np.zeros((), np.float32), field(4, bytes(4), 5)))),
    "content as fixed64": message(entry("x", tensor_bytes(np.zeros(2, np.int32), field(4, bytes(8), 1)))),
    "content as varint": message(entry("x", tensor_bytes(np.zeros(1, np.int8), field(4, b"\0", 0)))),
    "floats as fixed64": message(entry("x", tensor_bytes(np.zeros(2, np.float32), field(5, bytes(8), 1)))),
    "doubles as fixed32": message(entry("x", tensor_bytes(np.zeros((), np.float64), *[field(6, bytes(4), 5)] * 2))),
}
"""Messages that protobuf takes, but whose numbers are not one plain run each."""


@pytest.mark.parametrize("data", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_message_that_is_not_plain_is_not_learned(data: bytes) -> None:
    layouts = Layouts()
    assert learn(layouts, data) is None
    assert layouts.find(data) is None


PLAIN = {
    "content": message(X),
    "packed": message(PACKED),
    "one number, unpacked": message(entry("x", as_unpacked(np.array(2, np.float64)))),
    "model last": message(X, spec(), head=b""),
    "model in two pieces": message(X, spec("other", signature_name="s"), spec("n"), head=b""),
    "dtype twice": message(entry("x", field(1, b"\x03", 0) + as_content(ONES))),
    "shape in two pieces": message(
        entry("x", tensor_bytes(np.ones((2,), np.int16), field(2, field(2, b"\x08\x03"))) + field(4, bytes(range(12))))
    ),
    "version number": message(entry("x", tensor_bytes(ONES, field(3, b"\x07", 0), field(4, ONES.tobytes())))),
    "unknown fields beside the inputs": message(X, field(1000, b"abc"), field(1001, b"\x01", 0)),
    "tag and length longer than needed": message(b"\x92\x80\x00" + bytes([X[1] | 0x80, 0]) + X[2:]),
    "empty name": message(entry("", as_content(ONES))),
    "outputs between": message(field(3, b"y"), X, field(3, b"y")),
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN)
def test_message_in_an_unusual_order_is_told_like_a_parser(data: bytes) -> None:
    layouts, layout = learned(data)
    assert assert_told_like_a_parser(layouts, data) is layout
    for position in inside(layout):
        changed = bytes([*data[:position], data[position] ^ 1, *data[position + 1 :]])
        assert assert_told_like_a_parser(layouts, changed) is layout


PAYLOADS = {
    0: [b"\0", b"\x01", b"\x03", b"\x80\0"],
    1: [bytes(8), b"\x0a\x01x\x12\x03\x22\x01\0"],
    2: [b"", b"x", b"y", b"\x01", bytes(4), bytes(8), b"\x12\0", b"\x08\x01"],
    5: [bytes(4), b"\x0a\x02xy"],
}
"""By wire type, what means something in one place or another."""
STRANGE = st.sampled_from(sorted(PAYLOADS)).flatmap(
    lambda kind: st.builds(
        field, st.sampled_from([1, 2, 3, 4, 5, 6, 7, 11, 16, 17, 300]), st.sampled_from(PAYLOADS[kind]), st.just(kind)
    )
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A message of one input with strange fields put in, or with a byte changed, or with its values in strange form."""
    dtype = draw(st.sampled_from(NUMBERS))
    array = np.zeros(draw(st.sampled_from([(), (1,), (2,)])), dtype)
    number = draw(st.sampled_from([4, 4, 4, 5, 6]))
    kind = draw(st.sampled_from([2, 2, 2, 2, 2, 0, 1, 5]))
    values = field(number, {0: b"\0", 1: bytes(8), 2: array.tobytes(), 5: bytes(4)}[kind], kind)
    places = [b""] * 6
    for _ in range(draw(st.integers(0, 2))):
        places[draw(st.integers(0, 5))] += draw(STRANGE)
    tensor = places[0] + tensor_bytes(array, values) + places[1]
    pair = places[2] + field(1, b"x") + field(2, tensor) + places[3]
    data = bytearray(message(places[4], field(2, pair), places[5]))
    if draw(st.integers(0, 3)) == 0:
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@given(hostile(), st.binary(min_size=32, max_size=32))
@example(NOT_PLAIN["content as varint"], b"\x81" * 32)
@example(NOT_PLAIN["floats as fixed64"], b"\x81" * 32)
@examples(500)
def test_hostile_messages_are_never_told_otherwise_than_by_a_parser(data: bytes, others: bytes) -> None:
    layouts = Layouts()
    try:
        layout = learn(layouts, data)
    except (DecodeError, ServingError, UnicodeDecodeError):
        return
    event(f"learned: {layout is not None}")
    if layout is None:
        assert layouts.find(data) is None
        return
    assert_told_like_a_parser(layouts, data)
    changed = bytearray(data)
    for position, byte in zip(inside(layout), others, strict=False):
        changed[position] = byte
    request = PredictRequest.FromString(bytes(changed))
    assert_same_but_signalling(layout.inputs(bytes(changed)), decoded(request))


def assert_same_but_signalling(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    """NaNs are NaNs, whichever."""
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
        if array.dtype in FLOATS:
            np.testing.assert_array_equal(got[name], array)
        else:
            assert got[name].tobytes() == array.tobytes()


def test_arrays_are_views_that_cannot_be_written_to() -> None:
    data = message(X)
    _, layout = learned(data)
    (array,) = layout.inputs(data).values()
    assert not array.flags.writeable
    assert not array.flags.owndata


def test_layouts_of_one_length_are_bounded_and_the_oldest_goes() -> None:
    layouts = Layouts()
    messages = [message(X, head=spec(name)) for name in "abcdefgh"]
    for data in messages:
        assert learn(layouts, data) is not None
    known = [data for data in messages if layouts.find(data) is not None]
    assert known == messages[-MAX_OF_LENGTH:]


def test_layouts_of_many_lengths_are_bounded() -> None:
    layouts = Layouts()
    messages = [message(X, head=spec("m" * length)) for length in range(1, MAX_LENGTHS + 2)]
    for data in messages[:-1]:
        learn(layouts, data)
    assert all(layouts.find(data) for data in messages[:-1])
    learn(layouts, messages[-1])
    assert [data for data in messages if layouts.find(data)] == messages[1:], "the oldest goes"


def test_layouts_that_push_one_another_out_do_not_use_up_the_bound() -> None:
    layouts = Layouts()
    for name in range(100_000, 100_000 + 2 * MAX_LENGTHS):
        learn(layouts, message(X, head=spec(str(name))))
    other = message(X, head=spec("other length"))
    learn(layouts, other)
    assert layouts.find(message(X, head=spec(str(100_000 + 2 * MAX_LENGTHS - 1)))) is not None
    assert layouts.find(other) is not None


def test_a_layout_is_remembered_by_what_is_around_its_numbers_unless_that_is_much() -> None:
    few = MAX_KNOWN_BYTES - len(message(X)) - 20
    assert learn(Layouts(), message(X, field(1000, bytes(few)))) is not None
    assert learn(Layouts(), message(X, field(1000, bytes(few + 40)))) is None
    data = message(entry("x", as_content(np.zeros(1_000_000, np.float32))))
    _, layout = learned(data)
    assert sum(len(piece) for _, _, piece in layout.known) < 100


def test_learning_changes_neither_the_request_nor_its_arrays() -> None:
    looks_like_an_input = field(1, b"z") + field(2, field(4, b"1"))
    data = message(X, field(2, looks_like_an_input, 1))
    request = PredictRequest.FromString(data)
    before = request.SerializeToString(deterministic=True)
    inputs = decoded(request)
    Layouts().learn(data, request, read_model_spec(request), inputs)
    assert request.SerializeToString(deterministic=True) == before
