"""The arguments of an exported program's operators: constants, and values by name.

In the file every argument is an object with one key, its kind: ``{"as_int": 3}``, ``{"as_tensor": {"name": "x"}}``. A
kind or a value that this module does not know raises UnsupportedProgram.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tfs_lite.adapters.exported.operators import UnsupportedProgram

DTYPES: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int8,
    3: torch.int16,
    4: torch.int32,
    5: torch.int64,
    6: torch.float16,
    7: torch.float32,
    8: torch.float64,
    9: torch.complex32,
    10: torch.complex64,
    11: torch.complex128,
    12: torch.bool,
    13: torch.bfloat16,
    28: torch.uint16,
    29: torch.float8_e4m3fn,
    30: torch.float8_e5m2,
    31: torch.float8_e4m3fnuz,
    32: torch.float8_e5m2fnuz,
    33: torch.float8_e8m0fnu,
    34: torch.uint32,
    35: torch.uint64,
}
"""Element types by the file's numbers for them, as in ``torch/_export/serde/schema.py``."""
_MEMORY_FORMATS = {
    1: torch.contiguous_format,
    2: torch.channels_last,
    3: torch.channels_last_3d,
    4: torch.preserve_format,
}
_LAYOUTS = {
    1: torch.sparse_coo,
    2: torch.sparse_csr,
    3: torch.sparse_csc,
    4: torch.sparse_bsr,
    5: torch.sparse_bsc,
    7: torch.strided,
}
_FLOAT_TEXTS = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}
_DEVICES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that the program holds itself."""

    value: Any


@dataclass(frozen=True, slots=True)
class Named:
    """A value that an input or an earlier operator has."""

    name: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A list, some of whose items have names."""

    items: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Subgraph:
    """A graph, which a higher-order operator runs."""

    graph: Mapping[str, Any]


Argument = Constant | Named | Listed | Subgraph


def union(value: object) -> tuple[str, Any]:
    """Splits an object with one key into its kind and content."""
    if not isinstance(value, dict) or len(value) != 1:
        raise UnsupportedProgram(f"an argument is {value!r:.40}")
    return next(iter(value.items()))


def read_argument(value: object, device: torch.device) -> Argument:
    """Reads what the file calls an ``Argument``. Devices in it become ``device``, on which the program will run."""
    kind, content = union(value)
    if kind == "as_device":
        if content["type"] not in _DEVICES:
            raise UnsupportedProgram(f"a device is {content['type']!r:.20}")
        return Constant(device)
    read = _KINDS.get(kind)
    if read is None:
        raise UnsupportedProgram(f"an argument is of kind {kind!r:.40}")
    return read(content)


def named(value: object) -> Named:
    """A tensor: ``{"name": ...}``."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        raise UnsupportedProgram(f"a tensor has the name {name!r:.40}")
    return Named(name)


def _plain(wanted: type, also: type | None = None) -> Callable[[object], Constant]:
    def read(value: object) -> Constant:
        if type(value) is not wanted and (also is None or type(value) is not also):
            raise UnsupportedProgram(f"{value!r:.40} is no {wanted.__name__}")
        return Constant(value)

    return read


def _float(value: object) -> Constant:
    return Constant(_FLOAT_TEXTS[value]) if isinstance(value, str) and value in _FLOAT_TEXTS else _number(value)


def _complex(value: object) -> Constant:
    if not isinstance(value, dict):
        raise UnsupportedProgram(f"{value!r:.40} is no complex number")
    return Constant(complex(_float(value.get("real")).value, _float(value.get("imag")).value))


def _coded(codes: Mapping[int, Any]) -> Callable[[object], Constant]:
    def read(value: object) -> Constant:
        if type(value) is not int or value not in codes:
            raise UnsupportedProgram(f"{value!r:.40} is no known type, layout or memory format")
        return Constant(codes[value])

    return read


def _symbolic(constant: str, read: Callable[[object], Constant]) -> Callable[[object], Argument]:
    def read_symbolic(value: object) -> Argument:
        kind, content = union(value)
        return _name(content) if kind == "as_name" else _expect(kind, constant, read, content)

    return read_symbolic


def _name(value: object) -> Named:
    if not isinstance(value, str):
        raise UnsupportedProgram(f"a size has the name {value!r:.40}")
    return Named(value)


def _expect(kind: str, wanted: str, read: Callable[[object], Constant], content: object) -> Constant:
    if kind != wanted:
        raise UnsupportedProgram(f"an argument is of kind {kind!r:.40}")
    return read(content)


def _optional(value: object) -> Argument:
    kind, content = union(value)
    return named(content) if kind == "as_tensor" else _expect(kind, "as_none", _none, content)


def _none(_: object) -> Constant:
    return Constant(None)


def _listed(read: Callable[[object], Argument]) -> Callable[[object], Argument]:
    def read_list(value: object) -> Argument:
        if not isinstance(value, list):
            raise UnsupportedProgram(f"{value!r:.40} is no list")
        items = [read(item) for item in value]
        if all(isinstance(item, Constant) for item in items):
            return Constant([item.value for item in items if isinstance(item, Constant)])
        return Listed(tuple(items))

    return read_list


def _graph(value: object) -> Subgraph:
    graph = value.get("graph") if isinstance(value, dict) else None
    if not isinstance(graph, dict):
        raise UnsupportedProgram(f"{value!r:.40} is no graph")
    return Subgraph(graph)


_int, _bool, _string = _plain(int), _plain(bool), _plain(str)
_number = _plain(float, int)
_sym_int, _sym_bool = _symbolic("as_int", _int), _symbolic("as_bool", _bool)
_sym_float = _symbolic("as_float", _float)

_KINDS: Mapping[str, Callable[[object], Argument]] = {
    "as_none": _none,
    "as_tensor": named,
    "as_tensors": _listed(named),
    "as_nested_tensors": _listed(_listed(named)),
    "as_optional_tensor": _optional,
    "as_optional_tensors": _listed(_optional),
    "as_int": _int,
    "as_ints": _listed(_int),
    "as_float": _float,
    "as_floats": _listed(_float),
    "as_float_lists": _listed(_listed(_float)),
    "as_bool": _bool,
    "as_bools": _listed(_bool),
    "as_string": _string,
    "as_strings": _listed(_string),
    "as_complex": _complex,
    "as_sym_int": _sym_int,
    "as_sym_ints": _listed(_sym_int),
    "as_sym_float": _sym_float,
    "as_sym_floats": _listed(_sym_float),
    "as_sym_bool": _sym_bool,
    "as_sym_bools": _listed(_sym_bool),
    "as_scalar_type": _coded(DTYPES),
    "as_layout": _coded(_LAYOUTS),
    "as_memory_format": _coded(_MEMORY_FORMATS),
    "as_graph": _graph,
}


def names_in(argument: Argument) -> Sequence[str]:
    """The values that an argument refers to."""
    match argument:
        case Named(name):
            return [name]
        case Listed(items):
            return [name for item in items for name in names_in(item)]
    return []
