"""Random sampling of a token among those that top-k, top-p and min-p keep, by exponential noise (the Gumbel trick).

A token of probability ``p`` gets exponential noise ``e`` of mean 1, and the highest ``p / e`` wins, which happens with
probability ``p`` exactly, at any scale of ``p``. Top-k, top-p and min-p each keep the tokens from some logit on, so
together they are one lower bound. It is searched among the best 128 tokens of a row, then 1024, then 8192, and only
then in the whole row, which has to be sorted. A row without top-k and top-p needs no order. How many tokens are looked
at depends on the row alone, and the result does not depend on it.

The noise is a function of the seed, the number of the token in its text, and the token's id. There is no generator with
state, so a text gets the same noise alone, with other texts, in another slot, and after a preemption. Seed and number
become a 64-bit key on the host; key and id are hashed on the device with 32-bit integer arithmetic, which wraps around
alike everywhere, so CPU and GPU get the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from tfs_lite.adapters.language.engine_stream import upload
from tfs_lite.core.generation import Sampling, SamplingRequest

ALL_TOKENS = 0
"""The number of candidates that means all tokens, in no order."""
_COUNTS = (128, 1024, 8192)
_NUMBERS_AT_ONCE = 1 << 16
"""Numbers that are made at once for whole rows on the CPU: the hash has many steps, whose numbers should stay in the
processor's cache."""
_COLDEST = 1e-30
"""The lowest temperature: lower ones are taken as this one, at which the best token has all the probability."""


def first_count(sampling: Sampling, vocabulary: int) -> int:
    """How many of a row's best tokens to look at first."""
    if sampling.top_p >= 1 and (sampling.top_k == 0 or sampling.top_k >= vocabulary):
        return ALL_TOKENS
    # One more than top-k, to see whether the last token is one of several equals.
    return next((count for count in _COUNTS if sampling.top_k < count <= vocabulary), vocabulary)


def next_count(count: int, vocabulary: int) -> int:
    """How many to look at when ``count`` were too few."""
    return next((more for more in _COUNTS if count < more <= vocabulary), vocabulary)


