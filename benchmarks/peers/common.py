"""What every peer's server file is told, by the environment, and the model that it serves. No import of tfs_lite here:
each peer lives in an environment of its own.

BENCH_MODEL: a version directory; BENCH_NAME, BENCH_SHAPE (of a row: ``3,64,64``), BENCH_PORT, BENCH_ROWS (most rows
of a batch), BENCH_WAIT_MS. Every model answers ``{"y": rows}`` to ``x``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

NAME = os.environ["BENCH_NAME"]
PORT = int(os.environ["BENCH_PORT"])
ROWS = int(os.environ["BENCH_ROWS"])
WAIT = float(os.environ["BENCH_WAIT_MS"]) / 1000
"""Seconds."""
SHAPE = tuple(int(size) for size in os.environ["BENCH_SHAPE"].split(","))
WIDTH = {"mlp": 8, "convnet": 10}[NAME]


def load() -> Callable[[np.ndarray], np.ndarray]:
    """The model as a function of an array with rows first, float32. Uses one thread."""
    torch.set_num_threads(1)
    module: Any = torch.export.load(os.environ["BENCH_MODEL"] + "/model.pt2").module(check_guards=False)

    def run(rows: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            found: np.ndarray = module(torch.from_numpy(rows.reshape(-1, *SHAPE)))["y"].numpy()
            return found

    run(np.zeros((2, *SHAPE), np.float32))
    return run


def other_port() -> int:
    """A free one, for what a server insists on opening besides."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
