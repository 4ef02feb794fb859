"""The two models that every server is measured with, and known questions and answers for them.

``mlp``: 32 floats in, 8 out; as a plain module about 24 us for one row and 90 us for 32, one torch thread. ``convnet``:
3x64x64 floats in, 10 out; most of one row's time goes into reading 130 MB of weights, so that 32 rows (about 45 ms)
cost only some five times what one costs. Both are published by ``tfs_lite.save`` below ``.bench/models`` once and kept.

    python benchmarks/models.py          builds both and says how long they run
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
BENCH = Path(__file__).resolve().parent.parent / ".bench"
SIZES = (1, 2, 3, 4, 5, 6, 7)
"""Rows of the known questions; the first ``SINGLE`` of them have one row each."""
SINGLE = 32
SEED = 2024


@dataclass(frozen=True, slots=True)
class Model:
    """``directory`` is the base path, ``version`` the only version in it. ``questions[i]`` has ``rows[i]`` rows and
    should be answered with about ``answers[i]``; the first ``SINGLE`` have one row, the last 7 have 1 to 7."""

    name: str
    directory: Path
    shape: tuple[int, ...]
    width: int
    questions: tuple[Rows, ...]
    answers: tuple[Rows, ...]

    @property
    def version(self) -> Path:
        return self.directory / "1"

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(len(question) for question in self.questions)

    def is_answer(self, index: int, found: Rows) -> bool:
        """Within rounding, which differs between batches."""
        right = self.answers[index]
        return found.size == right.size and np.allclose(found.reshape(right.shape), right, rtol=1e-3, atol=1e-4)


SHAPES = {"mlp": (32,), "convnet": (3, 64, 64)}


def model(name: str, root: Path = BENCH / "models") -> Model:
    """Built on first use."""
    directory, known = root / name, root / f"{name}.npz"
    if not known.exists():
        _build(name, directory, known)
    with np.load(known) as data:
        questions = tuple(data[f"question{index}"] for index in range(SINGLE + len(SIZES)))
        answers = tuple(data[f"answer{index}"] for index in range(SINGLE + len(SIZES)))
    return Model(name, directory, SHAPES[name], answers[0].shape[1], questions, answers)


def _build(name: str, directory: Path, known: Path) -> None:
    import shutil

    import torch
    from networks import NETWORKS

    import tfs_lite

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = NETWORKS[name]().eval()
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    tfs_lite.save(network, directory, example_inputs=(torch.zeros(2, *SHAPES[name]),), version=1)
    draw = np.random.default_rng(SEED)
    questions = [draw.standard_normal((rows, *SHAPES[name])).astype(np.float32) for rows in [1] * SINGLE + [*SIZES]]
    with torch.inference_mode():
        answers = [network(torch.from_numpy(question))["y"].numpy() for question in questions]
    arrays = {f"question{index}": array for index, array in enumerate(questions)}
    arrays |= {f"answer{index}": array for index, array in enumerate(answers)}
    np.savez(known, **arrays)  # type: ignore[arg-type]


def main() -> None:
    import torch
    from limits import loop, torch_loop
    from networks import NETWORKS

    torch.set_num_threads(1)
    for name, shape in SHAPES.items():
        built = model(name)
        plain = NETWORKS[name]().eval()
        for rows in (1, 32):
            exported = torch_loop(str(built.version), rows, 1.0, shape)
            print(f"{name:8} {rows:3} rows: exported {exported * 1e6:9.0f} us, ", end="")
            print(f"module {loop(plain, rows, 1.0, shape) * 1e6:9.0f} us")


if __name__ == "__main__":
    main()
