"""The body of a REST ``:predict`` request -> named arrays. The answer is in ``rest_answer``.

A body has its tensors in one of two forms. Row form: ``instances`` is a list, each element one row of every input, so
that the first dimension of every input is the number of elements. Column form: ``inputs`` has each input as a whole.
Errors of an element are wrapped with its number in row form, and keep their own code in column form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfs_lite.core.signature import DEFAULT_SIGNATURE, Signature, TensorSpec
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.json_text import Json
from tfs_lite.protocols.rest_answer import predict_tree
from tfs_lite.protocols.rest_rows import read_rows
from tfs_lite.protocols.rest_tensors import infer_dtype, read_tensor
from tfs_lite.protocols.rest_values import body_members, is_base64, read_signature_name, shorten
from tfs_lite.protocols.tensor_proto import Array

__all__ = ["PredictBody", "find_rest_signature", "predict_tree", "read_predict_body", "tensors_of"]


@dataclass(frozen=True, slots=True)
class PredictBody:
    """A request before its model is known.

    ``rows`` says which form it has, ``value`` is what ``instances`` or ``inputs`` holds. ``problem`` is what is wrong
    with the choice between them, empty if nothing is: a client hears of an unknown model or signature first.
    """

    signature_name: str
    rows: bool
    value: Json
    problem: str = ""


def read_predict_body(tree: Json) -> PredictBody:
    """The parts of a body. INVALID_ARGUMENT if it is no object or ``signature_name`` is no string; more is told by
    :func:`tensors_of`."""
    members = body_members(tree)
    name = read_signature_name(members)
    rows, columns = "instances" in members, "inputs" in members
    if rows and columns:
        problem = "Not formatted correctly expecting only one of 'instances' or 'inputs' keys"
    elif not rows and not columns:
        problem = "Missing 'inputs' or 'instances' key"
    else:
        return PredictBody(name, rows, members["instances" if rows else "inputs"])
    return PredictBody(name, rows, None, problem)


def find_rest_signature(signatures: Mapping[str, Signature], key: str) -> Signature:
    """The signature under ``key`` (empty: the default). INVALID_ARGUMENT if there is none."""
    key = key or DEFAULT_SIGNATURE
    if key not in signatures:
        raise invalid_argument(
            f'Serving signature name: "{shorten(key)}" not found in signature def. '
            f"The model has: {','.join(sorted(signatures))}"
        )
    return signatures[key]


def tensors_of(body: PredictBody, signature: Signature) -> dict[str, Array]:
    """The arrays of the inputs, by name; inputs that have a default, or are optional, may be missing.

    Their dtypes are the declared ones, their shapes those of the body. Where a signature declares no dtype: float if a
    number has a fraction or an exponent, int64 for other numbers, bool, string. Arrays may be read-only and may share
    memory with ``body``. INVALID_ARGUMENT for whatever is malformed; UNIMPLEMENTED for an element type that REST has no
    form for, in column form only.
    """
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
        if spec.name in named:
            arrays[spec.name] = _column(named[spec.name], spec)
        elif spec.name not in signature.dispensable:
            raise invalid_argument(f"Missing named input: {spec.name} in 'inputs' object")
    return arrays


def _column(value: Json, spec: TensorSpec) -> Array:
    try:
        return read_tensor(value, spec.dtype or infer_dtype(value))
    except ServingError as error:
        raise ServingError(error.code, f"{error} (input {spec.name})") from None
