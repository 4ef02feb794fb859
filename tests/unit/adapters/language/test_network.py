"""A network takes rows of many texts and gives back the logits that were asked for, or refuses without a trace."""

from __future__ import annotations

import pytest
import torch

from tests.support.errors import refusal
from tests.support.language.tiny_transformers import VOCABULARY, build
from tfs_lite.adapters.language.attention import KEYWORD, LayerInputs, attention
from tfs_lite.adapters.language.network import Network
from tfs_lite.core.generation import Copy, Rows, Sampling, SamplingRequest, Step
from tfs_lite.core.status import StatusCode

DRAW = SamplingRequest(Sampling(), 0, 0, [], 0)
LENGTH = 32


@pytest.fixture
def network() -> Network:
    return Network(build("llama"), "cpu", slots=4, length=LENGTH)


def _plain(network: Network, tokens: list[int]) -> torch.Tensor:
    with network.ordinary() as module, torch.inference_mode():
        logits: torch.Tensor = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def test_logits_come_in_the_order_of_the_step_whatever_the_slots(network: Network) -> None:
    network.logits(Step([Rows(3, 0, [1, 2, 3]), Rows(0, 0, [4, 5])]))
    step = Step(
        [
            Rows(3, 3, [6], DRAW),
            Rows(2, 0, [7, 8, 9, 10], DRAW, targets=[8, 9]),
            Rows(0, 2, [11], DRAW),
            Rows(1, 0, [12, 13], targets=[13]),
        ]
    )
    first, second, third, fourth = [1, 2, 3, 6], [7, 8, 9, 10], [4, 5, 11], [12, 13]
    expected = [_plain(network, first)[-1:], _plain(network, second)[[0, 1, 3]], _plain(network, third)[-1:]]
    expected.append(_plain(network, fourth)[:1])
    torch.testing.assert_close(network.logits(step), torch.cat(expected))


def test_a_step_that_wants_no_logits_gives_none_and_is_carried_out(network: Network) -> None:
    assert network.logits(Step([Rows(0, 0, [1, 2]), Rows(1, 0, [3])])).shape == (0, VOCABULARY)
    found = network.logits(Step([Rows(0, 2, [4], DRAW), Rows(1, 1, [5], DRAW)]))
    torch.testing.assert_close(found, torch.stack([_plain(network, [1, 2, 4])[-1], _plain(network, [3, 5])[-1]]))


def test_copies_are_made_before_the_rows_of_a_step(network: Network) -> None:
    network.logits(Step([Rows(0, 0, [1, 2, 3, 4])]))
    rows = [Rows(0, 1, [9], DRAW), Rows(2, 3, [5], DRAW)]
    found = network.logits(Step(rows, [Copy(0, 1, 4), Copy(1, 2, 3)]))
    expected = torch.stack([_plain(network, [1, 9])[-1], _plain(network, [1, 2, 3, 5])[-1]])
    torch.testing.assert_close(found, expected)


def test_copies_without_rows_are_made_too(network: Network) -> None:
    network.logits(Step([Rows(0, 0, [1, 2, 3])]))
    assert network.logits(Step([], [Copy(0, 3, 3)])).shape == (0, VOCABULARY)
    found = network.logits(Step([Rows(3, 3, [4], DRAW)]))
    torch.testing.assert_close(found, _plain(network, [1, 2, 3, 4])[-1:])


def test_a_text_may_fill_its_slot_to_the_last_position(network: Network) -> None:
    tokens = [(7 * index) % VOCABULARY for index in range(LENGTH)]
    network.logits(Step([Rows(0, 0, tokens[:-1]), Rows(1, 0, [3])]))
    found = network.logits(Step([Rows(0, LENGTH - 1, tokens[-1:], DRAW), Rows(1, 1, [4], DRAW)]))
    torch.testing.assert_close(found[:1], _plain(network, tokens)[-1:])


