"""Forwards of fixed shapes write what ordinary steps write. A record is played here by running the forward again."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.language.tiny_transformers import VOCABULARY, RandomBatches, build, greedy
from tfs_lite.adapters.cuda.graphs import Captured, Forward
from tfs_lite.adapters.language.fixed_decode import (
    MAX_SHAPES,
    FixedDecode,
    Shape,
    decode_shapes,
    record_and_check,
    smallest,
    worst_difference,
)
from tfs_lite.adapters.language.network import Network
from tfs_lite.adapters.language.self_check import self_check
from tfs_lite.core.generation import Copy, Rows, Sampling, SamplingRequest, Step

DRAW = SamplingRequest(Sampling(), 0, 0, [], 0)
LENGTH = 64
SHAPES = [Shape(rows, width) for width in (64, 32, 16) for rows in (4, 2, 1)]


def recorded(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
    inputs = [tensor.clone() for tensor in host]
    result = forward(*inputs)

    def replay() -> None:
        assert forward(*inputs).data_ptr() == result.data_ptr(), "a record always writes to the same place"

    return Captured(inputs, result, replay, lambda: None)


def attached(network: Network, shapes: Sequence[Shape] = SHAPES, **options: int) -> FixedDecode:
    decoding = FixedDecode(network, lambda: None, **options)
    assert record_and_check(network, decoding, recorded, shapes) == ""
    decoding.replays = 0
    return decoding


def fixed_network(family: str = "llama", slots: int = 4, dtype: torch.dtype = torch.float64) -> Network:
    return Network(build(family, dtype), "cpu", slots, LENGTH, fixed=True)


def _wanted() -> list[tuple[list[int], int]]:
    numbers = random.Random(5)

    def tokens(count: int) -> list[int]:
        return [numbers.randrange(VOCABULARY) for _ in range(count)]

    shared = tokens(11)
    wanted = [(tokens(numbers.randint(1, 20)), numbers.choice([3, 9, 20])) for _ in range(5)]
    return [*wanted, (shared + tokens(2), 8), (shared + tokens(5), 12), (tokens(1), 40), (shared, 4)]


@pytest.mark.parametrize("poison", [False, True])
def test_texts_decoded_in_fixed_shapes_are_those_written_alone(family: str, poison: bool) -> None:
    """Among prompts, copies and slots that others have left, with NaN in them or without."""
    network = fixed_network(family)
    decoding = attached(network)
    module = build(family)
    batches = RandomBatches(network, poison=poison, seed=3)
    assert batches.serve(_wanted()) == [greedy(module, *one).tokens for one in _wanted()]
    assert decoding.replays > 10
    assert poison or batches.reused > 3


def _load_weights(network: Network) -> list[list[int]]:
    """Four texts of 3, 10, 20 and 31 tokens."""
    numbers = random.Random(1)
    texts = [[numbers.randrange(VOCABULARY) for _ in range(count)] for count in (3, 10, 20, 31)]
    network.logits(Step([Rows(slot, 0, text) for slot, text in enumerate(texts)]))
    return texts


def _plain(network: Network, tokens: list[int]) -> torch.Tensor:
    with network.ordinary() as module, torch.inference_mode():
        logits: torch.Tensor = module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits


@pytest.mark.parametrize("slots", [[0], [1], [3], [0, 1], [1, 0], [3, 0, 2], [0, 1, 2, 3], [2, 3, 1, 0]], ids=str)
def test_logits_come_in_the_order_of_the_step_whatever_the_slots(slots: list[int]) -> None:
    network = fixed_network()
    decoding = attached(network)
    texts = _load_weights(network)
    step = Step([Rows(slot, len(texts[slot]), [7 + slot], DRAW) for slot in slots])
    expected = torch.stack([_plain(network, [*texts[slot], 7 + slot]) for slot in slots])
    torch.testing.assert_close(network.logits(step), expected)
    assert decoding.replays == 1


def test_idle_slots_keep_what_they_hold() -> None:
    network = fixed_network()
    texts = _load_weights(network)
    decoding = FixedDecode(network, lambda: None)
    tensors = [*network.cache.keys.values(), *network.cache.values.values()]
    before = [tensor[:, :, :LENGTH].clone() for tensor in tensors]
    decoding.record(recorded, SHAPES)
    assert all(torch.equal(old, new[:, :, :LENGTH]) for old, new in zip(before, tensors, strict=True))
    network.decoding = decoding
    network.logits(Step([Rows(2, len(texts[2]), [5], DRAW)]))
    assert decoding.replays == 1
    for old, new in zip(before, tensors, strict=True):
        for slot in (0, 1, 3):
            assert torch.equal(old[slot], new[slot, :, :LENGTH])
        assert torch.equal(old[2, :, :20], new[2, :, :20])
        assert not torch.equal(old[2, :, 20], new[2, :, 20])


def test_copies_come_before_a_step_of_a_fixed_shape() -> None:
    network = fixed_network()
    decoding = attached(network)
    texts = _load_weights(network)
    step = Step([Rows(0, 15, [9], DRAW), Rows(2, 20, [8], DRAW)], [Copy(2, 0, 15)])
    expected = torch.stack([_plain(network, [*texts[2][:15], 9]), _plain(network, [*texts[2], 8])])
    torch.testing.assert_close(network.logits(step), expected)
    assert decoding.replays == 1


def test_a_text_may_fill_its_slot_to_the_last_position() -> None:
    network = fixed_network()
    decoding = attached(network)
    tokens = [(7 * index) % VOCABULARY for index in range(LENGTH)]
    network.logits(Step([Rows(1, 0, tokens[:-1])]))
    found = network.logits(Step([Rows(1, LENGTH - 1, tokens[-1:], DRAW)]))
    torch.testing.assert_close(found[0], _plain(network, tokens))
    assert decoding.replays == 1


@pytest.mark.parametrize(
    "step",
    [
        Step([Rows(0, 3, [1, 2], DRAW)]),
        Step([Rows(0, 3, [1], DRAW), Rows(1, 10, [1, 2])]),
        Step([Rows(0, 3, [1])]),
        Step([Rows(0, 3, [1], DRAW, targets=[2])]),
        Step([], [Copy(0, 1, 2)]),
    ],
    ids=range(5),
)
def test_steps_that_do_not_only_decode_are_ordinary_ones(step: Step) -> None:
    network = fixed_network()
    decoding = attached(network)
    _load_weights(network)
    rows = sum(1 for entry in step.rows if entry.draw is not None)
    assert network.logits(step).shape == (rows, VOCABULARY)
    assert decoding.replays == 0


def test_a_step_that_would_read_too_much_for_nothing_is_an_ordinary_one() -> None:
    network = fixed_network()
    positions = 40
    decoding = attached(network, idle_bytes=positions * network.cache.position_bytes)
    texts = _load_weights(network)
    for slot, replays in ((3, 0), (2, 0), (1, 1), (0, 2)):
        found = network.logits(Step([Rows(slot, len(texts[slot]), [5], DRAW)]))
        torch.testing.assert_close(found[0], _plain(network, [*texts[slot], 5]))
        assert decoding.replays == replays


def test_slots_that_no_shape_holds_are_served_all_the_same() -> None:
    network = fixed_network()
    decoding = attached(network, [Shape(2, 16)])
    texts = _load_weights(network)
    for slot, replays in ((2, 0), (3, 0), (0, 1), (1, 2)):
        found = network.logits(Step([Rows(slot, len(texts[slot]), [5], DRAW)]))
        torch.testing.assert_close(found[0], _plain(network, [*texts[slot], 5]))
        assert decoding.replays == replays


def test_a_bad_step_changes_nothing() -> None:
    network = fixed_network()
    decoding = attached(network)
    for rows in (Rows(0, LENGTH, [1], DRAW), Rows(4, 0, [1], DRAW), Rows(0, 0, [VOCABULARY], DRAW)):
        with pytest.raises(ValueError, match=r"slot|vocabulary"):
            network.logits(Step([rows]))
    assert decoding.replays == 0


# The check before anybody is served


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_fixed_shapes_agree_with_ordinary_steps_in_each_precision(family: str, dtype: torch.dtype) -> None:
    network = fixed_network(family, dtype=dtype)
    assert self_check(network, network._module).ok
    decoding = FixedDecode(network, lambda: None)
    with torch.inference_mode():
        decoding.record(recorded, SHAPES)
        assert worst_difference(network, decoding) < (1e-5 if dtype is torch.float32 else 0.05)
    assert decoding.replays == len(SHAPES)


def test_the_check_leaves_a_clean_cache_and_uses_every_shape() -> None:
    network = fixed_network()
    decoding = FixedDecode(network, lambda: None)
    assert record_and_check(network, decoding, recorded, SHAPES) == ""
    assert network.decoding is decoding
    assert decoding.replays == len(SHAPES)
    assert not any(tensor.any() for tensor in (*network.cache.keys.values(), *network.cache.values.values()))


def _stale(result: torch.Tensor, again: Callable[[], torch.Tensor]) -> None:
    """A record that does nothing: what the first run left stays."""


def _mixed(result: torch.Tensor, again: Callable[[], torch.Tensor]) -> None:
    result.copy_(again().roll(1, 0))


def _no_numbers(result: torch.Tensor, again: Callable[[], torch.Tensor]) -> None:
    again()
    result.fill_(torch.nan)


@pytest.mark.parametrize("replayed", [_stale, _mixed, _no_numbers])
def test_records_that_answer_otherwise_are_not_used(
    replayed: Callable[[torch.Tensor, Callable[[], torch.Tensor]], None],
) -> None:
    dropped = []

    def wrong(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        inputs = [tensor.clone() for tensor in host]
        result = forward(*inputs)
        return Captured(
            inputs, result, lambda: replayed(result, lambda: forward(*inputs)), lambda: dropped.append("record")
        )

    network = fixed_network()
    why = record_and_check(network, FixedDecode(network, lambda: dropped.append("pool")), wrong, SHAPES)
    assert "of their spread" in why
    assert network.decoding is None
    assert dropped == ["record"] * len(SHAPES) + ["pool"]
    texts = _load_weights(network)
    found = network.logits(Step([Rows(0, 3, [5], DRAW)]))
    torch.testing.assert_close(found[0], _plain(network, [*texts[0], 5]))


def test_a_capture_that_fails_leaves_a_network_that_serves() -> None:
    dropped = []

    def second_fails(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        if dropped or network_records:
            raise RuntimeError("operation not permitted when stream is capturing\n  at /opt/secret/place.cpp")
        network_records.append(1)
        made = recorded(host, forward)
        return Captured(made.inputs, made.result, made.replay, lambda: dropped.append("record"))

    network_records: list[int] = []
    network = fixed_network()
    decoding = FixedDecode(network, lambda: dropped.append("pool"))
    why = record_and_check(network, decoding, second_fails, SHAPES)
    assert why == "operation not permitted when stream is capturing"
    assert dropped == ["record", "pool"]
    assert network.decoding is None
    assert self_check(network, network._module).ok


def test_records_go_before_their_memory_and_steps_are_ordinary_ones_then() -> None:
    gone: list[str] = []

    def noted(host: Sequence[torch.Tensor], forward: Forward) -> Captured:
        made = recorded(host, forward)
        return Captured(made.inputs, made.result, made.replay, lambda: gone.append("record"))

    network = fixed_network()
    decoding = FixedDecode(network, lambda: gone.append("pool"))
    assert record_and_check(network, decoding, noted, SHAPES[:2]) == ""
    network.decoding = None
    decoding.close()
    assert gone == ["record", "record", "pool"]
    assert network.logits(Step([Rows(0, 0, [5], DRAW)])).shape == (1, VOCABULARY)


def test_closing_a_network_drops_its_records_and_its_weights_at_once() -> None:
    gone: list[str] = []
    network = fixed_network()
    decoding = FixedDecode(network, lambda: gone.append("pool"))
    assert record_and_check(network, decoding, recorded, SHAPES[:2]) == ""
    with network.ordinary() as module:
        weights = [weakref.ref(parameter) for parameter in module.parameters()]
    del decoding, module
    network.close()
    assert gone == ["pool"]
    assert [weight() for weight in weights] == [None] * len(weights)


def test_the_slot_for_idle_rows_costs_one_position() -> None:
    ordinary, fixed = Network(build("llama"), "cpu", 4, LENGTH), fixed_network()
    more = fixed.cache.resident_bytes() - ordinary.cache.resident_bytes()
    assert more * LENGTH == ordinary.cache.resident_bytes()
    assert fixed.length == LENGTH


def _row_counts(slots: int, length: int = 128) -> list[int]:
    return sorted({shape.rows for shape in decode_shapes(slots, length)})


def test_rows_go_by_ones_and_twos_and_then_by_eights() -> None:
    assert _row_counts(1) == [1]
    assert _row_counts(3) == [1, 2, 3]
    assert _row_counts(8) == [1, 2, 4, 8]
    assert _row_counts(40) == [1, 2, 4, 8, 16, 24, 32, 40]
    assert _row_counts(44) == [1, 2, 4, 8, 16, 24, 32, 40, 44]
    assert _row_counts(64) == [1, 2, 4, *range(8, 65, 8)]


def test_widths_double() -> None:
    assert [shape.width for shape in decode_shapes(1, 1000)] == [1000, 512, 256, 128]
    assert [shape.width for shape in decode_shapes(1, 512)] == [512, 256, 128]
    assert [shape.width for shape in decode_shapes(1, 50)] == [50]


def test_many_slots_are_told_apart_more_coarsely() -> None:
    shapes = decode_shapes(256, 8192)
    assert len(shapes) <= MAX_SHAPES
    assert {shape.width for shape in shapes} == {128, 256, 512, 1024, 2048, 4096, 8192}
    assert {1, 2, 4, 8, 256} < {shape.rows for shape in shapes}


@given(
    st.integers(1, 4096), st.integers(1, 1 << 20), st.sampled_from([1, 2, 7, MAX_SHAPES]), st.floats(0, 1), st.data()
)
def test_every_step_fits_into_a_shape(slots: int, length: int, most: int, share: float, data: st.DataObject) -> None:
    shapes = decode_shapes(slots, length, most)
    assert shapes[0] == Shape(slots, length)
    assert len(shapes) <= most
    assert shapes == sorted(shapes, key=lambda shape: shape.positions, reverse=True)
    rows, width = data.draw(st.integers(1, slots)), data.draw(st.integers(1, length))
    found = smallest(shapes, rows, width)
    assert found is not None
    assert found.rows >= rows
    assert found.width >= width
    assert all(shape.positions >= found.positions for shape in shapes if shape.rows >= rows and shape.width >= width)


@pytest.mark.parametrize(("rows", "width"), [(5, 10), (4, 129), (9, 300)])
def test_what_no_shape_holds_has_none(rows: int, width: int) -> None:
    assert smallest([Shape(4, 128)], rows, width) is None
