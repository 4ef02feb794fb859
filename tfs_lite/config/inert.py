"""Fields of Triton's model config that have no effect on the answers of the models served here.

They are checked as far as their types go and kept, so that a config can be shown as it was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from tfs_lite.config.settings import Settings, problem
from tfs_lite.config.signatures import Name
from tfs_lite.config.tensors import ElementType, one_of

Int32 = Annotated[StrictInt, Field(ge=-(2**31), lt=2**31)]
Int64 = Annotated[StrictInt, Field(ge=-(2**63), lt=2**63)]
UInt32 = Annotated[StrictInt, Field(ge=0, lt=2**32)]
PRIORITIES = ("PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN")
BATCH_INPUT_KINDS = (
    "BATCH_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT",
    "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO",
    "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE",
    "BATCH_ITEM_SHAPE",
    "BATCH_ITEM_SHAPE_FLATTEN",
)


class OptimizationGraph(Settings):
    level: Int32 = 0


class GraphShape(Settings):
    dim: tuple[Int64, ...] = ()


class GraphLowerBound(Settings):
    batch_size: Int32 = 0
    input: Mapping[Name, GraphShape] = {}


class GraphSpec(Settings):
    batch_size: Int32 = 0
    input: Mapping[Name, GraphShape] = {}
    graph_lower_bound: GraphLowerBound | None = None


class Cuda(Settings):
    graphs: StrictBool = False
    busy_wait_events: StrictBool = False
    graph_spec: tuple[GraphSpec, ...] = ()
    output_copy_stream: StrictBool = False


class Accelerator(Settings):
    name: StrictStr = ""
    parameters: Mapping[StrictStr, StrictStr] = {}


class ExecutionAccelerators(Settings):
    gpu_execution_accelerator: tuple[Accelerator, ...] = ()
    cpu_execution_accelerator: tuple[Accelerator, ...] = ()


class PinnedMemory(Settings):
    enable: StrictBool = False


class Optimization(Settings):
    """The wishes to run a model faster. The server's flags and ``parameters`` decide what is done here."""

    graph: OptimizationGraph | None = None
    priority: Annotated[Literal["PRIORITY_DEFAULT", "PRIORITY_MAX", "PRIORITY_MIN"], one_of(PRIORITIES, "priority")] = (
        "PRIORITY_DEFAULT"
    )
    cuda: Cuda | None = None
    execution_accelerators: ExecutionAccelerators | None = None
    input_pinned_memory: PinnedMemory | None = None
    output_pinned_memory: PinnedMemory | None = None
    gather_kernel_buffer_threshold: UInt32 = 0
    eager_batching: StrictBool = False


class ModelOperations(Settings):
    op_library_filename: tuple[StrictStr, ...] = ()


class MetricIdentifier(Settings):
    family: StrictStr = ""


class HistogramOptions(Settings):
    buckets: tuple[Annotated[StrictFloat | StrictInt, Field(allow_inf_nan=False)], ...] = ()


class MetricControl(Settings):
    metric_identifier: MetricIdentifier | None = None
    histogram_options: HistogramOptions | None = None


class ModelMetrics(Settings):
    metric_control: tuple[MetricControl, ...] = ()


class BatchInput(Settings):
    """A tensor that says where in a batch the rows of unequal length are."""

    kind: Annotated[StrictStr, one_of(BATCH_INPUT_KINDS, "kind of batch input")] = "BATCH_ELEMENT_COUNT"
    target_name: tuple[StrictStr, ...] = ()
    data_type: ElementType
    source_input: tuple[StrictStr, ...] = ()


class BatchOutput(Settings):
    """An output whose rows are as long as those of an input."""

    target_name: tuple[StrictStr, ...] = ()
    kind: Annotated[StrictStr, one_of(("BATCH_SCATTER_WITH_INPUT_SHAPE",), "kind of batch output")] = (
        "BATCH_SCATTER_WITH_INPUT_SHAPE"
    )
    source_input: tuple[StrictStr, ...] = ()


def _none(values: tuple[object, ...]) -> tuple[object, ...]:
    """Allows none: the model would see other tensors than it was written for."""
    if values:
        raise problem("is not supported yet; leave it out", 0)
    return values


NoBatchInputs = Annotated[tuple[BatchInput, ...], AfterValidator(_none)]
NoBatchOutputs = Annotated[tuple[BatchOutput, ...], AfterValidator(_none)]


class Agent(Settings):
    """A plugin that changes a model's files before they are loaded."""

    name: Name
    parameters: Mapping[StrictStr, StrictStr] = {}


class RepositoryAgents(Settings):
    """Always empty: files are served as they are."""

    agents: tuple[Agent, ...] = ()

    @model_validator(mode="after")
    def _none(self) -> RepositoryAgents:
        if self.agents:
            raise problem("is not supported; leave it out", "agents")
        return self
