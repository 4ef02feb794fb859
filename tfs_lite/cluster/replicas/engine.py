"""The contract between this server and whatever starts processes on other machines.

    reconciler -> ClusterEngine (nodes, place, end, list, watch) -> Ray, or the pretended cluster of the tests
    near end   -> Place (address, opened, lost, close)           -> reconciler

An engine places replicas, ends them and tells of them. It decides nothing, and no tensor goes through it. Everything
that crosses this contract is a value. A *replica* is a process with one instance of one version of a model; a *place*
is one of the replicas that a version wants, whichever process is in it now.
"""

from __future__ import annotations

import enum
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from tfs_lite.core.status import ServingError, Status, StatusCode, invalid_argument

CPUS = "num_cpus"
GPUS = "num_gpus"
MEMORY = "memory"
Resources = Mapping[str, float]
"""Amounts by name: ``num_cpus`` and ``num_gpus`` (fractions too), ``memory`` in bytes, others as the nodes call them.
Of a resource that is not named there is nothing."""

GPU_BYTES_LABEL = "tfs-lite/gpu-bytes"
"""The label by which a node says how many bytes of memory each of its GPUs has."""
logger = logging.getLogger(__name__)
_NAME = re.compile(r"(?s)(.+)/(0|[1-9]\d*)/([^/#]+)/(0|[1-9]\d*)#(0|[1-9]\d*)")


TOLD_TO_END = "it was ended"
"""The cause of the end of a process that :meth:`ClusterEngine.end` has ended."""
VersionKey = tuple[str, int, str]
"""The model, version and generation: equal for the replicas of which any may answer a request."""


@dataclass(frozen=True, slots=True, order=True)
class ReplicaSlot:
    """One of the replicas that a version wants, in words ``MODEL/VERSION/GENERATION/INDEX``.

    ``generation`` is a digest over the version's files and settings, so that a repaired version has other replicas.
    ``index`` counts within the version, from 0. A model's name may have slashes.
    """

    model: str
    version: int
    generation: str
    index: int

    @property
    def of(self) -> VersionKey:
        return self.model, self.version, self.generation

    def __str__(self) -> str:
        return f"{self.model}/{self.version}/{self.generation}/{self.index}"


