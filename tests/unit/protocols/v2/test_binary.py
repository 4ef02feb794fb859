"""Bytes of tensors behind the JSON of a V2 request, and requests that are nothing but bytes."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import orjson
import pytest

from tests.support import errors
from tfs_lite.protocols.dtypes import Array
from tfs_lite.protocols.v2.binary import DeclaredInput, raw_request, read_length
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.tensors import decode, encode_raw

FIRST = np.arange(6, dtype=np.int32).reshape(2, 3)
TEXTS = np.array([b"a\0", b"", b"\xff"], object)


def body_of(*inputs: tuple[str, str, Array, int | None], extra: bytes = b"") -> tuple[bytes, int]:
    """Name, datatype, array, and the size that is promised if it is not the true one."""
    members, blobs = [], []
    for name, datatype, array, size in inputs:
        blobs.append(encode_raw(array))
        promised = len(blobs[-1]) if size is None else size
        parameters = {"binary_data_size": promised}
        members.append({"name": name, "datatype": datatype, "shape": array.shape, "parameters": parameters})
    text = orjson.dumps({"inputs": members})
    return b"".join((text, *blobs, extra)), len(text)


def refusal(body: bytes, length: int) -> str:
    return errors.refusal(read_infer, "m", None, body, length)


def test_blobs_belong_to_their_inputs_in_order() -> None:
    body, length = body_of(("a", "INT32", FIRST, None), ("b", "BYTES", TEXTS, None), ("c", "INT32", -FIRST, None))
    decoded = [decode(sent, "m") for sent in read_infer("m", None, body, length).inputs]
    assert [array.tolist() for array in decoded] == [FIRST.tolist(), TEXTS.tolist(), (-FIRST).tolist()]


def test_inputs_in_json_may_stand_between_those_with_blobs() -> None:
    text = orjson.dumps(
        {
            "inputs": [
                {"name": "a", "datatype": "UINT8", "shape": [2], "parameters": {"binary_data_size": 2}},
                {"name": "b", "datatype": "UINT8", "shape": [1], "data": [9]},
                {"name": "c", "datatype": "UINT8", "shape": [1], "parameters": {"binary_data_size": 1}},
            ]
        }
    )
    request = read_infer("m", None, text + b"\1\2\3", len(text))
    assert [decode(sent, "m").tolist() for sent in request.inputs] == [[1, 2], [9], [3]]


def test_large_blobs_are_aligned_and_ready() -> None:
    large = np.random.default_rng(1).normal(size=40_000)
    body, length = body_of(("a", "FP64", large, None))
    (sent,) = read_infer("m", None, body, length).inputs
    assert sent.array is not None
    assert sent.array.flags.aligned
    assert np.array_equal(sent.array, large)


def test_large_blob_of_another_size_is_left_for_the_checks_of_the_model() -> None:
    body, length = body_of(("a", "FP64", np.zeros(40_000), 8 * 40_000 - 1), extra=b"")
    (sent,) = read_infer("m", None, body[:-1], length).inputs
    assert sent.array is None
    assert "input byte size mismatch for input 'a' for model 'm'" in errors.refusal(decode, sent, "m")


def test_blobs_that_are_too_short_or_too_long_are_told() -> None:
    body, length = body_of(("a", "INT32", FIRST, None), ("b", "INT32", FIRST, None))
    assert "unexpected size for input 'b', expecting 5 additional bytes" in refusal(body[:-5], length)
    body, length = body_of(("a", "INT32", FIRST, None), extra=b"xyz")
    assert "unexpected additional input data" in refusal(body, length)


@pytest.mark.parametrize("size", [-1, 1.5, "12", True, 2**64 - 1])
def test_size_of_a_blob_is_a_whole_number(size: Any) -> None:
    body, length = body_of(("a", "INT32", FIRST, size))
    assert "Unable to parse 'binary_data_size'" in refusal(body, length)


@pytest.mark.parametrize(("text", "length"), [(None, None), ("0", 0), ("7", 7), (" 10 ", 10), ("0010", 10)])
def test_length_of_the_json_part_is_read(text: str | None, length: int | None) -> None:
    assert read_length(text, 10) == length


@pytest.mark.parametrize("text", ["11", "-1", "x", "", "1.0", "0x1", "4294967297", "9" * 5000, "\u0661"])
def test_length_of_the_json_part_that_makes_no_sense_is_refused(text: str) -> None:
    message = errors.refusal(read_length, text, 10)
    assert "Inference-Header-Content-Length" in message
    assert len(message) < 300


RAW = [
    ("fixed", "INT32", (2, 2), False, (2, 2)),
    ("batch", "INT32", (-1, 4), True, (1, 4)),
    ("batch and one free", "INT32", (-1, 2, -1), True, (1, 2, 2)),
    ("free batch of a model that does not batch", "INT32", (-1, 2), False, (2, 2)),
    ("free", "INT8", (-1,), False, (16,)),
    ("no dimension", "FP32", (), False, ()),
]


@pytest.mark.parametrize(("datatype", "declared", "batches", "shape"), [r[1:] for r in RAW], ids=[r[0] for r in RAW])
def test_raw_body_takes_the_shape_that_its_size_tells(
    datatype: str, declared: tuple[int, ...], batches: bool, shape: tuple[int, ...]
) -> None:
    data = bytes(range(4 if not declared else 16))
    request = raw_request("m", 3, memoryview(data), [DeclaredInput("x", datatype, declared)], batches)
    assert (request.model, request.version, request.binary_outputs) == ("m", 3, True)
    (sent,) = request.inputs
    assert (sent.name, sent.datatype, sent.shape) == ("x", datatype, shape)
    assert decode(sent, "m").tobytes() == data


@pytest.mark.parametrize(("declared", "batches", "shape"), [((1,), False, (1,)), ((-1, 1), True, (1, 1))])
def test_raw_body_is_one_text(declared: tuple[int, ...], batches: bool, shape: tuple[int, ...]) -> None:
    text = struct.pack("<I", 3) + b"abc"
    request = raw_request("m", None, memoryview(text), [DeclaredInput("x", "BYTES", declared)], batches)
    (sent,) = request.inputs
    assert sent.array is not None
    assert (sent.array.shape, sent.array.ravel().tolist()) == (shape, [text])


IMPOSSIBLE = [
    (
        "two inputs",
        [DeclaredInput("a", "INT8", (1,)), DeclaredInput("b", "INT8", (1,))],
        False,
        "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'm' model configuration",
    ),
    ("no input", [], False, "Raw request must only have 1 input"),
    (
        "two free",
        [DeclaredInput("a", "INT8", (-1, -1))],
        False,
        "The shape of the raw input 'a' can not be deduced because",
    ),
    ("several texts", [DeclaredInput("a", "BYTES", (2,))], False, "must have input shape [1]"),
    ("several texts and a batch", [DeclaredInput("a", "BYTES", (-1, 2))], True, "must have input shape [1]"),
]


@pytest.mark.parametrize(("inputs", "batches", "words"), [r[1:] for r in IMPOSSIBLE], ids=[r[0] for r in IMPOSSIBLE])
def test_raw_body_that_may_mean_several_things_is_refused(
    inputs: list[DeclaredInput], batches: bool, words: str
) -> None:
    assert words in errors.refusal(raw_request, "m", None, memoryview(b"1234"), inputs, batches)


@pytest.mark.parametrize(("shape", "size"), [((2, 2), 15), ((-1, 4), 15), ((-1, 0), 4)])
def test_raw_body_that_does_not_fill_the_shape_is_found_by_its_size(shape: tuple[int, ...], size: int) -> None:
    request = raw_request("m", None, memoryview(bytes(size)), [DeclaredInput("x", "INT32", shape)], False)
    assert "input byte size mismatch for input 'x'" in errors.refusal(decode, request.inputs[0], "m")
