"""The heads of encoders, which turn what the network returns for some rows into answers: embeddings, scores of classes,
the class of each token.

Everything is computed in float32, and row by row: no answer depends on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tfs_lite.adapters.encoders.sentence import Recipe
from tfs_lite.protocols.dtypes import Array

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LEAST = 1e-9


def _mean(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask.unsqueeze(-1)
    return (vectors * weights).sum(1) / weights.sum(1).clamp(min=LEAST)


def _max(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return vectors.masked_fill(mask.unsqueeze(-1) == 0, -torch.inf).amax(1)


def _cls(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return vectors[:, 0]


def _last(vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    ends = mask.shape[1] - 1 - mask.flip(1).argmax(1)
    return vectors[torch.arange(len(vectors), device=vectors.device), ends]


POOLINGS: dict[str, Pool] = {"mean": _mean, "cls": _cls, "lasttoken": _last, "max": _max}


def embed(vectors: torch.Tensor, mask: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Embeds rows: [rows, dimensions] from [rows, length, width]. ``mask``: [rows, length], 0 where a token does not
    count."""
    found = POOLINGS[recipe.pooling](vectors.float(), mask.float())
    found = torch.nn.functional.normalize(found, dim=-1) if recipe.normalize else found
    return found[:, : recipe.dimensions]


class ClassHead:
    """Scores and names of classes. The function that makes scores of logits is that of transformers' pipelines:
    softmax; sigmoid where classes do not exclude one another or there is only one; none for a regression."""

    def __init__(self, config: Any) -> None:
        labels = [str(config.id2label[index]) for index in range(config.num_labels)]
        self.labels = labels
        self.names = np.empty(len(labels), object)
        self.names[:] = [label.encode() for label in labels]
        self.is_regression = config.problem_type == "regression"
        self._several = config.problem_type == "multi_label_classification" or len(labels) == 1

    def scores(self, logits: Array) -> Array:
        """The scores of logits [..., classes], float32."""
        if self.is_regression:
            return logits
        tensor = torch.from_numpy(logits)
        return (tensor.sigmoid() if self._several else tensor.softmax(-1)).numpy()

    def answer(self, logits: Array) -> dict[str, object]:
        """The outputs of all signatures for logits [rows, classes]."""
        scores = self.scores(logits)
        found: dict[str, object] = {"scores": scores, "logits": logits}
        if self.is_regression:
            return found | {"outputs": logits[:, 0]}
        best = scores.argmax(-1)
        return found | {"labels": self.names[best], "classes": np.tile(self.names, (len(scores), 1))}

    def of_tokens(self, logits: Sequence[Array], width: int) -> dict[str, object]:
        """``logits``: of each row, [tokens, classes]. Rows are filled up to ``width`` with empty labels and scores of
        0."""
        labels = np.full((len(logits), width), b"", object)
        scores = np.zeros((len(logits), width), np.float32)
        full = np.zeros((len(logits), width, len(self.labels)), np.float32)
        for row, found in enumerate(logits):
            if len(found):
                each = self.scores(found)
                best = each.argmax(-1)
                labels[row, : len(found)] = self.names[best]
                scores[row, : len(found)] = each.max(-1)
                full[row, : len(found)] = found
        return {"labels": labels, "scores": scores, "logits": full}
