"""Linear layers whose weights lie in memory as oneDNN reads them fastest.

With the few rows of a decode step, a matrix product on the CPU is bound by how weights are read: laid out once at load,
the large layers of a decoder take a half to a third of the time of ``torch.nn.functional.linear``, and the result for a
row does not depend on how many others there are. benchmarks/HISTORY.md has the figures.

The layout belongs to torch's own operators for compiled models (``torch.ops.mkldnn``), which have no documentation;
they are tried against the plain product before they are relied on.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch
from torch import nn

from tfs_lite.adapters.memory import large_blocks_apart

WORTH_PACKING = 1 << 16
"""Weights of a layer: below it a call costs more than it saves."""
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Parts of the largest result."""
_ROWS = (1, 7)
logger = logging.getLogger(__name__)


class PackedLinear(nn.Module):
    """The linear layer ``x @ weight.T + bias`` with packed weights. ``weight``: [out, in], on the CPU; it is not
    kept."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.nbytes = weight.nbytes
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self.register_buffer("bias", None if bias is None else bias.detach(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes [..., in] -> [..., out]."""
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return result


def pack(module: nn.Module) -> int:
    """Replaces the large linear layers of a model in inference mode, and returns the bytes of their weights.

    Parameters that other layers use too (a tied embedding) are kept in addition to the packed copy. Returns 0, with the
    model unchanged, where the device, the dtype or this version of torch does not support it.
    """
    found = list(_layers(module))
    if not found or not _works(found[0][2].dtype):
        return 0
    total = 0
    with large_blocks_apart():
        while found:
            parent, name, weight, bias = found.pop()
            packed = PackedLinear(weight, bias)
            del weight  # with the layer, it is gone: there are never two copies of more than one
            setattr(parent, name, packed)
            total += packed.nbytes
    return total


def packed_bytes(module: nn.Module) -> int:
    """The bytes of the weights that :func:`pack` has packed, which are no parameters any more."""
    return sum(layer.nbytes for layer in module.modules() if isinstance(layer, PackedLinear))


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor | None]]:
    """Yields parent, name, weight [out, in] and bias of what can be packed; other kinds of layers, also derived ones,
    may do more than the product. GPT-2's ``Conv1D`` is the same product with the weight the other way round."""
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            kind, weight = type(layer), getattr(layer, "weight", None)
            is_linear, is_turned = kind is nn.Linear, kind.__name__ == "Conv1D" and hasattr(layer, "nf")
            if not (is_linear or is_turned) or not isinstance(weight, torch.Tensor):
                continue
            if weight.device.type == "cpu" and weight.dtype in DTYPES and weight.numel() >= WORTH_PACKING:
                bias = getattr(layer, "bias", None)
                yield parent, name, weight.detach() if is_linear else weight.detach().t(), bias


def _works(dtype: torch.dtype) -> bool:
    """Whether the operators exist and compute the product."""
    try:
        weight = torch.linspace(-1, 1, 64 * 48).reshape(64, 48).to(dtype)
        bias = torch.linspace(0, 1, 64).to(dtype)
        layer = PackedLinear(weight, bias)
        for rows in _ROWS:
            x = torch.linspace(-2, 1, rows * 48).reshape(1, rows, 48).to(dtype)
            plain = nn.functional.linear(x, weight, bias)
            if not torch.allclose(layer(x), plain, rtol=0, atol=TOLERANCE[dtype] * float(plain.abs().max())):
                raise ValueError("the product differs")
    except Exception as error:
        logger.info("weights stay as they are: %s", error)
        return False
    return True
