"""The bytes that onnxruntime fills while it loads a file: it computes what depends on constants only.

A file of 170 bytes can so take gigabytes. Followed are the operators that make large tensors of small ones, and those
that pass their sizes on; what else is computed is no larger than its inputs together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tfs_lite.adapters.onnx.model_file import INT64, ITEM_BYTES, MAX_RANK, OnnxNode, TensorHeader

_FLOAT = 1
_SAME = frozenset({"Abs", "Cast", "Ceil", "Clip", "Exp", "Floor", "Log", "Neg", "Not", "Reciprocal", "Relu"})
_SAME |= {"Round", "Sigmoid", "Sign", "Sqrt", "Tanh", "Transpose"}
_ELEMENTWISE = frozenset({"Add", "And", "BitwiseAnd", "BitwiseOr", "Div", "Equal", "Greater", "GreaterOrEqual", "Less"})
_ELEMENTWISE |= {"LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"}


@dataclass(frozen=True, slots=True)
class KnownTensor:
    """A tensor that is known at load. ``integers``: its values, if they are few integers. ``alias``: it is another one
    under a further name, and takes memory of its own only as an output of its graph."""

    dims: tuple[int, ...]
    dtype: int = _FLOAT
    integers: tuple[int, ...] | None = None
    alias: bool = False


def constant(header: TensorHeader) -> KnownTensor:
    return KnownTensor(header.dims, header.dtype, header.integers)


def result_of(node: OnnxNode, known: dict[str, KnownTensor]) -> KnownTensor | None:
    """The first output of the node if it depends on constants only, and its size is followed; otherwise None."""
    if node.op == "Constant":
        return _literal(node)
    if any(name and name not in known for name in node.inputs):
        return None
    inputs = [known[name] for name in node.inputs if name]
    if not inputs:
        return None
    first = inputs[0]
    if node.op == "Identity":
        return replace(first, alias=True)
    if node.op in _SAME:
        dims = tuple(reversed(first.dims)) if node.op == "Transpose" else first.dims
        return KnownTensor(dims, first.dtype, first.integers if node.op == "Cast" else None)
    if node.op in _ELEMENTWISE:
        return KnownTensor(_broadcast(*(found.dims for found in inputs)), max(inputs, key=_item_bytes).dtype)
    return _made(node, inputs)


def _made(node: OnnxNode, inputs: list[KnownTensor]) -> KnownTensor | None:
    """The result of an operator that takes a size as a value."""
    first, values = inputs[0], inputs[-1].integers
    if node.op == "ConstantOfShape" and first.integers is not None:
        fill = node.attribute("value").tensors
        return KnownTensor(first.integers, fill[0].dtype if fill else _FLOAT)
    if node.op == "Range" and len(inputs) == 3:
        start, limit, delta = (found.integers or (0,) for found in inputs)
        return KnownTensor((max(0, -(-(limit[0] - start[0]) // delta[0])) if delta and delta[0] else 0,), first.dtype)
    if values is None or len(inputs) != 2:
        return None
    if node.op == "Expand":
        return KnownTensor(_broadcast(first.dims, values), first.dtype)
    if node.op == "Tile":
        return KnownTensor(tuple(a * max(0, b) for a, b in zip(first.dims, values, strict=False)), first.dtype)
    if node.op == "Reshape":
        return KnownTensor(_reshaped(first.dims, values), first.dtype)
    if node.op == "Unsqueeze":
        return KnownTensor(_unsqueezed(first.dims, values), first.dtype)
    return None


def _literal(node: OnnxNode) -> KnownTensor | None:
    for attribute in node.attributes:
        for header in (*attribute.dense, *attribute.tensors):
            return constant(header)
        if attribute.name in ("value_int", "value_ints"):
            return KnownTensor((len(attribute.integers),), INT64, attribute.integers)
    return KnownTensor((1,))


def _broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


def _reshaped(dims: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that a reshape gives: -1 takes the rest, 0 keeps the size at its place."""
    sizes = [dims[at] if size == 0 and at < len(dims) else size for at, size in enumerate(wanted)]
    rest = prod(size for size in sizes if size > 0)
    return tuple(size if size >= 0 else prod(dims) // max(1, rest) for size in sizes)


def _unsqueezed(dims: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, ...]:
    rank = min(MAX_RANK, len(dims) + len(axes))
    places, sizes = {axis % rank for axis in axes} if rank else set[int](), iter(dims)
    return tuple(1 if at in places else next(sizes, 1) for at in range(rank))


def _item_bytes(found: KnownTensor) -> int:
    return ITEM_BYTES.get(found.dtype, 1)