@pytest.mark.parametrize(
    "step",
    [
        Step([Rows(4, 0, [1])]),
        Step([Rows(-1, 0, [1])]),
        Step([Rows(0, LENGTH, [1])]),
        Step([Rows(0, LENGTH - 1, [1, 2])]),
        Step([Rows(0, 0, [])]),
        Step([Rows(0, 0, [VOCABULARY])]),
        Step([Rows(0, 0, [1, -1])]),
        Step([Rows(0, 0, [1], targets=[2, 3])]),
        Step([Rows(0, 0, [1]), Rows(0, 1, [1])]),
        Step([], [Copy(0, 4, 1)]),
        Step([], [Copy(-1, 0, 1)]),
        Step([Rows(1, 0, [1])], [Copy(0, 1, LENGTH + 1)]),
    ],
    ids=range(12),
)
def test_a_step_that_the_cache_cannot_hold_changes_nothing(network: Network, step: Step) -> None:
    network.logits(Step([Rows(0, 0, [1, 2]), Rows(1, 0, [3, 4])]))
    before = [keys.clone() for keys in network.cache.keys.values()]
    with pytest.raises(ValueError, match=r"slot|vocabulary"):
        network.logits(step)
    assert all(torch.equal(*pair) for pair in zip(before, network.cache.keys.values(), strict=True))


def test_a_step_that_failed_half_way_can_be_made_again(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    network.logits(Step([Rows(0, 0, [1, 2])]))
    step = Step([Rows(0, 2, [3], DRAW), Rows(1, 0, [4, 5], DRAW)])
    write = network.cache.write

    def fails_in_the_second_layer(layer: int, *rest: torch.Tensor) -> None:
        if layer == 1:
            raise RuntimeError("no memory")
        write(layer, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(network.cache, "write", fails_in_the_second_layer)
        with pytest.raises(RuntimeError, match="no memory"):
            network.logits(step)
    expected = torch.stack([_plain(network, [1, 2, 3])[-1], _plain(network, [4, 5])[-1]])
    torch.testing.assert_close(network.logits(step), expected)


def test_a_forward_beside_the_steps_is_refused(network: Network) -> None:
    with network.ordinary() as module:
        pass
    assert "does not get the keywords of the forward" in refusal(
        module, input_ids=torch.tensor([[1, 2]]), use_cache=False, code=StatusCode.UNIMPLEMENTED
    )


class _Layer(torch.nn.Module):
    layer_idx = 0


class _Echo:
    """A context that attends to nothing."""

    def attend(self, inputs: LayerInputs) -> torch.Tensor:
        return inputs.query


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("s_aux", torch.ones(2)),
        ("position_bias", torch.ones(1)),
        ("something_new", 3),
        ("attention_mask", torch.zeros(1, 1, 3, 3)),
        ("dropout", 0.1),
        ("is_causal", False),
    ],
)
def test_what_would_change_the_result_is_never_ignored(keyword: str, value: object) -> None:
    states = [torch.zeros(1, 2, 3, 4)] * 3
    harmless = {"position_ids": torch.zeros(1, 3), "use_cache": False, "new_flag": False, "new_value": None}
    assert attention(_Layer(), *states, **harmless, **{KEYWORD: _Echo()})[0] is states[0]
    refusal(attention, _Layer(), *states, **{keyword: value, KEYWORD: _Echo()}, code=StatusCode.UNIMPLEMENTED)


def test_bytes_are_weights_once_and_cache() -> None:
    module = build("gpt2", torch.float32)
    network = Network(module, "cpu", slots=2, length=16)
    weights = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    cache = 2 * 16 * 2 * 2 * 48 * 4
    assert network.resident_bytes() == weights + cache
    module.lm_head.weight = module.transformer.wte.weight
    assert network.resident_bytes() == weights + cache - VOCABULARY * 48 * 4


def test_a_network_stops_dropping_out() -> None:
    module = build("gpt2").train()
    network = Network(module, "cpu", slots=2, length=16)
    step = Step([Rows(0, 0, [1, 2, 3], DRAW)])
    assert torch.equal(network.logits(step), network.logits(step))
    assert not module.training
