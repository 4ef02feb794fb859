"""Ray, as far as the replicas need it: the only module that imports ray.

    helper (driver) --- RayEngine ---> Ray: nodes, actors                    HOST:PORT, auto
    helper (client) --- ray:// ---> agent, an actor with a RayEngine         ray://HOST:PORT
                                    ReplicaActor    detached, one process with a Replica
                                    RegistrarActor  detached, on the head, always started again

Ray places, ends and lists processes. A replica listens by itself, and no tensor goes through Ray. What Ray has no
public function for is in :class:`_Private`.
"""

from __future__ import annotations

import builtins
import logging
import os
import platform
import re
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import ray
from ray._private import state as ray_state
from ray.core.generated.gcs_pb2 import ActorTableData
from ray.exceptions import ActorAlreadyExistsError, ActorDiedError, RayError, RayTaskError

from tfs_lite.cluster.replicas.engine import (
    CPUS,
    GPUS,
    MEMORY,
    TOLD_TO_END,
    ClusterNode,
    PlacedReplica,
    ReplicaAddress,
    ReplicaEnded,
    ReplicaName,
    Strategy,
    Wish,
)
from tfs_lite.cluster.replicas.registrar import Leader, Registrar
from tfs_lite.cluster.replicas.replica import Replica
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument

CLIENT = "ray://"
LEAST_CPUS = 0.001
"""An actor without any CPU may land on the head, which has none to give."""
ADDRESS_SECONDS = 0.2
"""How long a list waits for the addresses of replicas that have just started."""
MISTAKES = (TypeError, AttributeError, NameError, ImportError, AssertionError)
"""Exceptions that Ray does not raise when it cannot reach a cluster."""
HEAD = {"node:__internal_head__": 0.001}
"""A resource that only the head has."""
logger = logging.getLogger(__name__)
_NODE_ID = "ray.io/node-id"
_ANYWHERE = ("0.0.0.0", "::")
_RESOURCES = {"CPU": CPUS, "GPU": GPUS, "memory": MEMORY}
_NO_RESOURCES = ("node:", "object_store_memory")
_LISTED = ("DEPENDENCIES_UNREADY", "PENDING_CREATION", "ALIVE")
"""The states of living actors, in the order in which an actor goes through them, so that none is missed."""


@dataclass(frozen=True, slots=True)
class ReplicaStartOptions:
    """The options that every replica of a cluster name gets at its start.

    It listens on ``host`` if that is the loopback address or the one that means all, else on its node's; on a port of
    ``ports``, from the first to the last, or on any. ``settings`` are further arguments of
    :class:`~tfs_lite.cluster.replicas.replica.Replica`.
    """

    secret: bytes = field(repr=False)
    host: str = ""
    ports: Sequence[int] | None = None
    orphan_seconds: float = 600.0
    log_level: int = logging.WARNING
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)


class ReplicaActor:
    """The process of a replica. Its address is asked for once; everything else is said over the replica's own
    connections."""

    def __init__(self, name: str, options: ReplicaStartOptions) -> None:
        logging.basicConfig(level=options.log_level)
        node = ray.util.get_node_ip_address()
        is_bound = options.host in _ANYWHERE or options.host.startswith("127.") or options.host == "::1"
        bind = options.host if is_bound else node
        ports = range(options.ports[0], options.ports[1] + 1) if options.ports else None
        facts = {"node": ray.get_runtime_context().get_node_id(), "host": socket.gethostname(), "ray": ray.__version__}
        self._replica = Replica(
            name,
            options.secret,
            bind,
            ports,
            orphan_seconds=options.orphan_seconds,
            facts=facts,
            **dict(options.settings),
        )
        found = self._replica.address
        self._address = replace(found, host=node) if bind in _ANYWHERE else found
        threading.Thread(target=self._serve, name="tfs-model", daemon=True).start()

    def address(self) -> ReplicaAddress:
        return self._address

    def _serve(self) -> None:
        """The thread of the model; the process ends with it."""
        try:
            self._replica.serve()
            os._exit(0)
        except BaseException:
            logger.exception("a replica failed")
            os._exit(1)


class RegistrarActor(Registrar):
    """The process of a registrar."""

    def __init__(self, lease_seconds: float) -> None:
        super().__init__(ray.get_runtime_context().was_current_actor_reconstructed, lease_seconds)


