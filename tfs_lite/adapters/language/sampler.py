"""From the logits of a step to its tokens: the end of every step of a language model.

    logits [wanted, vocabulary] -> adjust (bias, penalties, bans) -> best one, or race -> token, log probabilities

The tokens are chosen on the device and come to the host in one copy; log probabilities take one more, and so do rows
whose filters keep more tokens than were looked at first. If all rows want the best token as it is, which is the common
case, there is one reduction over the matrix and nothing else.

What a row gives depends on its logits and on its :class:`~tfs_lite.core.generation.SamplingRequest`, not on the other
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from tfs_lite.adapters.language.engine_stream import upload
from tfs_lite.adapters.language.exponential_sampling import first_count, next_count, race
from tfs_lite.adapters.language.penalties import adjust
from tfs_lite.core.generation import MAX_LOGPROBS, Rows, SampledToken, Sampling, SamplingRequest, Step, TokenLogprob

_BEST = -1
"""Instead of a number of candidates: the best token, no race."""
_SCORED_AT_ONCE = 64
"""Rows whose targets are scored; a bound on the float32 copy of a long prompt's logits."""


@dataclass(slots=True)
class _Choice:
    """``token`` None: the logits were no numbers."""

    token: int | None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class _Span:
    """Where the rows of one of ``step.rows`` are in the matrix: those with targets from ``first`` on, and the one to
    draw from."""

    rows: Rows
    first: int
    drawn: int | None


def draw(logits: torch.Tensor, step: Step) -> list[SampledToken]:
    """One for each of ``step.rows``.

    ``logits``: any float type, any device, ``[wanted, vocabulary]``, not changed. Its rows are those of ``step.rows``
    in order, of each the first ``len(targets)``, then the last one if it draws; that one is not repeated where it has a
    target too. The arithmetic is float32, but for the plain choice of the best one, which takes them as they are. Ties
    go to the lowest id. ValueError for another number of rows. One thread at a time, any; best in inference mode.
    """
    spans, count = _layout(step)
    if logits.shape[:-1] != (count,):
        raise ValueError(f"logits have the shape {list(logits.shape)}, expected {count} rows")
    drawing = [(span.drawn, span.rows.draw) for span in spans if span.drawn is not None and span.rows.draw is not None]
    choices = iter(_choose(_take(logits, [row for row, _ in drawing]), [draw for _, draw in drawing]))
    scores = iter(_score(logits, spans))
    return [_drawn(span, choices, scores) for span in spans]


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


def _drawn(span: _Span, choices: Iterator[_Choice], scores: Iterator[TokenLogprob | None]) -> SampledToken:
    choice = _Choice(None) if span.drawn is None else next(choices)
    targets = [next(scores) for _ in span.rows.targets]
    scored = tuple(target for target in targets if target is not None)
    if len(scored) < len(targets) or (span.drawn is not None and choice.token is None):
        return SampledToken(broken=True)
    return SampledToken(choice.token, choice.logprob, choice.top, scored)


def _take(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """These rows, which ascend; the matrix itself if they are all of it."""
    if len(rows) == len(logits):
        return logits
    return logits[upload(rows, torch.int64, logits.device)]


def _choose(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> list[_Choice]:
    if not draws:
        return []
    if all(draw.sampling.plain and not draw.banned for draw in draws):
        return [_choice(peak, token) for peak, token in zip(*_best(logits), strict=True)]
    work = logits.to(torch.float32)
    if any(draw.sampling.changes_logits or draw.banned for draw in draws):
        work = work.clone() if work is logits else work
        adjust(work, draws)
    choices = _settle(work, draws)
    _add_logprobs(work, draws, choices)
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


def _settle(work: torch.Tensor, draws: Sequence[SamplingRequest]) -> list[_Choice]:
    """A token for every row: rows that go the same way go together, and those that are not settled go again."""
    vocabulary = work.shape[1]
    peaks = work.amax(-1)
    choices = [_Choice(None) for _ in draws]
    ways: dict[int, list[int]] = {}
    for row, draw in enumerate(draws):
        ways.setdefault(_first_way(draw.sampling, vocabulary), []).append(row)
    while ways:
        order = [(way, row) for way, rows in ways.items() for row in rows]
        tables = [_table(work, peaks, draws, way, rows) for way, rows in ways.items()]
        ways = {}
        for (way, row), (peak, token, settled) in zip(order, torch.cat(tables).tolist(), strict=True):
            if settled or not math.isfinite(peak):
                choices[row] = _choice(peak, token)
            else:
                ways.setdefault(next_count(way, vocabulary), []).append(row)
    return choices


def _first_way(sampling: Sampling, vocabulary: int) -> int:
    return _BEST if sampling.temperature == 0 or sampling.top_k == 1 else first_count(sampling, vocabulary)


def _table(
    work: torch.Tensor, peaks: torch.Tensor, draws: Sequence[SamplingRequest], way: int, rows: Sequence[int]
) -> torch.Tensor:
    """Float64 ``[len(rows), 3]``: the highest logit, the token, and whether it is settled."""
    logits, highest = _take(work, rows), _take(peaks, rows)
    if way == _BEST:
        tokens, settled = logits.argmax(-1), torch.ones_like(highest, dtype=torch.bool)
    else:
        tokens, settled = race(logits, highest, [draws[row] for row in rows], way)
    return torch.stack((highest.double(), tokens.double(), settled.double()), -1)


def _add_logprobs(work: torch.Tensor, draws: Sequence[SamplingRequest], choices: Sequence[_Choice]) -> None:
    """Log probabilities of the tokens that were chosen, and of the best ones, for the rows that want them."""
    rows = [row for row, draw in enumerate(draws) if draw.sampling.logprobs is not None]
    rows = [row for row in rows if choices[row].token is not None]
    if not rows:
        return
    tops = [draws[row].sampling.logprobs or 0 for row in rows]
    scores = _logprobs(_take(work, rows), [choices[row].token or 0 for row in rows], tops)
    for row, score in zip(rows, scores, strict=True):
        if score is not None:
            choices[row].logprob, choices[row].top = score.logprob, score.top


def _score(logits: torch.Tensor, spans: Sequence[_Span]) -> list[TokenLogprob | None]:
    """Of all targets in order; None where the logits are no numbers."""
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
    """For each row of float32 logits the log probability of a token, with so many best ones."""
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
