"""What changes logits before a token is chosen: bias, penalties for tokens that were there, tokens that are banned.

Only the few logits that change are touched. What the rows want is gathered on the host into one list of positions per
kind, so that the device does a handful of operations however many rows there are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from tfs_lite.adapters.language.engine_stream import upload_array
from tfs_lite.core.generation import SamplingRequest

Ids = npt.NDArray[np.int64]


def adjust(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> None:
    """Changes ``logits``, float32 ``[len(draws), vocabulary]``, contiguous, in place.

    In this order: ``logit_bias`` is added; the repetition penalty divides what is above 0 and multiplies the rest, for
    tokens of prompt and output; frequency and presence penalties are subtracted, for tokens of the output alone; banned
    tokens become minus infinity. A logit that was no number does not become one. Ids beyond the vocabulary are skipped.
    """
    if any(draw.sampling.logit_bias for draw in draws):
        _add_bias(logits, draws)
    if any(draw.sampling.repetition_penalty != 1 for draw in draws):
        _repetition(logits, draws)
    if any(draw.sampling.frequency_penalty or draw.sampling.presence_penalty for draw in draws):
        _frequency(logits, draws)
    if any(draw.banned for draw in draws):
        _ban(logits, draws)


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


def _add_bias(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, draw in enumerate(draws):
        bias = draw.sampling.logit_bias
        edits.add(row, _ids(bias.keys()), list(bias.values()))
    positions, numbers = edits.tensors()
    flat = logits.view(-1)
    flat[positions] += numbers


def _repetition(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> None:
    """An id that is there more than once is written more than once, with the same number."""
    edits = _Edits(logits)
    for row, draw in enumerate(draws):
        if draw.sampling.repetition_penalty != 1:
            edits.add(row, _ids(draw.history), draw.sampling.repetition_penalty)
    positions, factors = edits.tensors()
    flat = logits.view(-1)
    old = flat[positions]
    flat[positions] = torch.where(old > 0, old / factors, old * factors)


def _frequency(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.frequency_penalty or sampling.presence_penalty:
            ids, counts = np.unique(_ids(draw.history[draw.prompt_length :]), return_counts=True)
            edits.add(row, ids, counts * sampling.frequency_penalty + sampling.presence_penalty)
    positions, numbers = edits.tensors()
    flat = logits.view(-1)
    flat[positions] -= numbers


def _ban(logits: torch.Tensor, draws: Sequence[SamplingRequest]) -> None:
    edits = _Edits(logits)
    for row, draw in enumerate(draws):
        edits.add(row, _ids(draw.banned), 0.0)
    positions, _ = edits.tensors()
    flat = logits.view(-1)
    flat[positions] = torch.where(flat[positions] < math.inf, -math.inf, math.nan)


def _ids(ids: Collection[int]) -> Ids:
    return np.fromiter(ids, np.int64, len(ids))
