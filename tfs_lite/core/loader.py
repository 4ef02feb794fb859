"""The contract between a manager and whatever knows how to bring one version into memory.

    estimate_resources*  ->  load (again after a failure)  ->  unload (once, after the last handle)

An adapter makes a loader from a storage path; a manager drives it. The manager never looks inside the servable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import ServingError, StatusCode


class Loader(ABC):
    """Brings one version into memory and out again. Making and dropping a loader is cheap.

    Threads: the manager calls ``load`` and ``unload`` on its executors, never two at a time for one loader;
    ``estimate_resources`` may be called at any time from any thread; ``servable`` is read by request threads.
    """

    @abstractmethod
    def estimate_resources(self) -> ResourceAllocation:
        """An upper bound of what the version takes, that never grows over time and may shrink after loading.

        Before loading, entries may leave the device instance open; once loaded, every entry names its instance.
        Raises ServingError when it cannot tell.
        """

    @abstractmethod
    def load(self, servable_id: ServableId) -> None:
        """Makes ``servable`` usable. After an error the loader holds no memory and may be asked again."""

    @abstractmethod
    def unload(self) -> None:
        """Drops the servable and gives its memory back. Called once, only after a successful load, when no handle
        is left. Cannot fail: what goes wrong is logged. ``load`` is never called afterwards."""

    def resize(self, settings: Any) -> bool:
        """Opens and closes instances of what is loaded, until it is what ``settings`` ask for, which are of the
        adapter's own kind; requests are served all the time. False: that takes another load, and nothing has changed.
        Raises ServingError, also with nothing changed, if an instance cannot be opened.

        One thread at a time, which has a handle, so that nothing is unloaded meanwhile."""
        return False

    @property
    @abstractmethod
    def servable(self) -> Any:
        """The loaded object between a successful ``load`` and ``unload``; None otherwise."""


class SimpleLoader(Loader):
    """A loader around a function that creates the servable; ``unload`` drops the reference.

    ``estimate`` is asked once and remembered; ``estimate_after_load``, if given, replaces it at the end of load.
    """

    def __init__(
        self,
        create: Callable[[ServableId], Any],
        estimate: Callable[[], ResourceAllocation] | None = None,
        estimate_after_load: Callable[[Any], ResourceAllocation] | None = None,
        destroy: Callable[[Any], None] | None = None,
    ) -> None:
        self._create = create
        self._estimate = estimate
        self._estimate_after_load = estimate_after_load
        self._destroy = destroy
        self._known: ResourceAllocation | None = None
        self._servable: Any = None

    def estimate_resources(self) -> ResourceAllocation:
        if self._known is None:
            self._known = self._estimate() if self._estimate else NO_RESOURCES
        return self._known

    def load(self, servable_id: ServableId) -> None:
        servable = self._create(servable_id)
        if servable is None:
            raise ServingError(StatusCode.INTERNAL, f"the creator of {servable_id} returned nothing")
        if self._estimate_after_load is not None:
            try:
                self._known = self._estimate_after_load(servable)
            except Exception:
                self._drop(servable)
                raise
        self._servable = servable

    def unload(self) -> None:
        servable, self._servable = self._servable, None
        self._drop(servable)

    def _drop(self, servable: Any) -> None:
        if self._destroy is not None:
            self._destroy(servable)

    @property
    def servable(self) -> Any:
        return self._servable