@dataclass(frozen=True, slots=True, order=True)
class ReplicaName:
    """The name of one process, in words ``MODEL/VERSION/GENERATION/INDEX#LIFE``. ``life`` grows from one process to the
    next in a slot, so that no two have the same name."""

    slot: ReplicaSlot
    life: int

    def __str__(self) -> str:
        return f"{self.slot}#{self.life}"

    @staticmethod
    def parse(text: str) -> ReplicaName:
        """The name that prints as ``text``. INVALID_ARGUMENT if there is none."""
        found = _NAME.fullmatch(text)
        if found is None:
            raise invalid_argument(f"{text!r} is no replica's name, which is MODEL/VERSION/GENERATION/INDEX#LIFE")
        model, version, generation, index, life = found.groups()
        return ReplicaName(ReplicaSlot(model, int(version), generation, int(index)), int(life))


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """The address on which a replica listens. Equal addresses are the same process.

    ``name`` is the replica's in words, ``boot_id`` that of its host, ``unix`` the name of its abstract UNIX socket,
    without the leading zero byte, for near ends on the same host (None if it has none).
    """

    name: str
    host: str
    port: int
    boot_id: str = ""
    unix: str | None = None
    pid: int | None = None

    @property
    def plain(self) -> dict[str, object]:
        """The address as texts and numbers."""
        return asdict(self)

    @staticmethod
    def read(plain: Mapping[str, Any]) -> ReplicaAddress:
        """The address of which ``plain`` is that. INVALID_ARGUMENT if there is none."""
        try:
            found = ReplicaAddress(**plain)
        except TypeError:
            raise invalid_argument("no address of a replica") from None
        texts = (found.name, found.host, found.boot_id, "" if found.unix is None else found.unix)
        numbers = (found.port, 0 if found.pid is None else found.pid)
        if all(isinstance(text, str) for text in texts) and all(
            type(number) is int and number >= 0 for number in numbers
        ):
            return found
        raise invalid_argument("no address of a replica")


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One node as the engine sees it now. ``id`` changes when the node starts again, ``host`` is for people.

    ``free`` is of ``total`` what no process has been given; it may be behind by a moment. A node that is ``draining``
    gets no new replicas; ``drain_seconds`` is how long those on it may stay, None if that is not known. A node
    that is not ``alive`` may be listed for a while, and need not be.
    """

    id: str
    host: str
    total: Resources
    free: Resources
    labels: Mapping[str, str] = field(default_factory=dict)
    alive: bool = True
    draining: bool = False
    drain_seconds: float | None = None

    @property
    def gpu_bytes(self) -> int | None:
        """Bytes of each of its GPUs; None if it has no GPU or does not say."""
        said = self.labels.get(GPU_BYTES_LABEL, "")
        return int(said) if said.isdecimal() and self.total.get(GPUS, 0) > 0 else None


class Strategy(enum.Enum):
    """The nodes that a replica prefers. The names are Ray's."""

    SPREAD = "SPREAD"
    """Nodes with the fewest replicas of the version."""
    PACK = "PACK"
    """Nodes with the most, so that other nodes stay free."""
    STRICT_SPREAD = "STRICT_SPREAD"
    """At most one of the version on a node, and at the start all or none."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The wish for a replica. With ``node`` it is placed there or nowhere; without, on any node but those in ``avoid``,
    which may still have to be found: the wish stays pending until then, and an autoscaler sees it.

    ``labels`` are demands on the node's labels, in Ray's words: ``value``, ``!value``, ``in(a,b)``, ``!in(a,b)``.
    """

    name: ReplicaName
    needs: Resources
    node: str | None = None
    avoid: frozenset[str] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy = Strategy.SPREAD


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A wish that the engine has accepted and what has become of it.

    ``id`` is the engine's own, of this one process: should two have the same name, it tells them apart. ``node`` is
    None while the wish is pending, ``address`` while the process does not listen yet.
    """

    id: str
    name: ReplicaName
    node: str | None = None
    address: ReplicaAddress | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """Nodes or replicas are not what they were, or the cluster can be reached again: it is time to look."""


@dataclass(frozen=True, slots=True)
class ReplicaEnded:
    """A process has ended, or will never start. ``cause`` is in words: ``signal 9``, ``its node is lost``."""

    id: str
    cause: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Raised when nothing can be placed or listed. Replicas go on: their connections do not need the engine."""

    cause: str


EngineEvent = Changed | ReplicaEnded | Unreachable


class Superseded(ServingError):
    """A server with a higher epoch decides now. FAILED_PRECONDITION."""

    def __init__(self, epoch: int) -> None:
        super().__init__(
            StatusCode.FAILED_PRECONDITION, f"another server decides about the replicas now (its epoch is {epoch})"
        )
        self.epoch = epoch

    def __reduce__(self) -> tuple[type[Superseded], tuple[int]]:  # type: ignore[override]
        return type(self), (self.epoch,)