class _Private:
    """Functions of Ray that are not public, each with a test of its own."""

    @staticmethod
    def actors(namespace: str, state: str) -> list[Any]:
        """The actors in a state, as Ray's own messages."""
        table = ray_state.state._connect_and_get_accessor().get_actor_table(None, state)
        found = map(ActorTableData.FromString, table)
        return [actor for actor in found if actor.ray_namespace == namespace]

    @staticmethod
    def actor(id: str) -> Any:
        """One, living or dead; None if it was forgotten."""
        raw = ray_state.state._connect_and_get_accessor().get_actor_info(ray.ActorID(bytes.fromhex(id)))
        return None if raw is None else ActorTableData.FromString(raw)

    @staticmethod
    def draining() -> dict[str, int]:
        """Maps node ids to the time until which the node stays: milliseconds since the epoch, 0 if that is not
        known."""
        return cast(dict[str, int], ray_state.state.get_draining_nodes())

    @staticmethod
    def free() -> dict[str, dict[str, float]]:
        """The free resources by node id."""
        return cast(dict[str, dict[str, float]], ray_state.available_resources_per_node())

    @staticmethod
    def id_of(actor: Any) -> str:
        return cast(str, actor._ray_actor_id.hex())


class RayEngine:
    """Nodes and replicas of a cluster name, as a process within the cluster sees them. Threads: any."""

    def __init__(self, namespace: str, options: ReplicaStartOptions) -> None:
        self._namespace, self._options = namespace, options
        self._lock = threading.Lock()  # guards what follows
        self._known: set[str] = set()
        self._ended: list[ReplicaEnded] = []
        self._asked: dict[str, Any] = {}
        self._addresses: dict[str, ReplicaAddress] = {}

    def nodes(self) -> list[ClusterNode]:
        """The nodes that live."""
        free, draining, now = _Private.free(), _Private.draining(), time.time()
        found = []
        for node in ray.nodes():
            id = node["NodeID"]
            if node["Alive"]:
                until = draining.get(id)
                found.append(
                    ClusterNode(
                        id,
                        node["NodeManagerHostname"],
                        _resources(node["Resources"]),
                        _resources(free.get(id, {})),
                        dict(node["Labels"]),
                        draining=until is not None,
                        drain_seconds=max(until / 1000 - now, 0.0) if until else None,
                    )
                )
        return found

    def list(self) -> builtins.list[PlacedReplica]:
        """The replicas that have not ended. One whose end was asked for is not among them, though its process may need
        a moment more, and 5 seconds if it is stopped."""
        with self._lock:
            actors = {}
            for state in _LISTED:
                for actor in _Private.actors(self._namespace, state):
                    if (name := _name_of(actor)) is not None:
                        actors[actor.actor_id.hex()] = (name, actor)
            living = {id: name for id, (name, actor) in actors.items() if _is_alive(actor)}
            self._ask_addresses(living)
            self._note_ends(set(actors))
            return [
                PlacedReplica(id, name, actor.address.node_id.hex() if id in living else None, self._addresses.get(id))
                for id, (name, actor) in actors.items()
            ]

    def place(self, wish: Wish) -> str:
        """See :class:`~tfs_lite.cluster.replicas.engine.ClusterEngine`."""
        try:
            actor = _remote(ReplicaActor, self._namespace, str(wish.name), **_options(wish)).remote(
                str(wish.name), self._options
            )
        except ActorAlreadyExistsError:
            raise ServingError(StatusCode.ALREADY_EXISTS, f"there is a replica {wish.name}") from None
        except (ValueError, TypeError) as error:
            raise invalid_argument(f"{wish.name}: {_first_line(error)}") from None
        id = _Private.id_of(actor)
        with self._lock:
            self._known.add(id)
        return id

    def end(self, id: str) -> None:
        """See :class:`~tfs_lite.cluster.replicas.engine.ClusterEngine`."""
        found = _Private.actor(id)
        if found is None or found.ray_namespace != self._namespace or _name_of(found) is None:
            return
        try:
            actor = ray.get_actor(found.name, namespace=self._namespace)
        except ValueError:
            return
        if _Private.id_of(actor) == id:
            ray.kill(actor)

    def take_ended(self) -> builtins.list[ReplicaEnded]:
        """The replicas that were in an earlier list or were placed and are not in the last list; each of them once."""
        with self._lock:
            ended, self._ended = self._ended, []
            return ended

    def _note_ends(self, listed: set[str]) -> None:
        for id in self._known - listed:
            self._ended.append(ReplicaEnded(id, _cause(_Private.actor(id))))
            self._asked.pop(id, None)
            self._addresses.pop(id, None)
        self._known = listed

    def _ask_addresses(self, living: Mapping[str, ReplicaName]) -> None:
        """Asks each replica for its address once; the answers are taken in this list, or in a later one."""
        new = [id for id in living if id not in self._addresses and id not in self._asked]
        for id in new:
            try:
                actor = ray.get_actor(str(living[id]), namespace=self._namespace)
            except ValueError:  # it has ended meanwhile
                continue
            self._asked[id] = actor.address.remote()
        if self._asked:
            asked = [*self._asked.values()]
            ray.wait(asked, num_returns=len(asked), timeout=ADDRESS_SECONDS if new else 0, fetch_local=True)
        for id, answer in [*self._asked.items()]:
            if ray.wait([answer], timeout=0)[0]:
                del self._asked[id]
                try:
                    self._addresses[id] = ray.get(answer)
                except RayError:
                    pass  # it has ended; or is asked again


