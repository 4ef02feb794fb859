"""The effects of a load call on the core, and its waits for them. Blocks its caller, within
``reload_timeout_seconds``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from tfs_lite.core.history import Cause, current_origin
from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.core.threads import BoundedCalls
from tfs_lite.serving.repository.plan import OfferedVersion, Past, failures_of, load_failure
from tfs_lite.serving.server_core import ServerCore


def is_at_start() -> bool:
    """Whether this thread loads what the server begins with, and carries out no order."""
    origin = current_origin()
    return origin is not None and origin.cause is Cause.START


class LoadWait:
    """One thread at a time. UNAVAILABLE when the server stops meanwhile, DEADLINE_EXCEEDED when it takes too long."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self.bounded = BoundedCalls(max(core.options.reload_timeout_seconds, core.options.disk_timeout_seconds)).call
        """Runs what may hang in this call, by a key: UNAVAILABLE if it takes longer than the call may wait."""

    def preload(self, item: ServableData[StoragePath], platform: str | None) -> None:
        """Loads the version while the old one serves. INVALID_ARGUMENT if that fails. A load that takes longer than the
        call may wait goes on, and what it has loaded is dropped."""
        given_up = threading.Event()

        def load() -> None:
            self._core.sources.preload(item, platform)
            if given_up.is_set():
                self._core.sources.drop_preloads(item.id.name)

        try:
            self.bounded(f"the load of {item.id}", load)
        except ServingError as error:
            given_up.set()
            raise load_failure(item.id.name, {item.id.version: error.status}) from None

    def replace(self, item: ServableData[StoragePath]) -> bool:
        """Puts it in the place of the version that is served, without a gap. False if that was not possible, and what
        was served goes on: there was no memory for both, for one."""
        outcomes: list[Status] = []

        def done(status: Status) -> None:
            outcomes.append(status)
            self._core.changes.notify()

        try:
            self._core.renewal.replace(item, done)
        except ServingError:
            return False
        self._until(lambda: bool(outcomes), f"load failed for model '{item.id.name}': its versions are still loading")
        return outcomes[0].ok

    def offer(self, name: str, offered: Mapping[int, OfferedVersion], *, awaited: Collection[int]) -> None:
        """Wants these versions and no others; returns when ``awaited`` are available. INVALID_ARGUMENT says why one
        is not. An earlier incarnation has to end first, so that its end is not taken for theirs, unless a feature keeps
        it: then it is what answers. At the start of the server, another version may answer in place of one that a
        feature keeps from answering."""
        core, kept = self._core, self.kept(name)
        wanted = {version for version in awaited if version not in kept & self._core.manager.available_versions(name)}
        self._until(
            lambda: not core.view.live_versions(name) & wanted,
            f"load failed for model '{name}': its old versions are in use",
        )
        past, is_start = self._past(name), is_at_start()
        core.sources.offer(name, [offer.item for offer in offered.values()])

        def over() -> bool:
            now, rejected = self._past(name), core.features.rejected(name)
            failures = failures_of(wanted - rejected.keys(), now.states, now.attempts, past)
            left_out = {version: rejected[version] for version in wanted & rejected.keys()}
            if left_out and not is_start:
                raise load_failure(name, left_out | (failures or {}))
            if failures:
                raise load_failure(name, failures)
            return failures is not None and (not left_out or bool(core.manager.available_versions(name)))

        self._until(over, f"load failed for model '{name}': its versions are still loading")

    def withdraw(self, name: str, staying: Mapping[int, OfferedVersion], *, gone: Collection[int]) -> None:
        """Wants only what is ``staying``; returns when none of ``gone`` answers requests any more, but for those that a
        feature keeps."""
        self._core.sources.offer(name, [offer.item for offer in staying.values()])
        self._until(
            lambda: not self._core.manager.available_versions(name) & (set(gone) - self.kept(name)),
            f"load failed for model '{name}': its old versions are still available",
        )

    def kept(self, name: str) -> set[int]:
        """The versions that are in the list which the manager has been given last, also those that no call wants."""
        return {servable_id.version for servable_id in self._core.states.aspired(name)}

    def gone(self, name: str) -> None:
        """Returns when no version answers requests any more. INTERNAL if one goes on doing so."""
        try:
            self._until(lambda: not self._core.manager.available_versions(name), "")
        except ServingError as error:
            if error.code is not StatusCode.DEADLINE_EXCEEDED:
                raise
            left = ", ".join(map(str, sorted(self._core.manager.available_versions(name))))
            message = f"failed to unload '{name}', versions that are still available: {left}"
            raise ServingError(StatusCode.INTERNAL, message) from None

    def _past(self, name: str) -> Past:
        return Past(self._core.states.version_states(name), self._core.view.last_attempts(name))

    def _until(self, over: Callable[[], bool], late: str) -> None:
        core = self._core
        ends = core.clock.monotonic() + core.options.reload_timeout_seconds
        while True:
            count = core.changes.count
            if over():
                return
            if core.waiter.closed:
                raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down")
            left = ends - core.clock.monotonic()
            if left <= 0:
                raise ServingError(StatusCode.DEADLINE_EXCEEDED, late)
            core.changes.wait_since(count, left)
