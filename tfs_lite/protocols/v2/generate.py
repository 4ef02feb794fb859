"""The generate extension of V2: plain JSON objects as requests and answers, for every model.

    {"text_input": "hello", "parameters": {"max_tokens": 20}}  ->  InferRequest  ->  {"text_output": "..."}

A key that names an input of the model becomes that input, every other key a parameter; the members of ``parameters``
follow the same rule. Every mistake is INVALID_ARGUMENT, for the first one in the text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols.json.values import shorten, show, type_name
from tfs_lite.protocols.json.writer import dumps
from tfs_lite.protocols.v2.binary import DeclaredInput
from tfs_lite.protocols.v2.json_answer import answer_head, json_values
from tfs_lite.protocols.v2.json_request import add_parameters
from tfs_lite.protocols.v2.json_values import Members, read_data, read_object, read_parameters, read_text
from tfs_lite.protocols.v2.request import InferAnswer, InferRequest, SentTensor
from tfs_lite.protocols.v2.tensors import RawTensor, dtype_of

PARAMETERS = "parameters"
ONE_ANSWER = "generate expects model to produce exactly 1 response"
_TWICE = re.compile(r"The name '(.*)' comes twice in an object")


def read_generate(model: str, version: int | None, text: bytes, inputs: Sequence[DeclaredInput]) -> InferRequest:
    """The request, given the model's ``inputs``. Takes long for large bodies; any thread."""
    declared = {spec.name: spec for spec in inputs}
    if PARAMETERS in declared:
        raise invalid_argument(f"model '{model}' has an input '{PARAMETERS}', which generate has another use for")
    members = _read_members(text, declared)
    request = InferRequest(model, version)
    own: Members = {}
    for key, value in members.items():
        if key == PARAMETERS:
            for inner, inner_value in read_parameters(members).items():
                _take(request, declared, own, inner, inner_value)
        elif key == "id" and key not in declared:
            request.id = read_text(members, "id")
        else:
            _take(request, declared, own, key, value)
    add_parameters(request, own)
    return request


def write_generate(answer: InferAnswer) -> bytes:
    """One answer as JSON. INVALID_ARGUMENT for an output that has no JSON form."""
    tree: dict[str, Any] = {**answer_head(answer), **answer.parameters}
    for name, array in answer.outputs.items():
        values = json_values(name, array)
        if array.size != 1:
            tree[name] = values
        else:
            tree[name] = values.reshape(()) if isinstance(values, np.ndarray) else values[0]
    return dumps(tree)


def _read_members(text: bytes, declared: Mapping[str, DeclaredInput]) -> Members:
    try:
        return read_object(text)
    except ServingError as error:
        twice = _TWICE.search(str(error))
        if twice and twice.group(1) in declared:
            raise _already(twice.group(1)) from None
        raise


def _take(
    request: InferRequest, declared: Mapping[str, DeclaredInput], parameters: Members, key: str, value: Any
) -> None:
    spec = declared.get(key)
    if spec is not None:
        if any(tensor.name == key for tensor in request.inputs):
            raise _already(key)
        request.inputs.append(_input(spec, value))
    elif key in parameters:
        raise invalid_argument(f"parameter '{shorten(key)}' already exists in request")
    else:
        parameters[key] = value


def _input(spec: DeclaredInput, value: Any) -> SentTensor:
    what = f"input '{spec.name}'"
    if isinstance(value, list) and not value:
        return RawTensor(spec.name, spec.datatype, ())
    if isinstance(value, np.ndarray) and value.ndim > 1:
        value = [value[:1].tolist()]
    if isinstance(value, list):
        for item in value:
            if isinstance(item, list):
                raise invalid_argument(
                    f"Unable to parse 'data' of {what}: attempt to access JSON non-string as string: {show(item)} is "
                    f"{type_name(item)}, expected one value or a flat array"
                )
    flat = read_data(value, dtype_of(spec.datatype), what)
    shape = _shape(spec, flat.size)
    return SentTensor(spec.name, spec.datatype, shape, flat.reshape(shape))


def _shape(spec: DeclaredInput, count: int) -> tuple[int, ...]:
    """The declared shape for ``count`` elements: all but the innermost free size are 1."""
    fixed = math.prod(size for size in spec.shape if size != -1)
    shape = [1 if size == -1 else size for size in spec.shape]
    rest, odd = divmod(count, fixed) if fixed else (0, 1)
    free = [axis for axis, size in enumerate(spec.shape) if size == -1]
    if odd or (rest != 1 and not free):
        raise invalid_argument(
            f"can not convert input '{spec.name}': {count} elements do not fill a tensor of shape {list(spec.shape)}"
        )
    if free:
        shape[free[-1]] = rest
    return tuple(shape)


def _already(name: str) -> ServingError:
    return invalid_argument(f"input '{shorten(name)}' already exists in request")
