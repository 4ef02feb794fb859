"""A version that classifies images: pixels as the network takes them, or encoded images that are made ready here.

Encoded images are PNG, JPEG, WebP, GIF or BMP, read by Pillow and made ready by the image processor of the version.
Without Pillow or a processor the version takes pixels alone.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tfs_lite.adapters.encoders.heads import ClassHead
from tfs_lite.adapters.encoders.model import BATCH, NAME, class_outputs, class_signatures
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.language.family import load_library
from tfs_lite.adapters.language.hf_files import CONFIG, read_json, refuse_code
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.memory import take_apart, tensor_bytes
from tfs_lite.adapters.opening import OpenRequest, VersionFiles
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import failed_precondition, invalid_argument
from tfs_lite.protocols.dtypes import Array

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROCESSOR = "preprocessor_config.json"
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
MAX_PIXELS = 64 << 20
"""The most pixels of one encoded image."""
SIDE = 224
"""The side of an image that is tried at the load, where the network takes any size."""
ROWS = 32
"""Images of one forward."""


class ImageEncoder(LoadedModel):
    """Inputs: ``pixel_values``, or ``image`` with encoded images."""

    merges_calls = True

    def __init__(self, request: OpenRequest, module: PreTrainedModel, processor: Any, takes_images: bool) -> None:
        """``processor`` None: only pixels are taken. ``takes_images``: the default signature does."""
        self._module = module
        self._processor = processor
        self._head = ClassHead(module.config)
        pixels = Signature((_pixels(module.config, processor),), class_outputs(self._head))
        signatures = {DEFAULT_SIGNATURE: pixels, "pixels": pixels}
        if processor is not None:
            inputs = (TensorSpec("image", DataType.STRING, (BATCH,)),)
            images = Signature(inputs, class_outputs(self._head))
            signatures |= {"images": images, **class_signatures(inputs, self._head)}
            signatures |= {DEFAULT_SIGNATURE: images} if takes_images else {}
        self._check(pixels.inputs[0])
        super().__init__(request.id, NAME, signatures)
        self._resident = tensor_bytes([*module.parameters(), *module.buffers()])

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """The labels of the classes, by output."""
        return {} if self._head.is_regression else {"scores": self._head.labels, "logits": self._head.labels}

    def compute(self, signature: str, inputs: Mapping[str, Array], outputs: tuple[str, ...]) -> Mapping[str, object]:
        pixels = inputs.get("pixel_values")
        encoded = [] if pixels is not None else inputs["image"].tolist()
        count = len(encoded) if pixels is None else len(pixels)
        found = np.empty((count, len(self._head.labels)), np.float32)
        for start in range(0, count, ROWS):
            rows = slice(start, start + ROWS)
            found[rows] = self._forward(self._ready(encoded[rows], start) if pixels is None else pixels[rows])
        return self._head.answer(found)

    def resident_bytes(self) -> int:
        return self._resident

    def close(self) -> None:
        take_apart(self._module)
        del self._module

    def _check(self, spec: TensorSpec) -> None:
        """Raises FAILED_PRECONDITION if the network does not run on one image and on two, or answers something else
        than the classes of the config."""
        assert spec.shape is not None
        sides = [side if isinstance(side, int) else SIDE for side in spec.shape[1:]]
        name, failure = type(self._module).__name__, ""
        for rows in (1, 2):
            try:
                found = self._forward(np.random.default_rng(0).standard_normal((rows, *sides), np.float32))
            except Exception as error:
                failure = f"{name} does not run on {rows} images of {sides}: {sentence(error)}"
                break
            wanted = (rows, len(self._head.labels))
            if found.shape != wanted:
                failure = f"{name} answers {list(found.shape)} numbers, and {CONFIG} has classes for {list(wanted)}"
            elif not np.isfinite(found).all():
                failure = f"what the network computes in {self._module.dtype} is not finite"
        if failure:
            raise failed_precondition(failure)

    @torch.inference_mode()
    def _forward(self, pixels: Array) -> Array:
        tensor = torch.from_numpy(np.array(pixels, np.float32)).to(self._module.device, self._module.dtype)
        array: Array = self._module(pixel_values=tensor).logits.float().cpu().numpy()
        return array

    def _ready(self, encoded: Sequence[bytes], first: int) -> Array:
        images = [_decoded(data, first + index) for index, data in enumerate(encoded)]
        array: Array = self._processor(images=images, return_tensors="np")["pixel_values"]
        return array


def open_processor(files: VersionFiles) -> Any:
    """The image processor of the version; None without its file, or without Pillow. PERMISSION_DENIED for one with
    code, FAILED_PRECONDITION for one that does not work."""
    if PROCESSOR not in files.names:
        return None
    refuse_code(PROCESSOR, read_json(files.directory, PROCESSOR))
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return None
    try:
        processor = load_library().AutoImageProcessor.from_pretrained(
            files.directory, local_files_only=True, trust_remote_code=False
        )
        processor(images=[Image.new("RGB", (8, 8))], return_tensors="np")["pixel_values"]
    except Exception as error:
        reason = sentence(error)
    else:
        return processor
    raise failed_precondition(f"{PROCESSOR} makes no image processor: {reason}")


def _decoded(data: bytes, index: int) -> Any:
    """Decodes an image. INVALID_ARGUMENT, with the index, for what is no image or is too large."""
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
        if image.width * image.height > MAX_PIXELS:
            reason = f"{image.width} x {image.height} pixels, at most {MAX_PIXELS} are taken"
        else:
            return image.convert("RGB")
    except Exception as error:
        reason = f"no image of {', '.join(FORMATS)}: {type(error).__name__}"
    raise invalid_argument(f"image[{index}]: {reason}")


def _pixels(config: Any, processor: Any) -> TensorSpec:
    """The input, with the sizes that the network or else the processor says."""
    size = getattr(config, "image_size", None)
    own = getattr(processor, "crop_size", None) or getattr(processor, "size", None)
    if isinstance(size, int):
        sides: tuple[Dim, Dim] = (size, size)
    elif isinstance(size, list | tuple) and len(size) == 2:
        sides = (int(size[0]), int(size[1]))
    elif own is not None and own.get("height") and own.get("width"):
        sides = (int(own["height"]), int(own["width"]))
    else:
        sides = (SymbolicDim("height"), SymbolicDim("width"))
    return TensorSpec("pixel_values", DataType.FLOAT, (BATCH, getattr(config, "num_channels", 3), *sides))