def sample_exponential(
    logits: torch.Tensor, peaks: torch.Tensor, requests: Sequence[SamplingRequest], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sampled tokens, int64 ``[rows]``, and whether they are final, bool ``[rows]``: not where the filters may keep
    tokens beyond the best ``count``.

    ``logits``: float32 ``[rows, vocabulary]``, which is not changed; ``peaks``: the highest of each row, ``[rows]``.
    Temperatures are above 0. Of equals at the edge of top-k or top-p all are kept. Rows whose peak is not finite give
    any token."""
    at_once = len(requests)
    if count not in _COUNTS and not logits.is_cuda:
        at_once = max(_NUMBERS_AT_ONCE // logits.shape[1], 1)
    parts = [
        _sample_rows(
            logits[start : start + at_once], peaks[start : start + at_once], requests[start : start + at_once], count
        )
        for start in range(0, len(requests), at_once)
    ]
    return torch.cat([winners for winners, _ in parts]), torch.cat([final for _, final in parts])


def _sample_rows(
    logits: torch.Tensor, peaks: torch.Tensor, requests: Sequence[SamplingRequest], count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    keys = upload([noise_key(request.seed, request.index) for request in requests], torch.int32, logits.device)
    temperatures = _column(logits, [max(request.sampling.temperature, _COLDEST) for request in requests])
    scaled = (logits - peaks[:, None]).div_(temperatures)
    if count == ALL_TOKENS:
        ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
        scores = _weights(scaled, _least(scaled, requests)).div_(exponential(keys, ids))
        return scores.argmax(-1), torch.ones_like(peaks, dtype=torch.bool)
    whole = count == logits.shape[1]
    values, tokens = scaled.sort(-1, descending=True) if whole else scaled.topk(count, -1)
    low, final = _bound(values, scaled, requests)
    scores = _weights(values, low).div_(exponential(keys, tokens.to(torch.int32)))
    winners = tokens.gather(1, scores.argmax(-1, keepdim=True))
    return winners[:, 0], final[:, 0] | whole


def _weights(values: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    """Probabilities, up to a factor, of the tokens that are kept; 0 for the rest."""
    return torch.where(values < low, 0.0, values.exp())


def _least(scaled: torch.Tensor, requests: Sequence[SamplingRequest]) -> torch.Tensor:
    """The lowest value that min-p keeps, ``[rows, 1]``; the best value is 0."""
    return _column(
        scaled, [math.log(request.sampling.min_p) if request.sampling.min_p else -math.inf for request in requests]
    )


def _bound(
    values: torch.Tensor, scaled: torch.Tensor, requests: Sequence[SamplingRequest]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest value that all filters keep, and whether it is known; both ``[rows, 1]``. ``values``: the best of
    ``scaled``, highest first. At the last of them there may be more equals, and a share may not have been reached."""
    last = values[:, -1:]
    edge = _top_k_edge(values, requests)
    low = torch.maximum(_least(scaled, requests), edge)
    if any(request.sampling.top_p < 1 for request in requests):
        low = torch.maximum(low, _top_p_edge(values, scaled, edge, requests))
    return low, ((low > last) & (edge != last)) | (last == -math.inf)


def _top_k_edge(values: torch.Tensor, requests: Sequence[SamplingRequest]) -> torch.Tensor:
    if not any(request.sampling.top_k for request in requests):
        return torch.full_like(values[:, :1], -math.inf)
    tops = upload([[request.sampling.top_k] for request in requests], torch.int64, values.device)
    edge = values.gather(1, (tops - 1).clamp(0, values.shape[1] - 1))
    return edge.masked_fill(tops == 0, -math.inf)


def _top_p_edge(
    values: torch.Tensor, scaled: torch.Tensor, edge: torch.Tensor, requests: Sequence[SamplingRequest]
) -> torch.Tensor:
    """The smallest set of the best whose share of what top-k leaves is ``top_p``; sums are in float64, because the
    order in which a sum is done may depend on the number of rows."""
    weights = _weights(values, edge)
    kept = weights.sum(-1, keepdim=True, dtype=torch.float64)
    if not all(request.sampling.top_k for request in requests):
        whole = scaled.exp().sum(-1, keepdim=True, dtype=torch.float64)
        kept = torch.where(edge == -math.inf, whole, kept)
    shares = _column(values, [request.sampling.top_p for request in requests], torch.float64)
    better = weights.cumsum(-1, dtype=torch.float64) - weights
    lowest = values.masked_fill(better >= shares * kept, math.inf).amin(-1, keepdim=True)
    return lowest.masked_fill(shares >= 1, -math.inf)


def _column(like: torch.Tensor, numbers: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return upload(numbers, dtype, like.device)[:, None]


_MASK = 2**64 - 1
_ODD = 0x9E3779B97F4A7C15


def noise_key(seed: int, index: int) -> tuple[int, int]:
    """Two signed 32-bit numbers for the ``index``-th request of a text with this seed (any integer; those that are
    equal modulo 2**64 are one)."""
    key = _mix64((_mix64(seed & _MASK) + (index + 1) * _ODD) & _MASK)
    return _signed(key & 0xFFFFFFFF), _signed(key >> 32)


def exponential(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Independent requests of the exponential distribution with mean 1.

    ``keys``: int32 ``[rows, 2]``; ``ids``: int32 ``[rows, n]`` or ``[n]``, for all rows. Float32 ``[rows, n]``, above 0
    and at most 16.7; a row's number for an id depends on its key and on the id alone.
    """
    bits = _hash(keys[:, :1], keys[:, 1:], ids)
    bits &= 0x7FFFFFFF
    uniform = bits.to(torch.float32)
    uniform += 0.5
    uniform *= 2.0**-31
    # Near 0 these floats are fine, and it is the small numbers that win; near 1 they would round to 1.
    return uniform.clamp_(max=1 - 2.0**-24).neg_().log1p_().neg_()


def _hash(low: torch.Tensor, high: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """A finaliser of three multiplications, each of which is a bijection of 32 bits; the second half of the key comes
    in after the first, so that no two keys give shifted copies of one sequence."""
    bits = ids * _signed(_ODD >> 32) + low
    _fold(bits, 17).mul_(_signed(0xED5AD4BB)).bitwise_xor_(high)
    _fold(bits, 11).mul_(_signed(0xAC4C1B51))
    _fold(bits, 15).mul_(_signed(0x31848BAB))
    return _fold(bits, 14)


def _fold(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """Xors the bits with themselves shifted right, zeros coming in; in place."""
    shifted = bits >> shift
    shifted &= (1 << (32 - shift)) - 1
    return bits.bitwise_xor_(shifted)


def _mix64(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value
