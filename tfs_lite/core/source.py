"""The interface by which a source tells a manager which versions should be loaded.

    Source  --aspired list-->  SourceRouter  --aspired list-->  SourceAdapter*  --aspired list-->  Target

An *aspired list* is the complete set of versions of one stream that the source wants loaded now. Each list
supersedes every earlier one of that stream; a version that is missing from it is to be unloaded; an empty list
unloads the whole stream. Streams are independent.

    source.set_aspired_versions_callback(target.aspired_versions_callback())

Calls travel down the chain synchronously, on whatever thread the source emits from.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tfs_lite.core.servable import ServableData
from tfs_lite.core.status import Status, status_of

T = TypeVar("T")
U = TypeVar("U")
K = TypeVar("K")
logger = logging.getLogger(__name__)

AspiredVersionsCallback = Callable[[str, Sequence[ServableData[T]]], None]
"""(stream name, aspired list). Every item's id carries that name."""


class Source(Protocol[T]):
    """Emits aspired lists, from any thread, once it has somewhere to send them."""

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[T]) -> None:
        """Starts the source. Called once, before anything is emitted."""


class Target(Protocol[T]):
    """Takes aspired lists."""

    def aspired_versions_callback(self) -> AspiredVersionsCallback[T]:
        """A function that any thread may call at any time, also after the target is gone (then it does nothing)."""


def connect(source: Source[T], target: Target[T]) -> None:
    source.set_aspired_versions_callback(target.aspired_versions_callback())


class TargetBase(ABC, Generic[T]):
    """A target whose incoming calls come one at a time and stop for good with :meth:`detach`.

    Subclasses implement ``set_aspired_versions`` and call ``detach`` first thing when they are closed.
    """

    def __init__(self) -> None:
        self._incoming = threading.Lock()  # serialises incoming calls; guards _detached
        self._detached = False

    @abstractmethod
    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        """Handles one list. Never called twice at a time, nor after ``detach`` has returned."""

    def aspired_versions_callback(self) -> AspiredVersionsCallback[T]:
        def call(name: str, versions: Sequence[ServableData[T]]) -> None:
            with self._incoming:
                if not self._detached:
                    self.set_aspired_versions(name, versions)

        return call

    def detach(self) -> None:
        """Waits for a call in progress; afterwards every callback handed out does nothing."""
        with self._incoming:
            self._detached = True


class SourceAdapter(TargetBase[T], Generic[T, U]):
    """A target and a source at once: converts a list and passes it on under the same name, empty lists too.

    A call that arrives before the outgoing callback is set waits for it, at most until ``detach``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._connected = threading.Event()
        self._outgoing: AspiredVersionsCallback[U] | None = None

    @abstractmethod
    def adapt(self, name: str, versions: Sequence[ServableData[T]]) -> Sequence[ServableData[U]]:
        """The converted list, in the same order and of the same length. Must not raise for a single bad item."""

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[U]) -> None:
        self._outgoing = callback
        self._connected.set()

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        self._connected.wait()
        if self._outgoing is not None:
            self._outgoing(name, self.adapt(name, versions))

    def detach(self) -> None:
        self._connected.set()
        super().detach()


class UnarySourceAdapter(SourceAdapter[T, U]):
    """Converts item by item. A failed conversion becomes an errored item; an errored item passes through."""

    def __init__(self, convert: Callable[[ServableData[T]], U]) -> None:
        super().__init__()
        self._convert = convert

    def adapt(self, name: str, versions: Sequence[ServableData[T]]) -> Sequence[ServableData[U]]:
        return [self._adapt_item(item) for item in versions]

    def _adapt_item(self, item: ServableData[T]) -> ServableData[U]:
        if not item.status.ok:
            return item.with_error(item.status)
        try:
            return item.with_payload(self._convert(item))
        except Exception as error:
            logger.warning("cannot make a loader for %s: %s", item.id, error)
            return item.with_error(status_of(error))


class ErrorInjectingSourceAdapter(SourceAdapter[T, Any]):
    """Turns every healthy item into an errored one with a fixed status; existing errors pass through."""

    def __init__(self, status: Status) -> None:
        super().__init__()
        self._status = status

    def adapt(self, name: str, versions: Sequence[ServableData[T]]) -> Sequence[ServableData[Any]]:
        return [item.with_error(self._status if item.status.ok else item.status) for item in versions]


class SourceRouter(TargetBase[T], Generic[K, T]):
    """Hands each model's lists to the target that a table names for the model. In the server the targets are the
    adapters, one for each platform. ``targets`` has the targets by their keys; ``otherwise`` takes the models that the
    table does not mention."""

    def __init__(self, targets: Mapping[K, Target[T]], otherwise: Target[T]) -> None:
        super().__init__()
        self._targets = {key: target.aspired_versions_callback() for key, target in targets.items()}
        self._otherwise = otherwise.aspired_versions_callback()
        self._routes: Mapping[str, K] = {}  # replaced as a whole, so readers need no lock

    def update_routes(self, routes: Mapping[str, K]) -> None:
        """``routes`` maps names of models to keys of targets. Later lists follow this table; each key must be known."""
        self._routes = dict(routes)

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        routes = self._routes
        target = self._targets[routes[name]] if name in routes else self._otherwise
        target(name, versions)
