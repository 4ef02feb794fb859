"""Which replica goes where: decisions over snapshots, without effects.

    wanted places x nodes x listed replicas -> actions: place, keep, adopt, move, wait; and the ends of all others

A replica is placed on a node that is chosen here, if one has room. If none has, its wish is left pending with the
engine, so that an autoscaler sees it, and the action says in words what it waits for. What the engine shows as free may
be behind: what was placed and has not started yet is deducted here. Memory of GPUs is nothing that the engine watches:
an account of estimates and reservations decides in addition to its fractions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tfs_lite.cluster.replicas.engine import (
    CPUS,
    GPUS,
    MEMORY,
    ClusterNode,
    GpuUse,
    PlacedReplica,
    ReplicaName,
    ReplicaSlot,
    Resources,
    Strategy,
    VersionKey,
    Wish,
)
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.core.status import invalid_argument, listed

MAX_REPLICAS = 1000
"""The most replicas of one cluster name."""
MAX_PLACING = 64
"""The most replicas that have been placed and do not listen yet."""
LEAVE_SECONDS = 2.0
"""The seconds by which a replica leaves a draining node before it must, with a successor or without."""
LEAST_FRACTION = 0.05
"""The least part of a GPU for one replica."""
BASE_MEMORY = 512 * 2**20
"""Bytes of main memory that a replica takes before it has any weights."""
MAX_HOSTS_NAMED = 8
NO_NODE = "no node"
"""The words about a wish that no node could ever fulfil contain this."""
TOLERANCE = 1e-6
"""Amounts that differ by less are equal: fractions are sums of floating-point numbers."""


@dataclass(frozen=True, slots=True)
class Requirements:
    """What each replica of a version asks of its node.

    ``max_per_node`` bounds the replicas of the version on one node; 0 is no bound. ``gpu_bytes`` estimates what a
    replica takes of its GPU's memory; 0 if it has no GPU, or that is not known.
    """

    needs: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy = Strategy.SPREAD
    max_per_node: int = 0
    gpu_bytes: int = 0

    @property
    def most(self) -> float:
        """The most replicas of the version that one node may have."""
        return 1 if self.strategy is Strategy.STRICT_SPREAD else self.max_per_node or math.inf


@dataclass(frozen=True, slots=True)
class WantedPlace:
    """A place that a version wants, and how it is now. ``number`` tells it from all others; two have the same slot
    while a replica moves to another node.

    - ``held``: the id of the replica in it; None if it has none. ``wish``: what that replica was placed by; None if it
      was adopted. ``gpu``: what it has said of its GPU.
    - ``life``: of the replica that is placed next, or more if the engine lists such lives. ``oldest``: the first life
      that may be adopted.
    - ``avoid``: nodes that have lost its last replicas. Others are better.
    - ``rests``: nothing is placed now, because its back-off is not over or its successor is to come.
    - ``ready``: its replica has opened the version. ``has_successor``: another place of the slot takes over.
    - ``fresh``: no place of the version has had a replica yet.
    """

    number: int
    slot: ReplicaSlot
    requirements: Requirements
    held: str | None = None
    wish: Wish | None = None
    gpu: GpuUse | None = None
    life: int = 0
    oldest: int = 0
    avoid: frozenset[str] = frozenset()
    rests: bool = False
    ready: bool = False
    has_successor: bool = False
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class PlaceReplica:
    """Ask the engine for a replica. ``waits``: what it waits for, in words; empty if it has a node."""

    place: WantedPlace
    wish: Wish
    waits: str


@dataclass(frozen=True, slots=True)
class KeepReplica:
    """Leave the replica where it is. ``waits``, if it is pending: what for, in words; empty if nothing is missing."""

    place: WantedPlace
    waits: str = ""


@dataclass(frozen=True, slots=True)
class AdoptReplica:
    """Take over a replica that an earlier server, or a call whose answer was lost, has placed."""

    place: WantedPlace
    replica: PlacedReplica


@dataclass(frozen=True, slots=True)
class MoveReplica:
    """Place another replica elsewhere, because the node of this one drains; it leaves when the other one is ready."""

    place: WantedPlace
    cause: str


@dataclass(frozen=True, slots=True)
class AwaitRoom:
    """Do nothing yet; ``waits`` says what is missing."""

    place: WantedPlace
    waits: str


@dataclass(frozen=True, slots=True)
class EndReplica:
    """End a process, or take its wish back. ``place``: the one that it was in and that needs another one now; None if
    it is in none. ``failed``: it was lost, which counts for the back-off and against its node."""

    id: str
    name: ReplicaName
    cause: str
    place: WantedPlace | None = None
    failed: bool = False


Action = PlaceReplica | KeepReplica | AdoptReplica | MoveReplica | AwaitRoom | EndReplica


def plan(
    wanted: Sequence[WantedPlace],
    nodes: Sequence[ClusterNode],
    replicas: Sequence[PlacedReplica],
    known: Collection[tuple[str, int]] | None = None,
) -> list[Action]:
    """The actions for one snapshot. Places come first that are first in ``wanted``; one that waits holds no other up.

    ``known`` are models and versions of which replicas that are in no place are ended; with None all such are. A
    server that has just started leaves those of other versions alone until it knows which ones are wanted.
    """
    planner = _Planner(wanted, nodes, replicas)
    planner.review_held()
    planner.adopt()
    planner.end_unclaimed(known)
    planner.place_missing()
    return planner.actions


class _Planner:
    """One run of :func:`plan`, in steps."""

    def __init__(
        self, wanted: Sequence[WantedPlace], nodes: Sequence[ClusterNode], replicas: Sequence[PlacedReplica]
    ) -> None:
        self.actions: list[Action] = []
        self._wanted = wanted
        self._replicas = replicas
        self._by_id = {replica.id: replica for replica in replicas}
        self._claimed: set[str] = set()
        self._started: set[VersionKey] = {place.slot.of for place in wanted if not place.fresh}
        self._nodes = {node.id: node for node in nodes}
        self._room = Room(nodes)
        self._empty: list[WantedPlace] = []
        self._pending: list[tuple[WantedPlace, PlacedReplica]] = []
        self._placing = 0
        self._lives: dict[ReplicaSlot, int] = defaultdict(int)
        for replica in replicas:
            slot = replica.name.slot
            self._lives[slot] = max(self._lives[slot], replica.name.life + 1)

    def review_held(self) -> None:
        """Decides about the replicas that are in places; those that are ready keep their nodes before others."""
        for place in sorted(self._wanted, key=lambda place: not place.ready):
            if place.held is None:
                if not place.rests:
                    self._empty.append(place)
                continue
            self._claimed.add(place.held)
            replica = self._by_id.get(place.held)
            if replica is None:
                self._end_held(place, None, "the cluster does not list it any more", failed=True)
            elif replica.node is None:
                self._review_pending(place, replica)
            else:
                self._review_placed(place, replica, replica.node)
        for place, replica in self._pending:  # what they wait for depends on all others
            self._review_unplaced(place, replica)
        order = {place.number: index for index, place in enumerate(self._wanted)}
        self._empty.sort(key=lambda place: order[place.number])

    def adopt(self) -> None:
        """Replicas whose name fits an empty place. Of several, one that listens is better, then one of a later life.
        Places with a choice come last, because each node may have so many of the version only."""
        found: dict[ReplicaSlot, list[PlacedReplica]] = defaultdict(list)
        for replica in self._replicas:
            node = self._nodes.get(replica.node or "")
            if replica.id not in self._claimed and node is not None and node.alive:
                found[replica.name.slot].append(replica)
        adopted: set[int] = set()
        for place in sorted(self._empty, key=lambda place: len(found[place.slot])):
            fitting = [replica for replica in found[place.slot] if self._may_adopt(place, replica)]
            if fitting:
                best = max(fitting, key=lambda replica: (replica.address is not None, replica.name.life, replica.id))
                found[place.slot].remove(best)
                self._claim(place, best)
                self.actions.append(AdoptReplica(place, best))
                adopted.add(place.number)
        self._empty = [place for place in self._empty if place.number not in adopted]

    def _may_adopt(self, place: WantedPlace, replica: PlacedReplica) -> bool:
        count = self._room.count(place.slot.of, replica.node or "")
        return replica.name.life >= place.oldest and count < place.requirements.most

    def end_unclaimed(self, known: Collection[tuple[str, int]] | None) -> None:
        wanted = {place.slot for place in self._wanted}
        versions = {slot.of for slot in wanted}
        for replica in self._replicas:
            slot = replica.name.slot
            if replica.id in self._claimed or not (known is None or (slot.model, slot.version) in known):
                continue
            if slot in wanted:
                cause = "another replica has its place"
            elif slot.of in versions:
                cause = "the version wants fewer replicas"
            elif any(key[:2] == slot.of[:2] for key in versions):
                cause = "the version's files or settings have changed"
            else:
                cause = "no version wants it"
            self.actions.append(EndReplica(replica.id, replica.name, cause))

    def place_missing(self) -> None:
        """One place after the other, but all of a version at once where that is demanded."""
        total = len(self._claimed)
        refused: dict[VersionKey, str] = {}
        for place in self._empty:
            key = place.slot.of
            if place.requirements.strategy is Strategy.STRICT_SPREAD and key not in self._started:
                self._started.add(key)
                if waits := self._lacks_nodes(place):
                    refused[key] = waits
            if key in refused:
                self.actions.append(AwaitRoom(place, refused[key]))
            elif total >= MAX_REPLICAS:
                self.actions.append(AwaitRoom(place, f"the cluster has its {MAX_REPLICAS} replicas"))
            elif self._placing >= MAX_PLACING:
                self.actions.append(AwaitRoom(place, f"{MAX_PLACING} replicas are being placed"))
            else:
                total += 1
                self._place(place)

    def _place(self, place: WantedPlace) -> None:
        asked = place.requirements
        name = ReplicaName(place.slot, max(place.life, self._lives[place.slot]))
        self._lives[place.slot] = name.life + 1
        node = self._room.choose(place)
        self._placing += 1
        if node is not None:
            self._room.take(place, node.id, is_pending=True)
            wish, waits = Wish(name, asked.needs, node.id, frozenset(), asked.labels, asked.strategy), ""
        else:
            avoid = self._room.excluded(place)
            wish = Wish(name, asked.needs, None, avoid, asked.labels, asked.strategy)
            waits = self._room.missing(place)
        self.actions.append(PlaceReplica(place, wish, waits))

    def _review_pending(self, place: WantedPlace, replica: PlacedReplica) -> None:
        target = place.wish.node if place.wish else None
        if target is None:
            self._pending.append((place, replica))
            return
        node = self._nodes.get(target)
        if node is not None and _is_usable(node):
            self._claim(place, replica, target)
            self.actions.append(KeepReplica(place))
        else:
            self._end_held(place, replica, _why_not(node))

    def _review_unplaced(self, place: WantedPlace, replica: PlacedReplica) -> None:
        """A wish without a node. It is made anew if there is room only where it must not go by its own words."""
        room = [node.id for node in self._room.candidates(place)]
        avoid = place.wish.avoid if place.wish else frozenset()
        if room and avoid.issuperset(room):
            self._end_held(place, replica, "there is room on a node that it was to avoid before")
        else:
            self._claim(place, replica)
            self.actions.append(KeepReplica(place, "" if room else self._room.missing(place)))

    def _review_placed(self, place: WantedPlace, replica: PlacedReplica, node_id: str) -> None:
        """One that was adopted may be open, although the near end has not looked yet: it is not ended for a drain."""
        node = self._nodes.get(node_id)
        if node is None or not node.alive:
            self._end_held(place, replica, _why_not(node), failed=True)
        elif node.draining and not (place.ready or place.has_successor or place.wish is None):
            self._end_held(place, replica, _why_not(node))
        elif node.draining and node.drain_seconds is not None and node.drain_seconds <= LEAVE_SECONDS:
            self._end_held(place, replica, f"node {node.host} drains, and its time is over")
        elif not place.ready and self._room.count(place.slot.of, node_id) >= place.requirements.most:
            self._end_held(place, replica, f"node {node.host} has its {place.requirements.most} of the version")
        else:
            self._claim(place, replica)
            if node.draining and place.ready and not place.has_successor:
                self.actions.append(MoveReplica(place, _why_not(node)))
            else:
                self.actions.append(KeepReplica(place))

    def _end_held(self, place: WantedPlace, replica: PlacedReplica | None, cause: str, failed: bool = False) -> None:
        """The place is placed anew: at once if that was no failure, else when the back-off of its owner says so."""
        assert place.held is not None
        name = replica.name if replica else ReplicaName(place.slot, place.life - 1)
        self.actions.append(EndReplica(place.held, name, cause, place, failed))

    def _claim(self, place: WantedPlace, replica: PlacedReplica, target: str | None = None) -> None:
        """The replica belongs to the place. ``target``: the node to which it was sent, if it has not started there."""
        self._claimed.add(replica.id)
        self._started.add(place.slot.of)
        self._placing += replica.address is None
        node_id = replica.node or target
        if node_id is not None:
            self._room.take(place, node_id, is_pending=replica.node is None)

    def _lacks_nodes(self, place: WantedPlace) -> str:
        """Empty if there are nodes for all places of a version of which none may share its node with another."""
        count = sum(other.slot.of == place.slot.of for other in self._empty)
        hosts = sorted(node.host for node in self._room.candidates(place))
        if len(hosts) >= count:
            return ""
        on = f" ({listed(hosts, MAX_HOSTS_NAMED)})" if hosts else ""
        return f"{count} nodes with {_amounts(place.requirements.needs)} each; there is room on {len(hosts)}{on}"


class Room:
    """What the nodes have left while places are given away. Not thread-safe; made anew for each plan."""

    def __init__(self, nodes: Sequence[ClusterNode]) -> None:
        self._all = nodes
        self._usable = sorted((node for node in nodes if _is_usable(node)), key=lambda node: (node.host, node.id))
        self._pending: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._charged: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._counts: dict[tuple[VersionKey, str], int] = defaultdict(int)
        self._gpus = {node.id: _GpuAccount(node) for node in nodes}

    def count(self, key: VersionKey, node_id: str) -> int:
        return self._counts[key, node_id]

    def take(self, place: WantedPlace, node_id: str, is_pending: bool) -> None:
        """Counts a replica of this place on the node, where it is or will be: ``is_pending`` until the engine has
        deducted it."""
        self._counts[place.slot.of, node_id] += 1
        for name, amount in place.requirements.needs.items():
            self._charged[node_id][name] += amount
            if is_pending:
                self._pending[node_id][name] += amount
        if node_id in self._gpus:
            self._gpus[node_id].charge(place)

    def free(self, node: ClusterNode, name: str) -> float:
        """The amount of a resource that is left on the node: never more than the node's own total less all that is
        known here."""
        shown = node.free.get(name, 0.0) - self._pending[node.id][name]
        return max(min(shown, node.total.get(name, 0.0) - self._charged[node.id][name]), 0.0)

    def candidates(self, place: WantedPlace) -> list[ClusterNode]:
        """The nodes with room for the place."""
        return [node for node in self._usable if not self._short(place, node) and not self._obstacle(place, node)]

    def excluded(self, place: WantedPlace) -> frozenset[str]:
        """The nodes where the place must not go even if the engine sees room there."""
        return frozenset(node.id for node in self._all if not _is_usable(node) or self._obstacle(place, node))

    def choose(self, place: WantedPlace) -> ClusterNode | None:
        """The best node for the place; None if no node has room."""
        candidates = self.candidates(place)
        better = [node for node in candidates if node.id not in place.avoid] or candidates
        return min(better, key=lambda node: self._rank(place, node)) if better else None

    def missing(self, place: WantedPlace) -> str:
        """What a place without candidates waits for, in words."""
        needs = place.requirements.needs
        matching = [node for node in self._usable if fulfils_labels(node.labels, place.requirements.labels)]
        if not matching:
            labels = " and ".join(f"{key}={value}" for key, value in place.requirements.labels.items())
            return f"a node; {NO_NODE} has {labels}" if labels and self._usable else f"a node; {NO_NODE} is there"
        hopeless = self._hopeless(place, matching)
        if hopeless:
            return hopeless
        short = [name for name in needs if any(self._lacks(place, node, name) for node in matching)]
        free = [self._free_words(place, node, short) for node in matching if self._short(place, node)]
        blocked = [self._obstacle(place, node) for node in matching if not self._short(place, node)]
        words = [f"free {listed(free, MAX_HOSTS_NAMED)}"] * bool(free)
        words += [listed(blocked, MAX_HOSTS_NAMED)] * bool(blocked)
        return "; ".join([_amounts({name: needs[name] for name in short}) or "room", *words])

    def _hopeless(self, place: WantedPlace, matching: Sequence[ClusterNode]) -> str:
        """Words that say that no node could ever fulfil the wish; empty if one could."""
        asked = place.requirements
        for name, amount in asked.needs.items():
            most = max(node.total.get(name, 0.0) for node in matching)
            if amount > most + TOLERANCE:
                return f"{_amount(name, amount)}; {NO_NODE} has more than {_number(most)}"
        sizes = [self._gpus[node.id].bytes for node in matching]
        known = [size for size in sizes if size is not None]
        if asked.gpu_bytes and len(known) == len(sizes) and asked.gpu_bytes > max(known):
            return f"{asked.gpu_bytes} bytes on a GPU; {NO_NODE} has more than {max(known)}"
        return ""

    def _free_words(self, place: WantedPlace, node: ClusterNode, short: Sequence[str]) -> str:
        """``0.5 on gpu-a``, with the names of the resources if several are short."""
        if len(short) == 1:
            return f"{_number(self.free(node, short[0]))} on {node.host}"
        lacking = [_amount(name, self.free(node, name)) for name in short if self._lacks(place, node, name)]
        return f"{' and '.join(lacking)} on {node.host}"

    def _rank(self, place: WantedPlace, node: ClusterNode) -> tuple[object, ...]:
        count = self._counts[place.slot.of, node.id]
        wasted = place.requirements.needs.get(GPUS, 0) == 0 and node.total.get(GPUS, 0) > 0
        if place.requirements.strategy is Strategy.PACK:
            return (-count, wasted, self.free(node, CPUS), node.host, node.id)
        return (count, wasted, -self.free(node, CPUS), node.host, node.id)

    def _short(self, place: WantedPlace, node: ClusterNode) -> bool:
        return any(self._lacks(place, node, name) for name in place.requirements.needs)

    def _lacks(self, place: WantedPlace, node: ClusterNode, name: str) -> bool:
        return place.requirements.needs[name] > self.free(node, name) + TOLERANCE

    def _obstacle(self, place: WantedPlace, node: ClusterNode) -> str:
        """Why the place may not be on this node, whatever is free there; empty if it may."""
        asked = place.requirements
        if not fulfils_labels(node.labels, asked.labels):
            return f"other labels on {node.host}"
        if self._counts[place.slot.of, node.id] >= asked.most:
            return f"{asked.most} of the version on {node.host}"
        if asked.needs.get(GPUS, 0) > 0 and not self._gpus[node.id].has_room(asked):
            memory = f" and {asked.gpu_bytes} bytes" if asked.gpu_bytes else ""
            return f"no GPU with {_number(asked.needs[GPUS])} of it{memory} left on {node.host}"
        return ""


class _GpuAccount:
    """What is left of each GPU of one node: its fraction and its memory. Which GPU a replica is on is known once it has
    said so; until then it is taken to be on the emptiest one. Memory does not count where no label says how much a GPU
    has."""

    def __init__(self, node: ClusterNode) -> None:
        self.bytes = node.gpu_bytes
        self._devices = int(node.total.get(GPUS, 0.0))
        self._known: dict[str, list[float]] = {}
        self._unknown: list[tuple[float, float]] = []

    def charge(self, place: WantedPlace) -> None:
        fraction = place.requirements.needs.get(GPUS, 0.0)
        if place.gpu is not None:
            self.bytes = self.bytes or place.gpu.total
            used = self._known.setdefault(place.gpu.uuid, [0.0, 0.0])
            used[0] += fraction
            used[1] += place.gpu.reserved
        elif fraction:
            self._unknown.append((fraction, place.requirements.gpu_bytes))

    def has_room(self, asked: Requirements) -> bool:
        size = math.inf if self.bytes is None else self.bytes
        left = [[1.0 - fraction, size - used] for fraction, used in self._known.values()]
        left += [[1.0, size] for _ in range(self._devices - len(left))]
        for fraction, estimate in self._unknown:
            if left:
                emptiest = max(left)
                emptiest[0] -= fraction
                emptiest[1] -= estimate
        needed = asked.needs.get(GPUS, 0.0) - TOLERANCE
        return any(fraction >= needed and free >= asked.gpu_bytes for fraction, free in left)


def gpu_fraction(estimate: int, device_bytes: int) -> float:
    """The part of a GPU that a replica with so many bytes takes, in hundredths, rounded up."""
    return min(max(math.ceil(100 * estimate / device_bytes) / 100, LEAST_FRACTION), 1.0)


def smallest_gpu(nodes: Iterable[ClusterNode]) -> int | None:
    """The bytes of the smallest GPU; None if no node says."""
    return min((size for node in nodes if (size := node.gpu_bytes) is not None), default=None)


def replica_needs(
    options: Resources, file_bytes: int, gpu_bytes: int, on_gpu: bool, nodes: Iterable[ClusterNode]
) -> Resources:
    """The needs of a replica: what its config's ``options`` say, and estimates for what they do not.

    Every replica has a share of a CPU, or Ray might put it on the head. ``file_bytes`` are those of the version's
    files; ``gpu_bytes`` is the estimate of its memory on a GPU, if it is ``on_gpu``: the fraction follows from it if a
    node says how much its GPUs have, and is a whole GPU otherwise. INVALID_ARGUMENT for several GPUs.
    """
    needs = {CPUS: 1.0, MEMORY: float(math.ceil(file_bytes * 6 / 5) + BASE_MEMORY), **options}
    if on_gpu and GPUS not in options:
        size = smallest_gpu(nodes)
        needs[GPUS] = gpu_fraction(gpu_bytes, size) if size and gpu_bytes else 1.0
    if needs.get(GPUS, 0.0) > 1:
        raise invalid_argument(f"{GPUS} is {_number(needs[GPUS])}; a replica has one GPU or a part of one")
    if needs[CPUS] <= 0:
        raise invalid_argument(f"{CPUS} is {_number(needs[CPUS])}; a replica needs a share of a CPU, however small")
    return needs


def requirements_of(
    options: ReplicaOptions, file_bytes: int, gpu_bytes: int, nodes: Sequence[ClusterNode]
) -> tuple[Requirements, bool]:
    """What each replica asks of its node, and whether it has a GPU. ``file_bytes`` are those of the version's files,
    ``gpu_bytes`` estimates what a replica would take of a GPU. INVALID_ARGUMENT as :func:`replica_needs` says.

    Of the nodes those count that fulfil the demands on labels: KIND_AUTO takes a GPU if one of them has any, and the
    part of a GPU is one of the smallest GPU among them.
    """
    fitting = [node for node in nodes if fulfils_labels(node.labels, options.labels)]
    wanted = options.needs.get(GPUS)
    if wanted is not None or options.kind == "KIND_CPU":
        on_gpu = bool(wanted)
    else:
        on_gpu = options.kind == "KIND_GPU" or any(node.total.get(GPUS, 0) > 0 for node in fitting)
    needs = replica_needs(options.needs, file_bytes, gpu_bytes, on_gpu, fitting)
    estimate = gpu_bytes if on_gpu else 0
    strategy = Strategy(options.strategy)
    return Requirements(needs, options.labels, strategy, options.max_per_node, estimate), on_gpu


def _is_usable(node: ClusterNode) -> bool:
    """Whether new replicas may go to the node at all."""
    return node.alive and not node.draining


def _why_not(node: ClusterNode | None) -> str:
    """Why a replica cannot stay on this node."""
    if node is None:
        return "its node is lost"
    return f"node {node.host} drains" if node.alive else f"node {node.host} is lost"


def fulfils_labels(labels: Mapping[str, str], demands: Mapping[str, str]) -> bool:
    """Whether a node with these labels may have a replica with these demands."""
    return all(_fulfils(labels.get(key), demand) for key, demand in demands.items())


def _fulfils(value: str | None, demand: str) -> bool:
    """One demand in Ray's words; a label that is missing fulfils the negative ones."""
    positive = demand.removeprefix("!")
    allowed = positive[3:-1].split(",") if positive.startswith("in(") and positive.endswith(")") else [positive]
    return (value in [each.strip() for each in allowed]) == (positive == demand)


def _amounts(needs: Resources) -> str:
    return " and ".join(_amount(name, amount) for name, amount in needs.items())


def _amount(name: str, amount: float) -> str:
    return f"{name} {_number(amount)}"


def _number(amount: float) -> str:
    return f"{amount:.0f}" if amount >= 1e6 else f"{amount:.4g}"
