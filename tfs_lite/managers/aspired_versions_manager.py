"""The manager of aspired versions: it takes aspired lists, and starts one load or unload a tick.

Sources say which versions of a stream should be loaded now. A tick compares that with what is managed, asks the
policy for one step per stream, and starts exactly one of them. Whatever changes, an action included, is followed by the
next tick at once, so ten models do not wait ten intervals; an interval is only the longest time between two ticks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.source import TargetBase
from tfs_lite.core.status import ServingError, Status, invalid_argument
from tfs_lite.core.threads import PeriodicThread
from tfs_lite.managers.basic_manager import BasicManager, BasicManagerOptions
from tfs_lite.managers.harness import LOADS, REMOVABLE, HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import Action, ActionKind, Policy
from tfs_lite.managers.registry import Done
from tfs_lite.managers.survey import ManagerView

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AspiredVersionsManagerOptions(BasicManagerOptions):
    """``tick_interval`` in seconds; None or not positive: no thread, the owner calls ``tick``."""

    policy: Policy
    tick_interval: float | None = 1.0


class AspiredVersionsManager(TargetBase[Loader]):
    """``start`` -> aspired lists and lookups from any thread -> ``close``.

    Towards sources it promises: a version that is missing from the newest list of its stream is unloaded, an empty
    list unloads the stream; one residency uses one loader, others offered meanwhile are dropped; a ready version of the
    newest list is never unloaded. It may lag, and it may refuse. A second list for a stream that comes before the first
    was looked at replaces it. A list that names a version still on its way out waits until that is gone; meanwhile no
    other version of the stream is unloaded, and no load goes on of a version that the list does not name.

    A version that ended in error stays so, visible in its state, until it is emitted with another revision (or healthy,
    if it arrived with an error), until it is aspired no more, or, if it lacked resources, until some version was
    unloaded: then it is tried again, once for each such change. Another revision also ends the wait between two
    attempts: the version ends with its last failure and begins anew. While an attempt runs, the newest list is kept if
    it has another revision, and is looked at again when that has ended: if it fails, the version begins anew at once. A
    ready one is left alone.
    """

    def __init__(self, options: AspiredVersionsManagerOptions) -> None:
        super().__init__()
        if options.policy is None:
            raise invalid_argument("an aspired-versions manager needs a policy")
        self._options = options
        self._manager = BasicManager(replace(options, on_change=self._on_change))
        self.get_servable_handle = self._manager.get_servable_handle
        self._pending_lock = threading.Lock()  # guards the next two
        self._pending: dict[str, Sequence[ServableData[Loader]]] = {}
        self._arrived: set[str] = set()  # streams with a list that no tick has looked at
        self._ticking = threading.Lock()  # serialises ticks, guards the fields below; only ticks wait for it
        self._waiting: set[str] = set()  # streams whose newest list has to wait
        self._behind: set[str] = set()  # streams whose newest list has other revisions than those that load
        self._changed: set[str] = set()  # streams that this tick has to look at, or the next one
        self._asked: dict[ActionKind, dict[str, Action]] = {kind: {} for kind in ActionKind}  # its answers, by stream
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
            self._arrived.add(name)
        self._wake()

    # The tick.

    def tick(self) -> Action | None:
        """Drops versions that ended, accepts pending lists, and starts one action, which it returns.

        With executors of size 0 the action is done when this returns. Ticks never overlap.
        """
        with self._ticking:
            self._changed |= self._manager.take_changed_streams()
            self._flush()
            self._accept_pending()
            self._manager.renew_exhausted()
            action = self._act()
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
        """Drops what is not wanted and holds nothing, of the streams that have changed."""
        for name in sorted(self._changed):
            for snapshot in self._snapshots(name):
                if not snapshot.is_aspired and snapshot.state in REMOVABLE:
                    self._manager.stop_managing_servable(snapshot.id)

    def _accept_pending(self) -> None:
        """Looks at the lists that are new, and at those that are kept for a stream which has changed."""
        with self._pending_lock:
            names = set(self._arrived)
        for name in sorted(names | ((self._waiting | self._behind) & self._changed)):
            managed = {snapshot.id: snapshot for snapshot in self._snapshots(name)}
            with self._pending_lock:
                self._arrived.discard(name)
                versions = self._pending[name]
                waits = any(_on_its_way_out(managed.get(item.id)) for item in versions)
                is_behind = any(_loads_another(managed.get(item.id), item.revision) for item in versions)
                if not (waits or is_behind):
                    del self._pending[name]
            (self._behind.add if is_behind else self._behind.discard)(name)
            wanted = {item.id for item in versions}
            if waits:
                self._waiting.add(name)
                self._withdraw([known for known in managed.values() if known.state is not HarnessState.READY], wanted)
            else:
                self._waiting.discard(name)
                self._withdraw(managed.values(), wanted)
                self._take_on(versions, managed)

    def _withdraw(self, snapshots: Iterable[ServableStateSnapshot], wanted: Collection[ServableId]) -> None:
        for snapshot in snapshots:
            if snapshot.is_aspired and snapshot.id not in wanted:
                self._manager.set_aspired(snapshot.id, False)

    def _take_on(
        self, versions: Sequence[ServableData[Loader]], managed: dict[ServableId, ServableStateSnapshot]
    ) -> None:
        for item in versions:
            known = managed.get(item.id)
            if known is None:
                self._manage(item)
            elif not known.is_aspired:
                self._manager.set_aspired(item.id, True)  # still ready: it simply stays
            elif self._is_to_be_renewed(item, known) or self._ends_retries(item, known):
                self._manager.stop_managing_servable(item.id)
                self._manage(item)
            if known is not None and known.given_up is not item.given_up:
                self._manager.set_given_up(item.id, item.given_up)

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

    def _ends_retries(self, item: ServableData[Loader], known: ServableStateSnapshot) -> bool:
        """A load that waits for its next attempt waits for the files to be mended, and these are others."""
        return item.revision != known.revision and self._manager.end_retries(item.id)

    def _act(self) -> Action | None:
        """Takes one action. While the newest list of a stream waits, nothing of that stream is unloaded: the list that
        asked for it is out of date, and the newest one may want what is ready, or need it to bridge the gap. While a
        version that was withdrawn waits for a thread, no other is withdrawn: it would answer no request, and its memory
        would not come free any sooner."""
        before, self._changed = self._changed, self._manager.take_changed_streams()  # those by the steps of this tick
        for name in before | self._changed:
            self._ask(name)
        unloads, loads = self._asked[ActionKind.UNLOAD], self._asked[ActionKind.LOAD]
        free = unloads if unloads and not self._manager.is_unload_waiting else ()
        unload = min((name for name in free if name not in self._waiting), default=None)
        load = min(loads, default=None)
        action = unloads[unload] if unload is not None else loads[load] if load is not None else None
        if action is None:
            return None
        self._changed.add(action.id.name)
        if action.kind is ActionKind.LOAD:
            self._manager.load_servable(action.id, ignore)  # each attempt that fails is logged
        else:
            self._manager.unload_servable(action.id, lambda status: _log_unload(action, status))
        return action

    def _ask(self, name: str) -> None:
        """Asks the policy again about a stream that has changed; its answer stands until the next change."""
        for answers in self._asked.values():
            answers.pop(name, None)
        versions = self._snapshots(name)
        try:
            action = self._options.policy.next_action(versions) if versions else None
        except Exception:
            logger.exception("the policy failed on %s; the other models go on", name)
            self._changed.add(name)
            return
        if action is not None:
            self._asked[action.kind][name] = action

    def _snapshots(self, name: str) -> list[ServableStateSnapshot]:
        return self._manager.get_managed_servable_state_snapshots(name)

    # What the manager below offers.

    def wake(self, servable_id: ServableId) -> None:
        """Tries a load again that waits for room in the cluster; see :meth:`BasicManager.wake`."""
        self._manager.wake(servable_id)

    def replace_servable(self, data: ServableData[Loader], done: Done) -> None:
        """Puts another load of a ready version in its place; see :meth:`BasicManager.replace_servable`."""
        self._manager.replace_servable(data, done)

    def hold(self, servable_id: ServableId, held: bool) -> None:
        """Keeps the version from answering requests for the latest one, or no longer does; see
        :meth:`ServingMap.hold`."""
        self._manager.hold(servable_id, held)

    def list_available_servable_ids(self) -> list[ServableId]:
        return self._manager.list_available_servable_ids()

    def available_versions(self, name: str) -> set[int]:
        """The versions of the model that can be had now."""
        return self._manager.available_versions(name)

    def get_available_servable_handles(self, names: Collection[str] | None = None) -> dict[ServableId, ServableHandle]:
        return self._manager.get_available_servable_handles(names)

    def get_leaving_servable_handles(self, name: str | None = None) -> list[ServableHandle]:
        return self._manager.get_leaving_servable_handles(name)

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
    """Whether the version was not wanted a moment ago and is past the point where it could simply stay."""
    return snapshot is not None and not snapshot.is_aspired and snapshot.state is not HarnessState.READY


def _loads_another(snapshot: ServableStateSnapshot | None, revision: str) -> bool:
    """Whether the version is on its way to be ready, from another state than this one."""
    return snapshot is not None and snapshot.state in LOADS and snapshot.revision != revision


def _log_unload(action: Action, status: Status) -> None:
    if not status.ok:
        logger.info("unload %s: %s", action.id, status)
