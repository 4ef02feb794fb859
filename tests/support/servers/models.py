"""Small models whose answers say which version gave them, for tests that watch versions come and go.

A *tagged* model answers ``{"y": x + version, "version": version for every row}``. Exporting takes about a second,
so :class:`TaggedArchives` exports once and writes any number of versions from that, a few milliseconds each.
Python models are written as text, with a config that gives them the signature ``x -> y`` on rows of three floats.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 3
"""Numbers in a row of ``x`` and ``y``."""

PYTHON_CONFIG = """
platform: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ -1, 3 ] }
"""


class Tagged(nn.Module):
    """Adds the first of its weights, which is the version, to every number."""

    weights: Tensor

    def __init__(self, version: int, size: int = 1) -> None:
        super().__init__()
        weights = torch.zeros(size)
        weights[0] = version
        self.register_buffer("weights", weights)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        version = self.weights[0]
        return {"y": x + version, "version": version.expand(x.shape[0]).clone()}


class TaggedArchives:
    """Writes ``model.pt2`` archives of :class:`Tagged`. ``megabytes`` is the size of the weights. One thread."""

    def __init__(self, megabytes: float = 0) -> None:
        size = max(1, int(megabytes * 1_000_000 / 4))
        self._program = torch.export.export(
            Tagged(0, size).eval(), (torch.zeros(2, WIDTH),), dynamic_shapes={"x": {0: torch.export.Dim.DYNAMIC}}
        )
        self._weights = self._program.state_dict["weights"]

    def write(self, version: int, path: Path) -> Path:
        """Writes the archive of one version to ``path`` and returns it."""
        weights = self._weights.clone()
        weights[0] = version
        self._program.state_dict["weights"] = weights
        torch.export.save(self._program, path)
        return path

    def write_version(self, version: int, base: Path) -> Path:
        """Writes ``base/<version>/model.pt2`` and returns the version's directory."""
        directory = base / str(version)
        directory.mkdir(parents=True)
        self.write(version, directory / "model.pt2")
        return directory


def write_python_version(base: Path, version: int, source: str) -> Path:
    """Writes ``base/<version>/`` with ``model.py`` and the config of ``x -> y``; returns the directory."""
    directory = base / str(version)
    directory.mkdir(parents=True)
    (directory / "model.py").write_text(source)
    (directory / "config.pbtxt").write_text(PYTHON_CONFIG)
    return directory


def gated_source(version: int, gate: Path, timeout: float = 120.0) -> str:
    """A ``model.py`` whose requests wait for a file.

    Each request leaves an ``entered-<version>`` file in the directory ``gate`` and goes on when ``open`` is there,
    at the latest after ``timeout`` seconds, with an error.
    """
    return f"""
import pathlib
import time

GATE = pathlib.Path({str(gate)!r})


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        (GATE / "entered-{version}").touch()
        latest = time.monotonic() + {timeout!r}
        while not (GATE / "open").exists():
            if time.monotonic() > latest:
                raise TimeoutError("the gate stayed closed")
            time.sleep(0.005)
        return {{"y": inputs["x"] + {version}}}
"""


def waiting_source(version: int, gate: Path, timeout: float = 120.0) -> str:
    """A ``model.py`` whose loading leaves a file ``loading-<version>`` in ``gate`` and waits there for ``open``."""
    return f"""
import pathlib
import time

GATE = pathlib.Path({str(gate)!r})
(GATE / "loading-{version}").touch()
latest = time.monotonic() + {timeout!r}
while not (GATE / "open").exists():
    if time.monotonic() > latest:
        raise TimeoutError("the gate stayed closed")
    time.sleep(0.005)


class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {{"y": inputs["x"] + {version}}}
"""
