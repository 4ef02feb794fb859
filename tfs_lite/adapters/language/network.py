"""A transformers model that takes rows of many texts in one forward, and keeps their keys and values in slots.

The model is not changed: its attention is replaced by name, and positions and wanted logits are arguments of its
forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Protocol

import torch
from transformers import PreTrainedModel

from tfs_lite.adapters.language.attention import (
    ATTENTION,
    KEYWORD,
    AttentionContext,
    CachedAttention,
    ShapeProbe,
    not_batchable,
)
from tfs_lite.adapters.language.cache import Cache
from tfs_lite.adapters.language.layout import CPU_CALL_BYTES, GPU_CALL_BYTES, layout_of
from tfs_lite.adapters.language.packed import packed_bytes
from tfs_lite.adapters.memory import take_apart
from tfs_lite.core.generation import Step


class Decoding(Protocol):
    """An alternative way to carry out steps that only decode."""

    def logits(self, step: Step) -> torch.Tensor | None:
        """The logits of a checked step after its copies; None, with nothing done, for a step that it does not take."""

    def close(self) -> None: ...


class Network:
    """The weights of ``module``, which must be on ``device`` already, and a cache of ``slots`` texts of up to
    ``length`` positions in the dtype of its keys.

    The network owns the module: it is in eval mode, and its config names another attention, so neither it nor another
    module with the same config object can be used otherwise, except within :meth:`ordinary`. The constructor raises
    UNIMPLEMENTED, with the module as it was, if the module cannot be used like this. :func:`self_check` must pass
    before the network serves. One thread at a time.

    ``decoding``, if set, is tried first; the logits of its steps are valid until the next step.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        device: torch.device | str,
        slots: int,
        length: int,
        *,
        call_cost: float | None = None,
        fixed: bool = False,
        probe: ShapeProbe | None = None,
    ) -> None:
        """``call_cost``: the cost of an attention call, in positions of a slot that could be read in its time; None
        means a guess from their size. ``fixed``: every slot gets one more position, for a ``decoding`` of fixed
        shapes. ``probe``: that of another network of the same architecture; None means that this one is run."""
        self.slots = slots
        self.length = length
        self.device = torch.device(device)
        self.decoding: Decoding | None = None
        self._module = module
        module.train(False)
        self._attention = module.config._attn_implementation
        self.vocabulary = int(module.config.get_text_config().vocab_size)
        module.set_attn_implementation(ATTENTION)
        try:
            self.probe = probe = probe or self._probe()
        except BaseException:
            module.set_attn_implementation(self._attention)
            raise
        self.dtype = probe.dtype or module.dtype
        self.cache = Cache(probe.shapes, slots, length + fixed, self.dtype, self.device)
        call_bytes = CPU_CALL_BYTES if self.device.type == "cpu" else GPU_CALL_BYTES
        self._call_cost = call_bytes / self.cache.position_bytes if call_cost is None else call_cost

    @torch.inference_mode()
    def logits(self, step: Step) -> torch.Tensor:
        """Carries out the copies and the forward of a step. Returns [wanted rows, vocabulary] on the device, in the
        module's dtype: in the order of ``step.rows``, of each its first ``len(targets)`` rows, and its last one if it
        draws, each row once. ValueError, before anything is changed, for a step that the cache cannot hold."""
        self._check(step)
        self.cache.copy(step.copies)
        if not step.rows:
            return torch.empty(0, self.vocabulary, dtype=self.dtype, device=self.device)
        decoded = None if self.decoding is None else self.decoding.logits(step)
        if decoded is not None:
            return decoded
        layout = layout_of(step, self.device, self.dtype, self._call_cost)
        ends = [(rows.slot, rows.start + len(rows.tokens)) for rows in step.rows]
        self.cache.begin(ends, layout.masked_widths)
        context = CachedAttention(self.cache, layout)
        return self.forward(layout.ids, layout.positions, layout.wanted, context)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor | None, context: AttentionContext
    ) -> torch.Tensor:
        """The forward of the module. ``ids`` and ``positions``: int64 [1, rows]. ``wanted``: the rows whose logits are
        returned; None means all. Nothing is checked."""
        output = self._module(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,
            **{KEYWORD: context},
        )
        logits: torch.Tensor = output.logits[0]
        return logits

    def close(self) -> None:
        """Closes ``decoding``, which refers to the cache, and frees the module. To be called when the device has
        finished the last step."""
        decoding, self.decoding = self.decoding, None
        if decoding is not None:
            decoding.close()
        take_apart(self._module)

    def resident_bytes(self) -> int:
        """Weights, each storage once, and cache."""
        tensors = chain(self._module.parameters(), self._module.buffers())
        storages: dict[int, int] = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values()) + packed_bytes(self._module) + self.cache.resident_bytes()

    @property
    def cached_layers(self) -> int:
        """How many layers attend through the cache."""
        return len(self.cache.keys)

    def clear(self) -> None:
        """Forgets all texts."""
        self.cache.clear()

    @contextmanager
    def ordinary(self) -> Iterator[PreTrainedModel]:
        """The module with its own attention. No step may run inside."""
        self._module.set_attn_implementation(self._attention)
        try:
            yield self._module
        finally:
            self._module.set_attn_implementation(ATTENTION)

    @torch.inference_mode()
    def _probe(self) -> ShapeProbe:
        probe = ShapeProbe()
        zero = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        try:
            self.forward(zero, zero, None, probe)
        except TypeError as error:
            raise not_batchable(f"{type(self._module).__name__} does not take rows of several texts: {error}") from None
        return probe

    def _check(self, step: Step) -> None:
        """Checks all indices: after an index out of range a GPU cannot be used any more."""
        for rows in step.rows:
            end = rows.start + len(rows.tokens)
            if not (0 <= rows.slot < self.slots and 0 <= rows.start < end <= self.length):
                raise ValueError(f"rows {rows.start} to {end} of slot {rows.slot}: no such slot or position")
            if min(rows.tokens) < 0 or max(rows.tokens) >= self.vocabulary:
                raise ValueError(f"a token of slot {rows.slot} is not in the vocabulary of {self.vocabulary}")
            if len(rows.targets) > len(rows.tokens):
                raise ValueError(f"slot {rows.slot} has more targets than rows")
        for copy in step.copies:
            inside = 0 <= copy.source < self.slots and 0 <= copy.target < self.slots
            if not (inside and 0 <= copy.count <= self.length):
                raise ValueError(f"{copy}: no such slot or position")
        if len({rows.slot for rows in step.rows}) < len(step.rows):
            raise ValueError("a step has a slot twice")
