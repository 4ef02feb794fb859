"""A small real model on real data: scikit-learn's bundled handwritten digits (1797 pictures of 8 by 8 pixels).

``train_quickly`` makes a poor classifier and ``train_well`` a good one, each in seconds and always the same.
``make_model`` leaves the good one under ``DIR/digits/1``, for ``make serve``; it does nothing when one is there:

    python -m tfs_lite.cli.demo.model DIR
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tfs_lite.cli.output import WRONG_USAGE, CliError

NAME = "digits"
TRAINING_PICTURES = 1297
_SEED = 7


class DigitClassifier(torch.nn.Module):
    """Pictures (batch, 8, 8) with grey values 0 to 16 -> the most likely digit, and a probability for each of ten."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(64, 64)
        self.output = torch.nn.Linear(64, 10)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.hidden(images.flatten(1) / 16.0)
        logits: torch.Tensor = self.output(torch.relu(hidden))
        return logits

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.logits(images)
        return {"digit": logits.argmax(dim=1), "probabilities": logits.softmax(dim=1)}


@dataclass(frozen=True, slots=True)
class Digits:
    """Pictures (N, 8, 8) float32 and what they show (N,) int64."""

    images: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int64]

    def first(self, count: int) -> Digits:
        return Digits(self.images[:count], self.labels[:count])


def load_digits() -> tuple[Digits, Digits]:
    """The pictures to train with and the ones to test with, in a fixed random order."""
    try:
        from sklearn.datasets import load_digits as bundled
    except ImportError:
        raise CliError("the digits come with scikit-learn; install it with: pip install 'tfs-lite[demo]'") from None
    data: Any = bundled()
    order = np.random.default_rng(_SEED).permutation(len(data.target))
    images, labels = data.images.astype(np.float32)[order], data.target.astype(np.int64)[order]
    training = Digits(images, labels).first(TRAINING_PICTURES)
    return training, Digits(images[TRAINING_PICTURES:], labels[TRAINING_PICTURES:])


def train_quickly(training: Digits) -> DigitClassifier:
    """A classifier that has seen 100 pictures ten times: right about two times in three."""
    return _train(training.first(100), steps=10)


def train_well(training: Digits) -> DigitClassifier:
    """A classifier that has seen every picture 200 times: right more than nine times in ten."""
    return _train(training, steps=200)


def make_model(directory: Path) -> Path:
    """The path of version 1 of the good classifier below ``directory``; trains and saves it when it is missing."""
    version = directory / NAME / "1"
    if version.exists():
        return version
    return save_version(train_well(load_digits()[0]), directory / NAME, 1)


def save_version(model: DigitClassifier, base: Path, version: int) -> Path:
    """Publishes one classifier as ``base/version``."""
    from tfs_lite.adapters.saving.save import save

    return Path(save(model, base, example_inputs=(torch.zeros(2, 8, 8),), version=version))


def _train(digits: Digits, steps: int) -> DigitClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = DigitClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model.logits(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def main(argv: Sequence[str]) -> int:
    """``python -m tfs_lite.cli.demo.model DIR``; prints the path of the version."""
    if len(argv) != 1 or argv[0].startswith("-"):
        print("usage: python -m tfs_lite.cli.demo.model DIR", file=sys.stderr)
        return WRONG_USAGE
    print(make_model(Path(argv[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
