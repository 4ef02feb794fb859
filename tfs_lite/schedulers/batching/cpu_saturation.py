"""Whether there is time to spare: how busy the server, its processor and one model are.

    ran (after every run) ... -> saturated, for the next moments

Three things can be short. The server's process does most of its work under one lock, so it has about one core's worth
of time. The cores that it may use are shared with the processes of models. And the threads of the model itself may be
in runs all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tfs_lite.core.model import Model
from tfs_lite.core.threads import usable_cpus

SATURATED = 0.8
"""The share of its time from which on something that is busy counts as saturated."""
WINDOW = 0.05
"""Seconds over which shares are measured."""


class CpuSaturation:
    """Measures how busy the server, its processor and one servable are. The servable locks; times are in seconds.
    ``server_time`` and ``models_time`` return the processor time that the server's process and those of its models have
    had; ``threads`` is how many run the model, ``cores`` how many there are for all."""

    __slots__ = (
        "_cores",
        "_models",
        "_models_time",
        "_ran",
        "_server",
        "_server_time",
        "_since",
        "_threads",
        "saturated",
    )

    def __init__(
        self,
        threads: int,
        cores: int,
        server_time: Callable[[], float] = time.process_time,
        models_time: Callable[[], float] = float,
    ) -> None:
        self._threads = threads
        self._cores = cores
        self._server_time = server_time
        self._models_time = models_time
        self._server = server_time()
        self._models = models_time()
        self._since = 0.0
        self._ran = 0.0
        self.saturated = False

    def ran(self, now: float, seconds: float) -> None:
        """A run has ended after ``seconds``."""
        self._ran += seconds
        passed = now - self._since
        if passed < WINDOW:
            return
        server, models = self._server_time(), self._models_time()
        used, used_by_models = server - self._server, models - self._models
        busy = max(used, self._ran / self._threads, (used + used_by_models) / self._cores)
        self.saturated = busy >= SATURATED * passed
        self._server, self._models, self._since, self._ran = server, models, now, 0.0


def saturation_of(models: Iterable[Model], threads: int) -> CpuSaturation:
    """Measures the real processor. ``threads`` is how many run the models."""
    models = tuple(models)
    return CpuSaturation(threads, usable_cpus(), models_time=lambda: sum(map(_time_of, models)))


def _time_of(model: Model) -> float:
    """The processor time of the model's own process, as far as the system tells. The count of a process that was
    started again begins at zero, which looks like an idle moment."""
    pid = model.worker.pid
    if pid is None:
        return 0.0
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
