"""How a tensor passes between models, when only one of them has a batch dimension. Pure.

Two models that both batch, or both do not, hand tensors on as they are. Otherwise the shape decides: a whole batch may
be one tensor for the next model, or one tensor a batch of one.
"""

from __future__ import annotations

from typing import cast

from tfs_lite.core.signature import Dim, Tensor, TensorSpec
from tfs_lite.schedulers.batching.rules import Array
from tfs_lite.schedulers.ensemble.types import Interface


def adapt_batch_dimension(tensor: Tensor, batched: bool, to: Interface, spec: TensorSpec) -> Tensor:
    """What ``to`` gets as its input (or an ensemble as its output) ``spec``, of a tensor whose maker is ``batched`` or
    not: the tensor, or a view of it with one dimension of size 1 more or less."""
    if batched == to.batched:
        return tensor
    dims = to.one(spec)
    if dims is None:
        return tensor
    array = cast(Array, tensor)
    fits = agree(tensor.shape, dims)
    if to.batched:
        return array.reshape(1, *array.shape) if fits else tensor
    return array.reshape(array.shape[1:]) if not fits and tensor.shape[:1] == (1,) else tensor


def consistent(maker: Interface, made: TensorSpec, user: Interface, used: TensorSpec) -> bool:
    """Whether some tensor can pass: their shapes agree without the batch dimensions, or with them."""
    if made.shape is None or used.shape is None:
        return True
    return agree(maker.one(made) or (), user.one(used) or ()) or agree(made.shape, used.shape)


def agree(shape: tuple[Dim, ...], other: tuple[Dim, ...]) -> bool:
    """Whether both may be the same; a size that a request chooses may be any."""
    return len(shape) == len(other) and all(
        not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in zip(shape, other, strict=True)
    )
