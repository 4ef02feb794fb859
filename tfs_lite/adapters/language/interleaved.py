"""The fallback for language models that cannot be batched: every slot has a cache of the library, and the texts of a
step go through the network one after the other.

Some families compute attention by themselves, and texts of different lengths cannot share a forward. Results are
exactly those of plain generation, without the gain of a batch. Families that keep a running state instead of keys and
values (such as Mamba) cannot go back to a prefix, and are refused; so are those that fail the self-check.

Where rotary positions are others beyond some length (longrope), a text that crosses it goes through the network anew:
what its slot holds was turned otherwise."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from tfs_lite.adapters.language.hf_files import CONFIG
from tfs_lite.adapters.language.lengths import full_attention_length, steady_length
from tfs_lite.adapters.memory import take_apart
from tfs_lite.core.generation import Copy, Rows, Step
from tfs_lite.core.status import ServingError, failed_precondition

_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_CACHES = ("cache", "past_key_values")
"""The names that networks have for their cache: the first since 5.24 of transformers, the second before."""


class InterleavedNetwork:
    """A causal language model with one cache for each of ``slots``, of at most ``length`` tokens.

    One thread at a time. A cache grows with its text and is kept after its end, until the slot starts with a new text.
    """

    def __init__(self, module: PreTrainedModel, device: torch.device | str, slots: int, length: int) -> None:
        """``module`` is on ``device`` already, with an attention of the library. It is put in eval mode, and one token
        goes through it. FAILED_PRECONDITION for a family that does not keep keys and values of every token.
        :func:`~tfs_lite.adapters.language.self_check.self_check` must pass before the network serves."""
        _check_family(module, length)
        module.eval()  # type: ignore[no-untyped-call]
        self.slots = slots
        self.length = length
        self.device = torch.device(device)
        self._module = module
        self._steady = steady_length(module.config.get_text_config().to_dict()) or length
        names = inspect.signature(module.forward).parameters
        self._cache_name = next(name for name in _CACHES if name in names)
        self._takes_positions = "position_ids" in names
        self._takes_rows = "logits_to_keep" in names
        self._caches = [DynamicCache() for _ in range(slots)]
        self._texts: list[list[int]] = [[] for _ in range(slots)]  # whose positions the keys of a slot have
        self._vocabulary, self._token_bytes, self._layers = self._probe()

    def logits(self, step: Step) -> torch.Tensor:
        """Returns ``[wanted, vocabulary]`` on the device: in the order of ``step.rows``, of each its first
        ``len(targets)`` rows, and the last one if it draws, each row once.

        Copies come first. ``start`` may be less than what a slot holds; the rest is dropped. ValueError, before
        anything is changed, for a slot that holds less than ``start`` or than is copied, or would hold more than
        ``length``. After another error the slots of the step hold at least the tokens before their rows.
        """
        self._check(step)
        with torch.inference_mode():
            for copy in step.copies:
                self._copy(copy)
            parts = [self._forward(rows) for rows in step.rows]
            return torch.cat(parts) if parts else self._nothing()

    def resident_bytes(self) -> int:
        """The bytes of the weights, and of the caches when every slot is full."""
        tensors = {id(tensor): tensor for tensor in (*self._module.parameters(), *self._module.buffers())}
        weights: int = sum(tensor.nbytes for tensor in tensors.values())
        return weights + len(self._caches) * self.length * self._token_bytes

    @property
    def cached_layers(self) -> int:
        """How many layers attend through a cache."""
        return self._layers

    @contextmanager
    def ordinary(self) -> Iterator[PreTrainedModel]:
        """The module as it came."""
        yield self._module

    def clear(self) -> None:
        """Forgets all texts."""
        self._caches = [DynamicCache() for _ in range(self.slots)]
        self._texts = [[] for _ in range(self.slots)]

    def close(self) -> None:
        """Frees the module; only the network refers to the caches."""
        take_apart(self._module)

    def _forward(self, rows: Rows) -> torch.Tensor:
        slot, start, tokens, wanted = rows.slot, rows.start, rows.tokens, _wanted(rows)
        held = self._texts[slot]
        text = [*held[:start], *tokens]
        if start and (len(held) > self._steady) != (len(text) > self._steady):
            anew = DynamicCache()
            logits = self._run(anew, 0, text, [start + index for index in wanted])
            self._caches[slot], self._texts[slot] = anew, text
            return logits
        self._caches[slot] = cache = _shortened(self._caches[slot], start)
        try:
            logits = self._run(cache, start, tokens, wanted)
        except BaseException:
            self._caches[slot] = _shortened(cache, start)
            raise
        self._texts[slot] = text
        return logits

    def _run(self, cache: DynamicCache, start: int, tokens: Sequence[int], wanted: Sequence[int]) -> torch.Tensor:
        """The logits of the ``wanted`` tokens, by index. The cache holds ``start`` tokens before, and these too
        after."""
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True, "return_dict": True}
        keep = torch.tensor(wanted, dtype=torch.int64, device=self.device)
        if self._takes_positions:
            options["position_ids"] = torch.arange(start, start + len(tokens), device=self.device)[None]
        if self._takes_rows:
            options["logits_to_keep"] = keep
        ids = torch.tensor(tokens, dtype=torch.int64, device=self.device)[None]
        logits: torch.Tensor = self._module(input_ids=ids, **options).logits[0]
        return logits if self._takes_rows else logits[keep]

    def _copy(self, copy: Copy) -> None:
        source = self._caches[copy.source]
        if copy.source == copy.target:
            self._caches[copy.target] = _shortened(source, copy.count)
            return
        target = DynamicCache()
        for number, (keys, values) in enumerate(_contents(source)):
            target.update(keys[..., : copy.count, :], values[..., : copy.count, :], number)
        self._caches[copy.target], self._texts[copy.target] = target, self._texts[copy.source]

    def _check(self, step: Step) -> None:
        held = [_held(cache) for cache in self._caches]
        for copy in step.copies:
            if held[copy.source] < copy.count:
                raise ValueError(f"slot {copy.source} holds {held[copy.source]} tokens, fewer than {copy.count}")
            held[copy.target] = copy.count
        for rows in step.rows:
            end = rows.start + len(rows.tokens)
            if held[rows.slot] < rows.start or end > self.length:
                raise ValueError(
                    f"slot {rows.slot} holds {held[rows.slot]} tokens of at most {self.length}, "
                    f"and cannot take those from {rows.start} to {end}"
                )

    def _probe(self) -> tuple[int, int, int]:
        """The width of the logits, the bytes that one token takes in a cache, and the layers of a cache."""
        cache = DynamicCache()
        try:
            with torch.inference_mode():
                logits = self._run(cache, 0, [0], [0])
            contents = _contents(cache)
        except (TypeError, ValueError, AttributeError) as error:
            raise _refused(self._module, "does not run with a cache of keys and values") from error
        if _held(cache) != 1:
            raise _refused(self._module, "does not keep the keys and values of every token")
        return int(logits.shape[-1]), sum(keys.nbytes + values.nbytes for keys, values in contents), len(contents)

    def _nothing(self) -> torch.Tensor:
        return torch.empty(0, self._vocabulary, dtype=self._module.dtype, device=self.device)


def _wanted(rows: Rows) -> list[int]:
    wanted = list(range(len(rows.targets)))
    if rows.draw is not None and len(wanted) < len(rows.tokens):
        wanted.append(len(rows.tokens) - 1)
    return wanted


def _shortened(cache: DynamicCache, count: int) -> DynamicCache:
    """The cache, cut to its first ``count`` tokens. A forward that failed may have left some layers with more."""
    if count == 0:
        return DynamicCache()
    layers: list[Any] = cache.layers
    for layer, (keys, values) in zip(layers, _contents(cache), strict=True):
        layer.keys, layer.values = keys[..., :count, :], values[..., :count, :]
    return cache


def _contents(cache: DynamicCache) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Keys and values of each layer, ``[1, heads, tokens, dimension]``. ValueError for a layer without."""
    pairs = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, torch.Tensor) or not isinstance(values, torch.Tensor) or keys.dim() != 4:
            raise ValueError("a layer of the cache has no keys and values")
        pairs.append((keys, values))
    return pairs


