"""The way from the logits of a step to its tokens, the end of every step of a language model.

    logits [wanted, vocabulary] -> bias, penalties, bans -> best token, or a random one -> token, log probabilities

The tokens are chosen on the device and come to the host in one copy; log probabilities take one more, and so do rows
whose filters keep more tokens than were looked at first. If all rows want the best token as it is, which is the common
case, there is one reduction over the matrix and nothing else. Bias, penalties and bans touch only the logits that they
change: positions are gathered on the host, one list for each kind, so the number of operations on the device does not
depend on the number of rows.

The result of a row depends on its logits and its :class:`~tfs_lite.core.generation.SamplingRequest` only, not on the
other rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from tfs_lite.adapters.language.engine_stream import upload, upload_array
from tfs_lite.adapters.language.exponential_sampling import first_count, next_count, sample_exponential
from tfs_lite.core.generation import MAX_LOGPROBS, Rows, SampledToken, Sampling, SamplingRequest, Step, TokenLogprob

Ids = npt.NDArray[np.int64]
_BEST = -1
"""The number of candidates that means the best token, without noise."""
_SCORED_AT_ONCE = 64
"""Rows whose targets are scored together, which bounds the float32 copy of a long prompt's logits."""


@dataclass(slots=True)
class _Choice:
    """The choice of one row's token; ``token`` is None if the logits are not finite."""

    token: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Span:
    """The rows of the matrix that belong to one of ``step.rows``: those with targets from ``first`` on, and the one to
    sample from."""

    rows: Rows
    first: int
    draw_row: int | None


def sample(logits: torch.Tensor, step: Step) -> list[SampledToken]:
    """Returns one result for each of ``step.rows``.

    ``logits``: any float type, any device, ``[wanted, vocabulary]``, not changed. Its rows are those of ``step.rows``
    in order, of each the first ``len(targets)``, then the last one if it requests; that one is not repeated where it
    has a target too. The arithmetic is float32, but for the plain choice of the best one, which takes them as they are.
    Ties go to the lowest id. ValueError for another number of rows. One thread at a time, any; best in inference mode.
    """
    spans, count = _layout(step)
    if logits.shape[:-1] != (count,):
        raise ValueError(f"logits have the shape {list(logits.shape)}, expected {count} rows")
    drawing = [
        (span.draw_row, span.rows.draw) for span in spans if span.draw_row is not None and span.rows.draw is not None
    ]
    choices = iter(_choose(_take(logits, [row for row, _ in drawing]), [request for _, request in drawing]))
    scores = iter(_score(logits, spans))
    return [_sampled_token(span, choices, scores) for span in spans]


def _layout(step: Step) -> tuple[list[_Span], int]:
    """The spans, and how many rows they have in all."""
    spans, row = [], 0
    for rows in step.rows:
        if not len(rows.targets) <= len(rows.tokens):
            raise ValueError(f"{len(rows.tokens)} rows cannot have {len(rows.targets)} targets")
        end = row + len(rows.targets)
        if rows.draw is not None and len(rows.targets) < len(rows.tokens):
            end += 1
        spans.append(_Span(rows, row, None if rows.draw is None else end - 1))
        row = end
    return spans, row


def _sampled_token(span: _Span, choices: Iterator[_Choice], scores: Iterator[TokenLogprob | None]) -> SampledToken:
    choice = _Choice(None) if span.draw_row is None else next(choices)
    targets = [next(scores) for _ in span.rows.targets]
    scored = tuple(target for target in targets if target is not None)
    if len(scored) < len(targets) or (span.draw_row is not None and choice.token is None):
        return SampledToken(broken=True)
    return SampledToken(choice.token, choice.logprob, choice.top, scored)


