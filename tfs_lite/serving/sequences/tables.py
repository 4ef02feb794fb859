"""The tables of sequences and their versions. Pure: their owner has the lock, the clock and the handles.

Every address in ``began`` leads to a route: both are made and removed together. A withdrawn version gives out no new
handles, but is kept loaded by each one that is held. So a route keeps one handle, and gives every request a share.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.servable import ModelRef, ServableId

SequenceId: TypeAlias = int | str
Address: TypeAlias = int | str | None
"""The name that a START gives its version: by number, by label, or (None) not at all."""


class SequenceKeeper(Protocol):
    """The promises of a servable whose ``keeps_sequences`` is true. It also tells :meth:`SequenceRoutes.forgotten`
    about every sequence that it keeps no more, without a lock that ``knows`` needs."""

    def knows(self, id: int | str) -> bool:
        """Whether the sequence is live: has a slot, or waits for one. Any thread, short."""


@dataclass(slots=True, eq=False)
class SequenceRoute:
    """A live sequence. ``starts`` counts its STARTs, ``starting`` those that are not answered yet."""

    id: ServableId
    sequence: SequenceId
    share: HandleShare
    keeper: SequenceKeeper
    starting: int = 0
    starts: int = 0
    gone: bool = False


@dataclass(slots=True, eq=False)
class Withdrawal:
    """A version that is withdrawn. Its sequences may go on ``until`` then, in seconds of ``monotonic``; ``over`` is set
    when they have had their time."""

    until: float
    over: bool = False


@dataclass(slots=True)
class Tables:
    """``routes`` are by version and id. ``began`` has the versions where the sequences of a model and id began, by how
    the START named the version, the last one at the end. ``lost`` has versions that went before their sequences ended,
    the oldest first."""

    routes: dict[ServableId, dict[SequenceId, SequenceRoute]] = field(default_factory=dict)
    began: dict[tuple[str, SequenceId], dict[Address, ServableId]] = field(default_factory=dict)
    lost: OrderedDict[tuple[str, SequenceId], int] = field(default_factory=OrderedDict)
    withdrawn: dict[ServableId, Withdrawal] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def find(self, ref: ModelRef, id: SequenceId) -> SequenceRoute | None:
        """The route that a request without START takes."""
        if ref.version is not None:
            servable_id: ServableId | None = ServableId(ref.name, ref.version)
        else:
            began = self.began.get((ref.name, id))
            servable_id = began.get(ref.label) or next(reversed(began.values())) if began else None
        return None if servable_id is None else self.routes.get(servable_id, {}).get(id)

    def lost_version(self, ref: ModelRef, id: SequenceId) -> int | None:
        version = self.lost.get((ref.name, id))
        return version if ref.version in (None, version) else None

    def add(self, route: SequenceRoute) -> None:
        self.routes.setdefault(route.id, {})[route.sequence] = route
        self.count += 1

    def begin(self, address: Address, route: SequenceRoute) -> SequenceRoute | None:
        """Notes a START. Returns the route, now removed, of the sequence that the same client leaves with it."""
        self.lost.pop((route.id.name, route.sequence), None)
        route.starts += 1
        route.starting += 1
        began = self.began.setdefault((route.id.name, route.sequence), {})
        before = began.pop(address, None)
        began[address] = route.id
        if before is None or before in began.values():
            return None
        left = self.routes[before][route.sequence]
        self.remove(left)
        return left

    def remove(self, route: SequenceRoute) -> None:
        route.gone = True
        self.count -= 1
        of_version = self.routes[route.id]
        del of_version[route.sequence]
        if not of_version:
            del self.routes[route.id]
        key = (route.id.name, route.sequence)
        began = {address: servable_id for address, servable_id in self.began[key].items() if servable_id != route.id}
        if began:
            self.began[key] = began
        else:
            del self.began[key]

    def mark_lost(self, route: SequenceRoute, most: int) -> None:
        """The version goes before the sequence has ended."""
        self.remove(route)
        name = route.id.name
        self.dropped[name] = self.dropped.get(name, 0) + 1
        self.lost[name, route.sequence] = route.id.version
        self.lost.move_to_end((name, route.sequence))
        if len(self.lost) > most:
            self.lost.popitem(last=False)


class HandleShare:
    """One handle, shared: ``take`` any number of times, ``release`` once, by the owner. Any thread. The handle is
    released when the owner and all shares are gone, on the thread of the last of them."""

    __slots__ = ("_handle", "_lock", "_users")

    def __init__(self, handle: ServableHandle) -> None:
        """Takes the handle over."""
        self._handle = handle
        self._lock = threading.Lock()  # guards the number of users
        self._users = 1

    def take(self) -> ServableHandle:
        """A handle of the caller's own. Not after :meth:`release`, unless a share is live: RuntimeError."""
        with self._lock:
            if not self._users:
                raise RuntimeError("a share was taken of a handle that is released")
            self._users += 1
        return ServableHandle(self._handle.id, self._handle.servable, self._leave)

    def release(self) -> None:
        """The owner needs it no more."""
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self._handle.release()
