"""The routes from sequences to their versions, while versions come and go.

    START -> the version that the request names, or the newest one: a route is made
    later -> the route, although a newer version is available and the old one is no longer handed out
    END, idle expiry, refusal -> the servable keeps the sequence no more: the route is dropped

A route holds one handle of its version, which therefore is not unloaded; every request gets a share of it. How long a
withdrawn version waits for its sequences is bounded: then its routes are dropped, and the clients are told.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tfs_lite.core.clock import Clock
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import SequenceFlags
from tfs_lite.core.servable import ModelRef, ServableId
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.serving.sequences.tables import HandleShare, SequenceId, SequenceRoute, Tables, Withdrawal

MAX_ROUTES = 65_536
MAX_REMEMBERED = 10_000
"""The most lost sequences that are remembered, to tell their clients that the version is gone."""
SHOWN_ID = 128
"""The most characters of a correlation id in a message."""

logger = logging.getLogger(__name__)


class SequenceRoutes:
    """Requests, servables and the manager's events use it from any thread, until and after ``close``.

    A sequence is live as long as its servable says so: see
    :class:`~tfs_lite.serving.sequences.tables.SequenceKeeper`. Call ``version_leaving`` when a version is withdrawn,
    ``version_gone`` when it is unloaded.
    """

    def __init__(
        self,
        lookup: Callable[[ModelRef], ServableHandle],
        clock: Clock,
        drain_seconds: float,
        *,
        max_routes: int = MAX_ROUTES,
        max_remembered: int = MAX_REMEMBERED,
    ) -> None:
        """``drain_seconds``: how long a withdrawn version stays for sequences that have not ended."""
        self._lookup = lookup
        self._clock = clock
        self._drain_seconds = drain_seconds
        self._max_routes = max_routes
        self._max_remembered = max_remembered
        self._lock = threading.Lock()  # guards the tables, every route in them, and whether it is closed
        self._tables = Tables()
        self._closed = False

    # Requests.

    def handle(self, ref: ModelRef, flags: SequenceFlags) -> ServableHandle:
        """The version that answers a request of a sequence, in a handle of the caller's own. NOT_FOUND as for any
        request; UNAVAILABLE if the sequence was on a version that is gone; RESOURCE_EXHAUSTED for a START too many."""
        if not flags.id:
            return self._lookup(ref)
        return self._begin(ref, flags.id) if flags.start else self._follow(ref, flags)

    def _follow(self, ref: ModelRef, flags: SequenceFlags) -> ServableHandle:
        with self._lock:
            route = self._tables.find(ref, flags.id)
            if route is not None:
                return route.share.take()
            lost = self._tables.lost_version(ref, flags.id)
            if lost is not None and flags.end:
                del self._tables.lost[ref.name, flags.id]
        if lost is not None:
            raise self._loss(ref.name, flags.id, lost)
        return self._lookup(ref)

    def _begin(self, ref: ModelRef, id: SequenceId) -> ServableHandle:
        handle = self._lookup(ref)
        if not handle.servable.traits.keeps_sequences:
            return handle
        share = HandleShare(handle)
        given = share.take()
        unused, route, full = [share], None, False
        with self._lock:
            if self._may_stay(given.id):
                route = self._tables.routes.get(given.id, {}).get(id)
                if route is not None and route.keeper is not given.servable:  # its load was replaced by this one
                    self._tables.remove(route)
                    unused.append(route.share)
                    route = None
                full = route is None and self._tables.count >= self._max_routes
                if route is None and not full:
                    route = SequenceRoute(given.id, id, share, given.servable)
                    unused.remove(share)
                    self._tables.add(route)
                if route is not None:
                    left = self._tables.begin(ref.version if ref.label is None else ref.label, route)
                    unused += [left.share] if left is not None else []
        for one in unused:
            one.release()
        if full:
            given.release()
            message = f"model {ref.name}: {self._max_routes} sequences are live on this server, no more can be started"
            raise ServingError(StatusCode.RESOURCE_EXHAUSTED, message)
        if route is None:
            return given
        return ServableHandle(given.id, given.servable, partial(self._started, route, given))

    def _may_stay(self, servable_id: ServableId) -> bool:
        """Called with the lock held."""
        withdrawal = self._tables.withdrawn.get(servable_id)
        return not self._closed and (withdrawal is None or not withdrawal.over)

    def _loss(self, name: str, id: SequenceId, version: int) -> ServingError:
        """NOT_FOUND if the model is served no more."""
        self._lookup(ModelRef(name)).release()
        return ServingError(
            StatusCode.UNAVAILABLE,
            f"sequence {str(id)[:SHOWN_ID]} of model {name} was on version {version}, which was unloaded "
            f"{self._drain_seconds:g} s after it was withdrawn; start it again with sequence_start",
        )

    # The end of sequences.

    def forgotten(self, servable_id: ServableId, id: SequenceId) -> None:
        """The servable has ended a sequence, by END, because it was idle, or otherwise. Called by it, without locks."""
        with self._lock:
            route = self._tables.routes.get(servable_id, {}).get(id)
        if route is not None:
            self._drop_if_ended(route)

    def _started(self, route: SequenceRoute, given: ServableHandle) -> None:
        """A START has been answered, was refused, or never got to the servable."""
        with self._lock:
            route.starting -= 1
        try:
            self._drop_if_ended(route)
        finally:
            given.release()

    def _drop_if_ended(self, route: SequenceRoute) -> None:
        """Drops the route of a sequence that has ended; not while a START is under way, which may yet be admitted; its
        answer comes back here. The servable knows whether the sequence that ended has been followed by another with its
        id."""
        with self._lock:
            starts = route.starts
            if route.gone or route.starting:
                return
        if route.keeper.knows(route.sequence):
            return
        with self._lock:
            if route.gone or route.starting or route.starts != starts:
                return
            self._tables.remove(route)
        route.share.release()

    # Versions that go.

    def version_leaving(self, servable_id: ServableId) -> None:
        """The version is withdrawn: its sequences may go on for ``drain_seconds``. Short; calls only the clock."""
        withdrawal = Withdrawal(self._clock.monotonic() + self._drain_seconds)
        with self._lock:
            if self._closed or servable_id in self._tables.withdrawn:
                return
            self._tables.withdrawn[servable_id] = withdrawal
        self._clock.call_later(self._drain_seconds, lambda: self._drain_ended(servable_id, withdrawal))

    def version_replaced(self, servable_id: ServableId, old: Callable[[], Any]) -> None:
        """Another load of the version has taken the place of the servable ``old``: its sequences may go on with it for
        ``drain_seconds``. ``old`` gives None once nothing holds it."""
        self._clock.call_later(self._drain_seconds, lambda: self._drop_routes_of(servable_id, old))

    def version_gone(self, servable_id: ServableId) -> None:
        """The version was unloaded, or never loaded; it may come again."""
        with self._lock:
            self._tables.withdrawn.pop(servable_id, None)

    def model_gone(self, name: str) -> None:
        """The model is served no more: its lost sequences and its metrics are forgotten."""
        with self._lock:
            self._tables.dropped.pop(name, None)
            for key in [key for key in self._tables.lost if key[0] == name]:
                del self._tables.lost[key]

    def _drain_ended(self, servable_id: ServableId, withdrawal: Withdrawal) -> None:
        with self._lock:
            if self._closed or self._tables.withdrawn.get(servable_id) is not withdrawal:
                return
            withdrawal.over = True
            routes = self._lose(servable_id, lambda route: True)
        self._end(servable_id, routes)

    def _drop_routes_of(self, servable_id: ServableId, old: Callable[[], Any]) -> None:
        with self._lock:
            keeper = old()
            routes = self._lose(servable_id, lambda route: route.keeper is keeper)
        self._end(servable_id, routes)

    def _lose(self, servable_id: ServableId, which: Callable[[SequenceRoute], bool]) -> list[SequenceRoute]:
        """Called with the lock held."""
        routes = [route for route in self._tables.routes.get(servable_id, {}).values() if which(route)]
        for route in routes:
            self._tables.mark_lost(route, self._max_remembered)
        return routes

    def _end(self, servable_id: ServableId, routes: list[SequenceRoute]) -> None:
        if routes:
            text = "%s is unloaded although %d of its sequences have not ended: %g s are over"
            logger.warning(text, servable_id, len(routes), self._drain_seconds)
        for route in routes:
            route.share.release()

    def close(self) -> None:
        """Drops every route, so that nothing but requests holds a version; from now on none is made."""
        with self._lock:
            self._closed = True
            routes = [route for of_version in self._tables.routes.values() for route in of_version.values()]
            for route in routes:
                route.gone = True
            self._tables = Tables()
        for route in routes:
            route.share.release()

    def draining(self) -> Mapping[ServableId, tuple[int, float]]:
        """The sequences of each withdrawn version that have not ended, and the moment until which it waits for them, in
        seconds of ``monotonic``."""
        with self._lock:
            return {
                servable_id: (len(self._tables.routes.get(servable_id, ())), withdrawal.until)
                for servable_id, withdrawal in self._tables.withdrawn.items()
            }

    # Metrics.

    def live(self) -> Mapping[ServableId, int]:
        """Routes by version."""
        with self._lock:
            return {servable_id: len(routes) for servable_id, routes in self._tables.routes.items()}

    def dropped(self) -> Mapping[str, int]:
        """The number of sequences, by model, whose version went before they had ended."""
        with self._lock:
            return dict(self._tables.dropped)

    @property
    def remembered(self) -> int:
        """Dropped sequences whose clients have not been told yet."""
        with self._lock:
            return len(self._tables.lost)
