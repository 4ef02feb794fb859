"""The follower of versions that change while they serve, in the control mode poll: it loads them anew as they are now.

    list of the source -> does it have a version that serves, or is being loaded, with another revision?
        -> quiet, and it serves -> what was loaded?
        -> the same files, and the config says the same   nothing happens
        -> other instances only            they are opened and closed in place
        -> else, availability policy       loaded while the old one serves, which it then replaces
        -> else, resource policy           left out of the lists until it is being unloaded, then offered again
        -> wrong, or the load fails        what serves goes on; the log and the status of the version say why

A stage between the source and the router. A version is what lies at its path: another base path is another state of it,
other files are, and another config is. What counts is what the version was loaded from and with, not when a file was
written. The source offers a new state only once it is complete. A change that fails is tried again as a load is, and
when the version is changed again.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.clock import Clock
from tfs_lite.core.loader import Loader
from tfs_lite.core.manifest import has_state, have_same_configs
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import GOES_ON_WITH, ModelRef, ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ManagerState, ServableState
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.harness import LOADS, HarnessState, ServableStateSnapshot
from tfs_lite.managers.retrier import RetryPolicy, next_delay
from tfs_lite.serving.opening.model_configs import settings_digest

Item = ServableData[StoragePath]
CHANGED = Status(
    StatusCode.UNAVAILABLE, f"its config has changed; until it is loaded anew, {GOES_ON_WITH} config of before"
)
CHANGED_FILES = Status(
    StatusCode.UNAVAILABLE, f"its files have changed; until they are loaded, {GOES_ON_WITH} files of before"
)
RECHECK_SECONDS = 1.0
"""The seconds after which a version is tried again that waits for other models, or for room."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerOptions:
    """``quiet_period``: seconds for which a config must not have changed. ``beside``: a version is loaded while the one
    that it replaces serves."""

    quiet_period: float
    beside: bool
    retry: RetryPolicy
    may_be_retried: Callable[[Status], bool]


@dataclass(frozen=True, slots=True)
class LoadedAs:
    """The settings that a servable was loaded with, and the state of the files that it was loaded from, its path
    included."""

    settings: ModelSettings
    state: str


@dataclass(frozen=True, slots=True)
class FollowerEffects:
    """The functions by which the follower reads and acts. Any thread may call any of them; ``resize`` and ``read`` may
    take a while.

    ``read``: the config of a version on disk, by directory and model. ``loaded_as``: what a servable was made of.
    ``state_of``: the state of the files in a directory, with the files that a config names. ServingError if they are
    gone. ``check``: raises ServingError if the version's artefact contradicts a config, as far as that shows without a
    load. ``make_loader``: for another load of the version. ``resize``: gives the settings from before, or None if that
    takes another load. ``remark``: what the status of a version that serves is to say; None takes it back.
    ``wake_source``: the lists come again soon. ``on_replaced``: another load, of what the item has, has taken the
    version's place; a function gives the servable that had it, or None once nothing holds it. ``on_given_up``: no
    second load is tried any more; the last one may have waited.
    """

    read: Callable[[str, str], ModelSettings]
    loaded_as: Callable[[Servable], LoadedAs]
    state_of: Callable[[str, ModelSettings], str]
    check: Callable[[str, ModelSettings], None]
    make_loader: Callable[[Item], Loader]
    resize: Callable[[ServableId, ModelSettings], ModelSettings | None]
    remark: Callable[[ServableId, Status | None], None]
    wake_source: Callable[[], None]
    on_replaced: Callable[[Item, Callable[[], Any]], None]
    on_given_up: Callable[[ServableId], None]


@dataclass(slots=True, eq=False)
class _VersionChange:
    """The change of one version that serves, or is being loaded: what is offered now, and the revision of that load.
    ``due``: when it may be followed. ``settled``: what serves is what is offered. ``withheld``: it is left out of the
    lists. ``what`` has changed: ``config``, or ``files``."""

    item: Item
    serves: str
    due: float
    settled: bool = False
    withheld: bool = False
    failures: int = 0
    logged: str = ""
    what: str = "config"


_SERVES_OR_WILL = LOADS | {HarnessState.READY}
_HAVE = {"config": "config has", "files": "files have"}


