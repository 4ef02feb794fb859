"""Replicas on other machines: what a model's instance group and the server's flags say about them.

    instance_group { worker: "ray" ... } -> ReplicaOptions     one for each model
    --cluster=... --cluster_name=...     -> ClusterOptions     one for the server

Names and meanings are Ray's. What stays open is decided where it is known: estimates come from the version's files,
the device from the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, StrictStr, model_validator

from tfs_lite.config.settings import Settings, problem
from tfs_lite.core.status import invalid_argument

RAY = "ray"
"""The worker of replicas."""
MAX_REPLICAS_OF_MODEL = 512
MAX_ONGOING_BATCHES = 8
"""The most batches inside a replica; with more it answers that it is busy."""
STRATEGIES = ("SPREAD", "PACK", "STRICT_SPREAD")
TRANSFERS = ("shared", "fetch")
DEFAULT_CLUSTER_NAME = "default"
CACHE_BYTES = 50 * 2**30
LEAST_AMOUNT = 0.0001
"""Ray rounds amounts to this; a replica with none of anything might be put on the cluster's head."""
_COUNTED = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory", "object_store_memory": ""}
"""Resources that have fields of their own, or are none of ours."""
_ADDRESS = re.compile(r"auto|(ray://)?([\w.\-]+|\[[0-9A-Fa-f:.]+\]):\d{1,5}", re.ASCII)
_CLUSTER_NAME = re.compile(r"[\w.\-]{1,64}", re.ASCII)
_DEMAND = re.compile(r"!?[\w.\-]*|!?in\([\w.\- ]+(,[\w.\- ]+)*\)")

Amount = Annotated[StrictFloat | StrictInt, Field(ge=0, le=2**53, allow_inf_nan=False)]
Share = Annotated[StrictFloat | StrictInt, Field(ge=LEAST_AMOUNT, le=4096, allow_inf_nan=False)]


def _one_gpu(amount: float) -> float:
    if amount > 1:
        raise problem(f"a replica has one GPU or a part of one; got {amount:g}")
    if 0 < amount < LEAST_AMOUNT:
        raise problem(f"must be 0 or from {LEAST_AMOUNT} to 1; got {amount:g}")
    return amount


def _demand(text: str) -> str:
    if not _DEMAND.fullmatch(text):
        raise problem(f'"{text}" is no demand on a label, which is VALUE, !VALUE, in(A,B) or !in(A,B)')
    return text


class RayActorOptions(Settings):
    """The resources that each replica asks of its node. A field that is None is estimated; see
    :func:`tfs_lite.cluster.replicas.placement.requirements_of`."""

    num_cpus: Share | None = None
    """The number of CPUs; also that of torch's threads in the replica, at least 1."""
    num_gpus: Annotated[Amount, AfterValidator(_one_gpu)] | None = None
    """0 to 1: a part of a GPU, or a whole one."""
    memory: Amount | None = None
    """Bytes of main memory."""
    resources: Mapping[StrictStr, Amount] = {}
    """Others, as the nodes call them."""
    label_selector: Mapping[StrictStr, Annotated[StrictStr, AfterValidator(_demand)]] = {}
    """Demands on the node's labels."""

    @model_validator(mode="after")
    def _resources_of_others(self) -> RayActorOptions:
        for name in self.resources:
            if name in _COUNTED:
                instead = f"; say {_COUNTED[name]}" if _COUNTED[name] else ""
                raise problem(f"is not to be asked for here{instead}", "resources", name)
        return self

    @property
    def needs(self) -> dict[str, float]:
        """The amounts that are said, by name."""
        said = {"num_cpus": self.num_cpus, "num_gpus": self.num_gpus, "memory": self.memory}
        return {name: float(amount) for name, amount in (*said.items(), *self.resources.items()) if amount is not None}

    def __hash__(self) -> int:
        return hash((frozenset(self.needs.items()), frozenset(self.label_selector.items())))


