"""V2 bodies over HTTP recognised by the text around their numbers: what is read out of them is what is read in full, or
they are not recognised at all."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.dtypes import Array, to_numpy
from tfs_lite.protocols.v2.binary import read_length
from tfs_lite.protocols.v2.http_layouts import HttpLayouts
from tfs_lite.protocols.v2.json_request import read_infer
from tfs_lite.protocols.v2.plain import PlainRequest, plain_form
from tfs_lite.protocols.v2.request import InferRequest
from tfs_lite.protocols.v2.tensors import decode, dtype_of

INTEGERS = [f"{kind}{bits}" for kind in ("INT", "UINT") for bits in (8, 16, 32, 64)]
IN_JSON = [*INTEGERS, "FP32", "FP64"]
IN_BYTES = [*IN_JSON, "FP16", "BF16"]
Body = tuple[bytes, str | None]


def read(body: Body, model: str = "m") -> InferRequest:
    request = read_infer(model, None, body[0], read_length(body[1], len(body[0])))
    for tensor in request.inputs:
        decode(tensor, model)  # before a model runs, the bytes have to have the size of the shape
    return request


def learn(layouts: HttpLayouts, body: Body) -> None:
    request = read(body)
    form = plain_form(request)
    if form is not None:
        layouts.learn(*body, request, form)


def learned(body: Body) -> HttpLayouts:
    layouts = HttpLayouts()
    learn(layouts, body)
    assert layouts.find("m", None, *body) is not None
    return layouts


def assert_told_as_in_full(layouts: HttpLayouts, body: Body) -> PlainRequest | None:
    """What is recognised is a request, and says what is read in full."""
    found = layouts.find("m", None, *body)
    if found is not None:
        request = read(body)
        assert (found.form.model, found.id) == (ModelRef("m", None), request.id)
        assert [*found.form.wanted.values()] == request.outputs
        assert found.form.binary_outputs == request.binary_outputs
        assert [*found.inputs] == [tensor.name for tensor in request.inputs]
        for tensor in request.inputs:
            got, expected = found.inputs[tensor.name], decode(tensor, request.model)
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
            assert got.tobytes() == expected.tobytes()
    return found


def json_body(*inputs: dict[str, Any], **members: Any) -> Body:
    return json.dumps({**members, "inputs": list(inputs)}).encode(), None


def tensor(data: Any, datatype: str = "FP32", name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [np.asarray(data).size], "datatype": datatype, "data": data, **more}


def bytes_body(*arrays: tuple[str, Array], **members: Any) -> Body:
    """A request whose inputs x0, x1, ... are bytes after the JSON."""
    inputs = [
        {
            "name": f"x{index}",
            "shape": array.shape,
            "datatype": datatype,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for index, (datatype, array) in enumerate(arrays)
    ]
    head = json.dumps({**members, "inputs": inputs}).encode()
    return b"".join((head, *(array.tobytes() for _, array in arrays))), str(len(head))


def values(datatype: str) -> st.SearchStrategy[Any]:
    """The numbers that JSON may have for a datatype."""
    if datatype in INTEGERS:
        limits = np.iinfo(to_numpy(dtype_of(datatype)))
        return st.integers(int(limits.min), int(limits.max))
    return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1)


@st.composite
def alike(draw: st.DrawFn) -> tuple[Body, Body]:
    """Two bodies that differ in nothing but their numbers and their ids."""
    members: dict[str, Any] = {}
    if draw(st.booleans()):
        members["outputs"] = [{"name": "y", "parameters": {"binary_data": draw(st.booleans())}}]
    if draw(st.booleans()):
        members["parameters"] = {"binary_data_output": True}
    with_id, id_first = draw(st.booleans()), draw(st.booleans())
    kinds = draw(
        st.lists(st.tuples(st.sampled_from(IN_JSON), st.integers(1, 4), st.booleans()), min_size=1, max_size=3)
    )
    style = draw(st.integers(0, 2))
    indent, separators = (None, 1, None)[style], (None, None, (",", ":"))[style]
    bodies = []
    for request_id in ("7", "uuid-1.a_b"):
        inputs, blobs = [], []
        for index, (datatype, count, binary) in enumerate(kinds):
            one: dict[str, Any] = {"name": f"x{index}", "shape": [1, count], "datatype": datatype}
            if binary:
                size = count * to_numpy(dtype_of(datatype)).itemsize
                blobs.append(draw(st.binary(min_size=size, max_size=size)))
                one["parameters"] = {"binary_data_size": size}
            else:
                numbers = draw(st.lists(values(datatype), min_size=count, max_size=count))
                one["data"] = numbers if index % 2 else [numbers]
            inputs.append(one)
        named = {"id": request_id if id_first else "same"} if with_id else {}
        tree = {**named, "inputs": inputs, **members} if id_first else {"inputs": inputs, **members, **named}
        text = json.dumps(tree, indent=indent, separators=separators).encode()
        bodies.append((b"".join((text, *blobs)), str(len(text)) if blobs else None))
    return bodies[0], bodies[1]


@given(alike())
def test_a_body_with_other_numbers_and_another_id_is_read_as_in_full(bodies: tuple[Body, Body]) -> None:
    one, other = bodies
    layouts = learned(one)
    for body in (one, other):
        assert assert_told_as_in_full(layouts, body) is not None


@given(alike(), st.data())
@examples(500)
def test_a_changed_body_is_told_as_in_full_or_not_at_all(bodies: tuple[Body, Body], data: st.DataObject) -> None:
    layouts = learned(bodies[0])
    text, length = bytearray(bodies[1][0]), bodies[1][1]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        more = data.draw(st.sampled_from([b"", *(bytes([byte]) for byte in b'[]{}",:.-+eE019 \n\\tnNa'), b"\xff"]))
        text[at : at + data.draw(st.integers(0, 2))] = more
    try:
        found = assert_told_as_in_full(layouts, (bytes(text), length))
    except ServingError as error:
        raise AssertionError(f"recognised, but in full it is refused: {error}") from error
    event(f"recognised: {found is not None}")


NUMBERS = ["1", "-0", "0.5", "1e5", "1E-5", "-1.25e+3", "00", "+1", "1.", ".5", "1e400", "-1e400", "1e", "-", "", " 7 "]
NUMBERS += [
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775809",
    "3.4e38",
    "3.5e38",
    "1e-46",
]
NUMBERS += [
    "128",
    "-129",
    "255",
    "256",
    "1.0",
    "[1]",
    "[[1]]",
    "[]",
    "[1,2]",
    "1,2",
    "null",
    "true",
    "NaN",
    '"1"',
    "{}",
    "1 2",
]
NUMBERS += [
    "[" * 70 + "1" + "]" * 70,
    "[" * 200 + "1" + "]" * 200,
    "1]",
    "[1",
    '1],"data":[1',
    "7.038531e-26",
    "16777217",
]


@pytest.mark.parametrize("datatype", IN_JSON)
def test_any_text_in_place_of_a_number_is_told_as_in_full(datatype: str) -> None:
    start, end = json_body(tensor([1, 2], datatype), id="a")[0].split(b"1, 2")
    layouts = learned((start + b"1, 2" + end, None))
    recognised = 0
    for first in NUMBERS:
        for second in ("2", "0.5"):
            body = start + f"{first},{second}".encode() + end, None
            try:
                recognised += assert_told_as_in_full(layouts, body) is not None
            except ServingError as error:
                raise AssertionError(f"{body[0]!r} is recognised, but in full it is refused: {error}") from error
    assert recognised >= 4


def test_nested_lists_are_recognised() -> None:
    body = json_body({"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4.5]]})
    found = assert_told_as_in_full(learned(body), json_body(json.loads(body[0])["inputs"][0]))
    assert found is not None
    assert found.inputs["x"].tolist() == [[1, 2], [3, 4.5]]


@pytest.mark.parametrize("datatype", IN_BYTES)
def test_bytes_after_the_json_are_recognised_as_views(datatype: str) -> None:
    rows = np.arange(6).reshape(2, 3).astype(to_numpy(dtype_of(datatype)))
    layouts = learned(bytes_body((datatype, rows), (datatype, rows[:1])))
    body = bytes_body((datatype, rows + rows), (datatype, rows[1:]))
    found = assert_told_as_in_full(layouts, body)
    assert found is not None
    assert not any(array.flags.owndata or array.flags.writeable for array in found.inputs.values())


def test_bytes_that_are_too_few_or_too_many_are_not_recognised() -> None:
    body, length = bytes_body(("FP32", np.ones(4, np.float32)))
    layouts = learned((body, length))
    assert length is not None
    for other in (body + b"1", body[:-1], body[: int(length)], body[: int(length) - 1]):
        assert layouts.find("m", None, other, length) is None


@pytest.mark.parametrize("length", ["", "0", "x", "-1", "+5", "1_0", "9" * 11, "9" * 400, "\N{SUPERSCRIPT TWO}", " 5"])
def test_a_length_that_is_unusual_is_left_to_the_full_way(length: str) -> None:
    body = bytes_body(("FP32", np.ones(4, np.float32)))
    assert learned(body).find("m", None, body[0], length) is None


def test_a_form_is_for_its_model_its_version_and_its_header() -> None:
    body = json_body(tensor([1, 2.5]))
    layouts = learned(body)
    assert layouts.find("other", None, *body) is None
    assert layouts.find("m", 1, *body) is None
    assert layouts.find("m", None, body[0], str(len(body[0]))) is None


NOT_PLAIN = {
    "texts": json_body(tensor(["a"], "BYTES")),
    "booleans": json_body(tensor([True], "BOOL")),
    "numbers beside texts": json_body(tensor([1]), tensor(["a"], "BYTES", "t")),
    "no elements": json_body({"name": "x", "shape": [0], "datatype": "FP32", "data": []}),
    "a parameter": json_body(tensor([1]), parameters={"speed": 1}),
    "a sequence": json_body(tensor([1]), parameters={"sequence_id": 1}),
    "a priority": json_body(tensor([1]), parameters={"priority": 1}),
    "a timeout": json_body(tensor([1]), parameters={"timeout": 1}),
    "classes": json_body(tensor([1]), outputs=[{"name": "y", "parameters": {"classification": 1}}]),
    "an input in shared memory": json_body(
        {
            "name": "x",
            "shape": [1],
            "datatype": "FP32",
            "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4},
        },
        tensor([1], name="z"),
    ),
    "booleans in bytes": bytes_body(("BOOL", np.array([True]))),
    "words for numbers": (json_body(tensor([1]))[0].replace(b"[1]", b"[NaN]", 2), None),
    "a very long name": json_body(tensor([1], name="x" * 5000)),
}


@pytest.mark.parametrize("body", NOT_PLAIN.values(), ids=NOT_PLAIN)
def test_a_body_that_is_not_plain_is_not_learned(body: Body) -> None:
    layouts = HttpLayouts()
    try:
        learn(layouts, body)
    except ServingError:
        return
    assert layouts.find("m", None, *body) is None


UNUSUAL = {
    "byte order mark": b"\xef\xbb\xbf" + json_body(tensor([1, 2]), id="a")[0],
    "data before the rest": b'{"inputs":[{"data":[1,2],"datatype":"FP32","shape":[2],"name":"x"}]}',
    "id last": b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,2]}],"id":"abc"}',
    "id that is no word": json_body(tensor([1, 2]), id='a"\\ \u00fc')[0],
    "empty id": json_body(tensor([1, 2]), id="")[0],
    "other lists of that name": json_body(tensor([1, 2], more={"data": [5]}), extra={"data": [3, 4], "id": "z"})[0],
    "a name with a quote": json_body(tensor([1, 2], name='x"data'))[0],
    "a member whose name ends like data": json_body(tensor([1, 2], **{'x"data': [7, 8]}))[0],
    "escaped name of a member": b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","d\\u0061ta":[1,2]}]}',
    "text with a list in it": json_body(tensor([1, 2], note='"data":[1,2]'))[0],
    "white space": b' {\n"id" :\t"a" , "inputs":[{"name":"x","shape":[2],"datatype":"FP32", "data" : [ 1 , 2 ] }]} \n',
}


@pytest.mark.parametrize("text", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_body_is_told_as_in_full_whatever_is_changed(text: bytes) -> None:
    layouts = HttpLayouts()
    learn(layouts, (text, None))
    assert_told_as_in_full(layouts, (text, None))
    for at in range(len(text)):
        for other in b'0129[]",:\\ ex':
            body = bytes([*text[:at], other, *text[at + 1 :]]), None
            try:
                assert_told_as_in_full(layouts, body)
            except ServingError as error:
                raise AssertionError(f"{body[0]!r} is recognised, but in full it is refused: {error}") from error


def test_a_text_longer_than_what_is_read_on_the_loop_is_left_to_the_full_way() -> None:
    body = json_body(tensor([0.5] * 20_000))
    layouts = HttpLayouts()
    learn(layouts, body)
    assert layouts.find("m", None, *body) is None


def test_forms_are_bounded() -> None:
    layouts = HttpLayouts()
    bodies = [json_body(tensor([1.5], name=f"x{index}")) for index in range(300)]
    for body in bodies:
        learn(layouts, body)
    assert 0 < sum(layouts.find("m", None, *body) is not None for body in bodies) <= 128
    assert layouts.find("m", None, *bodies[-1]) is not None