class VersionFollower:
    """``observe`` -> ``start`` -> lists, ``on_event`` and ``poll`` from any thread -> ``close``."""

    def __init__(
        self, options: FollowerOptions, manager: AspiredVersionsManager, effects: FollowerEffects, clock: Clock
    ) -> None:
        self._options = options
        self._manager = manager
        self._effects = effects
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below and every change; nothing is called under it
        self._changes: dict[ServableId, _VersionChange] = {}
        self._loading: set[ServableId] = set()
        self._polling = threading.Lock()  # serialises polls, guards no field
        self._thread = PeriodicThread("tfs-version-changes", self.poll, None)

    def start(self) -> None:
        """Starts to follow changes, on a thread of the follower's own and on the manager's."""
        self._thread.start()

    def close(self) -> None:
        """Afterwards no change is begun; a load that runs is the manager's to end."""
        self._thread.stop()

    # Lists on their way.

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        """A callback that looks at each list and passes it on."""

        def look(name: str, versions: Sequence[Item]) -> None:
            self._keep_only(name, {item.id for item in versions})
            passed = [self._pass(item, self._snapshot(item.id)) for item in versions]
            callback(name, [item for item in passed if item is not None])

        return look

    def on_event(self, event: ServableState) -> None:
        """Takes an event of the manager. A version that is being unloaded, to be loaded in another state, is offered
        again; one that has become available may have changed since its load began."""
        with self._lock:
            change = self._changes.get(event.id)
            withheld = change is not None and change.withheld
        if withheld and event.state is ManagerState.UNLOADING:
            self._effects.wake_source()
        elif change is not None and event.state is ManagerState.AVAILABLE:
            self._thread.wake()

    def _keep_only(self, name: str, wanted: set[ServableId]) -> None:
        with self._lock:
            gone = [found for found in self._changes if found.name == name and found not in wanted]
        for servable_id in gone:
            self._forget(servable_id)

    def _pass(self, item: Item, served: ServableStateSnapshot | None) -> Item | None:
        """The item as the manager is to see it; None: it is left out."""
        if served is None or served.state not in _SERVES_OR_WILL or not item.status.ok:
            self._forget(item.id)
            return item
        with self._lock:
            change = self._changes.get(item.id)
            known = change is not None and (change.item.revision, change.serves) == (item.revision, served.revision)
        if change is not None and change.withheld:
            return None
        if item.revision == served.revision:
            self._forget(item.id)
        elif not known:
            self._note(item, served)
        return item

    def _note(self, item: Item, served: ServableStateSnapshot) -> None:
        """Notes a change. The source has waited until the files were quiet, but not for configs beside the versions."""
        delay = 0.0 if have_same_configs(item.revision, served.revision) else self._options.quiet_period
        with self._lock:
            self._changes[item.id] = _VersionChange(item, served.revision, self._clock.monotonic() + delay)
        self._thread.wake()
        if delay:
            self._clock.call_later(delay, self._thread.wake)

    def _forget(self, servable_id: ServableId) -> None:
        with self._lock:
            known = self._changes.pop(servable_id, None)
        if known is not None:
            self._effects.on_given_up(servable_id)
            self._effects.remark(servable_id, None)

    def _snapshot(self, servable_id: ServableId) -> ServableStateSnapshot | None:
        return self._manager.get_managed_servable_state_snapshot(servable_id)

    # Following.

    def poll(self) -> None:
        """Looks at every change that is not done with, and follows those whose time has come."""
        with self._polling:
            with self._lock:
                open_changes = [
                    change
                    for servable_id, change in self._changes.items()
                    if not (change.settled or change.withheld or change.due == math.inf)
                    and servable_id not in self._loading
                ]
            for change in open_changes:
                try:
                    self._consider(change, is_due=change.due <= self._clock.monotonic())
                except ServingError as error:
                    self._fail(change, error.status)

    def _consider(self, change: _VersionChange, *, is_due: bool) -> None:
        """Raises the error of a config that is wrong, and of an instance that cannot be opened."""
        servable_id = change.item.id
        try:
            with self._manager.get_servable_handle(ModelRef(servable_id.name, servable_id.version)) as handle:
                loaded, old = self._effects.loaded_as(handle.servable), weakref.ref(handle.servable)
        except ServingError:
            return  # it loads at first, or the next list says what has become of it
        served = self._snapshot(servable_id)
        if served is None or served.state is not HarnessState.READY:
            if is_due:
                self._postpone(change, RECHECK_SECONDS)  # it cannot be replaced yet, or any more
            return
        same_files = has_state(change.item.revision, loaded.state)
        change.what = "config" if same_files else "files"
        try:
            wanted = self._effects.read(change.item.payload, servable_id.name)
        except ServingError:
            if is_due:
                raise
            return
        alike = same_files and settings_digest(wanted) == settings_digest(loaded.settings)
        if alike and wanted.instance_group == loaded.settings.instance_group:
            if is_due:
                self._settle(change)
            return
        if not change.logged:
            self._remark(change, CHANGED if same_files else CHANGED_FILES)
        if is_due:
            self._follow(change, wanted, old, in_place=alike)

    def _follow(self, change: _VersionChange, wanted: ModelSettings, old: Callable[[], Any], *, in_place: bool) -> None:
        item, servable_id = change.item, change.item.id
        if not has_state(item.revision, self._effects.state_of(item.payload, wanted)):
            self._postpone(change, self._options.quiet_period)  # the source offers what they become
        elif in_place and self._effects.resize(servable_id, wanted) is not None:
            logger.info("%s has the instances of its changed config", servable_id)
            self._settle(change)
        elif self._options.beside:
            self._replace(change, old)
        else:
            self._effects.check(item.payload, wanted)
            with self._lock:
                change.withheld = True
            self._effects.wake_source()

    def _postpone(self, change: _VersionChange, delay: float) -> None:
        with self._lock:
            change.due = self._clock.monotonic() + delay
        self._clock.call_later(delay, self._thread.wake)

    def _replace(self, change: _VersionChange, old: Callable[[], Any]) -> None:
        servable_id = change.item.id
        data = ServableData.ok(servable_id, self._effects.make_loader(change.item), change.item.revision)
        with self._lock:
            self._loading.add(servable_id)
        logger.info("%s: its %s changed; it is loaded anew beside what serves", servable_id, _HAVE[change.what])
        self._manager.replace_servable(data, partial(self._replaced, change, old))

    def _replaced(self, change: _VersionChange, old: Callable[[], Any], status: Status) -> None:
        """Called on a thread of the manager when the version was replaced."""
        servable_id = change.item.id
        with self._lock:
            self._loading.discard(servable_id)
            is_current, is_over = self._changes.get(servable_id) is change, servable_id not in self._changes
        if status.ok:
            self._effects.on_replaced(change.item, old)
        elif is_over:
            self._effects.on_given_up(servable_id)
        if is_current:
            served = self._snapshot(servable_id)
            over = status.ok or status.code is StatusCode.CANCELLED
            if over or served is None or served.state is not HarnessState.READY:
                self._forget(servable_id)
            else:
                self._fail(change, status)
        self._thread.wake()  # a later change may have waited

    def _settle(self, change: _VersionChange) -> None:
        with self._lock:
            change.settled = True
        self._effects.on_given_up(change.item.id)
        self._remark(change, None)

    def _fail(self, change: _VersionChange, status: Status) -> None:
        """Notes a failure; what serves goes on."""
        if not status.waits:
            self._effects.on_given_up(change.item.id)
        delay = self._next_delay(change, status)
        with self._lock:
            change.due = math.inf if delay is None else self._clock.monotonic() + delay
            is_known, change.logged = change.logged == status.message, status.message
        if not is_known:
            logger.warning("%s goes on with the %s of before: %s", change.item.id, change.what, status.message)
        self._remark(change, replace(status, message=f"it goes on with the {change.what} of before: {status.message}"))
        if delay is not None:
            self._clock.call_later(delay, self._thread.wake)

    def _next_delay(self, change: _VersionChange, status: Status) -> float | None:
        if status.waits:
            return RECHECK_SECONDS
        change.failures += 1
        retryable = self._options.may_be_retried(status)
        return next_delay(self._options.retry, change.failures, retryable=retryable, cancelled=False)

    def _remark(self, change: _VersionChange, status: Status | None) -> None:
        with self._lock:
            is_current = self._changes.get(change.item.id) is change
        if is_current:
            self._effects.remark(change.item.id, status)
