"""Servables around models for tests that care about neither batches nor clocks."""

from __future__ import annotations

from collections.abc import Sequence

from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.clock import SystemClock
from tfs_lite.core.model import Model
from tfs_lite.core.servable import ServableId
from tfs_lite.schedulers.batching.batcher import BatchingServable
from tfs_lite.schedulers.batching.settings import ALONE, BatchSettings


class OwnClockServable(BatchingServable):
    """A BatchingServable in real time, which ends its clock when it is closed."""

    def __init__(
        self, models: Sequence[Model], servable_id: ServableId, settings: BatchSettings = ALONE, **rest: object
    ) -> None:
        self.clock = SystemClock()
        super().__init__(models, servable_id, settings, clock=self.clock, **rest)  # type: ignore[arg-type]

    def close(self) -> None:
        super().close()
        self.clock.close()


def run_alone(models: Sequence[Model], request: OpenRequest) -> BatchingServable:
    """A servable factory for adapters: every request runs alone."""
    return OwnClockServable(models, request.id)
