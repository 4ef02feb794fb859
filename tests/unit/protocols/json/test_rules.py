"""The rules of REST's predict bodies, one line each: a body and a signature, and the arrays or the refusal.

Every line is read twice: as parsed, and with numpy arrays in place of its lists of numbers. Both must give the same.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.json.text import loads
from tfs_lite.protocols.rest.predict import read_predict_body, tensors_of

INVALID = StatusCode.INVALID_ARGUMENT
UNIMPLEMENTED = StatusCode.UNIMPLEMENTED
BATCH = SymbolicDim("batch")
NAN, INF = float("nan"), float("inf")


def one(dtype: DataType) -> Signature:
    return Signature((TensorSpec("x", dtype),), ())


ANY = one(DataType.INVALID)
FLOAT, DOUBLE, HALF, BFLOAT16 = map(one, (DataType.FLOAT, DataType.DOUBLE, DataType.HALF, DataType.BFLOAT16))
FLOAT8 = one(DataType.FLOAT8_E4M3FN)
INT8, UINT8, INT16, UINT16 = map(one, (DataType.INT8, DataType.UINT8, DataType.INT16, DataType.UINT16))
INT32, INT64, UINT32, UINT64 = map(one, (DataType.INT32, DataType.INT64, DataType.UINT32, DataType.UINT64))
BOOL, STRING, COMPLEX64 = map(one, (DataType.BOOL, DataType.STRING, DataType.COMPLEX64))
COMPLEX128 = one(DataType.COMPLEX128)
B64 = Signature((TensorSpec("b64", DataType.STRING),), ())
NO_INPUTS = Signature((), ())
PAIR = Signature((TensorSpec("b", DataType.STRING), TensorSpec("a", DataType.INT32)), ())
ANYS = Signature((TensorSpec("a"), TensorSpec("b")), ())
EASY = Signature(
    (TensorSpec("a", DataType.INT32, (BATCH,)), TensorSpec("k", DataType.FLOAT, (BATCH, 2))),
    (),
    defaults={"k": np.array([5, 6], np.float32)},
)
EASIER = Signature(EASY.inputs, (), defaults={"a": np.array(3, np.int32), "k": np.array([5, 6], np.float32)})


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def strings(*values: Any) -> np.ndarray:
    return np.array(values, object)


def bools(*values: bool) -> np.ndarray:
    return np.array(values)


def x(array: Any, dtype: Any = None) -> dict[str, np.ndarray]:
    return {"x": np.array(array, dtype) if dtype else np.asarray(array)}


# fmt: off
READ: list[tuple[str, Signature, dict[str, np.ndarray]]] = [
    # The text
    ('\ufeff{"instances": [1]}', FLOAT, x(f32(1))),
    (' \t\r\n{ "instances" : [ 1 ] } ', FLOAT, x(f32(1))),
    ('{"instances": [NaN]}', FLOAT, x(f32(NAN))),
    ('{"instances": [Inf, -Inf]}', FLOAT, x(f32(INF, -INF))),
    ('{"instances": [Infinity, -Infinity]}', FLOAT, x(f32(INF, -INF))),
    ('{"instances": [1, NaN, 2]}', DOUBLE, x([1, NAN, 2], "f8")),
    ('{"instances": [1], "other": {"instances": [2]}}', FLOAT, x(f32(1))),
    ('{"signature_name": "", "instances": [1]}', FLOAT, x(f32(1))),
    ('{"signature_name": "abc", "instances": [1]}', FLOAT, x(f32(1))),
    # Row form, one input
    ('{"instances": [1, 2, 3]}', FLOAT, x(f32(1, 2, 3))),
    ('{"instances": [1.5, 2, 3]}', FLOAT, x(f32(1.5, 2, 3))),
    ('{"instances": [[1, 2], [3, 4]]}', FLOAT, x([[1, 2], [3, 4]], "f4")),
    ('{"instances": [[[1], [2]], [[3], [4]], [[5], [6]]]}', INT32, x([[[1], [2]], [[3], [4]], [[5], [6]]], "i4")),
    ('{"instances": [[]]}', FLOAT, x(np.zeros((1, 0), "f4"))),
    ('{"instances": [[], []]}', FLOAT, x(np.zeros((2, 0), "f4"))),
    ('{"instances": [[[], []]]}', STRING, x(np.zeros((1, 2, 0), object))),
    ('{"instances": [{"x": 1}, {"x": 2}]}', FLOAT, x(f32(1, 2))),
    ('{"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}', INT32, x([[1, 2], [3, 4]], "i4")),
    ('{"instances": ["a", "ä", ""]}', STRING, x(strings(b"a", "ä".encode(), b""))),
    ('{"instances": ["a\\u0000b", "\\ud83d\\ude00"]}', STRING, x(strings(b"a\0b", "😀".encode()))),
    ('{"instances": [["a", "b"]]}', STRING, x([[b"a", b"b"]], object)),
    ('{"instances": [{"b64": "aGk="}]}', STRING, x(strings(b"hi"))),
    ('{"instances": [{"b64": "aGk"}]}', STRING, x(strings(b"hi"))),
    ('{"instances": [{"b64": ""}]}', STRING, x(strings(b""))),
    ('{"instances": [{"b64": "/+8="}]}', STRING, x(strings(b"\xff\xef"))),
    ('{"instances": ["a", {"b64": "gA=="}]}', STRING, x(strings(b"a", b"\x80"))),
    ('{"instances": [[{"b64": "YQ=="}, "b"], ["c", {"b64": "ZA"}]]}', STRING, x([[b"a", b"b"], [b"c", b"d"]], object)),
    ('{"instances": [{"x": {"b64": "aGk="}}]}', STRING, x(strings(b"hi"))),
    ('{"instances": [{"x": [{"b64": "aGk="}]}]}', STRING, x([[b"hi"]], object)),
    ('{"instances": [{"b64": "aGk="}]}', B64, {"b64": strings(b"hi")}),
    ('{"instances": [{"b64": {"b64": "aGk="}}]}', B64, {"b64": strings(b"hi")}),
    ('{"instances": [{"b64": ["a"]}, {"b64": ["b"]}]}', B64, {"b64": np.array([[b"a"], [b"b"]], object)}),
    ('{"instances": [true, false]}', BOOL, x([True, False])),
    # Row form, several inputs
    ('{"instances": [{"a": 1, "b": "x"}]}', PAIR, {"a": i32(1), "b": strings(b"x")}),
    ('{"instances": [{"a": 1, "b": "x"}, {"b": "y", "a": 2}]}', PAIR, {"a": i32(1, 2), "b": strings(b"x", b"y")}),
    ('{"instances": [{"a": [1, 2], "b": "x"}]}', PAIR, {"a": i32([1, 2]), "b": strings(b"x")}),
    ('{"instances": [{"a": 1, "b": {"b64": "eA=="}}]}', PAIR, {"a": i32(1), "b": strings(b"x")}),
    ('{"instances": [{"a": [], "b": []}]}', PAIR, {"a": np.zeros((1, 0), "i4"), "b": np.zeros((1, 0), object)}),
    # Row form, defaults
    ('{"instances": [{"a": 1}, {"a": 2}]}', EASY, {"a": i32(1, 2)}),
    ('{"instances": [{"a": 1, "k": [1, 2]}]}', EASY, {"a": i32(1), "k": np.array([[1, 2]], "f4")}),
    ('{"instances": [{"k": [1, 2]}]}', EASIER, {"k": np.array([[1, 2]], "f4")}),
    ('{"instances": [{}, {}]}', EASIER, {"a": i32(3, 3), "k": np.array([[5, 6], [5, 6]], "f4")}),
    # Column form
    ('{"inputs": 1}', FLOAT, x(np.float32(1))),
    ('{"inputs": [1, 2]}', FLOAT, x(f32(1, 2))),
    ('{"inputs": {"x": [1, 2]}}', FLOAT, x(f32(1, 2))),
    ('{"inputs": {"x": 7}}', INT32, x(np.int32(7))),
    ('{"inputs": [[1, 2], [3, 4]]}', INT64, x([[1, 2], [3, 4]], "i8")),
    ('{"inputs": []}', FLOAT, x(f32())),
    ('{"inputs": [[]]}', INT32, x(np.zeros((1, 0), "i4"))),
    ('{"inputs": [[[], []]]}', BOOL, x(np.zeros((1, 2, 0), bool))),
    ('{"inputs": "a"}', STRING, x(np.array(b"a", object))),
    ('{"inputs": {"b64": "aGk="}}', STRING, x(np.array(b"hi", object))),
    ('{"inputs": {"x": {"b64": "aGk="}}}', STRING, x(np.array(b"hi", object))),
    ('{"inputs": [{"b64": "aGk="}, "a"]}', STRING, x(strings(b"hi", b"a"))),
    ('{"inputs": [{"b64": "aG k="}, {"b64": "aGk=\\n"}]}', STRING, x(strings(b"hi", b"hi"))),
    ('{"signature_name": null, "instances": null, "inputs": [1]}', FLOAT, x(f32(1))),
    ('{"inputs": true}', BOOL, x(True)),
    ('{"inputs": {"a": [1, 2, 3], "b": "x"}}', PAIR, {"a": i32(1, 2, 3), "b": np.array(b"x", object)}),
    ('{"inputs": {"a": [1], "b": ["x", "y"], "c": null}}', PAIR, {"a": i32(1), "b": strings(b"x", b"y")}),
    ('{"inputs": {"a": [1]}}', EASY, {"a": i32(1)}),
    ('{"inputs": {"a": [1], "k": [[1, 2]]}}', EASY, {"a": i32(1), "k": np.array([[1, 2]], "f4")}),
    ('{"inputs": {}}', EASIER, {}),
    # Numbers
    ('{"inputs": [0.1, -0.0, 1e-60]}', FLOAT, x(f32(0.1, -0.0, 0))),
    ('{"inputs": [1e39, -1e300]}', FLOAT, x(f32(INF, -INF))),
    ('{"inputs": [3.4028235e38, 1e-45]}', FLOAT, x([3.4028235e38, 1e-45], "f4")),
    ('{"inputs": [16777217, 9007199254740993]}', FLOAT, x([16777217, 9007199254740993], "f4")),
    ('{"inputs": [18446744073709551615]}', FLOAT, x(f32(18446744073709551615))),
    ('{"inputs": [18446744073709551616]}', DOUBLE, x([18446744073709551616.0], "f8")),
    ('{"inputs": [0.1, 1, 1.7976931348623157e308, 5e-324]}', DOUBLE, x([0.1, 1, 1.7976931348623157e308, 5e-324], "f8")),
    ('{"inputs": [-1, 9223372036854775808]}', DOUBLE, x([-1, 9223372036854775808], "f8")),
    ('{"inputs": [1, 0.1, 1e6, NaN, -Inf]}', HALF, x([1, 0.1, INF, NAN, -INF], "f2")),
    ('{"inputs": [1, 0.1, 1e39]}', BFLOAT16, x([1, 0.1, INF], ml_dtypes.bfloat16)),
    ('{"inputs": [1, 0.3]}', FLOAT8, x([1, 0.3], ml_dtypes.float8_e4m3fn)),
    ('{"inputs": [-128, 127]}', INT8, x([-128, 127], "i1")),
    ('{"inputs": [0, 255]}', UINT8, x([0, 255], "u1")),
    ('{"inputs": [-32768, 32767]}', INT16, x([-32768, 32767], "i2")),
    ('{"inputs": [0, 65535]}', UINT16, x([0, 65535], "u2")),
    ('{"inputs": [-2147483648, 2147483647]}', INT32, x([-2147483648, 2147483647], "i4")),
    ('{"inputs": [0, 4294967295]}', UINT32, x([0, 4294967295], "u4")),
    ('{"inputs": [-9223372036854775808, 9223372036854775807]}', INT64, x([-(2**63), 2**63 - 1], "i8")),
    ('{"inputs": [0, 18446744073709551615]}', UINT64, x([0, 2**64 - 1], "u8")),
    ('{"inputs": [-0]}', INT32, x([0], "i4")),
    # No declared type
    ('{"inputs": [1, 2]}', ANY, x([1, 2], "i8")),
    ('{"inputs": [1, 2.0]}', ANY, x(f32(1, 2))),
    ('{"inputs": [[1, 2], [3, 4.5]]}', ANY, x([[1, 2], [3, 4.5]], "f4")),
    ('{"inputs": NaN}', ANY, x(np.float32(NAN))),
    ('{"inputs": [true]}', ANY, x([True])),
    ('{"inputs": "a"}', ANY, x(np.array(b"a", object))),
    ('{"inputs": [{"b64": "YQ=="}]}', ANY, x(strings(b"a"))),
    ('{"inputs": []}', ANY, x(f32())),
    ('{"instances": [1, 2.5]}', ANY, x(f32(1, 2.5))),
    ('{"instances": [[1, 2], [3, 4]]}', ANY, x([[1, 2], [3, 4]], "i8")),
    ('{"instances": [[1, 2], [3, 0.5]]}', ANY, x([[1, 2], [3, 0.5]], "f4")),
    ('{"instances": ["a", {"b64": "Yg=="}]}', ANY, x(strings(b"a", b"b"))),
    ('{"instances": [{"a": 1, "b": true}, {"a": 0.5, "b": false}]}', ANYS, {"a": f32(1, 0.5), "b": bools(True, False)}),
]

REFUSED: list[tuple[str, Signature, StatusCode, str]] = [
    # The text
    ("", FLOAT, INVALID, "JSON Parse error: The document is empty"),
    (" \n", FLOAT, INVALID, "JSON Parse error: The document is empty"),
    ("{", FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [1]} trailing', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [1]}{"instances": [2]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [1], "instances": [2]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [{"a": 1, "b": "x", "a": 2}]}', PAIR, INVALID, "JSON Parse error: "),
    ('{"inputs": [1' + "0" * 400 + "]}", INT64, INVALID, "JSON Parse error: "),
    ('{"instances": [1, ]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [1 2]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": nan}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [1e400]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": [01]}', FLOAT, INVALID, "JSON Parse error: "),
    ('{"instances": ["\\ud800"]}', STRING, INVALID, "JSON Parse error: "),
    ('{"inputs": ' + "[" * 101 + "]" * 101 + "}", FLOAT, INVALID, "JSON Parse error: "),
    ('{"inputs": ' + "[" * 200000, FLOAT, INVALID, "JSON Parse error: "),
    ("[1, 2]", FLOAT, INVALID, "Is not object"),
    ('"instances"', FLOAT, INVALID, "Is not object"),
    ("null", FLOAT, INVALID, "Is not object"),
    # The members
    ('{"signature_name": 1, "instances": [1]}', FLOAT, INVALID, "'signature_name' key must be a string value"),
    ('{"signature_name": ["a"]}', FLOAT, INVALID, "'signature_name' key must be a string value"),
    ("{}", FLOAT, INVALID, "Missing 'inputs' or 'instances' key"),
    ('{"examples": [{}]}', FLOAT, INVALID, "Missing 'inputs' or 'instances' key"),
    ('{"instances": [1], "inputs": [1]}', FLOAT, INVALID, "Not formatted correctly expecting only one of"),
    ('{"instances": null, "inputs": null}', FLOAT, INVALID, "Missing 'inputs' or 'instances' key"),
    ('{"instances": [1]}', NO_INPUTS, INVALID, "Failed to get input map for signature: serving_default"),
    ('{"inputs": {}}', NO_INPUTS, INVALID, "Failed to get input map for signature: serving_default"),
    ("{}", NO_INPUTS, INVALID, "Failed to get input map for signature: serving_default"),
    # Row form: the list
    ('{"instances": 1}', FLOAT, INVALID, "to be an list/array"),
    ('{"instances": null}', FLOAT, INVALID, "Missing 'inputs' or 'instances' key"),
    ('{"instances": {"x": [1]}}', FLOAT, INVALID, "to be an list/array"),
    ('{"instances": {"b64": "aGk="}}', STRING, INVALID, "to be an list/array"),
    ('{"instances": "a"}', STRING, INVALID, "to be an list/array"),
    ('{"instances": []}', FLOAT, INVALID, "No values in 'instances' array"),
    ('{"instances": []}', PAIR, INVALID, "No values in 'instances' array"),
    ('{"instances": [1, 2]}', PAIR, INVALID, "instances is a plain list"),
    ('{"instances": [[1, 2]]}', PAIR, INVALID, "instances is a plain list"),
    ('{"instances": [{"b64": "aGk="}]}', PAIR, INVALID, "instances is a plain list"),
    ('{"instances": [1]}', EASY, INVALID, "instances is a plain list"),
    ('{"instances": [{"x": 1}, 2]}', FLOAT, INVALID, "Expecting object but got list at item 1"),
    ('{"instances": [{"x": 1}, {"x": 2}, [3]]}', FLOAT, INVALID, "Expecting object but got list at item 2"),
    ('{"instances": [{"x": "a"}, {"b64": "aGk="}]}', STRING, INVALID, "Expecting object but got list at item 1"),
    ('{"instances": [{"b64": [1]}, {"b64": "aGk="}]}', B64, INVALID, "Failed to process element: 0 key: b64 of"),
    ('{"instances": [{"b64": ["a"]}, {"b64": "aGk="}]}', B64, INVALID, "Expecting object but got list at item 1"),
    ('{"instances": [1, {"x": 1}]}', FLOAT, INVALID, "Expecting value/list but got object at item 1"),
    ('{"instances": [[1], [2], {}]}', FLOAT, INVALID, "Expecting value/list but got object at item 2"),
    ('{"instances": ["a", {"b64": 1}]}', STRING, INVALID, "Expecting value/list but got object at item 1"),
    ('{"instances": ["a", 1, {"x": 1}]}', STRING, INVALID, "Failed to process element: 1 of"),
    # Row form: keys
    ('{"instances": [{"a": 1, "b": "x", "c": 1}]}', PAIR, INVALID, "does not have named input: c"),
    ('{"instances": [{"y": 1}]}', FLOAT, INVALID,
     "Failed to process element: 0 key: y of 'instances' list. Error: INVALID_ARGUMENT: JSON object: "
     "does not have named input: y"),
    ('{"instances": [{"a": 1}]}', PAIR, INVALID,
     "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: JSON object: "
     '{"a":1} keys must be equal to: a,b'),
    ('{"instances": [{"a": 1, "b": "x"}, {"a": 1}]}', PAIR, INVALID, "Failed to process element: 1 of"),
    ('{"instances": [{}]}', PAIR, INVALID, "keys must be equal to: a,b"),
    ('{"instances": [{}, {}]}', FLOAT, INVALID, "keys must be equal to: x"),
    ('{"instances": [{"k": [1, 2]}]}', EASY, INVALID, "keys must be equal to: a,k"),
    ('{"instances": [{"a": 1}, {"a": 1, "k": [1, 2]}]}', EASY, INVALID, "Failed to process element: 1 of"),
    ('{"instances": [{"a": 1, "k": [1, 2]}, {"a": 1}]}', EASY, INVALID, "keys must be equal to: a,k"),
    ('{"instances": [{}, {"a": 1}]}', EASIER, INVALID, "Failed to process element: 1 of"),
    ('{"instances": [{}, {"z": 1}]}', EASIER, INVALID, "does not have named input: z"),
    ('{"instances": [{}, 1]}', EASIER, INVALID, "Expecting object but got list at item 1"),
    ('{"instances": [{"a": "x", "c": 1}]}', PAIR, INVALID, "Failed to process element: 0 key: a of"),
    ('{"instances": [{"b": "x", "a": 1}, {"b": 1}]}', PAIR, INVALID, "Failed to process element: 1 key: b of"),
    # Row form: sizes and shapes
    ('{"instances": [[1, 2], [3]]}', FLOAT, INVALID, "Expecting tensor size: 2 but got: 1"),
    ('{"instances": [[], [1]]}', FLOAT, INVALID, "Expecting tensor size: 0 but got: 1"),
    ('{"instances": [1, [1, 2]]}', FLOAT, INVALID, "Expecting tensor size: 1 but got: 2"),
    ('{"instances": [1, [1]]}', FLOAT, INVALID, "Expecting shape [] but got: [1]"),
    ('{"instances": [[1, 2], [[3], [4]]]}', FLOAT, INVALID, "Expecting shape [2] but got: [2,1]"),
    ('{"instances": [[[1, 2]], [[3], [4]]]}', FLOAT, INVALID, "Expecting shape [1,2] but got: [2,1]"),
    ('{"instances": [{"x": [1, 2]}, {"x": [3, 4, 5]}]}', FLOAT, INVALID,
     "Failed to process element: 1 key: x of 'instances' list. Error: INVALID_ARGUMENT: Expecting tensor size: 2 but"),
    ('{"instances": [[[1, 2], [3]]]}', FLOAT, INVALID, "Encountered list at unexpected size: 1"),
    ('{"instances": [[1, [2]]]}', FLOAT, INVALID, "Encountered list at unexpected level"),
    ('{"instances": [[[1], 2]]}', FLOAT, INVALID, "found at incorrect level"),
    ('{"instances": [[[1], [2]], [[1], 2]]}', FLOAT, INVALID, "Failed to process element: 1 of"),
    # Row form: types
    ('{"instances": [1, "a"]}', FLOAT, INVALID,
     "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: "
     'JSON Value: "a" Type: String is not of expected type: float'),
    ('{"instances": [null]}', FLOAT, INVALID, "JSON Value: null Type: Null is not of expected type: float"),
    ('{"instances": [true]}', FLOAT, INVALID, "JSON Value: true Type: True is not of expected type: float"),
    ('{"instances": [1, false]}', INT32, INVALID, "JSON Value: false Type: False is not of expected type: int32"),
    ('{"instances": [{"b64": "aGk="}]}', FLOAT, INVALID,
     'JSON Value: {"b64":"aGk="} Type: Object is not of expected type: float'),
    ('{"instances": [[{"a": 1}]]}', FLOAT, INVALID, 'JSON Value: {"a":1} Type: Object is not of expected type: float'),
    ('{"instances": [1, 2.0]}', INT32, INVALID, "JSON Value: 2.0 Type: Number is not of expected type: int32"),
    ('{"instances": [[1], [2], [300]]}', UINT8, INVALID, "Failed to process element: 2 of"),
    ('{"instances": [[[1, 2]], [[3, 4]], [[5, -6]]]}', UINT8, INVALID, "Failed to process element: 2 of"),
    ('{"instances": [1]}', COMPLEX64, INVALID, "element: 0 of 'instances' list. Error: UNIMPLEMENTED: "),
    ('{"instances": [{"x": 1}]}', COMPLEX128, INVALID, "complex128"),
    ('{"instances": [[1, 2], ["a"]]}', COMPLEX64, INVALID, "Failed to process element: 0 of"),
    # Column form
    ('{"inputs": [1, 2]}', PAIR, INVALID, "inputs is a plain value/list"),
    ('{"inputs": 1}', PAIR, INVALID, "inputs is a plain value/list"),
    ('{"inputs": {"b64": "aGk="}}', PAIR, INVALID, "inputs is a plain value/list"),
    ('{"inputs": [1]}', EASY, INVALID, "inputs is a plain value/list"),
    ('{"inputs": {"a": [1]}}', PAIR, INVALID, "Missing named input: b in 'inputs' object"),
    ('{"inputs": {}}', FLOAT, INVALID, "Missing named input: x in 'inputs' object"),
    ('{"inputs": {"k": [[1, 2]]}}', EASY, INVALID, "Missing named input: a in 'inputs' object"),
    ('{"inputs": [[1, 2], [3]]}', FLOAT, INVALID, "Encountered list at unexpected size: 1"),
    ('{"inputs": [[], [1]]}', FLOAT, INVALID, "Encountered list at unexpected size: 1"),
    ('{"inputs": [[1], []]}', FLOAT, INVALID, "Encountered list at unexpected size: 0"),
    ('{"inputs": [1, [2]]}', FLOAT, INVALID, "Encountered list at unexpected level"),
    ('{"inputs": [[1], 2]}', FLOAT, INVALID, "JSON Value: 2 found at incorrect level"),
    ('{"inputs": [[[1, 2], [3, 4]], [5, 6]]}', FLOAT, INVALID, "JSON Value: 5 found at incorrect level"),
    ('{"inputs": [[1, 2], [[3, 4], [5, 6]]]}', FLOAT, INVALID, "Encountered list at unexpected level"),
    ('{"inputs": [[1, 2], [3, "a", 5]]}', FLOAT, INVALID, "Encountered list at unexpected size: 3"),
    ('{"inputs": null}', FLOAT, INVALID, "Missing 'inputs' or 'instances' key"),
    ('{"inputs": [1, "2"]}', FLOAT, INVALID, 'JSON Value: "2" Type: String is not of expected type: float'),
    ('{"inputs": 1.0}', INT32, INVALID, "JSON Value: 1.0 Type: Number is not of expected type: int32"),
    ('{"inputs": [1e2]}', INT64, INVALID, "JSON Value: 100.0 Type: Number is not of expected type: int64"),
    ('{"inputs": [NaN]}', INT32, INVALID, "JSON Value: NaN Type: Number is not of expected type: int32"),
    ('{"inputs": [-Infinity]}', UINT8, INVALID, "JSON Value: -Infinity Type: Number is not of expected type: uint8"),
    ('{"inputs": [2147483648]}', INT32, INVALID, "JSON Value: 2147483648 Type: Number is not of expected type: int32"),
    ('{"inputs": [0, -1]}', UINT32, INVALID, "JSON Value: -1 Type: Number is not of expected type: uint32"),
    ('{"inputs": [4294967296]}', UINT32, INVALID, "is not of expected type: uint32"),
    ('{"inputs": [9223372036854775808]}', INT64, INVALID, "is not of expected type: int64"),
    ('{"inputs": [-9223372036854775809]}', INT64, INVALID, "is not of expected type: int64"),
    ('{"inputs": [-1]}', UINT64, INVALID, "is not of expected type: uint64"),
    ('{"inputs": [18446744073709551616]}', UINT64, INVALID, "is not of expected type: uint64"),
    ('{"inputs": [-1, 18446744073709551615]}', INT64, INVALID, "18446744073709551615"),
    ('{"inputs": [1, 128]}', INT8, INVALID, "128 Type: Number is not of expected type: int8, whose range is -128 to"),
    ('{"inputs": [256]}', UINT8, INVALID, "256 Type: Number is not of expected type: uint8, whose range is 0 to 255"),
    ('{"inputs": [-1]}', UINT8, INVALID, "0 to 255"),
    ('{"inputs": [32768]}', INT16, INVALID, "-32768 to 32767"),
    ('{"inputs": [70000]}', UINT16, INVALID, "0 to 65535"),
    ('{"inputs": [1, 0]}', BOOL, INVALID, "JSON Value: 1 Type: Number is not of expected type: bool"),
    ('{"inputs": [true, 0]}', BOOL, INVALID, "JSON Value: 0 Type: Number is not of expected type: bool"),
    ('{"inputs": [1]}', STRING, INVALID, "JSON Value: 1 Type: Number is not of expected type: string"),
    ('{"inputs": [null]}', STRING, INVALID, "JSON Value: null Type: Null is not of expected type: string"),
    ('{"inputs": [true]}', STRING, INVALID, "JSON Value: true Type: True is not of expected type: string"),
    ('{"inputs": [true]}', HALF, INVALID, "is not of expected type: half"),
    ('{"inputs": [1.5]}', UINT16, INVALID, "is not of expected type: uint16"),
    ('{"inputs": [1]}', COMPLEX64, UNIMPLEMENTED, "complex64"),
    ('{"inputs": {"x": "a"}}', COMPLEX128, UNIMPLEMENTED, "complex128"),
    ('{"inputs": [[1], 2]}', COMPLEX64, UNIMPLEMENTED, "complex64"),
    ('{"inputs": [[[1]], 2]}', FLOAT, INVALID, "(input x)"),
    # base64
    ('{"inputs": [{"b64": "a"}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "aGk=="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "YQ="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "YWJj="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "YWJj===="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "a-_="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "aGk=aGk="}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"inputs": [{"b64": "äää"}]}', STRING, INVALID, "Unable to base64 decode"),
    ('{"instances": [{"b64": "a"}]}', STRING, INVALID, "Failed to process element: 0 of"),
    ('{"inputs": [{"b64": 1}]}', STRING, INVALID, "not formatted correctly for base64 data"),
    ('{"inputs": [{"b64": "aGk=", "c": 1}]}', STRING, INVALID, "not formatted correctly for base64 data"),
    ('{"inputs": [{"B64": "aGk="}]}', STRING, INVALID, "not formatted correctly for base64 data"),
    ('{"inputs": {"x": {}}}', STRING, INVALID, "not formatted correctly for base64 data"),
    # No declared type
    ('{"inputs": [1, "a"]}', ANY, INVALID, 'JSON Value: "a" Type: String is not of expected type: int64'),
    ('{"inputs": ["a", 0.5]}', ANY, INVALID, 'JSON Value: "a" Type: String is not of expected type: float'),
    ('{"inputs": [true, "a"]}', ANY, INVALID, "is not of expected type: string"),
    ('{"inputs": [true, 1]}', ANY, INVALID, "JSON Value: true Type: True is not of expected type: int64"),
    ('{"inputs": [null]}', ANY, INVALID, "JSON Value: null Type: Null is not of expected type: float"),
    ('{"inputs": [9223372036854775808]}', ANY, INVALID, "is not of expected type: int64"),
    ('{"instances": [{"a": 1, "b": 2}, {"a": 1, "b": "x"}]}', ANYS, INVALID, "Failed to process element: 1 key: b of"),
]
# fmt: on


def with_arrays(value: Any) -> Any:
    """The tree with arrays in place of lists, wherever a list is regular and has numbers of one kind only."""
    if isinstance(value, dict):
        return {key: with_arrays(member) for key, member in value.items()}
    if not isinstance(value, list) or not value:
        return value
    try:
        array = np.array(value)
    except ValueError:
        return [with_arrays(item) for item in value]
    leaves = np.array(value, object).ravel().tolist() if array.size else []
    if {type(leaf) for leaf in leaves} == {int} and array.dtype in (np.int64, np.uint64):
        return array
    if {type(leaf) for leaf in leaves} == {float}:
        return array
    return [with_arrays(item) for item in value]


def read(body: str, arrays: bool) -> Any:
    tree = loads(body.encode())
    return with_arrays(tree) if arrays else tree


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].flags.c_contiguous
        assert str(got[name].tolist()) == str(array.tolist())


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize(("body", "signature", "expected"), READ)
def test_a_predict_body_is_read(body: str, signature: Signature, expected: dict[str, np.ndarray], arrays: bool) -> None:
    assert_same(tensors_of(read_predict_body(read(body, arrays)), signature), expected)


@pytest.mark.parametrize("arrays", [False, True], ids=["lists", "arrays"])
@pytest.mark.parametrize(("body", "signature", "code", "marker"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_predict_body_is_refused(
    body: str, signature: Signature, code: StatusCode, marker: str, arrays: bool
) -> None:
    with pytest.raises(ServingError) as raised:
        tensors_of(read_predict_body(read(body, arrays)), signature)
    assert marker in str(raised.value)
    assert raised.value.code is code
    if arrays:
        with pytest.raises(ServingError) as again:
            tensors_of(read_predict_body(read(body, False)), signature)
        assert str(again.value) == str(raised.value)
