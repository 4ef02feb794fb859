"""Trains the two networks of the pipeline and makes a model repository of all four models.

    python examples/image_pipeline/make.py models [--steps 1000]

The repository is a copy of the directory ``repository`` beside this file, in Triton's layout, plus what is trained.
Into a repository that is there already, new versions of the two networks are published; a running server takes them.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pictures import CLASSES, SIZE, Painter, Pictures
from torch import Tensor, nn

import tfs_lite

SKELETON = Path(__file__).resolve().parent / "repository"
ENSEMBLE = "ensemble_image_model"
BATCH = 32
_IMAGE = "FORMATTED_IMAGE"
Loss = Callable[[Tensor, Pictures], Tensor]


class Classifier(nn.Module):
    """(batch, 3, 32, 32) -> probabilities (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *_block(3, 16), *_block(16, 32), *_block(32, 64), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 4 * 4, 10)
        )

    def scores(self, image: Tensor) -> Tensor:
        found: Tensor = self.layers(image - 0.5)
        return found

    def forward(self, FORMATTED_IMAGE: Tensor) -> dict[str, Tensor]:
        return {"CLASSIFICATION_OUTPUT": self.scores(FORMATTED_IMAGE).softmax(1)}


class Segmenter(nn.Module):
    """(batch, 3, 32, 32) -> probabilities of three classes for each pixel (batch, 3, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.coarse = nn.Sequential(*_block(8, 16), *_block(16, 16))
        self.joined = nn.Conv2d(8 + 16, len(CLASSES), 3, padding=1)

    def scores(self, image: Tensor) -> Tensor:
        fine = self.fine(image - 0.5)
        coarse = nn.functional.interpolate(self.coarse(fine), scale_factor=4.0, mode="bilinear")
        found: Tensor = self.joined(torch.cat([fine, coarse], 1))
        return found

    def forward(self, FORMATTED_IMAGE: Tensor) -> dict[str, Tensor]:
        return {"SEGMENTATION_OUTPUT": self.scores(FORMATTED_IMAGE).softmax(1)}


def _block(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Half the height and half the width."""
    return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()


def as_input(pictures: Pictures) -> Tensor:
    """What the preprocessing makes of such pictures."""
    return torch.from_numpy(pictures.images).permute(0, 3, 1, 2).float() / 255


def digit_loss(scores: Tensor, pictures: Pictures) -> Tensor:
    return nn.functional.cross_entropy(scores, torch.from_numpy(pictures.digits))


def pixel_loss(scores: Tensor, pictures: Pictures) -> Tensor:
    return nn.functional.cross_entropy(scores, torch.from_numpy(pictures.classes))


def train(steps: int) -> tuple[Classifier, Segmenter]:
    """Both networks, from the same pictures. Always the same for as many steps."""
    torch.set_num_threads(1)  # so little work goes faster without handing it around
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classifier, segmenter = Classifier(), Segmenter()
    painter = Painter(1, training=True)
    learners = [_Learner(classifier, digit_loss, steps), _Learner(segmenter, pixel_loss, steps)]
    for _ in range(steps):
        pictures = painter.paint(BATCH)
        image = as_input(pictures)
        for learner in learners:
            learner.learn(image, pictures)
    return classifier.eval(), segmenter.eval()


class _Learner:
    def __init__(self, network: Classifier | Segmenter, loss: Loss, steps: int) -> None:
        self._network, self._loss = network, loss
        self._optimizer = torch.optim.Adam(network.parameters())
        self._rate = torch.optim.lr_scheduler.OneCycleLR(self._optimizer, max_lr=0.01, total_steps=steps)

    def learn(self, image: Tensor, pictures: Pictures) -> None:
        self._optimizer.zero_grad()
        loss: Any = self._loss(self._network.scores(image), pictures)
        loss.backward()
        self._optimizer.step()
        self._rate.step()


@torch.inference_mode()
def accuracy(classifier: Classifier, segmenter: Segmenter, count: int = 500) -> tuple[float, float]:
    """The share of digits, and of pixels, that are right on pictures made of what was not trained with."""
    pictures = Painter(2, training=False).paint(count)
    digits, pixels = classifier.scores(as_input(pictures)), segmenter.scores(as_input(pictures))
    right = (digits.argmax(1) == torch.from_numpy(pictures.digits)).float().mean()
    return float(right), float((pixels.argmax(1) == torch.from_numpy(pictures.classes)).float().mean())


def make(repository: Path, steps: int) -> tuple[float, float]:
    """Trains and publishes; the ``accuracy``. The ensemble comes last, when its parts are there."""
    classifier, segmenter = train(steps)
    copy_missing(SKELETON, repository, ENSEMBLE)
    for name, network in (("classification_model", classifier), ("segmentation_model", segmenter)):
        tfs_lite.save(network, repository / name, example_inputs={_IMAGE: torch.zeros(2, 3, SIZE, SIZE)})
    (repository / ENSEMBLE / "1").mkdir(parents=True, exist_ok=True)  # an ensemble's version holds nothing
    copy_missing(SKELETON / ENSEMBLE, repository / ENSEMBLE)
    return accuracy(classifier, segmenter)


def copy_missing(source: Path, target: Path, *left_out: str) -> None:
    """Files that are there stay as they are: a server may have read them."""

    def copy(origin: str, copied: str) -> None:
        if not Path(copied).exists():
            shutil.copyfile(origin, copied)

    ignored = shutil.ignore_patterns(*left_out, "__pycache__")
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored, copy_function=copy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    started = time.monotonic()
    digits, pixels = make(arguments.repository, arguments.steps)
    print(f"{arguments.repository}: ready after {time.monotonic() - started:.0f} s")
    print(
        f"on pictures that were not trained with, {digits:.0%} of the digits and {pixels:.0%} of the pixels are right"
    )


if __name__ == "__main__":
    main()
