"""The models of ``gpu.py`` and ``gpu_first.py``, made on the spot with random weights, in float32 or bfloat16.

    for job in jobs(quick): job.write(folder)        # exported, as a server loads them; each appears at once
    base = written(folder, "mlp-fp32", seconds=30)   # waits until it is there

Each takes one tensor ``x``, rows first, and returns a float32 tensor ``y``, in whatever precision it computes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}
MOST_ROWS = 1024
TOKENS = 128
SMALL_TENSORS = 60


@dataclass(frozen=True, slots=True)
class Case:
    """A model to measure. ``item`` is the shape of one row; with a ``vocabulary`` it holds token ids below that,
    otherwise float32."""

    name: str
    build: Callable[[], nn.Module]
    item: tuple[int, ...]
    vocabulary: int = 0

    def rows(self, count: int) -> NDArray[np.float32] | NDArray[np.int64]:
        draw = np.random.default_rng(0)
        if self.vocabulary:
            return draw.integers(0, self.vocabulary, (count, *self.item), np.int64)
        return draw.standard_normal((count, *self.item)).astype(np.float32)

    def module(self, dtype: str) -> nn.Module:
        torch.manual_seed(0)
        return _Named(self.build(), DTYPES[dtype]).eval()


class _Named(nn.Module):
    """``x`` in, float32 ``y`` out, computed in ``dtype``."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network.to(dtype)
        self._dtype = dtype

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.network(x.to(self._dtype) if x.is_floating_point() else x).float()}


def mlp() -> nn.Module:
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def convnet() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 32), (32, 64), (64, 128), (128, 128)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class _Resnet(nn.Module):
    def __init__(self, depths: list[int], sizes: list[int]) -> None:
        from transformers import ResNetConfig, ResNetForImageClassification

        super().__init__()
        self.model = ResNetForImageClassification(ResNetConfig(layer_type="basic", depths=depths, hidden_sizes=sizes))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.model(x).logits
        return logits


class _Bert(nn.Module):
    """Pooled answers for token ids. Nothing is padded, and there is no mask: making one would ask the device for its
    values, which no capture allows."""

    def __init__(self, layers: int, hidden: int) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        sizes: dict[str, Any] = {"num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": 4 * hidden}
        settings: dict[str, Any] = {"num_attention_heads": hidden // 64, "attn_implementation": "sdpa"}
        self.model = BertModel(BertConfig(**sizes, **settings))

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.model(input_ids=x).pooler_output
        return pooled


def cases(quick: bool = False) -> list[Case]:
    """MLP, convnet, resnet18 and a BERT of the base size; ``quick``: the same kinds, tiny."""
    side, tokens = (32, 8) if quick else (224, TOKENS)
    return [
        Case("mlp", mlp, (256,)),
        Case("convnet", convnet, (3, side, side)),
        Case(
            "resnet18",
            lambda: _Resnet([1], [32]) if quick else _Resnet([2, 2, 2, 2], [64, 128, 256, 512]),
            (3, side, side),
        ),
        Case("bert", lambda: _Bert(1, 64) if quick else _Bert(12, 768), (tokens,), vocabulary=1000),
    ]


def case(name: str, quick: bool = False) -> Case:
    return next(found for found in cases(quick) if found.name == name)


def wide(nbytes: int) -> nn.Module:
    """About so many bytes in square matrices, all zeros: they are read like any others, and made in no time."""
    width = 8192 if nbytes >= 1 << 30 else 256
    with torch.device("meta"):
        layers = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(max(1, nbytes // (4 * width**2)))))
    found = layers.to_empty(device="cpu")
    with torch.no_grad():
        for weight in found.parameters():
            weight.zero_()
    return nn.Sequential(_Widen(width), found)


class _Widen(nn.Module):
    """Rows of 16 to rows of ``width``, so that inputs stay small."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, (0, self._width - 16))


def small_tensors() -> nn.Module:
    """60 small tensors, as many as a segment of torch's allocator has room for, and more."""
    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(SMALL_TENSORS // 2)))


@dataclass(frozen=True, slots=True)
class Job:
    """One exported model to write: as the only version, 1, of a base path of its own, ``folder/name``."""

    name: str
    case: Case
    dtype: str = "fp32"
    config: str = ""
    """The text of ``config.pbtxt``, if any."""
    versions: tuple[int, ...] = (1,)
    aside: tuple[int, ...] = field(default=())
    """Versions that lie in ``folder/name.aside`` until somebody moves them in."""

    def write(self, folder: Path) -> None:
        base, staging = folder / self.name, folder / f".{self.name}"
        staging.mkdir(parents=True)
        if self.config:
            (staging / "config.pbtxt").write_text(self.config)
        program = _exported(self.case, self.dtype)
        for version in self.aside:
            (folder / f"{self.name}.aside" / str(version)).mkdir(parents=True)
            torch.export.save(program, folder / f"{self.name}.aside" / str(version) / "model.pt2")
        for version in self.versions:
            (staging / str(version)).mkdir()
            torch.export.save(program, staging / str(version) / "model.pt2")
        staging.rename(base)


def _exported(case: Case, dtype: str) -> torch.export.ExportedProgram:
    module = case.module(dtype)
    rows = ({0: torch.export.Dim("rows", max=MOST_ROWS)},)
    program = torch.export.export(module, (torch.from_numpy(case.rows(2)),), dynamic_shapes=rows)
    program.example_inputs = None
    return program


WIDE_BYTES, SWAPPED_BYTES, HUGE_BYTES = 1 << 30, 2 << 30, 10 << 30
QUICK_BYTES = 4 << 20
GRAPHS = 'parameters { key: "cuda_graphs" value { string_value: "true" } }\n'


def jobs(quick: bool) -> list[Job]:
    """In the order in which the rows of the report ask for them."""
    found = {name: case(name, quick) for name in ("mlp", "convnet", "resnet18", "bert")}
    batches = f"max_batch_size: 256\ndynamic_batching {{ }}\n{GRAPHS}"

    def matrices(name: str, nbytes: int) -> Case:
        return Case(name, lambda: wide(QUICK_BYTES if quick else nbytes), (16,))

    return [
        Job("mlp-fp32", found["mlp"]),
        Job("convnet-fp32", found["convnet"]),
        Job("mlp-fp32-graphs", found["mlp"], config=batches),
        Job("bert-bf16-graphs", found["bert"], "bf16", config=batches),
        Job("resnet18-bf16-graphs", found["resnet18"], "bf16", config=batches),
        Job("small", Case("small", small_tensors, (16,))),
        Job("wide", matrices("wide", WIDE_BYTES)),
        Job("swapped", matrices("swapped", SWAPPED_BYTES), aside=(2, 3)),
        Job("huge", matrices("huge", HUGE_BYTES)),
    ]


def written(folder: Path, name: str, seconds: float) -> Path:
    """The base path of a model that another process writes. TimeoutError if it is not there in time."""
    ends = time.monotonic() + seconds
    for attempt in itertools.count():
        if (folder / name).exists():
            return folder / name
        if time.monotonic() > ends:
            raise TimeoutError(f"{name} was not written within {seconds:g} s")
        time.sleep(min(0.05, 0.001 * 2**attempt))
    raise AssertionError("not reached")


def tensor_bytes(module: nn.Module) -> int:
    return sum(math.prod(tensor.shape) * tensor.element_size() for tensor in module.state_dict().values())


def names(quick: bool) -> Iterator[str]:
    return (job.name for job in jobs(quick))