def _held(cache: DynamicCache) -> int:
    """Tokens that every layer has."""
    return min((keys.shape[-2] for keys, _ in _contents(cache)), default=0)


def _check_family(module: PreTrainedModel, length: int) -> None:
    config = module.config.get_text_config(decoder=True)
    if getattr(module.config, "is_encoder_decoder", False):
        raise _refused(module, "has an encoder of its own")
    layers = set(getattr(config, "layer_types", None) or ())
    if getattr(module, "_is_stateful", False) or not layers <= _LAYERS:
        raise _refused(module, "keeps a running state, and not the keys and values of every token")
    if not any(name in inspect.signature(module.forward).parameters for name in _CACHES):
        raise _refused(
            module,
            "takes no cache of keys and values, so every new token would cost a forward over the whole text. Publish "
            "it as a program that answers with logits: tfs_lite.save(module, base, example_inputs=...)",
        )
    full = full_attention_length(module)
    if full is not None and length > full:
        raise _refused(
            module,
            f"attends to blocks in texts of more than {full} tokens until the first shorter one, and to everything "
            f"from then on. Set max_model_len of parameters to {full}, or attention_type of {CONFIG} to original_full",
        )


def _refused(module: PreTrainedModel, why: str) -> ServingError:
    return failed_precondition(f"models of the family {module.config.model_type} cannot be served: the network {why}")
