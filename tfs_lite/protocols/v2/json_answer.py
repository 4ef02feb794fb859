"""The answer to a V2 inference request over HTTP: JSON, followed by the bytes of binary outputs.

Most answers differ from the last one in their numbers and their id only, so the JSON around these is cached for every
recent (version, names, dtypes, shapes, forms).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from tfs_lite.core.signature import DataType
from tfs_lite.core.status import invalid_argument
from tfs_lite.protocols.dtypes import Array, from_numpy
from tfs_lite.protocols.json.text import COMFORTABLE_BYTES
from tfs_lite.protocols.json.writer import dumps, print_small
from tfs_lite.protocols.v2.json_values import WITHOUT_JSON, no_json
from tfs_lite.protocols.v2.request import InferAnswer, SharedMemorySlice, WantedOutput
from tfs_lite.protocols.v2.tensors import datatype_of, encode_raw
from tfs_lite.transport.remembered import Remembered

NUMBER_BYTES = 16
"""The bytes, about, of a printed number."""
MAX_FRAMES = 256


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """``json_length`` is the number of bytes of JSON in the body; None means all of them."""

    body: bytes
    json_length: int | None = None


class _Frame(NamedTuple):
    """``pieces``: the JSON after the id, in front of each list of numbers, and after the last. ``binary`` says for each
    output whether its numbers follow the JSON. ``large``: to print it takes long."""

    pieces: tuple[bytes, ...]
    binary: tuple[bool, ...]
    large: bool


class HttpAnswers:
    """Writes answers by ``write``, the same bytes as :func:`write_answer`. One thread."""

    def __init__(self) -> None:
        self._frames = Remembered[Any, _Frame | None](MAX_FRAMES)

    def write(self, answer: InferAnswer, binary: bool) -> WrittenAnswer | None:
        """The answer; arguments and errors as of :func:`write_answer`, which is to be called on a thread where this
        gives None, because it takes long."""
        outputs, wanted = answer.outputs, answer.wanted
        forms = [(name, array.dtype, array.shape) for name, array in outputs.items()]
        chosen = [wanted[name].binary for name in outputs if name in wanted] if wanted else ()
        key = (answer.version, binary, *forms, *chosen)
        try:
            frame = self._frames[key]
        except KeyError:
            frame = self._frames.add(key, _frame(answer, binary))
        if frame is None or answer.parameters or (wanted and any(output.memory for output in wanted.values())):
            return None if printed_size(answer, binary) > COMFORTABLE_BYTES else write_answer(answer, binary)
        if frame.large:
            return None
        text = [b'{"id":' + orjson.dumps(answer.id) + b"," if answer.id else b"{", frame.pieces[0]]
        blobs: list[bytes] = []
        for array, is_binary in zip(outputs.values(), frame.binary, strict=True):
            if is_binary:
                blobs.append(array.tobytes())
            else:
                text += (print_small(array.reshape(-1), odd=False), frame.pieces[len(text) // 2])
        if not any(blobs):
            return WrittenAnswer(b"".join(text))
        return WrittenAnswer(b"".join((*text, *blobs)), sum(map(len, text)))


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
    """The bytes, about, of the answer."""
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


def _frame(answer: InferAnswer, binary: bool) -> _Frame | None:
    """The frame of an answer; None for outputs that are no numbers, or have no JSON form."""
    head = {"model_name": answer.version.name, "model_version": str(answer.version.version)}
    text = dumps(head)[1:-1] + b',"outputs":['
    pieces: list[bytes] = []
    binaries: list[bool] = []
    for index, (name, array) in enumerate(answer.outputs.items()):
        if from_numpy(array.dtype) is DataType.STRING or not array.dtype.isnative:
            return None
        binaries.append(_is_binary(answer.wanted.get(name) or WantedOutput(name), binary))
        member: dict[str, Any] = {"name": name, "datatype": datatype_of(array, name), "shape": list(array.shape)}
        if binaries[-1]:
            member["parameters"] = {"binary_data_size": array.nbytes}
        elif from_numpy(array.dtype) in WITHOUT_JSON:
            return None
        text += (b"," if index else b"") + dumps(member)[:-1]
        if not binaries[-1]:
            pieces.append(text + b',"data":')
            text = b""
        text += b"}"
    large = printed_size(answer, binary) > COMFORTABLE_BYTES
    return _Frame((*pieces, text + b"]}"), tuple(binaries), large)


def _parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {"parameters": dict(parameters)} if parameters else {}


def _memory(memory: SharedMemorySlice, array: Array) -> dict[str, Any]:
    """The parameters that say where the output is, and how many bytes it takes. None of its bytes are in the body:
    Triton's C++ client reads that from every output with parameters, and fails without it."""
    size = len(encode_raw(array))
    parameters: dict[str, Any] = {"shared_memory_region": memory.region, "shared_memory_byte_size": size}
    offset = {"shared_memory_offset": memory.offset} if memory.offset else {}
    return {**parameters, **offset, "binary_data_size": 0}
