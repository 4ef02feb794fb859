"""The measured sizes of versions, by which the next version of a model is admitted, and not by a rule of thumb.

    load of version 1 -> measured -> MeasuredVersions.learn  ...  MeasuredVersions.bound -> reserved for version 2

Versions are alike if their files differ in size by less than a hundredth and the config says the same of instances and
parameters: then they need the same memory, but for a fiftieth.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from tfs_lite.core.status import invalid_argument

ALIKE = 0.01
MARGIN = 1.02
MAX_MODELS = 10_000
WORKSPACE = "gpu_workspace_bytes"
NOT_RESERVED = ("staging", "workspace")
"""Kinds that come and go with requests: memory of inputs, and what the model's runs need besides its weights."""

Measured = Mapping[str, Mapping[str, int]]
"""Bytes by device (``main``, ``gpu/N``) and kind: ``weights``, ``graphs``, ``staging``, ``workspace``; ``process`` is
all memory that is a process's own."""


@dataclass(frozen=True, slots=True)
class _Version:
    file_bytes: int
    settings: Hashable
    taken: int


class MeasuredVersions:
    """The memory that the latest version of each model took on its device, for the ``most`` models measured last. Any
    thread."""

    def __init__(self, most: int = MAX_MODELS) -> None:
        self._most = most
        self._lock = threading.Lock()  # guards _latest
        self._latest: dict[str, _Version] = {}  # the one measured longest ago comes first

    def learn(self, model: str, file_bytes: int, settings: Hashable, taken: int) -> None:
        """``taken``: the bytes on the device of a version that is loaded. ``settings``: what its config says that its
        size depends on."""
        with self._lock:
            self._latest.pop(model, None)
            self._latest[model] = _Version(file_bytes, settings, taken)
            if len(self._latest) > self._most:
                del self._latest[next(iter(self._latest))]

    def bound(self, model: str, file_bytes: int, settings: Hashable) -> int | None:
        """An upper bound of what a version with such files takes; None if no one like it was measured."""
        with self._lock:
            known = self._latest.get(model)
        if known is None or known.settings != settings or abs(file_bytes - known.file_bytes) > ALIKE * known.file_bytes:
            return None
        return int(known.taken * MARGIN)


def on_device(measured: Measured, device: str) -> int:
    """Bytes that stay on ``main`` or a GPU as long as the version is loaded: the sum of those kinds."""
    return sum(quantity for kind, quantity in measured.get(device, {}).items() if kind not in NOT_RESERVED)


def total(parts: list[Measured]) -> dict[str, dict[str, int]]:
    """The sum of the instances of a version."""
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for device, kinds in part.items():
            into = found.setdefault(device, {})
            for kind, quantity in kinds.items():
                into[kind] = into.get(kind, 0) + quantity
    return found


def workspace_of(parameters: Mapping[str, str]) -> int:
    """Bytes that a config sets aside on a GPU for the runs of the model; INVALID_ARGUMENT if it is no number."""
    return bytes_parameter(parameters, WORKSPACE)


def bytes_parameter(parameters: Mapping[str, str], name: str) -> int:
    """A number of bytes in a config, 0 where it says nothing; INVALID_ARGUMENT if it is none."""
    text = parameters.get(name, "0")
    if not (text.isascii() and text.isdecimal()):
        raise invalid_argument(f'parameters: {name}: expected a number of bytes, got "{text}"')
    return int(text)
