"""The body of a REST ``:predict`` request -> named arrays, and arrays -> the tree of its answer.

A body has its tensors in one of two forms. Row form: ``instances`` is a list, each element one row of every input, so
that the first dimension of every input is the number of elements. Column form: ``inputs`` has each input as a whole.
Errors of an element are wrapped with its number in row form, and keep their own code in column form.

Numbers of an answer stay arrays, so that the writers can print them at once. Types that JSON readers do not have (half,
bfloat16, float8) are widened to float, which loses nothing. Strings are text, or wrappers of binary data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Signature, TensorSpec, known_signatures, named
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy, to_numpy
from tfs_lite.protocols.json.tensors import infer_dtype, read_tensor
from tfs_lite.protocols.json.text import Json
from tfs_lite.protocols.json.values import (
    FLOATS,
    INTEGERS,
    body_members,
    is_base64,
    read_signature_name,
    shorten,
    write_base64,
)
from tfs_lite.protocols.rest.rows import read_rows

__all__ = ["PredictBody", "find_rest_signature", "predict_tree", "read_predict_body", "tensors_of"]


@dataclass(slots=True)
class PredictBody:
    """A request before its model is known.

    ``rows`` says which form it has, ``value`` is that of ``instances`` or ``inputs``. ``problem`` says what is wrong
    with the choice between them, or is empty: errors about an unknown model or signature come first.
    """

    signature_name: str
    rows: bool
    value: Json
    problem: str = ""


def read_predict_body(tree: Json) -> PredictBody:
    """The parts of a body. INVALID_ARGUMENT if it is no object or ``signature_name`` is no string; :func:`tensors_of`
    makes the other checks."""
    members = body_members(tree)
    name = read_signature_name(members)
    rows, columns = members.get("instances"), members.get("inputs")
    if rows is not None and columns is not None:
        problem = "Not formatted correctly expecting only one of 'instances' or 'inputs' keys"
    elif rows is None and columns is None:
        problem = "Missing 'inputs' or 'instances' key"
    else:
        return PredictBody(name, rows is not None, columns if rows is None else rows)
    return PredictBody(name, rows is not None, None, problem)


def find_rest_signature(signatures: Mapping[str, Signature], key: str) -> Signature:
    """The signature under ``key`` (empty: the default). INVALID_ARGUMENT if there is none."""
    key = key or DEFAULT_SIGNATURE
    if key not in signatures:
        raise invalid_argument(
            f'Serving signature name: "{shorten(key)}" not found in signature def. {known_signatures(signatures)}'
        )
    return signatures[key]


def tensors_of(body: PredictBody, signature: Signature) -> dict[str, Array]:
    """The arrays of the inputs, by name; inputs that have a default, or are optional, may be missing or null.

    Their dtypes are the declared ones, their shapes those of the body. Where a signature declares no dtype: float if a
    number has a fraction or an exponent, int64 for other numbers, bool, string. Arrays may be read-only and may share
    memory with ``body``. INVALID_ARGUMENT for whatever is malformed; UNIMPLEMENTED for an element type that REST has no
    form for, in column form only.
    """
    try:
        return _tensors_of(body, signature)
    except ServingError as error:
        raise named(error, signature.model) from None


def _tensors_of(body: PredictBody, signature: Signature) -> dict[str, Array]:
    if not signature.inputs:
        raise invalid_argument(
            f"Failed to get input map for signature: {shorten(body.signature_name or DEFAULT_SIGNATURE)}, "
            "which has no inputs: it cannot be called over REST"
        )
    if body.problem:
        raise invalid_argument(body.problem)
    return read_rows(body.value, signature) if body.rows else _columns(body.value, signature)


def _columns(value: Json, signature: Signature) -> dict[str, Array]:
    named: dict[str, Json]
    if isinstance(value, dict) and not is_base64(value):
        named = value
    elif len(signature.inputs) == 1:
        named = {signature.inputs[0].name: value}
    else:
        raise invalid_argument(
            "inputs is a plain value/list, but the signature has several inputs: "
            f"expected an object with the keys {','.join(sorted(signature.input_names))}"
        )
    if signature.optional and (unknown := named.keys() - set(signature.input_names)):
        raise invalid_argument(f"inputs has names that the signature has not: {', '.join(sorted(unknown)):.500}")
    arrays = {}
    for spec in signature.inputs:
        value = named.get(spec.name)
        if value is None and spec.name in signature.dispensable:
            continue
        if spec.name in named:
            arrays[spec.name] = _column(value, spec)
        else:
            raise invalid_argument(f"Missing named input: {spec.name} in 'inputs' object")
    return arrays


def _column(value: Json, spec: TensorSpec) -> Array:
    try:
        return read_tensor(value, spec.dtype or infer_dtype(value))
    except ServingError as error:
        raise ServingError(error.code, f"{error} (input {spec.name})") from None


_WRITTEN_AS_IS = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.BOOL, *INTEGERS})


def predict_tree(outputs: Mapping[str, Array], rows: bool, binary: bool = False) -> dict[str, Any]:
    """The answer's tree: ``predictions``, one element for each row, or ``outputs``, each output as a whole.

    One output stands by itself, several are named. A byte string is text if it is UTF-8, and a ``b64`` wrapper if it is
    not or if the output's name ends in ``_bytes``; with ``binary`` it stays ``bytes``. INVALID_ARGUMENT if there are no
    outputs, if one has a type that JSON cannot show, or, in row form, if one is a scalar or has another number of rows.
    """
    if not outputs:
        raise invalid_argument("Cannot convert empty tensor map to JSON")
    if rows:
        _check_rows(outputs)
    for array in outputs.values():
        _check_type(array)
    if rows and len(outputs) > 1:
        return {"predictions": _named_rows(outputs, binary)}
    trees = {name: _tree(name, array, binary) for name, array in outputs.items()}
    tree = trees if len(trees) > 1 else next(iter(trees.values()))
    return {"predictions" if rows else "outputs": tree}


def _check_rows(outputs: Mapping[str, Array]) -> None:
    expected = None
    for name, array in outputs.items():
        if array.ndim == 0:
            raise invalid_argument(
                f"Tensor name: {name} has no shape information: it is a scalar, and has no rows for 'predictions'"
            )
        expected = len(array) if expected is None else expected
        if len(array) != expected:
            raise invalid_argument(
                f"Tensor name: {name} has inconsistent batch size: {len(array)} expecting: {expected}"
            )


def _check_type(array: Array) -> None:
    dtype = from_numpy(array.dtype)
    if dtype not in (*_WRITTEN_AS_IS, *FLOATS, DataType.STRING):
        raise invalid_argument(f"Failed to write JSON value for tensor type: {dtype.text}")


def _named_rows(outputs: Mapping[str, Array], binary: bool) -> list[dict[str, Any]]:
    columns = [_row_trees(name, array, binary) for name, array in outputs.items()]
    return [dict(zip(outputs, row, strict=True)) for row in zip(*columns, strict=True)]


def _row_trees(name: str, array: Array, binary: bool) -> list[Any]:
    """One tree for each row. Rows of numbers are views; single ones keep the width that they are printed with."""
    tree = _tree(name, array, binary)
    if not isinstance(tree, np.ndarray) or tree.ndim > 1 or (tree.dtype == np.float32 and not binary):
        return list(tree)
    values: list[Any] = tree.tolist()
    return values


def _tree(name: str, array: Array, binary: bool) -> Any:
    dtype = from_numpy(array.dtype)
    if dtype is DataType.STRING:
        return _strings(name, array, binary)
    wanted = to_numpy(dtype) if dtype in _WRITTEN_AS_IS else np.dtype(np.float32)
    with np.errstate(all="ignore"):
        tree = np.asarray(array, wanted, order="C")
    if tree.ndim:
        return tree
    return tree[()] if wanted == np.float32 and not binary else tree.item()


def _strings(name: str, array: Array, binary: bool) -> Any:
    write = _as_bytes if binary else write_base64 if name.endswith("_bytes") else _as_text
    """The array as nested lists. The elements are ``bytes``, as in every array of strings."""
    strings = np.empty(array.size, object)
    strings[:] = [write(item) for item in array.ravel().tolist()]
    return strings.reshape(array.shape).tolist()


def _as_bytes(data: bytes) -> bytes:
    return data


def _as_text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return write_base64(data)
