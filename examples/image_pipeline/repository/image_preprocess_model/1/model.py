"""Bytes of images -> RGB of one size, from 0 to 1, colours first."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image

MAX_PIXELS = 16_000_000
"""Of an image as it came; more would be memory for whoever asks."""


class Model:
    """``preprocess`` is called for each image, by several threads; ``predict`` for a batch of what it made."""

    def __init__(self, context: Any) -> None:
        _, self._height, self._width = context.config.output[0].dims

    def preprocess(self, item: dict[str, Any]) -> dict[str, torch.Tensor]:
        """ValueError, which the client gets to read, for bytes that are no image."""
        return {"pixels": torch.from_numpy(decoded(bytes(item["RAW_IMAGE"][0]), (self._width, self._height)))}

    def predict(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"PREPROCESSED_OUTPUT": inputs["pixels"].permute(0, 3, 1, 2).float().div(255).contiguous()}


def decoded(encoded: bytes, size: tuple[int, int]) -> np.ndarray:
    """uint8 (height, width, 3). ``size``: (width, height)."""
    try:
        with Image.open(io.BytesIO(encoded), formats=("PNG", "JPEG")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"the image has {image.width} x {image.height} pixels, expected at most {MAX_PIXELS}")
            return np.array(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
    except (OSError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"{len(encoded)} bytes are not a PNG or JPEG image that can be read") from None