def _take(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Takes these rows, which ascend; the matrix itself if they are all of it."""
    if len(rows) == len(logits):
        return logits
    return logits[upload(rows, torch.int64, logits.device)]


def _choose(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> list[_Choice]:
    if not requests:
        return []
    if all(request.sampling.plain and not request.banned for request in requests):
        return [_choice(peak, token) for peak, token in zip(*_best(logits), strict=True)]
    work = logits.to(torch.float32)
    if any(request.sampling.changes_logits or request.banned for request in requests):
        work = work.clone() if work is logits else work
        adjust(work, requests)
    choices = _sample_all(work, requests)
    _add_logprobs(work, requests, choices)
    return choices


def _best(logits: torch.Tensor) -> tuple[list[float], list[float]]:
    """The highest logit of each row and its lowest id, in one copy."""
    if logits.dtype.itemsize < 4 and not logits.is_cuda:
        logits = logits.float()  # Of half types the CPU finds the highest more slowly than it converts them.
    peaks, tokens = logits.max(-1)
    first, second = torch.stack((peaks.double(), tokens.double())).tolist()
    return first, second


def _choice(peak: float, token: float) -> _Choice:
    return _Choice(int(token) if math.isfinite(peak) else None)


def _sample_all(work: torch.Tensor, requests: Sequence[SamplingRequest]) -> list[_Choice]:
    """Samples a token for every row. Rows with the same number of candidates go together, and rows whose result is not
    final go again with more."""
    vocabulary = work.shape[1]
    peaks = work.amax(-1)
    choices = [_Choice(None) for _ in requests]
    candidate_counts: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        candidate_counts.setdefault(_first_count(request.sampling, vocabulary), []).append(row)
    while candidate_counts:
        order = [(count, row) for count, rows in candidate_counts.items() for row in rows]
        tables = [_table(work, peaks, requests, count, rows) for count, rows in candidate_counts.items()]
        candidate_counts = {}
        for (count, row), (peak, token, final) in zip(order, torch.cat(tables).tolist(), strict=True):
            if final or not math.isfinite(peak):
                choices[row] = _choice(peak, token)
            else:
                candidate_counts.setdefault(next_count(count, vocabulary), []).append(row)
    return choices


def _first_count(sampling: Sampling, vocabulary: int) -> int:
    return _BEST if sampling.temperature == 0 or sampling.top_k == 1 else first_count(sampling, vocabulary)


def _table(
    work: torch.Tensor, peaks: torch.Tensor, requests: Sequence[SamplingRequest], count: int, rows: Sequence[int]
) -> torch.Tensor:
    """Returns float64 ``[len(rows), 3]``: the highest logit, the token, and whether it is final."""
    logits, highest = _take(work, rows), _take(peaks, rows)
    if count == _BEST:
        tokens, final = logits.argmax(-1), torch.ones_like(highest, dtype=torch.bool)
    else:
        tokens, final = sample_exponential(logits, highest, [requests[row] for row in rows], count)
    return torch.stack((highest.double(), tokens.double(), final.double()), -1)


def _add_logprobs(work: torch.Tensor, requests: Sequence[SamplingRequest], choices: Sequence[_Choice]) -> None:
    """Adds log probabilities of the tokens that were chosen, and of the best ones, for the rows that want them."""
    rows = [row for row, request in enumerate(requests) if request.sampling.logprobs is not None]
    rows = [row for row in rows if choices[row].token is not None]
    if not rows:
        return
    tops = [requests[row].sampling.logprobs or 0 for row in rows]
    scores = _logprobs(_take(work, rows), [choices[row].token or 0 for row in rows], tops)
    for row, score in zip(rows, scores, strict=True):
        if score is not None:
            choices[row].logprob, choices[row].top = score.logprob, score.top


def _score(logits: torch.Tensor, spans: Sequence[_Span]) -> list[TokenLogprob | None]:
    """The scores of all targets in order; None where the logits are not finite."""
    wanted = [
        (span.first + number, target, span.rows.top)
        for span in spans
        for number, target in enumerate(span.rows.targets)
    ]
    scores: list[TokenLogprob | None] = []
    for start in range(0, len(wanted), _SCORED_AT_ONCE):
        rows, targets, tops = zip(*wanted[start : start + _SCORED_AT_ONCE], strict=True)
        scores += _logprobs(_take(logits, rows).to(torch.float32), targets, tops)
    return scores


def _logprobs(logits: torch.Tensor, tokens: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob | None]:
    """The log probability of one token for each row of float32 logits, with the ``tops`` best tokens of the row."""
    sums = logits.logsumexp(-1, keepdim=True)
    asked = upload(tokens, torch.int64, logits.device)[:, None]
    columns = [sums, logits.gather(1, asked) - sums]
    best = min(MAX_LOGPROBS, logits.shape[1]) if any(tops) else 0
    if best:
        values, ids = logits.topk(best, -1)
        columns += [values - sums, ids]
    table = torch.cat([column.double() for column in columns], -1).tolist()
    return [_logprob(line, token, best, top) for line, token, top in zip(table, tokens, tops, strict=True)]


def _logprob(line: Sequence[float], token: int, best: int, top: int) -> TokenLogprob | None:
    """``line``: the logarithm of the sum, the token's log probability, those of the best ones, their ids. Tokens that
    are impossible are not among the best ones."""
    if not math.isfinite(line[0]):
        return None
    pairs = [(int(number), value) for value, number in zip(line[2 : 2 + best], line[2 + best :], strict=True)]
    possible = [pair for pair in pairs if pair[1] > -math.inf]
    return TokenLogprob(token, line[1], tuple(sorted(possible, key=lambda pair: (-pair[1], pair[0]))[:top]))


def adjust(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> None:
    """Changes ``logits``, float32 ``[len(requests), vocabulary]``, contiguous, in place.

    In this order: ``logit_bias`` is added; the repetition penalty divides what is above 0 and multiplies the rest, for
    tokens of prompt and output; frequency and presence penalties are subtracted, for tokens of the output alone; banned
    tokens become minus infinity. A logit that was no number does not become one. Ids beyond the vocabulary are skipped.
    """
    if any(request.sampling.logit_bias for request in requests):
        _add_bias(logits, requests)
    if any(request.sampling.repetition_penalty != 1 for request in requests):
        _repetition(logits, requests)
    if any(request.sampling.frequency_penalty or request.sampling.presence_penalty for request in requests):
        _frequency(logits, requests)
    if any(request.banned for request in requests):
        _ban(logits, requests)


class _Edits:
    """Positions in the flat matrix, with a number for each."""

    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits
        self._positions: list[Ids] = []
        self._numbers: list[npt.NDArray[np.float32]] = []

    def add(self, row: int, ids: Ids, numbers: npt.ArrayLike) -> None:
        inside = ids < self._logits.shape[1]
        self._positions.append(ids[inside] + row * self._logits.shape[1])
        self._numbers.append(np.broadcast_to(np.asarray(numbers, np.float32), ids.shape)[inside])

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Positions int64 and numbers float32, on the device of the logits."""
        device = self._logits.device
        positions = upload_array(np.concatenate(self._positions), device)
        return positions, upload_array(np.concatenate(self._numbers), device)


def _add_bias(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, request in enumerate(requests):
        bias = request.sampling.logit_bias
        edits.add(row, _ids(bias.keys()), list(bias.values()))
    positions, numbers = edits.tensors()
    flat = logits.view(-1)
    flat[positions] += numbers


def _repetition(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> None:
    """An id that is there more than once is written more than once, with the same number."""
    edits = _Edits(logits)
    for row, request in enumerate(requests):
        if request.sampling.repetition_penalty != 1:
            edits.add(row, _ids(request.history), request.sampling.repetition_penalty)
    positions, factors = edits.tensors()
    flat = logits.view(-1)
    old = flat[positions]
    flat[positions] = torch.where(old > 0, old / factors, old * factors)


def _frequency(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, request in enumerate(requests):
        sampling = request.sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            ids, counts = np.unique(_ids(request.history[request.prompt_length :]), return_counts=True)
            edits.add(row, ids, counts * sampling.frequency_penalty + sampling.presence_penalty)
    positions, numbers = edits.tensors()
    flat = logits.view(-1)
    flat[positions] -= numbers


def _ban(logits: torch.Tensor, requests: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, request in enumerate(requests):
        edits.add(row, _ids(request.banned), 0.0)
    positions, _ = edits.tensors()
    flat = logits.view(-1)
    flat[positions] = torch.where(flat[positions] < math.inf, -math.inf, math.nan)


def _ids(ids: Collection[int]) -> Ids:
    return np.fromiter(ids, np.int64, len(ids))
