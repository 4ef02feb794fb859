"""The answer to a V2 inference request over HTTP: JSON, followed by the bytes of binary outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.json.writer import dumps
from tfs_lite.protocols.v2.json_values import WITHOUT_JSON, no_json
from tfs_lite.protocols.v2.request import InferAnswer, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import datatype_of, encode_raw

NUMBER_BYTES = 16
"""About the bytes of a printed number."""


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """``json_length`` is the number of bytes of JSON in the body; None means all of them."""

    body: bytes
    json_length: int | None = None


def write_answer(answer: InferAnswer, binary: bool) -> WrittenAnswer:
    """The answer. ``binary`` is the request's default for outputs. INVALID_ARGUMENT for an output that has no JSON
    form. Takes long for large outputs; any thread."""
    outputs, blobs = [], []
    for name, array in answer.outputs.items():
        wanted = answer.wanted.get(name) or WantedOutput(name)
        member: dict[str, Any] = {"name": name, "datatype": datatype_of(array, name), "shape": list(array.shape)}
        if wanted.memory is not None:
            member["parameters"] = _memory(wanted.memory, array)
        elif _is_binary(wanted, binary):
            blobs.append(encode_raw(array))
            member["parameters"] = {"binary_data_size": len(blobs[-1])}
        else:
            member["data"] = json_values(name, array)
        outputs.append(member)
    text = dumps({**answer_head(answer), **_parameters(answer.parameters), "outputs": outputs})
    if not any(blobs):
        return WrittenAnswer(text)
    return WrittenAnswer(b"".join((text, *blobs)), len(text))


def answer_head(answer: InferAnswer) -> dict[str, Any]:
    """The first members of every answer."""
    head: dict[str, Any] = {"model_name": answer.version.name, "model_version": str(answer.version.version)}
    return {"id": answer.id, **head} if answer.id else head


def json_values(name: str, array: Array) -> Any:
    """The elements of an output, flat, for the JSON writer. INVALID_ARGUMENT if JSON cannot express them."""
    dtype = from_numpy(array.dtype)
    if dtype in WITHOUT_JSON:
        raise no_json(dtype, f"output '{name}'")
    if dtype is not DataType.STRING:
        return array.reshape(-1)
    try:
        return [text if isinstance(text, str) else text.decode() for text in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise invalid_argument(
            f"output '{name}' has texts that are not UTF-8, which JSON cannot hold. "
            f"Please use the binary data format for output '{name}'"
        ) from None


def printed_size(answer: InferAnswer, binary: bool) -> int:
    """About the bytes of the answer."""
    size = 0
    for name, array in answer.outputs.items():
        if array.dtype.hasobject:
            size += array.size * NUMBER_BYTES + sum(map(len, array.reshape(-1).tolist()))
        else:
            wanted = answer.wanted.get(name) or WantedOutput(name)
            size += array.nbytes if _is_binary(wanted, binary) else array.size * NUMBER_BYTES
    return size


def _is_binary(wanted: WantedOutput, binary: bool) -> bool:
    return binary if wanted.binary is None else wanted.binary


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"parameters": dict(parameters)} if parameters else {}


def _memory(memory: SharedMemorySlice, array: Array) -> dict[str, Any]:
    """Where the output is, and how many bytes it takes."""
    size = len(encode_raw(array))
    parameters: dict[str, Any] = {"shared_memory_region": memory.region, "shared_memory_byte_size": size}
    return {**parameters, "shared_memory_offset": memory.offset} if memory.offset else parameters
