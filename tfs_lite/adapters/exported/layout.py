"""Other layouts of the same weights, in which a processor computes convolutions and large linear layers faster.

``channels_last``: weights of four dimensions lie in memory as the kernels of convolutions want them, and so do inputs;
``view``, which needs the usual order, becomes ``reshape``. ``packed``: weights of linear layers are put into the blocks
of oneDNN once, at the load. Both add in another order, so answers differ in their last digits.

``bfloat16``: linear layers and convolutions have their weights in that type, and compute in it: half the memory, and
answers that differ in the third digit. What lies between them stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tfs_lite.adapters.exported.arguments import DTYPES, Named, names_in, read_argument, union
from tfs_lite.adapters.exported.document import ProgramDocument
from tfs_lite.adapters.exported.operators import Call, Operator, find_operator

PLAIN, CHANNELS_LAST, PACKED, AUTO = "plain", "channels_last", "packed", "auto"
_VIEW, _LINEAR = "torch.ops.aten.view.default", "torch.ops.aten.linear.default"
_CONVOLUTIONS = ("torch.ops.aten.conv2d.default", "torch.ops.aten.convolution.default")
_LEAST_WIDTH, _LEAST_ROWS = 512, 4
"""Smaller linear layers gain nothing from packing, or lose."""
_IMAGE_DIMS = 4
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """The layout of one program's values: ``packed`` are the weights to be packed; ``halved`` those to be bfloat16."""

    channels_last: bool = False
    packed: frozenset[str] = frozenset()
    halved: frozenset[str] = frozenset()

    @property
    def is_plain(self) -> bool:
        return not (self.channels_last or self.packed or self.halved)

    def operator(self, node: Mapping[str, Any]) -> Operator:
        """The operator that the node calls in this layout."""
        found = find_operator(node["target"])
        if self.channels_last and found.name == _VIEW:
            return Operator(found.name, _reshape, found.overload)
        weight = _argument(node, "weight")
        if found.name == _LINEAR and weight in self.packed:
            return Operator(found.name, _packed_linear, found.overload)
        if weight in self.halved:
            return Operator(found.name, _in_bfloat16(found.call), found.overload)
        return found

    def weight(self, value: str, tensor: torch.Tensor) -> torch.Tensor:
        """The weight that is ``value`` in the graph, in this layout. It shares no memory with ``tensor``: what was read
        from the file is one mapping, which goes when nothing refers to any part of it."""
        if value in self.packed:
            packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(tensor.detach())
            return packed
        if value in self.halved:
            return self.image(tensor.detach().to(torch.bfloat16))
        copy = self.image(tensor.detach().clone())
        if not isinstance(tensor, torch.nn.Parameter):
            return copy
        return torch.nn.Parameter(copy, requires_grad=tensor.requires_grad)

    def image(self, tensor: torch.Tensor) -> torch.Tensor:
        """An input or weight of four dimensions with its channels last; others as they are."""
        if tensor.dim() != _IMAGE_DIMS or not self.channels_last:
            return tensor
        return tensor.detach().contiguous(memory_format=torch.channels_last)

    def __str__(self) -> str:
        parts = [CHANNELS_LAST] if self.channels_last else []
        parts += [f"{len(self.packed)} packed linear layers"] if self.packed else []
        parts += [f"{len(self.halved)} layers in bfloat16"] if self.halved else []
        return " and ".join(parts) or PLAIN


def choose_layout(document: ProgramDocument, wanted: str, bfloat16: bool = False) -> WeightLayout:
    """``auto`` follows from the program alone, so that replicas agree: channels last if there is a convolution over all
    channels, packed for linear layers that are wide and see several rows. In ``bfloat16`` nothing is packed."""
    graph = document.program["graph_module"]["graph"]
    channels_last = wanted == CHANNELS_LAST or (wanted == AUTO and any(map(_is_full_convolution, graph["nodes"])))
    if bfloat16:
        halved = _weights_of(document, (_LINEAR, *_CONVOLUTIONS), wide_only=False)
        return WeightLayout(channels_last, halved=frozenset(halved))
    packed = _weights_of(document, (_LINEAR,), wide_only=wanted == AUTO) if wanted in (PACKED, AUTO) else ()
    return WeightLayout(channels_last, frozenset(packed))


def _is_full_convolution(node: Mapping[str, Any]) -> bool:
    groups = next((union(entry["arg"])[1] for entry in node["inputs"] if entry["name"] == "groups"), 1)
    return node["target"] in _CONVOLUTIONS and groups == 1


def _weights_of(document: ProgramDocument, operators: Collection[str], wide_only: bool) -> Collection[str]:
    """Weights of type float32 that these operators use, and nothing else does."""
    module = document.program["graph_module"]
    graph, values = module["graph"], module["graph"]["tensor_values"]
    specs = map(union, module["signature"]["input_specs"])
    weights = {content["arg"]["name"] for kind, content in specs if kind == "parameter"}
    found, others = set[str](), set[str]()
    for node in graph["nodes"]:
        weight = _argument(node, "weight") if node["target"] in operators else None
        fits = weight in weights and _is_float(values[weight]) and (not wide_only or _is_wide(node, values))
        for entry in node["inputs"]:
            used = names_in(read_argument(entry["arg"], _CPU))
            (found if fits and entry["name"] == "weight" else others).update(used)
    for output in graph["outputs"]:
        others.update(names_in(read_argument(output, _CPU)))
    return found - others


def _is_float(meta: Mapping[str, Any]) -> bool:
    return DTYPES.get(meta["dtype"]) is torch.float32


def _is_wide(node: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether both sides are wide and the number of rows may reach what packing needs."""
    sides = [size.get("as_int", 0) for size in values[_argument(node, "weight")]["sizes"]]
    rows = [union(size) for size in values[_argument(node, "input")]["sizes"][:-1]]
    dynamic = any(kind != "as_int" for kind, _ in rows)
    many = dynamic or math.prod(content for _, content in rows) >= _LEAST_ROWS
    return min(sides) >= _LEAST_WIDTH and many


def _argument(node: Mapping[str, Any], name: str) -> str:
    """The value that a node gets by this name; empty if there is none."""
    for entry in node["inputs"]:
        argument = read_argument(entry["arg"], _CPU) if entry["name"] == name else None
        if isinstance(argument, Named):
            return argument.name
    return ""


def _reshape(tensor: torch.Tensor, size: list[int]) -> torch.Tensor:
    return tensor.reshape(size)


def _in_bfloat16(call: Call) -> Call:
    """The operator on numbers of that type; its result has the type that it had. The weight is bfloat16 already."""

    def run(input: torch.Tensor, weight: torch.Tensor, bias: Any = None, *rest: Any, **named: Any) -> torch.Tensor:
        half = None if bias is None else bias.to(torch.bfloat16)
        result: torch.Tensor = call(input.to(torch.bfloat16), weight, half, *rest, **named)
        return result.to(input.dtype)

    return run


def _packed_linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    result: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default._op(input, weight, bias, "none", [], "")
    return result