class RayConnection:
    """This process's connection to Ray: as a driver, or as a client of ``ray://``. Threads: any.

    FAILED_PRECONDITION for other versions of Ray or Python than the cluster's; UNAVAILABLE, after 20 seconds or so, if
    it cannot be reached. Mistakes of a program (TypeError and the like) are raised as they are.
    """

    def __init__(self, address: str, cluster_name: str, lease_seconds: float) -> None:
        self._namespace, self._lease_seconds = f"tfs-lite:{cluster_name}", lease_seconds
        self._is_client = address.startswith(CLIENT)
        self._engine: RayEngine | None = None
        self._agent: Any = None
        self._agent_died = False
        self._registrar: Any = None
        try:
            ray.init(address, namespace=self._namespace, configure_logging=False, log_to_driver=False)
        except MISTAKES:
            raise
        except (Exception, SystemExit) as error:
            raise failure_of(address, error) from None
        self.host = _local_host(address) if self._is_client else ray.util.get_node_ip_address()

    @property
    def is_lost(self) -> bool:
        """Whether the connection will not come back, so that this process has to."""
        return self._agent_died or not ray.is_initialized()

    def claim(self, leader: Leader, over: str, seconds: float) -> tuple[Leader | None, float]:
        """See :class:`~tfs_lite.cluster.replicas.registrar.Registrar`."""
        found, left = self._ask_registrar("claim", seconds, leader.plain, int(time.time() * 1000), over)
        return None if found is None else Leader.read(found), left

    def renew(self, leader: Leader, seconds: float) -> int:
        return cast(int, self._ask_registrar("renew", seconds, leader.plain))

    def release(self, leader: Leader, seconds: float) -> None:
        self._ask_registrar("release", seconds, leader.id)

    def begin(self, secret: bytes, settings: Mapping[str, Any]) -> None:
        """Begins, before any :meth:`call`. ``settings``: the fields of :class:`ReplicaStartOptions`, and others."""
        options = ReplicaStartOptions(
            secret,
            settings["host"],
            settings["ports"],
            settings["orphan_seconds"],
            settings["log_level"],
            settings["replica_settings"],
        )
        if self._is_client:
            remote = ray.remote(RayEngine).options(num_cpus=0, resources=HEAD, max_restarts=0, max_concurrency=4)
            self._agent = remote.remote(self._namespace, options)
        else:
            self._engine = RayEngine(self._namespace, options)

    def call(self, what: str, seconds: float, *arguments: object) -> Any:
        """Calls a method of :class:`RayEngine`. Raises what it raises; UNAVAILABLE if Ray cannot do it."""
        try:
            if self._engine is not None:
                return getattr(self._engine, what)(*arguments)
            return ray.get(getattr(self._agent, what).remote(*arguments), timeout=seconds)
        except RayTaskError as error:
            cause = getattr(error, "cause", error)
            raise cause if isinstance(cause, ServingError) else _unavailable(error) from None
        except ServingError:
            raise
        except Exception as error:
            self._agent_died = self._agent_died or isinstance(error, ActorDiedError)
            raise self._failure_of(error) from None

    def close(self) -> None:
        """Closes the connection; may block while the head is away."""
        ray.shutdown()

    def _ask_registrar(self, what: str, seconds: float, *arguments: object) -> Any:
        try:
            if self._registrar is None:
                self._registrar = _remote(
                    RegistrarActor,
                    self._namespace,
                    "registrar",
                    num_cpus=0,
                    resources=HEAD,
                    max_restarts=-1,
                    get_if_exists=True,
                ).remote(self._lease_seconds)
            return ray.get(getattr(self._registrar, what).remote(*arguments), timeout=seconds)
        except Exception as error:
            if isinstance(error, ActorDiedError):
                self._registrar = None  # for good: the next call makes another one
            raise self._failure_of(error) from None

    def _failure_of(self, error: Exception) -> Exception:
        """UNAVAILABLE, unless it is a mistake of ours. A client that is cut off raises plain exceptions."""
        return _unavailable(error) if isinstance(error, RayError | ConnectionError) or self.is_lost else error


