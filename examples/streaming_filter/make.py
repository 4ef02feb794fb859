"""Exports a low-pass filter and publishes it as the next version of the model ``lowpass``.

    python examples/streaming_filter/make.py models [--cutoff_hz 20]

The filter is a Butterworth filter of the fourth order, an IIR filter: what it gives depends on everything that came
before. All of that is in four numbers, so a signal can be sent in pieces, and the four numbers kept in between.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import signal
from torch import Tensor, nn
from torch.export import Dim

import tfs_lite

MODEL = "lowpass"
CONFIG = Path(__file__).resolve().parent / "repository" / MODEL / "config.pbtxt"
ORDER = 4
RATE_HZ = 1000.0
MAX_SAMPLES = 256
"""Of one piece."""
_ROWS = MAX_SAMPLES + 1
"""Of the tables: one more than is used, or the exporter takes the largest piece for a special case."""
Numbers = NDArray[np.float64]


def design(cutoff_hz: float) -> tuple[Numbers, Numbers]:
    """Numerator and denominator, as ``scipy.signal.lfilter`` takes them."""
    numerator, denominator = signal.butter(ORDER, cutoff_hz, fs=RATE_HZ)
    return numerator, denominator


def whole(samples: NDArray[np.float32], cutoff_hz: float) -> Numbers:
    """What scipy makes of a whole signal, if it had always been what its first sample is."""
    numerator, denominator = design(cutoff_hz)
    rest = signal.lfilter_zi(numerator, denominator)
    found: Numbers = signal.lfilter(numerator, denominator, samples.astype(float), zi=rest * float(samples[0]))[0]
    return found


class LowPass(nn.Module):
    """The filter as products of matrices, so that a piece of any length is one step for torch, and so is a batch.

    From one sample x to the next, the memory z becomes ``A z + B x`` and the result is ``z[0] + b[0] x``. Written out
    for many samples that is: ``response``, of each result to each sample; ``fading``, of each result to the memory;
    ``powers`` of A; and ``keeping``, of the memory afterwards to each sample.
    """

    response: Tensor
    fading: Tensor
    powers: Tensor
    keeping: Tensor
    rest: Tensor
    cutoff: Tensor

    def __init__(self, cutoff_hz: float) -> None:
        super().__init__()
        b, a = design(cutoff_hz)
        step = np.eye(ORDER, k=1)
        step[:, 0] -= a[1:]
        powers = [np.eye(ORDER)]
        for _ in range(_ROWS):
            powers.append(step @ powers[-1])
        fed = np.stack(powers[:-1]) @ (b[1:] - a[1:] * b[0])  # a sample's trace in the memory, as time goes by
        impulse = np.concatenate([b[:1], fed[:-1, 0]])
        lag = np.arange(_ROWS)[None, :] - np.arange(_ROWS)[:, None]
        self._keep("response", np.where(lag >= 0, impulse[lag.clip(0)], 0.0))
        self._keep("fading", np.stack(powers[:-1])[:, 0].T)
        self._keep("powers", np.stack(powers).transpose(0, 2, 1))
        self._keep("keeping", fed[::-1])
        self._keep("rest", signal.lfilter_zi(b, a))
        self.register_buffer("cutoff", torch.tensor([cutoff_hz]))

    def _keep(self, name: str, numbers: Numbers) -> None:
        self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(numbers)))

    def forward(self, samples: Tensor, start: Tensor, memory: Tensor) -> dict[str, Tensor]:
        """``samples`` (batch, n) float32, ``start`` (batch, 1) float32: 1 for the first piece of a signal, ``memory``
        (batch, 4) float64."""
        count, x = samples.shape[1], samples.double()
        memory = torch.where(start > 0.5, self.rest * x[:, :1], memory)
        filtered = x @ self.response[:count, :count] + memory @ self.fading[:, :count]
        return {
            "filtered": filtered.float(),
            "cutoff_hz": self.cutoff.expand(samples.shape[0], 1).clone(),
            "memory_after": memory @ self.powers[count] + x @ self.keeping[_ROWS - count :],
        }


def make(repository: Path, cutoff_hz: float) -> Path:
    """The path of the new version."""
    (repository / MODEL).mkdir(parents=True, exist_ok=True)
    config = repository / MODEL / CONFIG.name
    if not config.exists():
        shutil.copyfile(CONFIG, config)
    batch, count = Dim("batch", max=4), Dim("count", max=MAX_SAMPLES)
    return tfs_lite.save(
        LowPass(cutoff_hz).eval(),
        repository / MODEL,
        example_inputs={
            "samples": torch.zeros(2, 8),
            "start": torch.zeros(2, 1),
            "memory": torch.zeros(2, ORDER, dtype=torch.float64),
        },
        dynamic_shapes={"samples": {0: batch, 1: count}, "start": {0: batch}, "memory": {0: batch}},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository", type=Path)
    parser.add_argument("--cutoff_hz", type=float, default=20.0, help="what is faster than that is filtered out")
    arguments = parser.parse_args()
    print(f"{make(arguments.repository, arguments.cutoff_hz)}: low-pass of {arguments.cutoff_hz:g} Hz")


if __name__ == "__main__":
    main()
