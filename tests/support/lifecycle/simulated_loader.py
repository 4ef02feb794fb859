"""The loaders of a simulation, and the machine they load on.

A :class:`SimulatedLoader` does what the recipe of its version says, tells a :class:`LoadObserver` about every call, and
remembers its failures in a row, so that a version in error can be asked for the reason. :class:`Need` is an independent
account of memory: it repeats in a few lines what the resource tracker has to get right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tests.support.lifecycle.simulated_models import Flaw, ModelStore, Recipe
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, ResourceAllocation
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode
from tfs_lite.testing.lifecycle.loader import FakeLoader

TOTAL_RAM = 8
TOTAL_GPU = (4, 2)
MAX_RETRIES = 2
"""Of a load, and of an estimate."""

TOTAL = ResourceAllocation(
    {Resource(MAIN, RAM, 0): TOTAL_RAM} | {Resource(GPU, RAM, i): size for i, size in enumerate(TOTAL_GPU)}
)


class InjectedError(Exception):
    """Raised on purpose by an unload."""


@dataclass(frozen=True, slots=True)
class Need:
    """Memory of one version. ``place`` None means that the GPU is not chosen yet."""

    ram: int = 0
    gpu: int = 0
    place: int | None = None

    def allocation(self) -> ResourceAllocation:
        return ResourceAllocation({Resource(MAIN, RAM, 0): self.ram, Resource(GPU, RAM, self.place): self.gpu})


def free_gpus(held: Iterable[Need]) -> list[int]:
    """What is left on each GPU, going by those that have chosen."""
    free = list(TOTAL_GPU)
    for need in held:
        if need.place is not None:
            free[need.place] -= need.gpu
    return free


def is_within_total(held: Sequence[Need]) -> bool:
    """Whether there is a way to place all of them."""
    if sum(need.ram for need in held) > TOTAL_RAM or min(free_gpus(held)) < 0:
        return False
    undecided = next((i for i, need in enumerate(held) if need.place is None and need.gpu), None)
    if undecided is None:
        return True
    places = [replace(held[undecided], place=place) for place in range(len(TOTAL_GPU))]
    return any(is_within_total([*held[:undecided], placed, *held[undecided + 1 :]]) for placed in places)


def has_room(held: Sequence[Need], wanted: Need) -> bool:
    """Whether one more fits, wherever those that have not chosen will go."""
    roaming = sum(need.gpu for need in held if need.place is None)
    ram_fits = not wanted.ram or sum(need.ram for need in held) + wanted.ram <= TOTAL_RAM
    return ram_fits and (not wanted.gpu or max(free_gpus(held)) - roaming >= wanted.gpu)


class LoadObserver(Protocol):
    """Is told about every call of a loader, in the middle of it."""

    def on_estimate(self, loader: SimulatedLoader) -> None: ...

    def on_load_begin(self, loader: SimulatedLoader) -> int:
        """Answers on which GPU there is most room."""

    def on_too_many_attempts(self, loader: SimulatedLoader) -> None: ...

    def on_load_end(self, loader: SimulatedLoader) -> None: ...

    def on_unload(self, loader: SimulatedLoader) -> None: ...

    def forgives(self, name: str) -> bool:
        """Whether faults that pass (not flaws) are off for this stream now."""

    def has_room(self, name: str) -> bool:
        """Whether the cluster has room for the replicas of this stream."""


class SimulatedLoader(FakeLoader):
    """``item`` is what it was made from; ``failed`` are the failures in a row of its present step."""

    def __init__(
        self, item: ServableData[StoragePath], recipe: Recipe, store: ModelStore, observer: LoadObserver
    ) -> None:
        super().__init__(
            failures=recipe.load_failures,
            estimate_failures=recipe.estimate_failures,
            while_loading=self._read,
            while_unloading=self._tidy_up,
        )
        self.item = item
        self.failed: list[Status] = []
        self.is_remote = recipe.remote
        self.waits: Status | None = None
        """What its last attempt has waited for."""
        self.need = Need(recipe.ram, recipe.gpu, place=None if recipe.gpu else 0)
        self._shrinks, self._flaw = recipe.shrinks, recipe.flaw
        self._store, self._observer = store, observer
        self._may_fail = True

    def explains(self, status: Status) -> bool:
        """Whether this is how its version must have ended: no attempt was left."""
        gave_up = len(self.failed) > MAX_RETRIES or (bool(self.failed) and not is_retryable(self.failed[-1]))
        return gave_up and status.code is self.failed[-1].code

    def estimate_resources(self) -> ResourceAllocation:
        self._observer.on_estimate(self)
        if self.servable is not None:
            if self._flaw is Flaw.FORGETFUL:
                raise _flawed()
            return self.need.allocation()
        self._forgive()
        if self._flaw is Flaw.ALIEN:
            self.failed.append(Status(StatusCode.INVALID_ARGUMENT, "to be said by the manager"))
            return ResourceAllocation({Resource("tpu", RAM, 0): 1})
        try:
            if self._flaw is Flaw.UNESTIMABLE:
                raise _flawed()
            super().estimate_resources()
        except ServingError as error:
            self.failed.append(error.status)
            raise
        self.failed.clear()
        return self.need.allocation()

    def load(self, servable_id: ServableId) -> None:
        place = self._observer.on_load_begin(self)
        self._forgive()
        try:
            super().load(servable_id)
        except ServingError as error:
            if error.status.waits:
                self.waits = error.status
            else:
                self.failed.append(error.status)
            raise
        self.failed.clear()
        if self._flaw is not Flaw.FORGETFUL:
            ram = self.need.ram // 2 if self._shrinks else self.need.ram
            self.need = Need(ram, self.need.gpu, place)
        self._observer.on_load_end(self)

    def unload(self) -> None:
        self._observer.on_unload(self)
        super().unload()

    def _forgive(self) -> None:
        if len(self.failed) > MAX_RETRIES:
            self._observer.on_too_many_attempts(self)
            self._flaw, self._may_fail = Flaw.NONE, False  # or a manager that retries at once would do so for ever
        if not self._may_fail or self._observer.forgives(self.item.id.name):
            self.failures = self.estimate_failures = 0

    def _read(self) -> None:
        self.waits = None
        if self.is_remote and not self._observer.has_room(self.item.id.name):
            raise ServingError(StatusCode.UNAVAILABLE, "waits for 1 of 1 replicas", Reason.WAITS_FOR_PLACE)
        if not self._may_fail:
            return
        flaw = self._store.read(self.item.payload).flaw
        if flaw is Flaw.CORRUPT:
            raise _flawed()
        if flaw is Flaw.DAMAGED:
            raise ServingError(StatusCode.DATA_LOSS, "damaged")

    def _tidy_up(self) -> None:
        if self._flaw is Flaw.MESSY:
            raise InjectedError("the unload made a mess")


def _flawed() -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, "flawed")


def is_retryable(status: Status) -> bool:
    return status.code is not StatusCode.DATA_LOSS
