"""Binary tensor data of V2 over HTTP: bytes of tensors after the JSON of a body, or a body that is one tensor.

    JSON, as long as the header Inference-Header-Content-Length says | bytes of one input | bytes of the next | ...

A length of 0 means that there is no JSON: the body is the data of the model's only input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import to_numpy
from tfs_lite.protocols.v2.request import InferRequest, SentTensor
from tfs_lite.protocols.v2.tensors import BYTES, RawTensor, dtype_of

LENGTH_HEADER = "Inference-Header-Content-Length"
MAX_LENGTH = 2**31 - 1
MAX_SHOWN = 32


class DeclaredInput(NamedTuple):
    """An input as the model declares it. In ``shape``, -1 is a size that a request chooses."""

    name: str
    datatype: str
    shape: tuple[int, ...]


def read_length(text: str | None, body_size: int) -> int | None:
    """The number of bytes of JSON in the body, from the header's ``text``; None without the header, which means all of
    them. INVALID_ARGUMENT if it is no number, or larger than the body."""
    if text is None:
        return None
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) <= MAX_SHOWN and int(digits) <= MAX_LENGTH:
        length = int(digits)
        if length <= body_size:
            return length
        raise invalid_argument(f"{LENGTH_HEADER} is {length}, but the body has only {body_size} bytes")
    raise invalid_argument(
        f"unable to parse {LENGTH_HEADER}, got: {digits[:MAX_SHOWN]}, expected a whole number from 0 to {MAX_LENGTH}"
    )


class BinaryData:
    """The bytes after the JSON, taken input by input."""

    def __init__(self, data: memoryview) -> None:
        self._left = data

    def take(self, name: str, size: int) -> memoryview:
        """The next ``size`` bytes, for input ``name``. INVALID_ARGUMENT if there are fewer."""
        if size > len(self._left):
            missing = size - len(self._left)
            raise invalid_argument(
                f"unexpected size for input '{name}', expecting {missing} additional bytes "
                f"of the {size} that its 'binary_data_size' promises"
            )
        taken, self._left = self._left[:size], self._left[size:]
        return taken

    def finish(self) -> None:
        """Raises INVALID_ARGUMENT if bytes are left."""
        if len(self._left):
            raise invalid_argument(
                f"unexpected additional input data: {len(self._left)} bytes follow those of the last input"
            )


def raw_request(
    model: str, version: int | None, data: memoryview, inputs: Sequence[DeclaredInput], batches: bool
) -> InferRequest:
    """The request whose whole body is ``data``. ``inputs`` are the model's; if it ``batches``, their first size is that
    of the batch, which is 1. INVALID_ARGUMENT if the bytes could mean several things."""
    if len(inputs) != 1:
        raise invalid_argument(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(inputs)} inputs "
            f"in '{model}' model configuration"
        )
    name, datatype, declared = inputs[0]
    shape = [1, *declared[1:]] if batches and declared else list(declared)
    tensor = _one_text(model, name, shape, data) if datatype == BYTES else _numbers(model, inputs[0], shape, data)
    return InferRequest(model, version, inputs=[tensor], binary_outputs=True)


def _one_text(model: str, name: str, shape: list[int], data: memoryview) -> SentTensor:
    if math.prod(abs(size) for size in shape) != 1:
        raise invalid_argument(
            f"For BYTE datatype raw input '{name}', the model must have input shape [1], model '{model}' has {shape}"
        )
    text = np.empty(len(shape) * (1,), object)
    text[(0,) * len(shape)] = bytes(data)
    return SentTensor(name, BYTES, text.shape, text)


def _numbers(model: str, declared: DeclaredInput, shape: list[int], data: memoryview) -> SentTensor:
    """The tensor, whose size is checked when it is decoded."""
    if shape.count(-1) > 1:
        raise invalid_argument(
            f"The shape of the raw input '{declared.name}' can not be deduced because there are more than one "
            f"variable-sized dimension in model '{model}': {shape}"
        )
    if -1 in shape:
        fixed = math.prod(size for size in shape if size != -1) * to_numpy(dtype_of(declared.datatype)).itemsize
        shape[shape.index(-1)] = len(data) // fixed if fixed else 0
    return RawTensor(declared.name, declared.datatype, tuple(shape), data=data)
