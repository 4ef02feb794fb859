"""Answers put together from bytes: every parser finds in them what protobuf itself would have written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tests.support.errors import refusal
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.signature import DataType
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.dtypes import TABLE, Array
from tfs_lite.protocols.messages import Message, PredictResponse
from tfs_lite.protocols.tensorflow import tensor_proto
from tfs_lite.protocols.tensorflow.predict_answers import MAX_FRAMES, AnswerWriter
from tfs_lite.protocols.tensorflow.serving import model_spec
from tfs_lite.protocols.tensorflow.tensor_proto import decode, encode

ID = ServableId("m", 7)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
DTYPES = [row.numpy for row in TABLE]


def by_protobuf(servable_id: ServableId, signature: str, outputs: Mapping[str, Array], as_content: bool) -> Message:
    response = PredictResponse(
        model_spec=model_spec(ModelRef(servable_id.name, servable_id.version, signature=signature))
    )
    for name, array in outputs.items():
        response.outputs[name].CopyFrom(encode(array, as_content))
    return response


def canonical(response: Message) -> bytes:
    """Equal for equal messages, and NaNs count by their bits."""
    encoded: bytes = response.SerializeToString(deterministic=True)
    return encoded


def assert_written_well(
    writer: AnswerWriter, outputs: Mapping[str, Array], as_content: bool, signature: str = "s", servable_id: Any = ID
) -> None:
    data = writer.write(servable_id, signature, outputs)
    response = PredictResponse.FromString(data)
    assert canonical(response) == canonical(by_protobuf(servable_id, signature, outputs, as_content))


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Of any element type, shape and memory layout, with any bits that protobuf keeps."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(SHAPES)
    if dtype.hasobject:
        array = draw(npst.arrays(object, shape, elements=st.binary(max_size=5)))
    elif dtype == np.bool_:
        array = draw(npst.arrays(dtype, shape))
    else:
        size = int(np.prod(shape)) * dtype.itemsize
        array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
        if dtype.kind in "fc" and dtype.itemsize > 2:
            array = np.where(np.isnan(array), dtype.type(0), array)
    return draw(st.sampled_from([plain, transposed, strided, big_endian]))(array)


def plain(array: Array) -> Array:
    return array


def transposed(array: Array) -> Array:
    return array.T


def strided(array: Array) -> Array:
    return np.repeat(array, 2, axis=-1)[..., ::-2] if array.ndim else array


def big_endian(array: Array) -> Array:
    return array.astype(array.dtype.newbyteorder(">"))


@given(
    st.dictionaries(st.text(max_size=8) | st.sampled_from(["y", "n" * 200, "é" * 100]), arrays(), max_size=4),
    st.booleans(),
    st.text(max_size=8),
)
def test_parser_finds_what_protobuf_would_have_written(
    outputs: Mapping[str, Array], as_content: bool, signature: str
) -> None:
    writer = AnswerWriter(as_content)
    for _ in range(2):
        assert_written_well(writer, outputs, as_content, signature)


@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.dtype.text)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,), (2, 3), (130, 2)], ids=str)
def test_every_element_type_is_written_in_every_shape(row: Any, shape: tuple[int, ...], as_content: bool) -> None:
    writer = AnswerWriter(as_content)
    for value in (1, 0):
        array = np.full(shape, b"text", object) if row.dtype is DataType.STRING else np.full(shape, value, row.numpy)
        assert_written_well(writer, {"y": array}, as_content)
        data = PredictResponse.FromString(writer.write(ID, "s", {"y": array}))
        got = decode(data.outputs["y"], "y", max_bytes=0 if array.size else 1 << 20)
        assert (got.dtype, got.shape, got.tolist()) == (array.dtype, array.shape, array.tolist())


@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
def test_answers_of_one_form_differ_only_in_their_numbers(as_content: bool) -> None:
    writer = AnswerWriter(as_content)
    for number in range(5):
        outputs = {
            "first": np.full((2, 3), number, np.float32),
            "text": np.array([b"a", str(number)], object),
            "last": np.full(4, number, np.int64),
        }
        assert_written_well(writer, {"first": outputs["first"]}, as_content)
        assert_written_well(writer, outputs, as_content)


def test_what_makes_another_frame_makes_another_answer() -> None:
    writer = AnswerWriter()
    y = np.ones((2, 3), np.float32)
    for outputs in (
        {"y": y},
        {"z": y},
        {"y": y, "z": y},
        {"z": y, "y": y},
        {"y": y.reshape(3, 2)},
        {"y": y.reshape(6)},
        {"y": y.view(np.int32)},
        {"y": y.astype(np.complex64)},
        {},
    ):
        for servable_id in (ID, ServableId("m", 8), ServableId("n", 7), ServableId("m", 0)):
            for signature in ("", "s", "serving_default"):
                for _ in range(2):
                    assert_written_well(writer, outputs, False, signature, servable_id)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 4095, 4096, 4097, 600_000])
@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
def test_lengths_of_any_width_are_told_right(size: int, as_content: bool) -> None:
    outputs = {"y" * (size % 300): np.arange(size, dtype=np.float32), "z": np.arange(size, dtype=np.float64)}
    assert_written_well(AnswerWriter(as_content), outputs, as_content)


def test_texts_of_every_kind_become_bytes() -> None:
    writer = AnswerWriter()
    for array in (np.array(["a", "é"], object), np.array(["a", "é"]), np.array([b"a", b"b\0c"])):
        data = PredictResponse.FromString(writer.write(ID, "s", {"y": array}))
        expected = [text if isinstance(text, bytes) else text.encode() for text in array.tolist()]
        assert list(data.outputs["y"].string_val) == expected


@pytest.mark.parametrize("as_content", [False, True], ids=["typed", "content"])
def test_output_without_a_tensor_type_is_refused_every_time(as_content: bool) -> None:
    writer = AnswerWriter(as_content)
    for _ in range(2):
        refusal(writer.write, ID, "s", {"y": np.zeros(2, "datetime64[s]")})
        assert "holds dict" in refusal(writer.write, ID, "s", {"y": np.array([{}], object)})


def test_output_larger_than_a_message_is_refused() -> None:
    huge = np.broadcast_to(np.float64(0), (tensor_proto.MAX_MESSAGE_BYTES // 8 + 1,))
    for as_content in (False, True):
        refusal(AnswerWriter(as_content).write, ID, "s", {"y": huge}, code=StatusCode.RESOURCE_EXHAUSTED)


def test_frames_are_bounded() -> None:
    writer = AnswerWriter()
    for size in range(2 * MAX_FRAMES + 10):
        outputs = {"y": np.ones(size, np.float32)}
        assert_written_well(writer, outputs, False)
        assert len(writer._frames) <= MAX_FRAMES
    assert_written_well(writer, {"y": np.ones(1, np.float32)}, False)


def test_a_frame_holds_no_numbers() -> None:
    writer = AnswerWriter()
    writer.write(ID, "s", {"y": np.ones(1_000_000, np.float32), "z": np.ones(10, ml_dtypes.bfloat16)})
    writer.write(ID, "s", {"y": np.ones(1_000_000, np.float32)})
    held = [piece for frame in writer._frames.values() for piece in frame or ()]
    assert held
    assert sum(map(len, held)) < 200
