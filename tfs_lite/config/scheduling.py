"""The order of calls in one model, and the number of its instances: ``dynamic_batching`` and ``instance_group`` of its
config.

Names and meanings are Triton's; ``worker`` is ours. Fields of Triton's that would change which instance runs what are
refused by name; those that change nothing are kept. Times are in microseconds, as they are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    model_validator,
)

from tfs_lite.config.replicas import (
    MAX_ONGOING_BATCHES,
    MAX_REPLICAS_OF_MODEL,
    RAY,
    STRATEGIES,
    AutoscalingConfig,
    RayActorOptions,
    ReplicaOptions,
)
from tfs_lite.config.settings import Settings, problem
from tfs_lite.config.tensors import one_of
from tfs_lite.core.status import invalid_argument

MAX_INSTANCES = 64
"""The most instances of one model on this machine, all groups together."""
TIMEOUT_ACTIONS = ("REJECT", "DELAY")
INSTANCE_KINDS = ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL")
WORKERS = ("thread", "process", RAY)
NOT_YET = ("passive",)
"""Fields of Triton's instance groups that would change whether instances run."""
MAX_GPU = 1023
"""The highest number that a GPU can have in a config."""
OF_REPLICAS = (
    "ray_actor_options",
    "placement_strategy",
    "max_replicas_per_node",
    "max_ongoing_batches",
    "ready_replicas",
)


def _keys_as_written(policies: object) -> object:
    """YAML reads keys as numbers; as texts they can be found again in the file."""
    return {str(key): policy for key, policy in policies.items()} if isinstance(policies, dict) else policies


def _at_least_one(count: int) -> int:
    return count or 1


UInt64 = Annotated[StrictInt, Field(ge=0, lt=2**64)]
Level = Annotated[int, Field(ge=1, lt=2**64)]
PreferredSize = Annotated[StrictInt, Field(ge=1, lt=2**31)]


class TransactionPolicy(Settings):
    """``decoupled``: a request may have any number of answers."""

    decoupled: StrictBool = False


class ResponseCacheSettings(Settings):
    """``enable``: the answer to an equal request may be given again, if the server has a cache."""

    enable: StrictBool = False


class ModelQueuePolicy(Settings):
    """The rules by which the calls of one priority wait."""

    timeout_action: Annotated[Literal["REJECT", "DELAY"], one_of(TIMEOUT_ACTIONS, "timeout action")] = "REJECT"
    """The fate of a call that has waited too long: an error, or a place behind the others of its priority."""
    default_timeout_microseconds: UInt64 = 0
    """0: calls wait as long as it takes, whatever they ask for."""
    allow_timeout_override: StrictBool = False
    """Whether a call may ask for a shorter timeout."""
    max_queue_size: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 0
    """The most calls that wait; 0: only the bound of all priorities together counts."""


class DynamicBatching(Settings):
    """Calls are put together into batches. That the field is there switches it on."""

    preferred_batch_size: tuple[PreferredSize, ...] = ()
    """Sizes worth running at once; empty: ``max_batch_size``."""
    max_queue_delay_microseconds: UInt64 = 0
    """The time, in microseconds, that a call may wait for a better batch."""
    preserve_ordering: StrictBool = False
    """Whether calls are answered in the order in which they came."""
    priority_levels: UInt64 = 0
    """1 is the most urgent; 0: there are no priorities."""
    default_priority_level: UInt64 = 0
    """The priority of calls without a valid one."""
    default_queue_policy: ModelQueuePolicy = ModelQueuePolicy()
    """The policy of the priorities that ``priority_queue_policy`` does not name."""
    priority_queue_policy: Annotated[Mapping[Level, ModelQueuePolicy], BeforeValidator(_keys_as_written)] = {}

    @model_validator(mode="after")
    def _default_is_a_level(self) -> DynamicBatching:
        levels, default = self.priority_levels, self.default_priority_level
        if levels and not 1 <= default <= levels:
            raise problem(f"must be from 1 to priority_levels, {levels}; got {default}", "default_priority_level")
        return self

    @model_validator(mode="after")
    def _policies_of_levels(self) -> DynamicBatching:
        for level in self.priority_queue_policy:
            if level > self.priority_levels:
                raise problem(
                    f"there is no such level; priority_levels is {self.priority_levels}",
                    "priority_queue_policy",
                    str(level),
                )
        return self

    @model_validator(mode="after")
    def _order_can_be_preserved(self) -> DynamicBatching:
        if not self.preserve_ordering:
            return self
        if self.priority_levels > 1:
            raise problem(f"is not possible with {self.priority_levels} priority_levels", "preserve_ordering")
        for policy in (self.default_queue_policy, *self.priority_queue_policy.values()):
            if policy.timeout_action == "DELAY" and policy.default_timeout_microseconds:
                raise problem("is not possible with a queue policy that delays calls", "preserve_ordering")
        return self


class RateLimiterResource(Settings):
    model_config = ConfigDict(populate_by_name=True)

    name: StrictStr = ""
    global_: StrictBool = Field(default=False, alias="global")
    count: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 0


class RateLimiter(Settings):
    """It has no effect: an instance runs whenever it is idle."""

    resources: tuple[RateLimiterResource, ...] = ()
    priority: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 0


class SecondaryDevice(Settings):
    kind: Literal["KIND_NVDLA"] = "KIND_NVDLA"
    device_id: Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)] = 0


