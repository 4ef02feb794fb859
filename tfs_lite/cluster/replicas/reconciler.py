"""Keeps the replicas that versions want: looks, decides, acts, and looks again.

    loader --want--> ReplicaSet --places--> near ends (opened, lost)         one round, again and again:
                          |                        |                         list and nodes (engine, may block)
                          +------ Reconciler ------+                         decide (placement.plan, under the lock)
                                      |                                      place and end (engine, may block)
                                 ClusterEngine

Rounds run one at a time on an executor's thread: after every report of a near end or of the engine, when a back-off is
over, and every few seconds. What the engine lists is the truth about processes, events only make a round come sooner;
so an engine that has forgotten, a helper that was started again and a server that was all lead to the same decisions.

The state of each place::

    PLACING -> OPENING -> READY -> DRAINING        every arrow is an event with a cause in words
       ^          |         |         |
       |          v         v         v
       +-------- LOST <----------------     any -> ENDED, once the place is closed
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tfs_lite.cluster.replicas import placement
from tfs_lite.cluster.replicas.engine import (
    TOLD_TO_END,
    ClusterEngine,
    ClusterNode,
    EngineEvent,
    GpuUse,
    Place,
    PlacedReplica,
    ReplicaAddress,
    ReplicaEnded,
    ReplicaName,
    ReplicaSlot,
    Superseded,
    Unreachable,
    VersionKey,
    Wish,
)
from tfs_lite.cluster.replicas.placement import WantedPlace
from tfs_lite.cluster.replicas.states import (
    ARROWS,
    ClusterStatus,
    PlaceStatus,
    ReplicaEvent,
    ReplicaState,
    SetStatus,
    VersionReplicas,
)
from tfs_lite.core.clock import Clock, Timer
from tfs_lite.core.executor import Executor, Task
from tfs_lite.core.status import Reason, ServingError, Status, StatusCode, failed_precondition
from tfs_lite.workers.supervisor import Backoff

LOOK_SECONDS = 5.0
"""The longest time between two looks at the engine: an event may have been lost."""
RETRY_SECONDS = 1.0
"""The pause before the next try to reach the cluster."""
START_SECONDS = 60.0
"""The time after which a replica that has a node and does not listen is given up."""
MAX_OPENING_LOSSES = 3
"""The number of replicas lost while they opened that are replaced at once; with the next one the load fails."""
POLL_SECONDS = 0.05
"""The seconds between two checks of ``give_up``."""
MAX_LIVES = 10_000
"""Slots of closed places whose last life is remembered."""
logger = logging.getLogger(__name__)
_S = ReplicaState


class ReplicaPlace(Place):
    """One place. The reconciler's lock guards its fields, and only the reconciler changes them; the methods that
    :class:`~tfs_lite.cluster.replicas.engine.Place` has are for any thread."""

    def __init__(self, owner: Reconciler, group: ReplicaSet, number: int, slot: ReplicaSlot, life: int) -> None:
        self.owner, self.group, self.number, self.slot, self.life = owner, group, number, slot, life
        self.oldest = life
        self.state = _S.PLACING
        self.since = 0.0
        self.cause = ""
        self.name = ReplicaName(slot, life)
        self.held: str | None = None
        self.lost_id: str | None = None
        self.last_loss = ""
        self.wish: Wish | None = None
        self.node: str | None = None
        self.current: ReplicaAddress | None = None
        self.gpu: GpuUse | None = None
        self.waits = ""
        self.waits_since = 0.0
        self.start_due: float | None = None
        self.due = 0.0
        self.ready_since: float | None = None
        self.losses = 0
        self.restarts = 0
        self.opening_losses = 0
        self.backoff = Backoff()
        self.failure: Status | None = None
        self.avoid: frozenset[str] = frozenset()
        self.successor: ReplicaPlace | None = None
        self.predecessor: ReplicaPlace | None = None
        self.moves = Backoff()
        self.move_due = 0.0

    def __repr__(self) -> str:
        return f"<place of {self.name}: {self.state.value}>"

    # Near ends.

    def address(self, give_up: threading.Event, wait_for_room: bool = True) -> ReplicaAddress:
        return self.owner._wait_for_address(self, give_up, wait_for_room)

    def holds(self, address: ReplicaAddress) -> bool:
        return self.current == address

    def opened(self, address: ReplicaAddress, gpu: GpuUse | None = None) -> None:
        self.owner._report_opened(self, address, gpu)

    def refused(self, address: ReplicaAddress, status: Status) -> None:
        self.owner._report_lost(self, address, f"refused: {status.message}")

    def lost(self, address: ReplicaAddress, cause: str) -> None:
        self.owner._report_lost(self, address, cause)

    def close(self) -> None:
        self.owner._close([self])

    # Snapshots, with the lock held.

    def as_wanted(self, now: float) -> WantedPlace:
        waiting = self.state is _S.LOST and (self.due > now or self.successor is not None)
        return WantedPlace(
            number=self.number,
            slot=self.slot,
            requirements=self.group.wanted.requirements,
            held=self.held,
            wish=self.wish,
            gpu=self.gpu,
            life=self.life,
            oldest=self.oldest,
            avoid=self.avoid,
            rests=waiting,
            ready=self.state in (_S.READY, _S.DRAINING),
            has_successor=self.successor is not None or self.move_due > now,
            fresh=not self.group.started,
        )

    def as_status(self, host: str) -> PlaceStatus:
        pid = self.current.pid if self.current else None
        return PlaceStatus(
            self.name,
            self.state,
            self.since,
            self.cause,
            host,
            pid,
            self.restarts,
            self.last_loss,
            self.waits,
            self.gpu,
        )


class ReplicaSet:
    """The replicas of one version, from :meth:`Reconciler.want` to :meth:`close`. Threads: any."""

    def __init__(
        self,
        owner: Reconciler,
        wanted: VersionReplicas,
        on_change: Callable[[], None],
        on_move: Callable[[ReplicaPlace, ReplicaPlace], None],
    ) -> None:
        self.wanted = wanted
        self.on_change, self.on_move = on_change, on_move
        self.started = False  # a replica was placed or adopted; guarded by the owner's lock, like the next
        self.members: list[ReplicaPlace] = []
        self._owner = owner

    @property
    def key(self) -> VersionKey:
        return self.wanted.model, self.wanted.version, self.wanted.generation

    @property
    def places(self) -> tuple[ReplicaPlace, ...]:
        """The places that are not closed, in the order in which they were made."""
        with self._owner._changed:
            return tuple(self.members)

    def grow(self, count: int) -> tuple[ReplicaPlace, ...]:
        """Asks for ``count`` more replicas; returns their places. To want fewer, close places. FAILED_PRECONDITION once
        all are closed."""
        return self._owner._grow(self, count)

    def status(self) -> SetStatus:
        return self._owner._set_status(self)

    def close(self) -> None:
        """Gives all places up; their replicas are ended soon after. May be called again."""
        self._owner._close(self.places)


class Reconciler:
    """All replica sets of one server, and the engine that they share.

    Order: ``start``, then the rest in any order, ``close`` at the end. Threads: any. ``on_event`` is told of every
    arrow, in order, one at a time; it, ``on_change`` and ``on_move`` run outside all locks on whichever thread brought
    the news, and must be short and not raise. The executor needs one thread, which the engine may block.
    """

    def __init__(
        self,
        engine: ClusterEngine,
        clock: Clock,
        executor: Executor,
        on_event: Callable[[ReplicaEvent], None] = lambda event: None,
    ) -> None:
        self._engine, self._clock, self._executor, self._on_event = engine, clock, executor, on_event
        self._changed = threading.Condition()  # guards what follows, and the fields of places
        self._sets: dict[VersionKey, ReplicaSet] = {}
        self._numbers = 0
        self._lives: dict[ReplicaSlot, int] = {}
        self._known: set[tuple[str, int]] | None = set()
        self._nodes: tuple[ClusterNode, ...] = ()
        self._told_to_end: set[str] = set()
        self._trouble = ""
        self._trouble_since = 0.0
        self._is_superseded = False
        self._is_closed = False
        self._is_wanted = False  # a round is to come
        self._is_queued = False  # its task is with the executor, or runs
        self._timer: Timer | None = None
        self._outbox: deque[Callable[[], None]] = deque()
        self._is_delivering = False
        self._unwatch: Callable[[], None] = lambda: None

    def start(self) -> None:
        self._unwatch = self._engine.watch(self._on_engine_event)
        self._wake()

    def close(self) -> None:
        """Decides nothing any more. Replicas stay, and are adopted by the next server or end by themselves; who wants
        them ended closes the sets first and waits until the engine lists none."""
        with self._changed:
            self._is_closed = True
            timer, self._timer = self._timer, None
            self._changed.notify_all()
        self._unwatch()
        if timer is not None:
            timer.cancel()

    def want(
        self,
        wanted: VersionReplicas,
        on_change: Callable[[], None] = lambda: None,
        on_move: Callable[[ReplicaPlace, ReplicaPlace], None] = lambda old, new: None,
    ) -> ReplicaSet:
        """Wants replicas of a version. Those that an earlier server has placed for the same generation are adopted.

        ``on_change`` is called after anything has changed for the version: another attempt of a load that waited for
        room may succeed. ``on_move`` gets a place whose node drains, and a new one: the owner opens the version in the
        new one, lets it join, takes the old one out and closes it. ALREADY_EXISTS if the version and generation are
        wanted already."""
        group = ReplicaSet(self, wanted, on_change, on_move)
        with self._changed:
            if group.key in self._sets:
                name = f"{wanted.model} version {wanted.version}"
                raise ServingError(StatusCode.ALREADY_EXISTS, f"the replicas of {name} are wanted already")
            self._sets[group.key] = group
            if self._known is not None:
                self._known.add((wanted.model, wanted.version))
            for index in range(wanted.count):
                self._add_place(group, index, "the version wants it")
        self._deliver()
        self._wake()
        return group

    def finish_adoption(self) -> None:
        """From now on replicas that no version wants are ended. To be called once every model that is known at the
        start has an available version, or has failed: until then, of versions that no loader has wanted yet, an earlier
        server's replicas may still be wanted."""
        with self._changed:
            self._known = None
        self._wake()

    @property
    def leads(self) -> bool:
        """Whether this server decides about the replicas; False once another one does."""
        return not self._is_superseded

    def status(self) -> ClusterStatus:
        with self._changed:
            gpus: dict[tuple[str, str], GpuUse] = {}
            for place in self._places():
                if place.gpu is not None and place.node is not None:
                    key = (place.node, place.gpu.uuid)
                    before = gpus[key].reserved if key in gpus else 0
                    gpus[key] = GpuUse(place.gpu.uuid, place.gpu.total, before + place.gpu.reserved)
            return ClusterStatus(self._engine.epoch, self._trouble_words(), self._nodes, gpus)

    # What places and sets ask.

    def _wait_for_address(self, place: ReplicaPlace, give_up: threading.Event, wait_for_room: bool) -> ReplicaAddress:
        with self._changed:
            while True:
                if place.state is _S.ENDED or self._is_closed:
                    raise ServingError(StatusCode.CANCELLED, f"{place.name}: no replica is wanted any more")
                if place.current is not None:
                    return place.current
                if place.failure is not None:
                    status, place.failure = place.failure, None
                    raise ServingError(status.code, status.message)
                if (place.waits or self._trouble) and not wait_for_room:
                    raise _waits_for_place(place.group.wanted, self._waits(place.group))
                if give_up.is_set():
                    raise ServingError(StatusCode.CANCELLED, f"{place.name}: the wait for a replica was given up")
                self._changed.wait(POLL_SECONDS)

    def _report_opened(self, place: ReplicaPlace, address: ReplicaAddress, gpu: GpuUse | None) -> None:
        with self._changed:
            if place.current != address:
                return
            place.gpu = gpu
            if place.state is _S.OPENING:
                place.ready_since = self._clock.monotonic()
                place.opening_losses, place.avoid, place.failure = 0, frozenset(), None
                self._move(place, _S.READY, "it has opened the version")
        self._deliver()
        self._wake()  # its node may drain

    def _report_lost(self, place: ReplicaPlace, address: ReplicaAddress, cause: str) -> None:
        with self._changed:
            if place.current != address:
                return
            self._lose(place, cause, failed=True)
        self._deliver()
        self._wake()

    def _grow(self, group: ReplicaSet, count: int) -> tuple[ReplicaPlace, ...]:
        with self._changed:
            if self._sets.get(group.key) is not group:
                raise failed_precondition(f"the replicas of {group.wanted.model} are not wanted any more")
            taken = {place.slot.index for place in group.members}
            free = (index for index in range(len(taken) + count) if index not in taken)
            added = tuple(self._add_place(group, next(free), "the version wants more") for _ in range(count))
        self._deliver()
        self._wake()
        return added

    def _close(self, places: Sequence[ReplicaPlace]) -> None:
        with self._changed:
            if self._is_closed:  # replicas stay, and near ends go on until they are closed
                return
            for place in places:
                if place.state is not _S.ENDED:
                    self._end_place(place)
            self._changed.notify_all()
        self._deliver()
        self._wake()

    def _set_status(self, group: ReplicaSet) -> SetStatus:
        with self._changed:
            hosts = {node.id: node.host for node in self._nodes}
            statuses = tuple(place.as_status(hosts.get(place.node or "", "")) for place in group.members)
            return SetStatus(group.key, statuses, self._waits(group))

    # Changes of places, with the lock held.

    def _places(self) -> Iterator[ReplicaPlace]:
        for group in self._sets.values():
            yield from group.members

    def _add_place(self, group: ReplicaSet, index: int, cause: str) -> ReplicaPlace:
        slot = ReplicaSlot(*group.key, index)
        self._numbers += 1
        place = ReplicaPlace(self, group, self._numbers, slot, self._lives.get(slot, 0))
        place.since, place.cause = self._clock.time(), cause
        group.members.append(place)
        self._tell(place, None, cause)
        return place

    def _end_place(self, place: ReplicaPlace) -> None:
        """Its replica is in no place any more, and is ended by the next round."""
        self._keep_life(place)
        self._move(place, _S.ENDED, "the place was closed")
        place.held = place.wish = place.current = place.gpu = None
        place.waits, place.start_due = "", None
        group = place.group
        group.members.remove(place)
        if not group.members:
            self._sets.pop(group.key, None)
        if place.successor is not None:
            place.successor.predecessor = None
        if place.predecessor is not None:
            place.predecessor.successor = None
            place.predecessor.life = place.predecessor.oldest = self._lives[place.slot]
            place.predecessor.move_due = self._clock.monotonic() + place.predecessor.moves.next(0.0)

    def _lose(self, place: ReplicaPlace, cause: str, failed: bool) -> None:
        """Its replica is in no place any more. ``failed``: the next one comes after a back-off, and elsewhere if that
        is possible."""
        now = self._clock.monotonic()
        was_ready = place.ready_since is not None
        if failed and place.node is not None:
            place.avoid = frozenset({place.node}) if was_ready else place.avoid | {place.node}
        if failed or place.current is not None:  # not a wish that is made anew
            place.lost_id, place.last_loss = place.held, cause
            place.restarts += 1
        place.oldest = place.life
        place.due = now + (self._pause(place, now) if failed else 0.0)
        if failed and not was_ready:
            place.opening_losses += 1
            if place.opening_losses > MAX_OPENING_LOSSES:
                place.opening_losses = 0
                place.failure = Status(StatusCode.UNAVAILABLE, f"{place.name} was lost while it opened: {cause}")
        self._move(place, _S.LOST, cause)
        place.held = place.wish = place.node = place.current = place.gpu = place.start_due = place.ready_since = None
        place.waits = ""

    def _pause(self, place: ReplicaPlace, now: float) -> float:
        """Seconds until the next replica: none after the first loss, then as the back-off says."""
        ran_for = now - place.ready_since if place.ready_since is not None else 0.0
        if ran_for >= place.backoff.well:
            place.losses = 0
            place.backoff.failures = 0
        place.losses += 1
        return place.backoff.next(ran_for) if place.losses > 1 else 0.0

    def _keep_life(self, place: ReplicaPlace) -> None:
        """A name is never used again, also not after its place was closed."""
        self._lives.pop(place.slot, None)
        self._lives[place.slot] = place.life
        while len(self._lives) > MAX_LIVES:
            del self._lives[next(iter(self._lives))]

    def _move(self, place: ReplicaPlace, after: ReplicaState, cause: str) -> None:
        before = place.state
        assert after in ARROWS[before], f"{place.name}: {before.value} -> {after.value}"
        place.state, place.since, place.cause = after, self._clock.time(), cause
        self._tell(place, before, cause)
        self._changed.notify_all()

    def _tell(self, place: ReplicaPlace, before: ReplicaState | None, cause: str) -> None:
        host = next((node.host for node in self._nodes if node.id == place.node), "")
        event = ReplicaEvent(self._clock.time(), place.name, before, place.state, cause, host)
        self._outbox.append(lambda: self._on_event(event))
        self._outbox.append(place.group.on_change)

    def _deliver(self) -> None:
        """Without the lock: gives out what was told, in order; if another thread does that, it goes on with this."""
        with self._changed:
            if self._is_delivering:
                return
            self._is_delivering = True
        while True:
            with self._changed:
                if not self._outbox:
                    self._is_delivering = False
                    return
                call = self._outbox.popleft()
            try:
                call()
            except Exception:
                logger.exception("a listener of replicas failed")

    # Words, with the lock held.

    def _trouble_words(self) -> str:
        if not self._trouble or self._is_superseded:
            return self._trouble
        seconds = self._clock.monotonic() - self._trouble_since
        return f"cluster: {self._trouble} for {seconds:.0f} s, nothing can be placed"

    def _waits(self, group: ReplicaSet) -> str:
        """What some of the places wait for; empty if none waits."""
        places = group.members
        missing = [place for place in places if place.current is None]
        if missing and self._trouble:
            return self._trouble_words()
        waiting = [place for place in places if place.waits]
        if not waiting:
            return ""
        count = len({place.slot for place in places})
        seconds = self._clock.monotonic() - min(place.waits_since for place in waiting)
        words = f"waits for {len(waiting)} of {count} replicas: {waiting[0].waits}"
        return f"{words}, for {seconds:.0f} s" if placement.NO_NODE in words else words

    # Rounds.

    def _on_engine_event(self, event: EngineEvent) -> None:
        with self._changed:
            if isinstance(event, ReplicaEnded):
                for place in list(self._places()):
                    if place.held == event.id:
                        self._lose(place, event.cause, failed=True)
                    elif place.lost_id == event.id and event.cause != TOLD_TO_END:
                        place.last_loss = event.cause  # a near end has noticed before, without knowing why
            elif isinstance(event, Unreachable):
                self._cut_off(event.cause)
        self._deliver()
        self._wake()

    def _wake(self) -> None:
        """Has a round run soon. Any thread, without the lock."""
        with self._changed:
            self._is_wanted = True
            if self._is_queued or self._is_closed or self._is_superseded:
                return
            self._is_queued = True
        self._executor.submit(Task("replicas", self._begin_round, self._run_round, self._end_round))

    def _begin_round(self) -> bool:
        with self._changed:
            self._is_wanted = False
            self._is_queued = not (self._is_closed or self._is_superseded)
            return self._is_queued

    def _end_round(self, error: BaseException | None) -> None:
        if error is not None:
            logger.error("placing, watching and ending the replicas failed; it is tried again", exc_info=error)
        with self._changed:
            self._is_queued = False
            again, delay = self._is_wanted, self._seconds_to_next()
        self._deliver()
        if again:
            self._wake()
        else:
            self._wake_later(delay)

    def _wake_later(self, delay: float) -> None:
        timer = self._clock.call_later(delay, self._wake)
        with self._changed:
            before, self._timer = self._timer, timer
            is_over = self._is_closed or self._is_superseded
        if before is not None:
            before.cancel()
        if is_over:
            timer.cancel()

    def _run_round(self) -> None:
        try:
            replicas, nodes = self._engine.list(), self._engine.nodes()
            for act in self._decide(replicas, nodes):
                act()
        except Superseded as error:
            with self._changed:
                self._is_superseded, self._trouble = True, str(error)
                self._changed.notify_all()
            logger.error("%s; this one decides nothing any more", error)
        except ServingError as error:
            if error.code is not StatusCode.UNAVAILABLE:
                raise
            with self._changed:
                self._cut_off(str(error))
        self._deliver()

    def _decide(self, replicas: Sequence[PlacedReplica], nodes: Sequence[ClusterNode]) -> list[Callable[[], None]]:
        """The calls of the engine that follow from what it has listed."""
        with self._changed:
            if self._trouble:
                logger.info("the cluster can be reached again")
                self._trouble = ""
            self._nodes = tuple(nodes)
            self._told_to_end.intersection_update(replica.id for replica in replicas)
            now = self._clock.monotonic()
            places = {place.number: place for place in self._places()}
            for place in places.values():
                if place.start_due is not None and place.start_due <= now:
                    self._lose(place, f"it did not start within {START_SECONDS:.0f} s", failed=True)
            wanted = [place.as_wanted(now) for place in places.values()]
            by_id = {replica.id: replica for replica in replicas}
            actions = placement.plan(wanted, nodes, replicas, self._known)
            return [act for action in actions if (act := self._take(action, places, by_id, now)) is not None]

    def _take(
        self, action: placement.Action, places: dict[int, ReplicaPlace], by_id: dict[str, PlacedReplica], now: float
    ) -> Callable[[], None] | None:
        """Changes the place as the action says, with the lock held. Returns what is left to do without it."""
        if isinstance(action, placement.EndReplica):
            if action.place is not None:
                self._lose(places[action.place.number], action.cause, action.failed)
                self._is_wanted = True
            return (lambda: self._end_replica(action)) if action.id in by_id else None
        place = places[action.place.number]
        if isinstance(action, placement.MoveReplica):
            self._drain(place, by_id[place.held or ""], action.cause)
        elif isinstance(action, placement.AdoptReplica):
            self._adopt(place, action.replica)
        elif isinstance(action, placement.KeepReplica):
            self._set_waits(place, action.waits, now)
            self._look_at(place, by_id[place.held or ""])
        else:
            if isinstance(action, placement.PlaceReplica):
                place.name = action.wish.name
            self._begin_anew(place)
            self._set_waits(place, action.waits, now)
            if isinstance(action, placement.PlaceReplica):
                return lambda: self._place_replica(place, action.wish)
        return None

    def _set_waits(self, place: ReplicaPlace, waits: str, now: float) -> None:
        if waits and not place.waits:
            place.waits_since = now
        if waits != place.waits:
            place.waits = waits
            self._changed.notify_all()
            self._outbox.append(place.group.on_change)
        if place.current is None and place.held is not None and not waits:
            place.start_due = place.start_due or now + START_SECONDS
        else:
            place.start_due = None

    def _look_at(self, place: ReplicaPlace, replica: PlacedReplica) -> None:
        """Notes where the replica is, and that it listens."""
        place.node = replica.node or (place.wish.node if place.wish else None)
        if replica.address is not None and place.current is None:
            place.current, place.start_due = replica.address, None
            self._move(place, _S.OPENING, "its process listens")

    def _adopt(self, place: ReplicaPlace, replica: PlacedReplica) -> None:
        place.name, place.held, place.wish = replica.name, replica.id, None
        self._begin_anew(place)
        place.life = max(place.life, replica.name.life + 1)
        place.group.started = True
        self._set_waits(place, "", self._clock.monotonic())
        place.node = replica.node
        if replica.address is not None:
            place.current, place.start_due = replica.address, None
            self._move(place, _S.OPENING, "adopted: an earlier server has placed it")

    def _begin_anew(self, place: ReplicaPlace) -> None:
        if place.state is _S.LOST:
            place.name = ReplicaName(place.slot, max(place.life, place.name.life))
            self._move(place, _S.PLACING, "another one takes its place")

    def _drain(self, place: ReplicaPlace, replica: PlacedReplica, cause: str) -> None:
        self._look_at(place, replica)
        if place.state is _S.READY:
            self._move(place, _S.DRAINING, cause)
        self._keep_life(place)
        successor = self._add_place(place.group, place.slot.index, cause)
        place.successor, successor.predecessor = successor, place
        self._is_wanted = True
        self._outbox.append(lambda: place.group.on_move(place, successor))

    # Calls of the engine, without the lock.

    def _place_replica(self, place: ReplicaPlace, wish: Wish) -> None:
        with self._changed:
            if place.state is not _S.PLACING:  # closed meanwhile
                return
            place.name, place.life = wish.name, wish.name.life + 1
        try:
            id = self._engine.place(wish)
        except Superseded:
            raise
        except ServingError as error:
            if error.code is StatusCode.UNAVAILABLE:
                raise
            with self._changed:
                if place.state is _S.PLACING:
                    self._lose(place, str(error), failed=True)
            return
        with self._changed:
            self._is_wanted = True  # the next round sees it start, or ends it
            if place.state is _S.PLACING:
                place.held, place.wish, place.group.started = id, wish, True
                place.node = wish.node
                self._set_waits(place, place.waits, self._clock.monotonic())

    def _end_replica(self, action: placement.EndReplica) -> None:
        """Again and again, until the engine does not list it any more: a frozen node hears it later."""
        if action.id not in self._told_to_end:
            self._told_to_end.add(action.id)
            logger.info("%s is ended: %s", action.name, action.cause)
        self._engine.end(action.id)

    def _cut_off(self, cause: str) -> None:
        """With the lock held: the cluster cannot be reached."""
        if not self._trouble:
            logger.error("the cluster cannot be reached: %s", cause)
            self._trouble_since = self._clock.monotonic()
            self._outbox.extend(group.on_change for group in self._sets.values())
        self._trouble = cause
        self._changed.notify_all()

    def _seconds_to_next(self) -> float:
        """With the lock held: until the next round, if nothing is reported before."""
        if self._trouble:
            return RETRY_SECONDS
        now = self._clock.monotonic()
        dues = [now + LOOK_SECONDS]
        for place in self._places():
            if place.state is _S.LOST and place.successor is None:
                dues.append(place.due)
            if place.start_due is not None:
                dues.append(place.start_due)
            if place.move_due > now:
                dues.append(place.move_due)
        stays = (node.drain_seconds for node in self._nodes if node.draining and node.drain_seconds is not None)
        dues += [now + left - placement.LEAVE_SECONDS for left in stays if left > placement.LEAVE_SECONDS]
        return max(min(dues) - now, 0.0)


def _waits_for_place(wanted: VersionReplicas, waits: str) -> ServingError:
    message = f"{wanted.model} version {wanted.version} {waits}"
    return ServingError(StatusCode.UNAVAILABLE, message, Reason.WAITS_FOR_PLACE)
