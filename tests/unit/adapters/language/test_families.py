"""Texts that are served together are those that the same model writes alone, whatever its family."""

from __future__ import annotations

import functools
import random

import pytest
import torch

from tests.support.language.tiny_transformers import VOCABULARY, Greedy, RandomBatches, build, greedy
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import needs_fallback, self_check

LONGEST = 44
DISTINCT = 20
CLOSE = 1e-4
"""Logits nearer than this may change order when fp32 rounds in another order."""


@functools.cache
def _wanted() -> list[tuple[list[int], int]]:
    """Prompts of 1 to 40 tokens, some with the same beginning, and how many tokens to add to each."""
    numbers = random.Random(3)

    def tokens(count: int) -> list[int]:
        return [numbers.randrange(VOCABULARY) for _ in range(count)]

    wanted = [(tokens(5), LONGEST)]
    shared = tokens(19)
    wanted += [(tokens(numbers.randint(1, 40)), numbers.choice([1, 2, 9, 14])) for _ in range(6)]
    wanted += [(shared + tokens(count), 8) for count in (1, 5, 12)]
    return [*wanted, (shared, 3), (tokens(1), 1)]


@functools.cache
def _alone(family: str, dtype: torch.dtype = torch.float64) -> list[Greedy]:
    module = build(family, dtype)
    alone = [greedy(module, prompt, count) for prompt, count in _wanted()]
    assert len(set(alone[0].tokens)) >= DISTINCT, "the model repeats itself, and would hide mistakes"
    return alone


def _outputs(family: str) -> list[list[int]]:
    return [text.tokens for text in _alone(family)]


def test_texts_in_batches_are_those_written_alone(family: str) -> None:
    batches = RandomBatches(Network(build(family), "cpu", slots=4, length=64), seed=2)
    assert batches.serve(_wanted()) == _outputs(family)
    assert batches.copied, "no text began with what another slot holds"
    assert batches.mixed, "no step had prompts and single rows"
    assert batches.reused > 3, "no slot was used twice"


def test_what_a_broken_text_left_in_a_slot_does_not_spoil_the_next(family: str) -> None:
    batches = RandomBatches(Network(build(family), "cpu", slots=3, length=64), poison=True, seed=4)
    assert batches.serve(_wanted() * 2) == _outputs(family) * 2


def test_in_single_precision_only_a_tie_may_end_otherwise(family: str) -> None:
    alone = _alone(family, torch.float32)
    batches = RandomBatches(Network(build(family, torch.float32), "cpu", slots=5, length=64), seed=6)
    for served, text in zip(batches.serve(_wanted()), alone, strict=True):
        other = next((i for i, pair in enumerate(zip(served, text.tokens, strict=True)) if pair[0] != pair[1]), None)
        assert other is None or text.ahead[other] < CLOSE


def test_the_family_passes_its_self_check(family: str) -> None:
    module = build(family)
    assert needs_fallback(module, 64) is None
    result = self_check(Network(module, "cpu", slots=3, length=64), module)
    assert result.ok, str(result)
    assert result.difference < 1e-6
    assert result.positions == 50


@pytest.mark.parametrize("slots", [1, 2, 8])
@pytest.mark.parametrize("chunk", [1, 3, 40])
def test_neither_slots_nor_chunks_change_a_text(slots: int, chunk: int) -> None:
    network = Network(build("llama"), "cpu", slots, length=64)
    assert RandomBatches(network, chunk=chunk, seed=8).serve(_wanted()) == _outputs("llama")


@pytest.mark.parametrize("call_cost", [0, 10, 1_000_000])
@pytest.mark.parametrize("family", ["gpt2", "mistral", "gemma2"])
def test_how_texts_share_attention_calls_does_not_change_them(family: str, call_cost: float) -> None:
    network = Network(build(family), "cpu", slots=4, length=64, call_cost=call_cost)
    assert RandomBatches(network, poison=True, seed=10).serve(_wanted()) == _outputs(family)
