"""Small random transformers models of many families, their plain greedy texts, and the same texts served in batches.

Weights are so widely distributed that a model does not repeat itself: a wrong position or a mixed-up text shows at
once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    PhiConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    StableLmConfig,
)

from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.weights import attention_of
from tfs_lite.core.generation import Copy, Rows, Sampling, SamplingRequest, Step

VOCABULARY = 200
WINDOW = 11
"""Of the families that have one: shorter than most texts."""

_WIDE: dict[str, Any] = {"initializer_range": 0.25, "tie_word_embeddings": False}
_SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
}
_COMMON: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 48, **_SIZES, **_WIDE}
_GROUPED: dict[str, Any] = {**_COMMON, "num_key_value_heads": 2}
_OLD: dict[str, Any] = {"vocab_size": VOCABULARY, "n_layer": 2, "n_head": 4, **_WIDE}

FAMILIES: dict[str, Callable[[], PreTrainedConfig]] = {
    "gpt2": lambda: GPT2Config(**_OLD, n_embd=48, n_positions=128, bos_token_id=0, eos_token_id=0),
    "llama": lambda: LlamaConfig(**_GROUPED),
    "qwen2": lambda: Qwen2Config(**_GROUPED),
    "qwen3": lambda: Qwen3Config(**_GROUPED, head_dim=8),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(**_GROUPED, head_dim=8, sliding_window=WINDOW),
    "phi": lambda: PhiConfig(**_COMMON),
    "gpt_neox": lambda: GPTNeoXConfig(**_COMMON),
}
"""Families whose texts can share a forward."""

ALONE: dict[str, Callable[[], PreTrainedConfig]] = {
    "bloom": lambda: BloomConfig(**_OLD, hidden_size=48),
    "falcon": lambda: FalconConfig(**_COMMON),
    "gptj": lambda: GPTJConfig(**_OLD, n_embd=48, rotary_dim=4, bos_token_id=0, eos_token_id=0),
    "mpt": lambda: MptConfig(vocab_size=VOCABULARY, d_model=48, n_layers=2, n_heads=4, **_WIDE),
    "stablelm": lambda: StableLmConfig(**_COMMON, num_key_value_heads=6),
}
"""Families that would answer wrongly, or do not pass the attention context on."""
REPRESENTATIVES = ("gpt2", "llama", "mistral")
"""One family for each kind of cache: a head for each query head, shared heads, and a sliding window."""


_SEEDS = {"phi": 2}
"""Seeds of weights that repeat themselves less."""


def build(family: str, dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    """A model with a config of its own, and always the same weights."""
    torch.manual_seed(_SEEDS.get(family, 0))
    config = {**FAMILIES, **ALONE}[family]()
    from_config: Callable[..., Any] = AutoModelForCausalLM.from_config
    module: PreTrainedModel = from_config(config, attn_implementation=attention_of(config)).to(dtype).eval()
    return module


@dataclass(slots=True)
class Greedy:
    """``tokens`` of a text's output, and of each, how far the best logit was ahead of the second."""

    tokens: list[int] = field(default_factory=list)
    ahead: list[float] = field(default_factory=list)


@torch.inference_mode()
def greedy(module: PreTrainedModel, prompt: Sequence[int], count: int) -> Greedy:
    """One text alone, without any cache: every token costs a forward over the whole text."""
    found = Greedy()
    for _ in range(count):
        ids = torch.tensor([[*prompt, *found.tokens]])
        best = module(input_ids=ids, use_cache=False).logits[0, -1].topk(2)
        found.tokens.append(int(best.indices[0]))
        found.ahead.append(float(best.values[0] - best.values[1]))
    return found


@dataclass(slots=True, eq=False)
class _Text:
    tokens: list[int]
    end: int
    slot: int = -1
    done: int = 0


class RandomBatches:
    """Serves texts in random batches: they come at random steps, get random slots and chunks, reuse prefixes of other
    slots, and leave their slots dirty, with ``poison`` as NaN."""

    def __init__(self, network: Network, *, chunk: int = 7, poison: bool = False, seed: int = 0) -> None:
        self._network = network
        self._chunk = chunk
        self._poison = poison
        self._random = random.Random(seed)
        self._free = set(range(network.slots))
        self._held: dict[int, list[int]] = {slot: [] for slot in self._free}
        self.copied = 0
        self.mixed = 0
        self.reused = 0

    def serve(self, wanted: Sequence[tuple[Sequence[int], int]]) -> list[list[int]]:
        """``wanted``: prompts, and how many tokens. Returns the outputs."""
        texts = [_Text(list(prompt), len(prompt) + count) for prompt, count in wanted]
        waiting = texts[::-1]
        running: list[_Text] = []
        while waiting or running:
            copies: list[Copy] = []
            while waiting and self._free and self._random.random() < 0.6:
                running.append(self._admit(waiting.pop(), copies))
            self._step([text for text in running if self._random.random() < 0.8], copies)
            for text in [text for text in running if len(text.tokens) == text.end]:
                running.remove(text)
                self._leave(text)
        return [text.tokens[len(prompt) :] for text, (prompt, _) in zip(texts, wanted, strict=True)]

    def _admit(self, text: _Text, copies: list[Copy]) -> _Text:
        text.slot = self._random.choice(sorted(self._free))
        self._free.remove(text.slot)
        self.reused += bool(self._held[text.slot])
        source, count = max(
            ((slot, _common(held, text.tokens)) for slot, held in self._held.items()), key=lambda found: found[1]
        )
        if count >= 4:
            text.done = count
            self.copied += source != text.slot
            if source != text.slot:
                copies.append(Copy(source, text.slot, count))
        self._held[text.slot] = text.tokens[: text.done]
        return text

    def _step(self, texts: list[_Text], copies: list[Copy]) -> None:
        self._random.shuffle(texts)
        rows = [self._rows(text) for text in texts]
        self.mixed += len({len(entry.tokens) > 1 for entry in rows}) > 1
        logits = self._network.logits(Step(rows, copies))
        best = iter(logits.argmax(-1).tolist())
        for text, entry in zip(texts, rows, strict=True):
            text.done += len(entry.tokens)
            self._held[text.slot] = text.tokens[: text.done]
            if entry.draw is not None:
                text.tokens.append(next(best))
        assert next(best, None) is None, "more rows came back than were asked for"

    def _rows(self, text: _Text) -> Rows:
        behind = len(text.tokens) - text.done
        count = min(behind, self._random.randint(1, self._chunk))
        draw = SamplingRequest(Sampling(temperature=0), 0, 0, text.tokens, 0) if count == behind else None
        return Rows(text.slot, text.done, text.tokens[text.done : text.done + count], draw)

    def _leave(self, text: _Text) -> None:
        self._free.add(text.slot)
        if self._poison:
            for tensor in (*self._network.cache.keys.values(), *self._network.cache.values.values()):
                tensor[text.slot, :, : text.done] = torch.nan
            self._held[text.slot] = []


def _common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """How many tokens a new text need not compute: at least one has to be."""
    count = 0
    while count < min(len(held), len(tokens) - 1) and held[count] == tokens[count]:
        count += 1
    return count
