"""Models that would answer wrongly in company are found out before they serve: by what they say, or by numbers."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.errors import refusal
from tests.support.language.tiny_transformers import ALONE, build
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import SelfCheckResult, needs_fallback, self_check
from tfs_lite.core.generation import Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.status import StatusCode


@pytest.mark.parametrize("family", ALONE)
def test_a_family_that_cannot_share_a_forward_says_so(family: str) -> None:
    """Which ones can depends on the release of transformers: GPT-J can since 5.24."""
    module = build(family)
    if type(module)._supports_attention_backend:
        assert needs_fallback(module) is None
        assert self_check(Network(module, "cpu", slots=3, length=64), module).ok
    else:
        assert type(module).__name__ in (needs_fallback(module) or "")


@pytest.mark.parametrize("family", ["falcon"])
def test_one_that_claims_it_can_is_caught_by_the_numbers(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = build(family)
    monkeypatch.setattr(type(module), "_supports_attention_backend", True)
    assert needs_fallback(module) is None
    result = self_check(Network(module, "cpu", slots=3, length=64), module)
    assert not result.ok
    assert result.difference > 0.1 > result.allowed
    assert result.other_tokens > 5
    assert not result.cause
    assert f"{result.other_tokens} of 50 best tokens" in str(result)


def test_one_that_does_not_pass_on_what_a_step_is_refuses_and_stays_as_it_was() -> None:
    module = build("stablelm")
    ids = torch.tensor([[1, 2, 3]])
    before = module(input_ids=ids, use_cache=False).logits
    assert "does not get the keywords" in refusal(
        Network, module, "cpu", slots=3, length=64, code=StatusCode.UNIMPLEMENTED
    )
    torch.testing.assert_close(module(input_ids=ids, use_cache=False).logits, before, rtol=0, atol=0)


def test_positions_that_turn_with_the_longest_text_cannot_share_a_forward() -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=32,
            rope_parameters=rope,
        )
    )
    assert "longest text" in (needs_fallback(module, 33) or "")
    assert "longest text" in (needs_fallback(module) or "")
    assert needs_fallback(module, 32) is None


def test_layers_of_another_kind_need_the_fallback() -> None:
    module = build("llama")
    module.config.layer_types = ["full_attention", "linear_attention"]
    assert "linear_attention" in (needs_fallback(module) or "")


@pytest.mark.parametrize(("slots", "length", "positions"), [(1, 64, 24), (2, 64, 41), (3, 10, 29), (4, 64, 50)])
def test_it_takes_what_room_there_is_and_leaves_none_of_it_used(slots: int, length: int, positions: int) -> None:
    module = build("qwen2")
    network = Network(module, "cpu", slots, length)
    result = self_check(network, module)
    assert result.ok, str(result)
    assert result.positions == positions
    for tensor in (*network.cache.keys.values(), *network.cache.values.values()):
        assert not tensor.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_precision_has_a_bound_of_its_own(dtype: torch.dtype) -> None:
    module = build("llama", dtype)
    result = self_check(Network(module, "cpu", slots=3, length=32), module)
    assert result.ok, str(result)
    assert 0 < result.difference < result.allowed


def test_a_network_that_mixes_its_texts_up_is_caught() -> None:
    class Mixed(Network):
        """Forgets whose rows they are where more than one text has some."""

        def logits(self, step: Step) -> torch.Tensor:
            found = super().logits(step)
            return found.roll(1, 0) if len(step.rows) > 1 else found

    module = build("llama")
    result = self_check(Mixed(module, "cpu", slots=3, length=64), module)
    assert not result.ok
    assert result.other_tokens > 0


def test_a_forward_that_raises_is_the_cause_and_not_an_error() -> None:
    module = build("llama")
    network = Network(module, "cpu", slots=2, length=64)
    module.model.layers[1].self_attn.layer_idx = 7
    result = self_check(network, module)
    assert not result.ok
    assert "LlamaForCausalLM fails where a text goes on from a cache" in str(result)


def test_logits_that_are_no_numbers_do_not_pass() -> None:
    module = build("gpt2")
    with torch.no_grad():
        module.lm_head.weight[3] = torch.nan
    result = self_check(Network(module, "cpu", slots=2, length=64), module)
    assert not result.ok
    assert not result.is_finite


def test_no_exchanged_attention_does_not_pass_however_near_the_numbers() -> None:
    assert SelfCheckResult(0.0, 1e-3, 0, 50, layers=2).ok
    assert not SelfCheckResult(0.0, 1e-3, 0, 50, layers=0).ok


def test_the_network_serves_after_its_check() -> None:
    module = build("llama")
    network = Network(module, "cpu", slots=2, length=64)
    with network.ordinary() as plain, torch.inference_mode():
        expected = plain(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False).logits[0, -1:]
    assert self_check(network, module).ok
    draw = SamplingRequest(Sampling(), 0, 0, [5, 6, 7], 3)
    torch.testing.assert_close(network.logits(Step([Rows(1, 0, [5, 6, 7], draw)])), expected)
