"""Whether a model is still the one that knows its sequences.

A process that dies while nothing runs is started again unnoticed, and what the model had kept of its sequences is gone.
Implicit state is kept by the scheduler, and is not lost.
"""

from __future__ import annotations

from tfs_lite.core.model import Model, WorkerLost

LOST = "has lost its worker process, and with it the sequence; start it again with sequence_start"


class WorkerGeneration:
    """Notices restarts of one model's process, for one thread. With ``implicit`` all state is kept by the scheduler,
    and nothing is ever lost."""

    def __init__(self, model: Model, implicit: bool) -> None:
        self._model = model
        self._implicit = implicit
        self._restarts = 0 if implicit else model.worker.restarts

    def check(self, name: str) -> None:
        """Raises WorkerLost if the model's worker has been started again since the last time; to be called before a
        run and after it, because the process may die between."""
        if self._implicit:
            return
        restarts = self._model.worker.restarts
        if restarts != self._restarts:
            self._restarts = restarts
            raise WorkerLost(f"{name} {LOST}")

    def lost(self) -> None:
        """The loss is known; only a later one counts from now on."""
        if not self._implicit:
            self._restarts = self._model.worker.restarts
