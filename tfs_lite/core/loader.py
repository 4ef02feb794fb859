"""The contract between a manager and the loaders that bring versions into memory.

    estimate_resources*  ->  load (again after a failure)  ->  unload (once, after the last handle)

An adapter makes a loader from a storage path; a manager drives it. The manager never looks inside the servable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from tfs_lite.core.resources import ResourceAllocation
from tfs_lite.core.servable import ServableId


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