class AutoscalingConfig(Settings):
    """Refused for now, whatever it says."""

    @model_validator(mode="before")
    @classmethod
    def _not_yet(cls, fields: Any) -> Any:
        raise problem("the number of replicas is fixed: autoscaling is not supported yet; leave it out, and say count")


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """The options of a model's replicas.

    - ``count``: how many; ``ready_replicas``: how many of them have to be ready before the version is available, None
      means all.
    - ``kind``: KIND_CPU, KIND_GPU, or KIND_AUTO, which takes a GPU if a node has any.
    - ``needs``: amounts by name (``num_cpus``, ``num_gpus``, ``memory`` in bytes, others) as far as the config says;
      ``labels``: demands on the node's labels; ``strategy``: SPREAD, PACK or STRICT_SPREAD; ``max_per_node``: of the
      version on one node, 0 is no bound.
    - ``max_ongoing_batches``: batches that a replica has at once; None means 1 on the CPU and 2 with a GPU.
    """

    count: int = 1
    kind: str = "KIND_AUTO"
    needs: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: str = "SPREAD"
    max_per_node: int = 0
    max_ongoing_batches: int | None = None
    ready_replicas: int | None = None

    @property
    def ready(self) -> int:
        """The number of replicas that have to be ready before the version is available."""
        return self.count if self.ready_replicas is None else self.ready_replicas

    def lanes(self, on_gpu: bool) -> int:
        """Batches that a replica has at once."""
        return self.max_ongoing_batches or (2 if on_gpu else 1)


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of this server's part in a cluster; the server's flags set them.

    - ``address``: ``auto``, ``HOST:PORT`` of a node's head, or ``ray://HOST:PORT``; ``name``: of the cluster's users
      only those with the same name share replicas.
    - ``host``: where server and replicas listen, empty means the address of each one's node; ``port``: where the server
      does, 0 means any free one; ``port_range``: first and last port of replicas, None means any free one.
    - ``orphan_seconds``: a replica that no server has asked for so long ends itself. ``health_check_timeout``: seconds
      without an answer after which one is given up, 0 means never.
    - ``ssl_config_file``: path of an SSLConfig for the connections between server and replicas; empty means none.
    - ``transfer``: ``shared`` (the same paths on every node) or ``fetch`` (replicas ask the server for the files and
      keep at most ``cache_bytes`` of them in ``cache_dir`` of their node; empty means a directory of the user's).
    """

    address: str
    name: str = DEFAULT_CLUSTER_NAME
    host: str = ""
    port: int = 0
    port_range: tuple[int, int] | None = None
    orphan_seconds: float = 600.0
    health_check_timeout: float = 60.0
    ssl_config_file: str = ""
    transfer: str = "shared"
    cache_dir: str = ""
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        """INVALID_ARGUMENT names the flag. Numbers have been checked before."""
        if not _ADDRESS.fullmatch(self.address):
            raise invalid_argument(f"cluster is {self.address!r}, expected auto, HOST:PORT or ray://HOST:PORT")
        if not _CLUSTER_NAME.fullmatch(self.name):
            expected = "expected at most 64 letters, digits, dots, hyphens and underscores"
            raise invalid_argument(f"cluster_name is {self.name!r}, {expected}")
        if self.transfer not in TRANSFERS:
            raise invalid_argument(f"model_transfer is {self.transfer!r}, expected one of: {', '.join(TRANSFERS)}")

    @property
    def fetches(self) -> bool:
        return self.transfer == "fetch"


def port_range(text: str) -> tuple[int, int] | None:
    """``20000-20999``; None for an empty text. INVALID_ARGUMENT for anything else."""
    if not text:
        return None
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text, re.ASCII)
    if found is None or not 0 < int(found[1]) <= int(found[2]) <= 65535:
        raise invalid_argument(f"replica_port_range is {text!r}, expected FIRST-LAST, ports from 1 to 65535")
    return int(found[1]), int(found[2])
