"""A manager's fixture whose models keep sequences, with the routes that hold their versions.

fixture = SequenceFixture()
fixture.swap(1)
fixture.ask(7, start=True)
fixture.swap(2)
assert fixture.ask(7) == 1
"""

from __future__ import annotations

import threading

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.model import SequenceFlags, Traits
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import ServingError
from tfs_lite.serving.sequences.routes import SequenceRoutes
from tfs_lite.testing.lifecycle.loader import FakeLoader
from tfs_lite.testing.lifecycle.manager_fixture import ManagerFixture

DRAIN = 60.0
M = ModelRef("m")


class FakeSequenceServable:
    """A servable that keeps sequences by the rules of the scheduler: START makes one, END ends it."""

    traits = Traits("test", keeps_sequences=True)

    def __init__(self, servable_id: ServableId) -> None:
        self.id = servable_id
        self.routes: SequenceRoutes | None = None
        self.alive = True
        self._lock = threading.Lock()
        self._live: set[int | str] = set()

    def knows(self, id: int | str) -> bool:
        with self._lock:
            return id in self._live

    def submit(self, flags: SequenceFlags) -> bool:
        """Whether the request is let in."""
        with self._lock:
            known = flags.id in self._live
            if not (flags.start or known):
                return False
            self._live.add(flags.id)
            if flags.end:
                self._live.discard(flags.id)
        if flags.end:
            self._report(flags.id)
        return True

    def expire(self, id: int | str) -> None:
        with self._lock:
            self._live.discard(id)
        self._report(id)

    @property
    def live(self) -> set[int | str]:
        with self._lock:
            return set(self._live)

    def _report(self, id: int | str) -> None:
        assert self.routes is not None
        self.routes.forgotten(self.id, id)


class KeepingLoader(FakeLoader):
    """Loads a :class:`FakeSequenceServable`."""

    routes: SequenceRoutes

    def load(self, servable_id: ServableId) -> None:
        super().load(servable_id)
        servable = FakeSequenceServable(servable_id)
        servable.routes = self.routes
        self._servable = servable  # type: ignore[assignment]


class SequenceFixture(ManagerFixture):
    """Models that keep sequences, behind routes that hear of the manager's events as the server tells them."""

    def __init__(self, policy: str = "availability", drain: float = DRAIN, **bounds: int) -> None:
        super().__init__(policy)
        self.labels: dict[str, int] = {}
        self.drain = drain
        self._left: dict[int, float] = {}
        self.routes = SequenceRoutes(self.lookup, self.clock, drain, **bounds)
        self.monitor.subscribe(lambda timed: self._on_event(timed.state))

    def data(self, name: str, version: int, revision: str = "") -> ServableData[Loader]:
        loader = KeepingLoader() if name == "m" else FakeLoader()
        if isinstance(loader, KeepingLoader):
            loader.routes = self.routes
        servable_id = ServableId(name, version)
        self.loaders.setdefault(servable_id, []).append(loader)
        return ServableData.ok(servable_id, loader, revision)

    def lookup(self, ref: ModelRef) -> ServableHandle:
        version = ref.version if ref.label is None else self.labels[ref.label]
        return self.manager.get_servable_handle(ModelRef(ref.name, version))

    def swap(self, *versions: int) -> None:
        self.aspire("m", *versions)
        self.settle()

    def begin(self, id: int | str = 7, *, ref: ModelRef = M, start: bool = False, end: bool = False) -> ServableHandle:
        """A request that is let in and not answered yet."""
        flags = SequenceFlags(id, start, end)
        handle = self.routes.handle(ref, flags)
        assert handle.servable.submit(flags)
        return handle

    def ask(self, id: int | str = 7, *, ref: ModelRef = M, start: bool = False, end: bool = False) -> int:
        """The version that answers a request."""
        with self.begin(id, ref=ref, start=start, end=end) as handle:
            return handle.id.version

    def refusal(self, id: int | str = 7, *, ref: ModelRef = M, start: bool = False, end: bool = False) -> ServingError:
        try:
            self.routes.handle(ref, SequenceFlags(id, start, end)).release()
        except ServingError as error:
            return error
        raise AssertionError("the request was not refused")

    def live(self) -> dict[int, int]:
        """Routes by version."""
        return {servable_id.version: number for servable_id, number in self.routes.live().items()}

    def is_overdue(self, version: int) -> bool:
        """Whether it was withdrawn so long ago that its sequences have had their time."""
        return version in self._left and self.clock.monotonic() - self._left[version] >= self.drain

    def _on_event(self, event: ServableState) -> None:
        if event.state is ManagerState.UNLOADING:
            self.routes.version_leaving(event.id)
            self._left[event.id.version] = self.clock.monotonic()
        elif event.state is ManagerState.END:
            self.routes.version_gone(event.id)
            self._left.pop(event.id.version, None)