class ClusterEngine(Protocol):
    """Starts, ends and lists the processes of one cluster name.

    Who calls: the reconciler, one call at a time, on its executor's thread and outside all locks; ``watch`` and the
    function that it returns on any thread. Each call but ``watch`` may block for as long as a round trip to the
    cluster's head takes, 10 seconds at most, and raises UNAVAILABLE if the cluster cannot be reached. A ``place`` or
    ``end`` that has failed so may have taken effect all the same: the next ``list`` tells.

    Promises: a replica that ``place`` has accepted is in every later ``list`` until its process has ended; one that
    has ended is not in it for long; nothing starts by itself, also not again. Not promised: that events arrive, or
    arrive once. Replicas outlive the server and the engine.

    The engine registers ``epoch`` with the cluster when it connects: the time of one server in charge, higher than any
    that the cluster has heard of. From then on every ``place`` and ``end`` of engines with lower epochs raises
    :class:`Superseded` and has no effect.
    """

    @property
    def epoch(self) -> int: ...

    @property
    def secret(self) -> bytes:
        """The cluster name's, by which replicas and near ends know one another. Every engine has the same."""

    def nodes(self) -> Sequence[ClusterNode]:
        """All nodes, those without room too. A node that was lost may be missing."""

    def list(self) -> Sequence[PlacedReplica]:
        """All replicas of the cluster name, whichever server placed them, the pending ones too."""

    def place(self, wish: Wish) -> str:
        """Accepts the wish and returns the replica's id at once; the process starts when there is room.
        ALREADY_EXISTS if the name is taken, INVALID_ARGUMENT for needs that the engine does not understand."""

    def end(self, id: str) -> None:
        """Kills the process and what it has started, or takes the pending wish back. An id that is unknown, or whose
        process has ended, is no error. Returns before the process is gone."""

    def watch(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        """Calls ``on_event`` on the engine's thread, which must be short and must not raise. Returns what ends it."""


class Watchers:
    """The listeners to an engine's events. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards _calls
        self._calls: list[Callable[[EngineEvent], None]] = []

    def add(self, on_event: Callable[[EngineEvent], None]) -> Callable[[], None]:
        """Adds a listener, as :meth:`ClusterEngine.watch` does."""
        with self._lock:
            self._calls.append(on_event)
        return lambda: self._remove(on_event)

    def tell(self, event: EngineEvent) -> None:
        """Tells the listeners, on this thread. One that raises keeps nothing from the others."""
        with self._lock:
            calls = list(self._calls)
        for call in calls:
            try:
                call(event)
            except Exception:
                logger.exception("a listener to the cluster failed on %s", event)

    def _remove(self, on_event: Callable[[EngineEvent], None]) -> None:
        with self._lock:
            if on_event in self._calls:
                self._calls.remove(on_event)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The use of a replica's GPU: the device, its bytes, and how many of them the replica has reserved."""

    uuid: str
    total: int
    reserved: int


class Place(Protocol):
    """The view of a place that a near end has: which replica is in it, and whom to tell what became of that replica.

    Order, for each replica in turn: ``address``, then one of ``opened`` and ``refused``, or ``lost`` at any moment;
    ``close`` once, at the end. Threads: any. Reports about an address that is not in the place any more do nothing.
    """

    def address(self, give_up: threading.Event, wait_for_room: bool = True) -> ReplicaAddress:
        """The replica in this place; blocks until there is one that listens.

        UNAVAILABLE with ``WAITS_FOR_PLACE``, at once, if no node has room and ``wait_for_room`` is False; UNAVAILABLE
        if one replica after the other was lost while it opened; CANCELLED once the place is closed or ``give_up`` is
        set."""

    def holds(self, address: ReplicaAddress) -> bool:
        """Whether this replica is still the one in the place. If not, the near end tells it to close, hangs up and asks
        for the next one: the engine has reported its end. Cheap."""

    def opened(self, address: ReplicaAddress, gpu: GpuUse | None = None) -> None:
        """The replica has opened the version, now or for an earlier server, and its description fits: it is ready."""

    def refused(self, address: ReplicaAddress, status: Status) -> None:
        """The replica could not open the version, or describes another one. It is ended and placed again, on another
        node if there is one."""

    def lost(self, address: ReplicaAddress, cause: str) -> None:
        """The replica cannot be asked any more; ``cause`` is in words: ``signal 9``, ``not answering for 60 s``. It is
        ended, should it still run, and another one is placed."""

    def close(self) -> None:
        """The place is given up, and its replica is ended. May be called again."""
