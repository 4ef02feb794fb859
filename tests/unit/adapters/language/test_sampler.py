"""The choice of tokens: exact distributions, the same noise in any company, penalties, log probabilities, bad rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tfs_lite.adapters.language.exponential_sampling import exponential, noise_key
from tfs_lite.adapters.language.sampler import sample
from tfs_lite.core.generation import Rows, SampledToken, Sampling, SamplingRequest, Step

GREEDY = Sampling(temperature=0)
HISTORY = [3, 5, 5, 7, 3, 8, 8, 8]
"""Prompt and output: the prompt is the first four."""


def _request(
    sampling: Sampling = GREEDY,
    seed: int = 0,
    index: int = 0,
    history: Sequence[int] = HISTORY,
    banned: Sequence[int] = (),
) -> SamplingRequest:
    return SamplingRequest(sampling, seed, index, history, 4, frozenset(banned))


def _step(*requests: SamplingRequest) -> Step:
    return Step([Rows(slot, 0, [1], one) for slot, one in enumerate(requests)])


def _logits(rows: int, vocabulary: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def _tokens(logits: torch.Tensor, *requests: SamplingRequest) -> list[int | None]:
    return [sampled.token for sampled in sample(logits, _step(*requests))]


def _histogram(row: torch.Tensor, sampling: Sampling, times: int, seed: int = 11, **others: Any) -> torch.Tensor:
    """How often each token is sampled, over ``times`` indices of one text."""
    counts = torch.zeros(len(row), dtype=torch.int64)
    for start in range(0, times, 500):
        requests = [_request(sampling, seed, index, **others) for index in range(start, min(start + 500, times))]
        sampled = torch.tensor(_tokens(row.expand(len(requests), -1), *requests))
        counts += torch.bincount(sampled, minlength=len(row))
    return counts


def _exact(row: torch.Tensor, sampling: Sampling, history: Sequence[int] = HISTORY) -> torch.Tensor:
    """Probabilities as the processors of transformers have them, in the order of Sampling, in float64."""
    steps = LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    steps.append(TemperatureLogitsWarper(float(sampling.temperature)))
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        steps.append(MinPLogitsWarper(sampling.min_p))
    return steps(torch.tensor([history]), row.double()[None]).softmax(-1)[0]


def _fits(counts: torch.Tensor, expected: torch.Tensor) -> None:
    """Chi-square, with rare tokens taken together; fails by chance for one seed in 10000, and seeds are fixed."""
    assert not counts[expected == 0].any()
    times = counts.sum()
    common = expected * times >= 5
    rest = expected[~common].sum() * times
    squares = ((counts[common] - expected[common] * times) ** 2 / (expected[common] * times)).sum()
    freedom = int(common.sum()) - 1
    if rest >= 5:
        squares += (counts[~common].sum() - rest) ** 2 / rest
        freedom += 1
    # Wilson and Hilferty: the cube root of chi-square over its freedom is nearly normal.
    score = ((squares / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert score < 3.72, f"chi-square {squares:.1f} with {freedom} degrees of freedom"


SAMPLINGS: Mapping[str, Sampling] = {
    "plain": Sampling(),
    "cold": Sampling(temperature=0.6),
    "hot": Sampling(temperature=1.8),
    "top_k": Sampling(top_k=7),
    "top_p": Sampling(top_p=0.8),
    "min_p": Sampling(min_p=0.05),
    "repetition": Sampling(repetition_penalty=1.4),
    "top_k and top_p": Sampling(temperature=1.3, top_k=20, top_p=0.7),
    "all": Sampling(temperature=1.5, top_k=30, top_p=0.9, min_p=0.1, repetition_penalty=1.2),
}


@pytest.mark.parametrize("name", list(SAMPLINGS))
@pytest.mark.parametrize("vocabulary", [40, 1500])
def test_tokens_are_drawn_by_their_exact_probabilities(name: str, vocabulary: int) -> None:
    row = _logits(1, vocabulary, seed=3)[0]
    _fits(_histogram(row, SAMPLINGS[name], 8000), _exact(row, SAMPLINGS[name]))


WIDE = {
    "top_p beyond 128 tokens": (Sampling(top_p=0.5), 1.0),
    "top_p beyond 1024 tokens": (Sampling(top_p=0.95), 0.2),
    "top_k of 128": (Sampling(top_k=128), 0.3),
    "top_k of 1100": (Sampling(top_k=1100, top_p=0.99), 0.2),
    "min_p ends it sooner than top_p": (Sampling(top_p=0.9, min_p=0.3), 0.4),
}


@pytest.mark.parametrize("name", list(WIDE))
def test_filters_that_keep_more_than_the_first_candidates_are_exact_too(name: str) -> None:
    sampling, spread = WIDE[name]
    row = _logits(1, 1300, seed=4, spread=spread)[0]
    counts, expected = _histogram(row, sampling, 3000), _exact(row, sampling)
    assert not counts[expected == 0].any()
    _fits(counts.view(100, 13).sum(-1), expected.view(100, 13).sum(-1))


@pytest.mark.parametrize("name", list(SAMPLINGS))
def test_filters_keep_the_tokens_that_those_of_transformers_keep(name: str) -> None:
    """So many requests that each of the twelve tokens comes up if it is kept."""
    row = _logits(1, 12, seed=5, spread=1.0)[0]
    sampled = _histogram(row, SAMPLINGS[name], 3000) > 0
    assert sampled.tolist() == (_exact(row, SAMPLINGS[name]) > 0).tolist()


def test_seeds_and_indices_are_independent_of_one_another() -> None:
    """Pairs of requests that have neighbouring indices, or neighbouring seeds, fit the product of the distributions."""
    row = _logits(1, 6, seed=6, spread=1.0)[0]
    exact = _exact(row, Sampling())
    requests = [_request(Sampling(), seed, index) for seed in range(100) for index in range(101)]
    grid = torch.tensor(_tokens(row.expand(len(requests), -1), *requests)).view(100, 101)
    for first, second in ((grid[:, :-1], grid[:, 1:]), (grid[:-1], grid[1:])):
        pairs = torch.bincount((first * 6 + second).flatten(), minlength=36)
        _fits(pairs, (exact[:, None] * exact).flatten())


def _mixed(vocabulary: int) -> tuple[torch.Tensor, list[SamplingRequest]]:
    samplings = [*SAMPLINGS.values(), *(sampling for sampling, _ in WIDE.values()), GREEDY, Sampling(top_k=1)]
    logits = torch.cat([_logits(1, vocabulary, seed, 0.3 + seed % 4) for seed in range(len(samplings))])
    requests = [_request(sampling, 100 + row, row, banned=[row] * (row % 2)) for row, sampling in enumerate(samplings)]
    return logits, requests


@pytest.mark.parametrize("vocabulary", [100, 2000])
def test_text_draws_the_same_alone_and_in_any_company_and_slot(vocabulary: int) -> None:
    logits, requests = _mixed(vocabulary)
    together = _tokens(logits, *requests)
    alone = [_tokens(logits[row : row + 1], one)[0] for row, one in enumerate(requests)]
    order = list(range(len(requests)))[::-1]
    turned = _tokens(logits[order], *(requests[row] for row in order))
    assert together == alone == turned[::-1]


def test_other_seed_and_other_index_draw_other_tokens() -> None:
    row = torch.zeros(1, 5000)
    seeds = {_tokens(row, _request(Sampling(), seed))[0] for seed in range(100)}
    indices = {_tokens(row, _request(Sampling(), 5, index))[0] for index in range(100)}
    assert len(seeds) > 90
    assert len(indices) > 90


def test_noise_is_these_very_numbers() -> None:
    """Texts with a seed stay the same from release to release, and from one kind of device to another."""
    keys = torch.tensor([noise_key(0, 0), noise_key(-(2**63), 3), noise_key(2**63 - 1, 10**6)], dtype=torch.int32)
    noise = exponential(keys, torch.tensor([0, 1, 50256], dtype=torch.int32))
    torch.testing.assert_close(noise, torch.tensor(NOISE), rtol=1e-5, atol=0)


NOISE = [[0.148099, 0.278547, 1.76088], [0.992849, 0.820715, 1.49392], [0.242698, 0.0606074, 0.267091]]


def test_noise_is_exponential_over_the_whole_vocabulary() -> None:
    keys = torch.tensor([noise_key(seed, 0) for seed in range(20)], dtype=torch.int32)
    noise = exponential(keys, torch.arange(50257, dtype=torch.int32))
    assert noise.min() > 0
    cells = torch.bincount(((1 - (-noise.double()).exp()) * 1000).long().clamp(max=999).flatten(), minlength=1000)
    _fits(cells, torch.full((1000,), 1e-3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "sampling", [GREEDY, Sampling(temperature=0, logprobs=1), Sampling(top_k=1)], ids=["plain", "logprobs", "top_k"]
)
def test_best_token_is_the_lowest_of_equals(dtype: torch.dtype, sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randint(0, 4, (6, 5003), generator=generator).to(dtype)
    expected = [int((row == row.max()).nonzero()[0]) for row in logits]
    assert _tokens(logits, *[_request(sampling)] * 6) == expected


@pytest.mark.parametrize("filters", [{"top_k": 5}, {"top_p": 0.01}, {"top_k": 128}])
def test_equals_at_the_edge_of_a_filter_are_all_kept(filters: dict[str, Any]) -> None:
    row = torch.full((600,), -5.0)
    row[100:400] = 1.0
    counts = _histogram(row, Sampling(**filters), 3000)
    expected = torch.zeros(600, dtype=torch.float64)
    expected[100:400] = 1 / 300
    _fits(counts, expected)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40])
def test_very_cold_is_the_best_token(temperature: float) -> None:
    logits = _logits(4, 500)
    assert _tokens(logits, *[_request(Sampling(temperature=temperature))] * 4) == logits.argmax(-1).tolist()


def _only(values: Mapping[int, float], vocabulary: int = 10) -> torch.Tensor:
    row = torch.full((1, vocabulary), -50.0)
    for token, value in values.items():
        row[0, token] = value
    return row


def _logprobs(row: torch.Tensor, **options: Any) -> list[float]:
    """Of all ten tokens, after bias and penalties."""
    (sampled,) = sample(row, _step(_request(Sampling(temperature=0, logprobs=10, **options))))
    return [value for _, value in sorted(sampled.top)]


def test_repetition_penalty_is_for_prompt_and_output_and_by_sign() -> None:
    row = _logits(1, 10, seed=7)
    steps = RepetitionPenaltyLogitsProcessor(1.7)
    expected = steps(torch.tensor([HISTORY]), row.clone()).log_softmax(-1)[0]
    assert _logprobs(row, repetition_penalty=1.7) == pytest.approx(expected.tolist(), abs=1e-5)


def test_presence_and_frequency_penalties_count_the_output_alone() -> None:
    row = _logits(1, 10, seed=8)
    changed = row.clone()
    changed[0, 3] -= 0.5 + 0.25  # Once in the output, and once in the prompt.
    changed[0, 8] -= 0.5 + 3 * 0.25
    expected = changed.log_softmax(-1)[0].tolist()
    assert _logprobs(row, presence_penalty=0.5, frequency_penalty=0.25) == pytest.approx(expected, abs=1e-5)


def test_bias_is_added_before_penalties() -> None:
    row = _logits(1, 10, seed=9)
    changed = row.clone()
    changed[0, 3] += 4
    changed[0, 9] -= 100
    changed = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([HISTORY]), changed)
    expected = changed.log_softmax(-1)[0].tolist()
    assert _logprobs(row, logit_bias={3: 4.0, 9: -100.0}, repetition_penalty=1.5) == pytest.approx(expected, abs=1e-5)


def test_penalties_and_bans_are_of_one_row_only_and_logits_stay_as_they_are() -> None:
    row = _only({3: 5.0, 8: 4.9, 6: 4.8})
    logits, before = row.expand(5, -1).contiguous(), row.expand(5, -1).clone()
    strong = {"temperature": 0, "repetition_penalty": 1.2}
    requests = [
        _request(),
        _request(Sampling(**strong)),
        _request(Sampling(temperature=0, frequency_penalty=0.1)),
        _request(Sampling(temperature=0, logit_bias={8: 2.0})),
        _request(banned=[3, 8, 70]),
    ]
    assert _tokens(logits, *requests) == [3, 6, 3, 8, 6]
    assert torch.equal(logits, before)
    assert _tokens(logits, *requests[:1] * 5) == [3] * 5


def test_banned_tokens_are_never_drawn() -> None:
    row = _logits(1, 30, seed=10)[0]
    banned = row.topk(3).indices.tolist()
    masked = row.clone()
    masked[banned] = -math.inf
    _fits(_histogram(row, Sampling(), 4000, banned=banned), masked.double().softmax(-1))


BROKEN = [math.nan, math.inf]


@pytest.mark.parametrize("value", BROKEN)
@pytest.mark.parametrize("name", ["greedy", "plain", "top_k", "top_p", "all"])
def test_row_that_is_no_numbers_is_broken_and_the_others_are_not(value: float, name: str) -> None:
    sampling = SAMPLINGS.get(name, GREEDY)
    logits = _logits(4, 300)
    logits[1, 17] = value
    logits[2] = -math.inf
    sampled = sample(logits, _step(*[_request(sampling)] * 4))
    assert sampled[1] == sampled[2] == SampledToken(broken=True)
    alone = [sample(logits[row : row + 1], _step(_request(sampling)))[0] for row in (0, 3)]
    assert [sampled[0], sampled[3]] == alone
    assert sampled[0].token is not None


def test_ban_does_not_hide_that_a_logit_was_no_number() -> None:
    logits = _logits(3, 20)
    logits[0, 5], logits[1, 5] = math.nan, math.inf
    sampled = sample(logits, _step(*[_request(banned=[5])] * 3))
    assert [one.broken for one in sampled] == [True, True, False]


def test_row_of_which_every_token_is_banned_is_broken() -> None:
    assert sample(_logits(1, 20), _step(_request(banned=range(20)))) == [SampledToken(broken=True)]


def test_tokens_that_are_impossible_are_neither_drawn_nor_among_the_best() -> None:
    row = torch.full((1, 3000), -math.inf)
    row[0, [7, 2999]] = torch.tensor([1.0, 1.5])
    for sampling in (Sampling(logprobs=5), Sampling(top_k=50, logprobs=5), Sampling(top_p=0.99, logprobs=5)):
        sampled = [sample(row, _step(_request(sampling, seed)))[0] for seed in range(30)]
        assert {one.token for one in sampled} == {7, 2999}
        assert {tuple(token for token, _ in one.top) for one in sampled} == {(2999, 7)}


def test_logprobs_are_natural_before_temperature_and_best_first() -> None:
    logits = _logits(3, 200)
    exact = logits.double().log_softmax(-1)
    requests = [_request(Sampling(temperature=2.0, top_k=40, logprobs=logprobs), seed=4) for logprobs in (0, 3, None)]
    first, second, third = sample(logits, _step(*requests))
    assert first.token is not None
    assert second.token is not None
    assert first.logprob == pytest.approx(float(exact[0, first.token]), abs=1e-5)
    assert first.top == ()
    assert second.logprob == pytest.approx(float(exact[1, second.token]), abs=1e-5)
    assert [token for token, _ in second.top] == exact[1].topk(3).indices.tolist()
    assert [value for _, value in second.top] == pytest.approx(exact[1].topk(3).values.tolist(), abs=1e-5)
    assert (third.logprob, third.top) == (None, ())


def test_targets_are_scored_by_the_logits_as_they_are_and_the_last_row_may_serve_twice() -> None:
    """One text requests from a row of its own, one from the row of its last target, one is scored, one neither."""
    logits = _logits(2 + 1 + 3 + 70, 150, seed=12)
    exact = logits.double().log_softmax(-1)
    penalised = Sampling(temperature=0, repetition_penalty=5.0, logit_bias={9: 50.0})
    long = [token % 150 for token in range(7, 77)]
    step = Step(
        [
            Rows(0, 0, [1, 2, 3, 4], _request(), targets=[10, 11], top=2),
            Rows(1, 4, [1, 2, 3], _request(penalised), targets=[5, 6, 7]),
            Rows(2, 0, [4, 4], None),
            Rows(3, 0, [1] * 71, None, targets=long, top=1),
        ]
    )
    own, twice, none, scored = sample(logits, step)
    assert own.token == int(logits[2].argmax())
    assert twice.token == 9
    assert none == SampledToken()
    assert scored.token is None
    for sampled, first, targets, top in ((own, 0, [10, 11], 2), (twice, 3, [5, 6, 7], 0), (scored, 6, long, 1)):
        assert [target.token for target in sampled.targets] == targets
        for row, target in enumerate(sampled.targets, first):
            assert target.logprob == pytest.approx(float(exact[row, target.token]), abs=1e-5)
            assert [token for token, _ in target.top] == exact[row].topk(top).indices.tolist()


def test_target_row_that_is_no_numbers_breaks_its_text_only() -> None:
    logits = _logits(4, 50)
    logits[1, 3] = math.nan
    step = Step([Rows(0, 0, [1, 2, 3], _request(), targets=[5, 6]), Rows(1, 0, [1], _request())])
    broken, fine = sample(logits, step)
    assert broken == SampledToken(broken=True)
    assert fine.token == int(logits[3].argmax())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["plain", "all"])
def test_other_types_draw_like_float32_of_the_same_numbers(dtype: torch.dtype, name: str) -> None:
    logits = _logits(8, 300).to(dtype)
    requests = [_request(SAMPLINGS[name], seed) for seed in range(8)]
    assert _tokens(logits, *requests) == _tokens(logits.float(), *requests)


def test_nothing_wanted_gives_nothing() -> None:
    assert sample(torch.empty(0, 50), Step([Rows(0, 0, [1, 2])])) == [SampledToken()]
    assert sample(torch.empty(0, 50), Step([])) == []


def test_other_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 2 rows"):
        sample(_logits(3, 50), _step(_request(), _request()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_gpu_draws_the_tokens_of_the_cpu() -> None:
    logits, requests = _mixed(3000)
    assert _tokens(logits.cuda(), *requests) == _tokens(logits, *requests)
