"""Rows of different lengths in one forward without padding: one behind the other, as a single row of the network.

    rows -> JoinedRows -> forward of [1, tokens], in which every row attends to itself alone -> one answer for each row

Everything but the attention of these networks treats tokens one by one, so it needs no padding and gets larger
matrices. The attention is exchanged where transformers lets it be. Importing this module registers the function with
transformers under :data:`ATTENTION`. An option of a layer that would change the result and is not known here is an
error, which the check at the load finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel

from tfs_lite.adapters.encoders.tokens import TokenRow

ATTENTION = "tfs_lite_rows"
"""The name must not contain that of a backend of transformers, which are recognised by name."""
_HARMLESS = frozenset({"position_ids", "use_cache", "output_attentions", "output_hidden_states", "return_dict"})


@dataclass(frozen=True, slots=True)
class Stretch:
    """A run of rows of one length: ``rows`` rows of ``length`` tokens each, from the token ``start`` on. ``mask``: bool
    [rows, length], False for tokens that the network leaves out; None without such tokens."""

    start: int
    rows: int
    length: int
    mask: torch.Tensor | None

    def of(self, tokens: torch.Tensor) -> torch.Tensor:
        """The stretch's part of [tokens, ...] as [rows, length, ...]; a view."""
        part = tokens[self.start : self.start + self.rows * self.length]
        return torch.unflatten(part, 0, (self.rows, self.length))


class JoinedRows:
    """Rows one behind the other. Rows of one length should be neighbours: they attend in one call."""

    def __init__(self, rows: Sequence[TokenRow], padding: int | None = None) -> None:
        """``padding`` as :func:`padding_position` finds it."""
        self.stretches = list(_stretches(rows))
        self.ids = _flat([row.ids for row in rows])
        self.types = _flat([row.types for row in rows])
        self.positions = _flat([_positions(row.ids, padding) for row in rows])

    @contextmanager
    def attending(self) -> Iterator[None]:
        """Forwards of this thread are of these rows."""
        token = _ROWS.set(self)
        try:
            yield
        finally:
            _ROWS.reset(token)

    def per_row(self, tokens: torch.Tensor, answer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> list[Any]:
        """Calls ``answer`` with the vectors [rows, length, width] and the mask [rows, length] of each stretch, and
        gives one array for each row. ``tokens``: [1, tokens, width]."""
        found = list[Any]()
        for stretch in self.stretches:
            vectors = stretch.of(tokens[0])
            mask = torch.ones(vectors.shape[:2]) if stretch.mask is None else stretch.mask
            found.extend(answer(vectors, mask).numpy())
        return found


_ROWS: ContextVar[JoinedRows] = ContextVar("tfs_lite_joined_rows")


def _stretches(rows: Sequence[TokenRow]) -> Iterator[Stretch]:
    start, first = 0, 0
    while first < len(rows):
        length, last = len(rows[first].ids), first
        while last < len(rows) and len(rows[last].ids) == length:
            last += 1
        masks = [row.mask for row in rows[first:last]]
        mask = torch.tensor(masks, dtype=torch.bool) if any(0 in each for each in masks) else None
        yield Stretch(start, last - first, length, mask)
        start, first = start + (last - first) * length, last


def _positions(ids: Sequence[int], padding: int | None) -> Any:
    if padding is None:
        return range(len(ids))
    counts = np.asarray(ids) != padding
    return np.cumsum(counts) * counts + padding


def _flat(parts: Sequence[Any]) -> torch.Tensor:
    """Joins the parts to [1, tokens]."""
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))[None]


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Attention that each layer calls: ``query`` [1, heads, tokens, size], ``key`` and ``value`` [1, key heads, tokens,
    size]. Returns [1, tokens, heads, size]. ValueError for options that are not known here."""
    asked = {name for name, wanted in others.items() if wanted is not None and wanted is not False}
    unknown = sorted(asked - _HARMLESS)
    if unknown or attention_mask is not None or dropout:
        raise ValueError(f"{type(module).__name__} attends with {', '.join(unknown) or 'a mask of its own'}")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    queries, keys, values = (tensor[0].transpose(0, 1) for tensor in (query, key, value))  # [tokens, heads, size]
    found = []
    for stretch in _ROWS.get().stretches:
        mask = None if stretch.mask is None else stretch.mask[:, None, None, :]
        if mask is not None and causal:
            mask = mask & torch.ones(stretch.length, stretch.length, dtype=torch.bool).tril()
        out = scaled_dot_product_attention(
            stretch.of(queries).transpose(1, 2),
            stretch.of(keys).transpose(1, 2),
            stretch.of(values).transpose(1, 2),
            attn_mask=mask,
            is_causal=causal and mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        found.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(found)[None], None


def padding_position(module: PreTrainedModel) -> int | None:
    """The token of padding in families such as RoBERTa, which number the other tokens of a row from it on and give all
    padding its own number; None for families that number the tokens of a row from 0 on."""
    for name, part in module.named_modules():
        if name.rpartition(".")[2] == "position_embeddings" and isinstance(part, torch.nn.Embedding):
            return part.padding_idx
    return None


@contextmanager
def exchanged_attention(module: PreTrainedModel) -> Iterator[None]:
    """The network attends with :func:`attention`, and goes on to if the block ends well. Raises what transformers
    raises for one whose attention cannot be exchanged."""
    own = module.config._attn_implementation
    module.set_attn_implementation(ATTENTION)
    try:
        yield
    except BaseException:
        module.set_attn_implementation(own)
        raise


AttentionInterface.register(ATTENTION, attention)
