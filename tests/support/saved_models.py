"""Writes ``saved_model.pb`` without TensorFlow, also as TensorFlow would not: other tags, operators, element types.

SavedModelFile([MetaGraphFile(signatures={"serving_default": signature(...)})]).encode()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfs_lite.core.signature import PREDICT_METHOD, DataType


def varint(value: int) -> bytes:
    """Also negative ones, in ten bytes."""
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def bytes_field(number: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def map_entry(number: int, key: str, value: bytes) -> bytes:
    return bytes_field(number, bytes_field(1, key) + bytes_field(2, value))


def tensor(dtype: int, shape: Sequence[int] | None, name: str = "Identity:0") -> bytes:
    """A TensorInfo; ``shape`` None means that the rank is unknown."""
    sizes = number_field(3, 1) if shape is None else b"".join(bytes_field(2, number_field(1, size)) for size in shape)
    return bytes_field(1, name) + number_field(2, dtype) + bytes_field(3, sizes)


def signature(inputs: Mapping[str, bytes], outputs: Mapping[str, bytes], method: str = PREDICT_METHOD) -> bytes:
    """A SignatureDef of such tensors."""
    taken = b"".join(map_entry(1, name, info) for name, info in inputs.items())
    given = b"".join(map_entry(2, name, info) for name, info in outputs.items())
    return taken + given + bytes_field(3, method)


SIMPLE = signature({"x": tensor(DataType.FLOAT, (-1, 2), "x:0")}, {"y": tensor(DataType.FLOAT, (-1, 3), "y:0")})
"""Floats of two columns become floats of three."""


def node(name: str, operator: str, *inputs: str, functions: Sequence[str] = (), attributes: bytes = b"") -> bytes:
    """A NodeDef; ``functions`` are attributes that name functions."""
    named = b"".join(
        map_entry(5, f"f{index}", bytes_field(10, bytes_field(1, function))) for index, function in enumerate(functions)
    )
    fed = b"".join(bytes_field(3, tensor) for tensor in inputs)
    return bytes_field(1, name) + bytes_field(2, operator) + fed + named + attributes


def function(name: str, *nodes: bytes, interface: str = "") -> bytes:
    """A FunctionDef. Those of one ``interface`` may stand for one another."""
    body = b"".join(bytes_field(3, each) for each in nodes)
    attribute = map_entry(5, "api_implements", bytes_field(2, interface)) if interface else b""
    return bytes_field(1, bytes_field(1, name)) + body + attribute


@dataclass(frozen=True, slots=True)
class MetaGraphFile:
    """One graph. ``objects`` are the functions of its object graph; ``restore`` the operation that reads the weights;
    ``init`` the one of an old graph that is run at the start."""

    signatures: Mapping[str, bytes] = field(default_factory=lambda: {"serving_default": SIMPLE})
    tags: Sequence[str] = ("serve",)
    nodes: Sequence[bytes] = ()
    functions: Sequence[bytes] = ()
    objects: Sequence[str] = ()
    restore: str = ""
    init: str = ""

    def encode(self) -> bytes:
        info = b"".join(bytes_field(4, tag) for tag in self.tags) + bytes_field(5, "2.21.0")
        library = b"".join(bytes_field(1, each) for each in self.functions)
        graph = b"".join(bytes_field(1, each) for each in self.nodes) + bytes_field(2, library)
        objects = b"".join(map_entry(2, name, b"") for name in self.objects)
        init = map_entry(4, "saved_model_main_op", bytes_field(1, bytes_field(1, self.init))) if self.init else b""
        return b"".join(
            [
                bytes_field(1, info),
                bytes_field(2, graph),
                bytes_field(3, bytes_field(3, self.restore)) if self.restore else b"",
                init,
                *(map_entry(5, key, definition) for key, definition in self.signatures.items()),
                bytes_field(7, objects) if self.objects else b"",
            ]
        )


@dataclass(frozen=True, slots=True)
class SavedModelFile:
    """The file."""

    graphs: Sequence[MetaGraphFile] = (MetaGraphFile(),)
    schema_version: int = 1

    def encode(self) -> bytes:
        return number_field(1, self.schema_version) + b"".join(bytes_field(2, graph.encode()) for graph in self.graphs)