def _remote(actor: type, namespace: str, name: str, **options: Any) -> Any:
    """A detached actor, about to be made."""
    return ray.remote(actor).options(
        **{"max_restarts": 0, "max_task_retries": 0, **options}, name=name, namespace=namespace, lifetime="detached"
    )


def _options(wish: Wish) -> dict[str, Any]:
    needs = dict(wish.needs)
    labels = dict(wish.labels)
    if wish.node is not None:
        labels[_NODE_ID] = wish.node
    elif wish.avoid:
        labels.setdefault(_NODE_ID, f"!in({','.join(sorted(wish.avoid))})")
    memory = int(needs.pop(MEMORY, 0))
    options: dict[str, Any] = {
        "num_cpus": max(needs.pop(CPUS, 0.0), LEAST_CPUS),
        "num_gpus": needs.pop(GPUS, 0.0),
        "resources": needs,
        "scheduling_strategy": "DEFAULT" if wish.strategy is Strategy.PACK else "SPREAD",
    }
    if memory:
        options["memory"] = memory
    if labels:
        options["label_selector"] = labels
    return options


def _resources(found: Mapping[str, float]) -> dict[str, float]:
    return {_RESOURCES.get(name, name): amount for name, amount in found.items() if not name.startswith(_NO_RESOURCES)}


def _name_of(actor: Any) -> ReplicaName | None:
    """The name of a replica; None if the actor is none."""
    try:
        return ReplicaName.parse(actor.name)
    except ServingError:
        return None


def _is_alive(actor: Any) -> bool:
    return bool(actor.state == ActorTableData.ALIVE)


def _cause(actor: Any) -> str:
    """Why the actor has ended."""
    if actor is None:
        return "the cluster has forgotten it"
    kind = actor.death_cause.WhichOneof("context")
    if kind == "actor_died_error_context":
        return _cause_of_death(actor.death_cause.actor_died_error_context)
    if kind == "creation_task_failure_context":
        lines = actor.death_cause.creation_task_failure_context.formatted_exception_string.strip().splitlines()
        return f"it could not start: {lines[-1].strip() if lines else 'no reason was given'}"
    context = getattr(actor.death_cause, kind) if kind else None
    return _sentence(getattr(context, "error_message", "")) or "it has ended"


def _cause_of_death(context: Any) -> str:
    reasons = type(context).Reason
    if context.reason == reasons.RAY_KILL:
        return TOLD_TO_END
    if context.reason == reasons.NODE_DIED:
        return "its node is lost"
    detail = context.error_message.partition("Worker exit detail: ")[2]
    if context.reason == reasons.WORKER_DIED:
        unexplained = not detail or "connection error code 2" in detail
        return "its process has ended" if unexplained else f"its process has ended: {_sentence(detail)}"
    return _sentence(context.error_message) or "it has ended"


def _sentence(text: str) -> str:
    return re.split(r"\.\s", text.strip(), maxsplit=1)[0].rstrip(".")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _unavailable(error: BaseException) -> ServingError:
    return ServingError(StatusCode.UNAVAILABLE, f"Ray: {_sentence(_first_line(error))}")


def failure_of(address: str, error: BaseException) -> ServingError:
    """Why the cluster at ``address`` cannot be used, in words, after Ray has raised ``error``."""
    text = str(error)
    theirs = re.search(r"cluster was started with:\s*Ray: (\S+)\s*Python: (\S+)", text)
    if theirs or "ersion mismatch" in text:
        ours = f"Ray {ray.__version__} and Python {platform.python_version()}"
        other = f"Ray {theirs[1]} and Python {theirs[2]}" if theirs else _first_line(error)
        return failed_precondition(f"the cluster at {address} has {other}, this server {ours}; they must be the same")
    cause = _sentence(_first_line(error))
    return ServingError(StatusCode.UNAVAILABLE, f"wrong or missing token? Ray says: {cause}")


def _local_host(address: str) -> str:
    """The address of this machine that the cluster's head is reached from."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    try:
        family, kind, _, _, name = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as sock:
            sock.connect(name)
            return cast(str, sock.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
