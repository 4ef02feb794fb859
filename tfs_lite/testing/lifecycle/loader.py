"""A loader that does what the test says and watches over its own contract."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tfs_lite.core.loader import Loader
from tfs_lite.core.model import Traits
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, Status, StatusCode

UNAVAILABLE = Status(StatusCode.UNAVAILABLE, "injected failure")


class FakeServable:
    """The servable that a :class:`FakeLoader` loads. ``alive`` turns False when it is unloaded."""

    traits = Traits("fake")

    def __init__(self, servable_id: ServableId) -> None:
        self.id = servable_id
        self.alive = True


class FakeLoader(Loader):
    """A loader that fails on demand. ``failures`` loads fail with ``failure`` before one succeeds (-1: all); the same
    for estimates.

    ``while_loading`` and ``while_unloading`` are called in the middle of each load and unload; what they raise is the
    load's failure. Every violation of the loader contract is raised and also kept in ``violations``, because a manager
    may swallow what a loader raises.
    """

    def __init__(
        self,
        *,
        failures: int = 0,
        failure: Status = UNAVAILABLE,
        estimate: ResourceAllocation = NO_RESOURCES,
        estimate_after_load: ResourceAllocation | None = None,
        estimate_failures: int = 0,
        while_loading: Callable[[], None] | None = None,
        while_unloading: Callable[[], None] | None = None,
    ) -> None:
        self.failures, self.failure = failures, failure
        self.estimate, self.estimate_after_load = estimate, estimate_after_load
        self.estimate_failures = estimate_failures
        self.while_loading, self.while_unloading = while_loading, while_unloading
        self.loads = self.unloads = self.estimates = 0
        self.violations: list[str] = []
        self._busy = threading.Lock()  # held during load and unload, to notice two at a time
        self._servable: FakeServable | None = None

    @property
    def servable(self) -> FakeServable | None:
        return self._servable

    def estimate_resources(self) -> ResourceAllocation:
        self.estimates += 1
        if self.estimate_failures:
            self.estimate_failures -= 1
            raise ServingError(self.failure.code, self.failure.message)
        if self._servable is not None and self.estimate_after_load is not None:
            return self.estimate_after_load
        return self.estimate

    def load(self, servable_id: ServableId) -> None:
        with self._alone("load"):
            self._check(self._servable is None, "loaded while loaded")
            self._check(not self.unloads, "loaded after unload")
            self.loads += 1
            if self.while_loading is not None:
                self.while_loading()
            if self.failures:
                self.failures -= 1
                raise ServingError(self.failure.code, self.failure.message)
            self._servable = FakeServable(servable_id)

    def unload(self) -> None:
        with self._alone("unload"):
            self._check(self._servable is not None, "unloaded without being loaded")
            self.unloads += 1
            servable, self._servable = self._servable, None
            if servable is not None:
                servable.alive = False
            if self.while_unloading is not None:
                self.while_unloading()

    @contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        alone = self._busy.acquire(blocking=False)
        self._check(alone, f"{what} while another load or unload runs")
        try:
            yield
        finally:
            self._busy.release()

    def _check(self, holds: bool, violation: str) -> None:
        if not holds:
            self.violations.append(violation)
            raise AssertionError(f"the loader contract is broken: {violation}")
