"""Source routers: one stream of aspired lists in, several ports out, chosen by the model's name.

The server routes each model to the adapter of its platform; the last port is for names that nobody claimed.
"""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from tfs_lite.core.servable import ServableData
from tfs_lite.core.source import AspiredVersionsCallback, TargetBase
from tfs_lite.core.status import invalid_argument

T = TypeVar("T")
logger = logging.getLogger(__name__)

NO_ROUTE = -1


class RouterPort(Generic[T]):
    """One output of a router, itself a source. Calls wait until it is connected, at most until the router detaches."""

    def __init__(self) -> None:
        self._connected = threading.Event()
        self._callback: AspiredVersionsCallback[T] | None = None

    def set_aspired_versions_callback(self, callback: AspiredVersionsCallback[T]) -> None:
        self._callback = callback
        self._connected.set()

    def emit(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        self._connected.wait()
        if self._callback is not None:
            self._callback(name, versions)

    def close(self) -> None:
        self._connected.set()


class SourceRouter(TargetBase[T]):
    """Passes each whole call to one of ``num_ports`` ports (at least one; fewer counts as one, with a log line)."""

    def __init__(self, num_ports: int) -> None:
        super().__init__()
        if num_ports < 1:
            logger.error("a router needs at least one port, not %d; it gets one", num_ports)
        self._ports: tuple[RouterPort[T], ...] = tuple(RouterPort() for _ in range(max(num_ports, 1)))

    @property
    def ports(self) -> tuple[RouterPort[T], ...]:
        return self._ports

    @abstractmethod
    def route(self, name: str, versions: Sequence[ServableData[T]]) -> int:
        """The port's index, or NO_ROUTE to drop the call silently."""

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[T]]) -> None:
        index = self.route(name, versions)
        if index == NO_ROUTE:
            return
        if not 0 <= index < len(self._ports):
            logger.error("no port %d for %s: the router has %d; its list is dropped", index, name, len(self._ports))
            return
        self._ports[index].emit(name, versions)

    def detach(self) -> None:
        for port in self._ports:
            port.close()
        super().detach()


class StaticSourceRouter(SourceRouter[T]):
    """Port i takes the names that contain the i-th substring (the first match wins); the last port takes the rest."""

    def __init__(self, substrings: Sequence[str]) -> None:
        super().__init__(len(substrings) + 1)
        self._substrings = tuple(substrings)

    def route(self, name: str, versions: Sequence[ServableData[T]]) -> int:
        for index, substring in enumerate(self._substrings):
            if substring in name:
                return index
        return len(self._substrings)


class DynamicSourceRouter(SourceRouter[T]):
    """Routes by a table of names that may be replaced while running; the last port takes names not in the table."""

    def __init__(self, num_ports: int, routes: Mapping[str, int]) -> None:
        super().__init__(num_ports)
        self._routes = self._checked(routes)  # replaced whole, so readers need no lock

    def update_routes(self, routes: Mapping[str, int]) -> None:
        """Later calls use the new table. INVALID_ARGUMENT, and the old table stays, if a port is out of range."""
        self._routes = self._checked(routes)

    def route(self, name: str, versions: Sequence[ServableData[T]]) -> int:
        return self._routes.get(name, len(self.ports) - 1)

    def _checked(self, routes: Mapping[str, int]) -> dict[str, int]:
        last = len(self.ports) - 1
        for name, port in routes.items():
            if not 0 <= port < last:
                raise invalid_argument(
                    f"{name} is routed to port {port}; ports 0 to {last - 1} can be named, "
                    f"{last} is for names without a route"
                )
        return dict(routes)
