"""The manager of aspired versions: it takes aspired lists, and starts one load or unload a tick.

Sources say which versions of a stream should be loaded now. A tick compares that with what is managed, asks the
policy for one step per stream, and starts exactly one of them. Whatever changes, an action included, is followed by the
next tick at once, so ten models do not wait ten intervals; an interval is only the longest time between two ticks.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import TargetBase
from tfs_lite.core.status import ServingError, Status, invalid_argument
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.managers.basic_manager import BasicManager, BasicManagerOptions
from tfs_lite.managers.harness import REMOVABLE, HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import Action, ActionKind, Policy
from tfs_lite.managers.registry import Done
from tfs_lite.managers.survey import ManagerView

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AspiredVersionsManagerOptions(BasicManagerOptions):
    """``tick_interval`` in seconds; None or not positive: no thread, the owner calls ``tick``."""

    policy: Policy
    tick_interval: float | None = 0.1


class AspiredVersionsManager(TargetBase[Loader]):
    """``start`` -> aspired lists and lookups from any thread -> ``close``.

    Towards sources it promises: a version that is missing from the newest list of its stream is unloaded, an empty
    list unloads the stream; one residency uses one loader, others offered meanwhile are dropped; a ready version of the
    newest list is never unloaded. It may lag, and it may refuse. A second list for a stream that comes before the first
    was looked at replaces it. A list that names a version still on its way out waits, whole, until that is gone;
    meanwhile no other version of the stream is unloaded.

    A version that ended in error stays so, visible in its state, until it is emitted with another revision (or healthy,
    if it arrived with an error), until it is aspired no more, or, if it lacked resources, until some version was
    unloaded: then it is tried again, once for each such change. A version that is not ready loads anew; a ready one
    that is emitted with another revision is left alone.
    """

    def __init__(self, options: AspiredVersionsManagerOptions) -> None:
        super().__init__()
        if options.policy is None:
            raise invalid_argument("an aspired-versions manager needs a policy")
        self._options = options
        self._manager = BasicManager(replace(options, on_change=self._on_change))
        self.get_servable_handle = self._manager.get_servable_handle
        self._pending_lock = threading.Lock()  # guards _pending
        self._pending: dict[str, Sequence[ServableData[Loader]]] = {}
        self._ticking = threading.Lock()  # serialises ticks, guards no field; only ticks wait for it
        interval = options.tick_interval
        self._thread = PeriodicThread("tfs-manager", self._run_tick, interval) if interval and interval > 0 else None

    def start(self) -> None:
        """Starts the tick thread, if there is to be one."""
        if self._thread is not None:
            self._thread.start()

    def close(self, drain_timeout: float = 0.0) -> None:
        """Takes no more lists, ends the ticks, then unloads everything; see :meth:`BasicManager.close`."""
        self.detach()
        if self._thread is not None:
            self._thread.stop()
        self._manager.close(drain_timeout)

    # Aspired lists.

    def set_aspired_versions(self, name: str, versions: Sequence[ServableData[Loader]]) -> None:
        """Stores the list for the next tick. A list with an item of another stream is dropped as a whole."""
        foreign = [item.id for item in versions if item.id.name != name]
        if foreign:
            logger.error("the list for %s names other streams and is dropped: %s", name, foreign[0])
            return
        first = {item.id: item for item in reversed(versions)}
        if len(first) < len(versions):
            logger.error("the list for %s names a version twice; the first mention counts", name)
        with self._pending_lock:
            self._pending[name] = [item for item in versions if first[item.id] is item]
        self._wake()

    # The tick.

    def tick(self) -> Action | None:
        """Drops versions that ended, accepts pending lists, and starts one action, which it returns.

        With executors of size 0 the action is done when this returns. Ticks never overlap.
        """
        with self._ticking:
            self._flush()
            waiting = self._accept_pending()
            self._manager.renew_exhausted()
            action = self._act(waiting)
        self._manager.run_pending()
        return action

    def _run_tick(self) -> None:
        self.tick()

    def _on_change(self) -> None:
        self._options.on_change()
        self._wake()

    def _wake(self) -> None:
        if self._thread is not None:
            self._thread.wake()

    def _flush(self) -> None:
        """Drops what is not wanted and holds nothing."""
        for snapshot in self._manager.get_managed_servable_state_snapshots():
            if not snapshot.is_aspired and snapshot.state in REMOVABLE:
                self._manager.stop_managing_servable(snapshot.id)

    def _accept_pending(self) -> set[str]:
        """Returns the streams whose newest list has to wait."""
        with self._pending_lock:
            names = sorted(self._pending)
        streams = self._streams()
        waiting = set()
        for name in names:
            managed = {snapshot.id: snapshot for snapshot in streams.get(name, ())}
            with self._pending_lock:
                versions = self._pending[name]
                if any(_on_its_way_out(managed.get(item.id)) for item in versions):
                    waiting.add(name)
                    continue
                del self._pending[name]
            self._accept(versions, managed)
        return waiting

    def _accept(
        self, versions: Sequence[ServableData[Loader]], managed: dict[ServableId, ServableStateSnapshot]
    ) -> None:
        wanted = {item.id for item in versions}
        for servable_id, snapshot in managed.items():
            if snapshot.is_aspired and servable_id not in wanted:
                self._manager.set_aspired(servable_id, False)
        for item in versions:
            known = managed.get(item.id)
            if known is None:
                self._manage(item)
            elif not known.is_aspired:
                self._manager.set_aspired(item.id, True)  # still ready: it simply stays
            elif self._is_to_be_renewed(item, known):
                self._manager.stop_managing_servable(item.id)
                self._manage(item)

    def _manage(self, item: ServableData[Loader]) -> None:
        try:
            self._manager.manage_servable(item)
        except ServingError as error:  # the manager is closing
            logger.error("%s is not taken on: %s", item.id, error)

    def _is_to_be_renewed(self, item: ServableData[Loader], known: ServableStateSnapshot) -> bool:
        if known.state is not HarnessState.ERROR:
            return False
        if item.revision != known.revision:
            return True
        return item.status.ok and not known.has_loader

    def _act(self, waiting: Container[str]) -> Action | None:
        """While the newest list of a stream waits, nothing of that stream is unloaded: the list that asked for it is
        out of date, and the newest one may want what is ready, or need it to bridge the gap. While a version that was
        withdrawn waits for a thread, no other is withdrawn: it would answer nobody, and its memory would not come free
        any sooner."""
        may_unload = not self._manager.is_unload_waiting
        asked = [self._ask(name, versions) for name, versions in self._streams().items()]
        actions = [
            action
            for action in asked
            if action is not None and (action.kind is ActionKind.LOAD or (may_unload and action.id.name not in waiting))
        ]
        if not actions:
            return None
        action = next((action for action in actions if action.kind is ActionKind.UNLOAD), actions[0])
        if action.kind is ActionKind.LOAD:
            self._manager.load_servable(action.id, lambda status: _log(action, status))
        else:
            self._manager.unload_servable(action.id, lambda status: _log(action, status))
        return action

    def _ask(self, name: str, versions: Sequence[ServableStateSnapshot]) -> Action | None:
        try:
            return self._options.policy.next_action(versions)
        except Exception:
            logger.exception("the policy failed on %s; the other models go on", name)
            return None

    def _streams(self) -> dict[str, list[ServableStateSnapshot]]:
        """Every managed version, by stream; both in order."""
        snapshots = self._manager.get_managed_servable_state_snapshots()
        return {name: list(group) for name, group in itertools.groupby(snapshots, lambda s: s.id.name)}

    # What the manager below offers.

    def wake(self, servable_id: ServableId) -> None:
        """Tries a load again that waits for room in the cluster; see :meth:`BasicManager.wake`."""
        self._manager.wake(servable_id)

    def replace_servable(self, data: ServableData[Loader], done: Done) -> None:
        """Puts another load of a ready version in its place; see :meth:`BasicManager.replace_servable`."""
        self._manager.replace_servable(data, done)

    def list_available_servable_ids(self) -> list[ServableId]:
        return self._manager.list_available_servable_ids()

    def get_available_servable_handles(self) -> dict[ServableId, ServableHandle]:
        return self._manager.get_available_servable_handles()

    def get_managed_servable_state_snapshots(self, name: str | None = None) -> list[ServableStateSnapshot]:
        return self._manager.get_managed_servable_state_snapshots(name)

    def get_managed_servable_state_snapshot(self, servable_id: ServableId) -> ServableStateSnapshot | None:
        return self._manager.get_managed_servable_state_snapshot(servable_id)

    def survey(self) -> ManagerView:
        """Every managed version, and what each of them waits for; see :meth:`BasicManager.survey`."""
        return self._manager.survey()

    def set_num_load_threads(self, num_threads: int) -> None:
        self._manager.set_num_load_threads(num_threads)


def _on_its_way_out(snapshot: ServableStateSnapshot | None) -> bool:
    """Not wanted a moment ago and past the point where it could simply stay."""
    return snapshot is not None and not snapshot.is_aspired and snapshot.state is not HarnessState.READY


def _log(action: Action, status: Status) -> None:
    if not status.ok:
        logger.info("%s %s: %s", action.kind.value, action.id, status)
