"""The attention function that replaces the one of a transformers model while it serves many texts at once.

Importing this module registers the function with transformers under :data:`ATTENTION`. Each forward has an attention
context, which the model passes to every layer as the keyword :data:`KEYWORD`. An option that would change the result
and is not supported is an error, and never ignored.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from tfs_lite.adapters.language.cache import Cache, LayerShape
from tfs_lite.adapters.language.layout import AttentionCall, StepLayout
from tfs_lite.core.status import ServingError, StatusCode

ATTENTION = "tfs_lite_slots"
"""The name must not contain that of a backend of transformers, which are recognised by name."""
KEYWORD = "tfs_lite_attention_context"

_HARMLESS = frozenset({"position_ids", "cache_position", "use_cache", "output_attentions", "output_router_logits"})


class LayerInputs(NamedTuple):
    """The inputs of a layer's attention: ``query`` [1, heads, rows, size], ``key`` and ``value`` [1, key heads, rows,
    size], with positions applied."""

    layer: int
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    scaling: float | None
    window: int | None
    softcap: float | None


class AttentionContext(Protocol):
    """The attention of one forward, in all layers."""

    def attend(self, inputs: LayerInputs) -> torch.Tensor:
        """Returns [1, rows, heads, size of a value]."""


def not_batchable(message: str) -> ServingError:
    """UNIMPLEMENTED: the model cannot serve several texts in one forward."""
    return ServingError(StatusCode.UNIMPLEMENTED, message)


class CachedAttention:
    """The context of a step: it writes the keys and values of its rows, and attends to what the slots hold."""

    __slots__ = ("_cache", "_layout", "_positions")

    def __init__(self, cache: Cache, layout: StepLayout) -> None:
        self._cache = cache
        self._layout = layout
        self._positions = layout.positions[0]

    def attend(self, inputs: LayerInputs) -> torch.Tensor:
        layer, query, key, value, scaling, window, softcap = inputs
        cache, layout = self._cache, self._layout
        cache.write(layer, layout.slots, self._positions, key[0].transpose(0, 1), value[0].transpose(0, 1))
        keys, values, queries = cache.keys[layer], cache.values[layer], query[0].transpose(0, 1)
        if softcap is None:
            found = [_attend(call, queries, keys, values, scaling) for call in layout.calls(window)]
        else:
            scale = query.shape[-1] ** -0.5 if scaling is None else scaling
            calls = layout.calls(window, masks_only=True)
            found = [_attend_capped(call, queries, keys, values, scale, softcap) for call in calls]
        return (found[0] if len(found) == 1 else torch.cat(found))[None]


def _attend(
    call: AttentionCall, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """Returns [rows of the call, heads, size]. Keys are not copied for query heads that share a key head: these become
    more rows of a text where every text has one row, or a dimension over which keys are expanded where there is one
    text."""
    grouped, key, value = _operands(call, queries, keys, values)
    if call.part.one_text:
        spread = (-1, grouped.shape[1], -1, -1)
        key, value = key[0][:, None].expand(spread), value[0][:, None].expand(spread)
    out = scaled_dot_product_attention(grouped, key, value, attn_mask=call.mask, is_causal=call.causal, scale=scaling)
    return _rows(call, out)


def _attend_capped(
    call: AttentionCall, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float, softcap: float
) -> torch.Tensor:
    """Attends as :func:`_attend` does, with scores capped softly at ``softcap`` before the mask, for which torch has no
    kernel."""
    grouped, key, value = _operands(call, queries, keys, values)
    shape = grouped.shape[:-1]
    if call.part.one_text:
        grouped, key, value = grouped.flatten(1, 2), key[0], value[0]
    scores = torch.matmul(grouped, key.transpose(-1, -2)).mul_(scaling / softcap).tanh_().mul_(softcap)
    if call.mask is not None:
        scores.view(*shape, -1).add_(call.mask)
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return _rows(call, torch.matmul(weights, value).view(*shape, -1))


def _operands(
    call: AttentionCall, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries as [texts, key heads, group, size], or [key heads, group, rows, size] of one text, and the part of the
    cache that they see as [texts, key heads, columns, size]. All are views."""
    part = call.part
    grouped = torch.unflatten(queries[part.rows], 1, (keys.shape[1], -1))
    if part.one_text:
        grouped = grouped.permute(1, 2, 0, 3)
    return grouped, keys[part.slots, :, call.columns], values[part.slots, :, call.columns]


def _rows(call: AttentionCall, out: torch.Tensor) -> torch.Tensor:
    """Brings the result back to [rows, heads, size]."""
    return (out.permute(2, 0, 1, 3) if call.part.one_text else out).flatten(1, 2)


class ShapeProbe:
    """The context of a single row, which attends only to itself. It records the shapes of all layers."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}
        self.dtype: torch.dtype | None = None

    def attend(self, inputs: LayerInputs) -> torch.Tensor:
        layer, query, key, value, *_ = inputs
        if layer in self.shapes:
            raise not_batchable(f"layer {layer} attends more than once in a forward")
        self.shapes[layer] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
        self.dtype = key.dtype
        return value.transpose(1, 2).repeat_interleave(query.shape[1] // key.shape[1], dim=2)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention that each layer of the model calls; shapes as in :class:`LayerInputs`. UNIMPLEMENTED for unsupported
    options."""
    context: AttentionContext | None = others.pop(KEYWORD, None)
    name = type(module).__name__
    if context is None:
        raise not_batchable(f"{name} does not get the keywords of the forward: it cannot know which texts its rows are")
    for keyword, wanted in others.items():
        if wanted is not None and wanted is not False and keyword not in _HARMLESS:
            raise not_batchable(f"{name} attends with {keyword}, which is not known here")
    if attention_mask is not None or dropout or is_causal is False or getattr(module, "is_causal", True) is False:
        raise not_batchable(f"{name} attends with a mask of its own, with dropout, or not causally")
    layer = getattr(module, "layer_idx", None)
    if layer is None or query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise not_batchable(f"{name} has no layer_idx, or attends to something other than its own rows")
    if sliding_window is None and getattr(module, "layer_type", None) == "sliding_attention":
        raise not_batchable(f"{name} has a window that it does not tell")
    return context.attend(LayerInputs(layer, query, key, value, scaling, sliding_window, softcap)), None


AttentionInterface.register(ATTENTION, attention)
