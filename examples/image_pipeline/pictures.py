"""Pictures to learn from, made of real ones: handwritten digits over two photographs, all three from scikit-learn.

Every picture is 32 by 32. Its background is a part of the photograph of a temple on one side of a straight line, and of
a flower on the other; a digit is written over it, at any place, in white or nearly so. So two things are known of it:
the digit, and for each pixel whether it is temple, flower or handwriting.

What is tested with was not trained with: other digits, and another part of the photographs.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits, load_sample_image

SIZE = 32
CLASSES = ("temple", "flower", "handwriting")
TRAINING_DIGITS = 1297
TRAINING_SHARE = 0.7
"""Of the width of the photographs, from the left."""
_WRITTEN = 24
"""Height and width of a digit on a picture."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """``images`` (N, 32, 32, 3) uint8; ``digits`` (N,) int64; ``classes`` (N, 32, 32) int64, indexes of CLASSES."""

    images: NDArray[np.uint8]
    digits: NDArray[np.int64]
    classes: NDArray[np.int64]


class Painter:
    """As many pictures as are asked for, always the same ones for a ``seed``."""

    def __init__(self, seed: int, *, training: bool) -> None:
        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        chosen = order[:TRAINING_DIGITS] if training else order[TRAINING_DIGITS:]
        self._digits = data.target[chosen].astype(np.int64)
        self._ink = np.stack([_enlarged(image) for image in data.images[chosen]])
        self._photographs = [_part(load_sample_image(name), training) for name in ("china.jpg", "flower.jpg")]
        self._random = np.random.default_rng(seed)

    def paint(self, count: int) -> Pictures:
        images, classes = np.empty((count, SIZE, SIZE, 3), np.uint8), np.empty((count, SIZE, SIZE), np.int64)
        numbers = self._random.integers(len(self._digits), size=count)
        for index, number in enumerate(numbers):
            images[index], classes[index] = self._picture(self._ink[number])
        return Pictures(images, self._digits[numbers], classes)

    def _picture(self, ink: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        beyond = self._half_plane()
        temple, flower = (self._crop(photograph) for photograph in self._photographs)
        image = np.where(beyond[..., None], flower, temple).astype(np.float32)
        classes = beyond.astype(np.int64)
        top, left = self._random.integers(SIZE - _WRITTEN + 1, size=2)
        place = (slice(top, top + _WRITTEN), slice(left, left + _WRITTEN))
        grey = self._random.uniform(235, 255)
        image[place] += (grey - image[place]) * ink[..., None]
        classes[place][ink > 0.5] = CLASSES.index("handwriting")
        return image, classes

    def _half_plane(self) -> NDArray[np.bool_]:
        angle, offset = self._random.uniform(0, 2 * np.pi), self._random.uniform(-0.3, 0.3) * SIZE
        down, across = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
        found: NDArray[np.bool_] = np.sin(angle) * down + np.cos(angle) * across > offset
        return found

    def _crop(self, photograph: NDArray[np.uint8]) -> NDArray[np.uint8]:
        top = self._random.integers(photograph.shape[0] - SIZE + 1)
        left = self._random.integers(photograph.shape[1] - SIZE + 1)
        return photograph[top : top + SIZE, left : left + SIZE]


def png(image: NDArray[np.uint8]) -> bytes:
    """The bytes of a file with this picture."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def _enlarged(digit: NDArray[np.float64]) -> NDArray[np.float32]:
    """8 by 8, from 0 to 16 -> what of each pixel the ink covers, from 0 to 1."""
    small = Image.fromarray((digit * (255 / 16)).astype(np.uint8))
    return np.asarray(small.resize((_WRITTEN, _WRITTEN), Image.Resampling.BICUBIC), np.float32) / np.float32(255)


def _part(photograph: NDArray[np.uint8], training: bool) -> NDArray[np.uint8]:
    edge = int(photograph.shape[1] * TRAINING_SHARE)
    return photograph[:, :edge] if training else photograph[:, edge:]