class InstanceGroup(Settings):
    """Equal copies of the model, each of which runs one batch at a time."""

    name: StrictStr = ""
    count: Annotated[StrictInt, Field(ge=0, le=MAX_REPLICAS_OF_MODEL), AfterValidator(_at_least_one)] = 1
    """The number of instances on each of ``gpus``. 0 counts as 1."""
    kind: Annotated[
        Literal["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"], one_of(INSTANCE_KINDS, "kind of instance")
    ] = "KIND_AUTO"
    gpus: tuple[Annotated[StrictInt, Field(ge=0, le=MAX_GPU)], ...] = ()
    """Each of them has ``count`` instances. Empty: the server picks the GPU, one for all such groups of a version."""
    worker: Annotated[Literal["", "thread", "process", "ray"], one_of(("", *WORKERS), "worker")] = ""
    """Whether each copy is in a thread of the server, in a process of its own, or a replica on a node of the cluster;
    empty: what the server's flag says."""
    ray_actor_options: RayActorOptions | None = None
    """The resources of replicas; the next five fields are about replicas too."""
    placement_strategy: Annotated[
        Literal["SPREAD", "PACK", "STRICT_SPREAD"], one_of(STRATEGIES, "placement strategy")
    ] = "SPREAD"
    max_replicas_per_node: Annotated[StrictInt, Field(ge=0, le=MAX_REPLICAS_OF_MODEL)] = 0
    """0: any number."""
    max_ongoing_batches: Annotated[StrictInt, Field(ge=1, le=MAX_ONGOING_BATCHES)] | None = None
    """Batches that a replica has at once, of which it runs one; None: 1 on the CPU, 2 with a GPU."""
    ready_replicas: Annotated[StrictInt, Field(ge=1, le=MAX_REPLICAS_OF_MODEL)] | None = None
    """The number of replicas that have to be ready before a version is available; None: all."""
    autoscaling_config: AutoscalingConfig | None = None
    profile: tuple[StrictStr, ...] = ()
    """The field has no effect, nor have the next three."""
    rate_limiter: RateLimiter | None = None
    secondary_devices: tuple[SecondaryDevice, ...] = ()
    host_policy: StrictStr = ""

    @model_validator(mode="before")
    @classmethod
    def _without_what_is_not_supported(cls, fields: Any) -> Any:
        """A value that means "not used" says nothing and is taken."""
        if not isinstance(fields, dict):
            return fields
        for name in NOT_YET:
            if fields.get(name):
                raise problem("is not supported yet; leave it out", name)
        return {name: value for name, value in fields.items() if name not in NOT_YET}

    @property
    def instances(self) -> int:
        """The number of instances on a server with GPUs."""
        return self.count * max(1, len(self.gpus))

    @model_validator(mode="after")
    def _gpus(self) -> InstanceGroup:
        if not self.gpus:
            return self
        if self.worker == RAY:
            raise problem("does not go with replicas; say ray_actor_options.num_gpus", "gpus")
        if self.kind in ("KIND_CPU", "KIND_MODEL"):
            raise problem(f"does not go with {self.kind}", "gpus")
        if len(set(self.gpus)) < len(self.gpus):
            raise problem("names a GPU twice; count says how many instances each has", "gpus")
        return self

    @model_validator(mode="after")
    def _fields_of_replicas(self) -> InstanceGroup:
        if self.worker != RAY:
            if self.count > MAX_INSTANCES:
                raise problem(f"Input should be less than or equal to {MAX_INSTANCES}, got {self.count}", "count")
            for name in OF_REPLICAS:
                if name in self.model_fields_set:
                    raise problem('is for replicas: it needs worker: "ray" in the same group', name)
            return self
        if self.ready_replicas is not None and self.ready_replicas > self.count:
            raise problem(f"must be at most count, {self.count}; got {self.ready_replicas}", "ready_replicas")
        if self.placement_strategy == "STRICT_SPREAD" and self.max_replicas_per_node > 1:
            raise problem("must be 1 with STRICT_SPREAD", "max_replicas_per_node")
        gpus = self.ray_actor_options.num_gpus if self.ray_actor_options else None
        if gpus is not None and ((self.kind == "KIND_CPU" and gpus > 0) or (self.kind == "KIND_GPU" and gpus == 0)):
            raise problem(f"does not fit {self.kind}; got {gpus:g}", "ray_actor_options", "num_gpus")
        return self


def check_instances(groups: tuple[InstanceGroup, ...]) -> tuple[InstanceGroup, ...]:
    """A validator: all instances of a model together are bounded, and replicas are of one group."""
    most = MAX_REPLICAS_OF_MODEL if groups and groups[0].worker == RAY else MAX_INSTANCES
    total = 0
    for index, group in enumerate(groups):
        total += group.instances
        if total > most:
            raise problem(f"more than {most} instances in all", index, "count")
        if len(groups) > 1 and group.worker == RAY:
            raise problem('a model with worker: "ray" has one instance group', index, "worker")
    return groups


def replica_options(groups: tuple[InstanceGroup, ...], worker: str) -> ReplicaOptions | None:
    """The replica options of a model with these groups on a server with the flag ``--worker=worker``; None if it has no
    replicas.

    INVALID_ARGUMENT if the flag makes replicas of several groups."""
    of_replicas = [group for group in groups or (InstanceGroup(),) if (group.worker or worker) == RAY]
    if not of_replicas:
        return None
    if len(groups) > 1:
        raise invalid_argument("instance_group: a model whose worker is ray has one group")
    group = of_replicas[0]
    if group.gpus:
        raise invalid_argument("instance_group[0].gpus: does not go with replicas; say ray_actor_options.num_gpus")
    options = group.ray_actor_options or RayActorOptions()
    return ReplicaOptions(
        count=group.count,
        kind=group.kind,
        needs=options.needs,
        labels=options.label_selector,
        strategy=group.placement_strategy,
        max_per_node=group.max_replicas_per_node,
        max_ongoing_batches=group.max_ongoing_batches,
        ready_replicas=group.ready_replicas,
    )
