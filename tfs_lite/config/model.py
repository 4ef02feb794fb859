"""The settings of one model: ``config.pbtxt`` or ``config.yaml`` beside its versions, in Triton's field names.

The file in ``BASE/<version>/`` replaces the one in ``BASE/`` for that version. All of it is optional: what is not
said is found out from the artefact.

What the parts of a model's settings must be to one another. Each part by itself was checked before.

Every function raises a :func:`~tfs_lite.config.settings.problem` whose path begins at the model's settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, StrictStr, model_validator

from tfs_lite.config.ensemble import PLATFORM, EnsembleScheduling, check_graph
from tfs_lite.config.guard import GuardSettings, parameter_text, with_guard_apart
from tfs_lite.config.inert import (
    ModelMetrics,
    ModelOperations,
    NoBatchInputs,
    NoBatchOutputs,
    Optimization,
    RepositoryAgents,
)
from tfs_lite.config.model_server import VersionPolicy
from tfs_lite.config.model_warmup import WARMUP_FOLDER, ModelWarmup
from tfs_lite.config.replicas import AutoscalingConfig
from tfs_lite.config.scheduling import (
    DynamicBatching,
    InstanceGroup,
    ResponseCacheSettings,
    TransactionPolicy,
    check_instances,
)
from tfs_lite.config.sequence import FLATTEN_PARAMETER, SequenceBatching
from tfs_lite.config.settings import FieldPath, Settings, nearest, problem
from tfs_lite.config.signatures import ModelSignature, Name, WarmupRequest, bounded, file_below
from tfs_lite.config.tensors import INPUTS_ONLY, OUTPUTS_ONLY, Dims, ModelTensor, check_tensors
from tfs_lite.core.signature import DataType, Dim, Signature, SymbolicDim, TensorSpec

__all__ = ["ModelSettings", "ModelTensor", "control_names", "hidden_outputs", "signature_of", "state_names"]

BATCH_SYMBOL = "batch"


class ModelSettings(Settings):
    """The settings that an operator gives a model. Defaults mean "find out from the artefact"."""

    name: StrictStr = ""
    """The name; if given, it must be the model's: a file copied to the wrong place is noticed."""
    platform: StrictStr = ""
    backend: StrictStr = ""
    """Kept: the platform is found by ``platform`` or the artefact. So is ``runtime``."""
    runtime: StrictStr = ""
    default_model_filename: Annotated[StrictStr, AfterValidator(file_below)] = ""
    cc_model_filenames: Mapping[StrictStr, Annotated[StrictStr, AfterValidator(file_below)]] = {}
    """File names by compute capability of the device. They are kept and have no effect."""
    version_policy: VersionPolicy | None = None
    """The versions that are served, where the server's own config does not say."""
    max_batch_size: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    """The most rows of one run; 0: the artefact decides whether there is a batch dimension."""
    input: Annotated[tuple[ModelTensor, ...], AfterValidator(lambda tensors: check_tensors(tensors, OUTPUTS_ONLY))] = ()
    output: Annotated[tuple[ModelTensor, ...], AfterValidator(lambda tensors: check_tensors(tensors, INPUTS_ONLY))] = ()
    batch_input: NoBatchInputs = ()
    """Always empty, as is ``batch_output``."""
    batch_output: NoBatchOutputs = ()
    parameters: Mapping[StrictStr, Annotated[StrictStr, BeforeValidator(parameter_text)]] = {}
    """Parameters of the platform."""
    guard: GuardSettings = GuardSettings()
    """The parameters ``guard.*``."""
    dynamic_batching: DynamicBatching | None = None
    """None means that the config does not mention batching."""
    sequence_batching: SequenceBatching | None = None
    """Set if the model takes sequences of requests."""
    ensemble_scheduling: EnsembleScheduling | None = None
    """Set if the model is made of other models."""
    instance_group: Annotated[tuple[InstanceGroup, ...], AfterValidator(check_instances)] = ()
    """The groups of the model's instances; empty: one instance."""
    retry_lost_batches: StrictBool = True
    """Whether a batch whose worker process or replica was lost may be run once more, by another one."""
    autoscaling_config: AutoscalingConfig | None = None
    model_transaction_policy: TransactionPolicy = TransactionPolicy()
    response_cache: ResponseCacheSettings | None = None
    model_warmup: Annotated[tuple[ModelWarmup, ...], bounded("samples")] = ()
    """The requests that each instance runs before a version becomes available, in Triton's form."""
    optimization: Optimization | None = None
    """Kept, as are the next three."""
    model_operations: ModelOperations | None = None
    model_metrics: ModelMetrics | None = None
    metric_tags: Mapping[StrictStr, StrictStr] = {}
    model_repository_agents: RepositoryAgents | None = None
    signatures: Mapping[Name, ModelSignature] = {}
    """Ways to call the model in addition to its own, which stays ``serving_default`` unless that key is among these."""
    warmup: Annotated[tuple[WarmupRequest, ...], bounded("requests")] = ()
    """The requests that a version answers before it becomes available."""

    @model_validator(mode="before")
    @classmethod
    def _guard_apart(cls, data: Any) -> Any:
        return with_guard_apart(data)

    @model_validator(mode="after")
    def _fields_fit_together(self) -> ModelSettings:
        check_model(self)
        return self


def signature_of(settings: ModelSettings) -> Signature | None:
    """The signature of the model that the settings declare; None if they declare no tensors.

    With ``max_batch_size`` above 0 every tensor gets a first dimension, the batch. Where inputs are declared, those
    that the scheduler of sequences feeds stand behind them: controls, of one value for each row, then states. Where
    outputs are, so do the states that the model writes.
    """
    if not settings.input and not settings.output:
        return None
    batch: tuple[Dim, ...] = ()
    if settings.max_batch_size > 0:
        batch = (SymbolicDim(BATCH_SYMBOL, settings.max_batch_size),)
    inputs = [*_specs(settings.input, batch), *_scheduled_inputs(settings, batch)] if settings.input else []
    outputs = [*_specs(settings.output, batch), *_scheduled_outputs(settings, batch)] if settings.output else []
    optional = frozenset(tensor.name for tensor in settings.input if tensor.optional)
    return Signature(tuple(inputs), tuple(outputs), optional=optional)


FIELDS_WITH_FILES = ("label_filename", "input_data_file")
"""Fields that may name a file beside the versions."""


def files_beside(settings: ModelSettings) -> frozenset[str]:
    """The files outside its own directory that a version may read, by their paths below the base path: labels, which
    may be inside the version instead, and the data of a warm-up."""
    labels = [output.label_filename for output in settings.output]
    labels += [signature.label_filename for signature in settings.signatures.values()]
    inputs = [tensor for sample in settings.model_warmup for tensor in sample.inputs.values()]
    data = [f"{WARMUP_FOLDER}/{tensor.input_data_file}" for tensor in inputs if tensor.input_data_file is not None]
    return frozenset(filter(None, [*labels, *data]))


def control_names(settings: ModelSettings) -> tuple[str, ...]:
    """The inputs that tell the model where in its sequence a request is. Clients do not send them."""
    batching = settings.sequence_batching
    return tuple(tensor.name for tensor in batching.control_input) if batching else ()


def state_names(settings: ModelSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inputs that are fed from states, which clients do not send, and the outputs that states are made of."""
    states = settings.sequence_batching.state if settings.sequence_batching else ()
    return tuple(state.input_name for state in states), tuple(state.output_name for state in states)


def hidden_outputs(settings: ModelSettings) -> tuple[str, ...]:
    """The outputs that only states are made of. Clients do not get them."""
    declared = {tensor.name for tensor in settings.output}
    return tuple(name for name in state_names(settings)[1] if name not in declared)


def _specs(tensors: Sequence[ModelTensor], batch: tuple[Dim, ...]) -> Iterator[TensorSpec]:
    for tensor in tensors:
        yield TensorSpec(tensor.name, tensor.data_type, batch + _dims(tensor.name, tensor.dims))


def _scheduled_inputs(settings: ModelSettings, batch: tuple[Dim, ...]) -> Iterator[TensorSpec]:
    batching = settings.sequence_batching or SequenceBatching()
    flat = batch and settings.parameters.get(FLATTEN_PARAMETER, "").lower() == "true"
    for tensor in batching.control_input:
        yield TensorSpec(tensor.name, tensor.only.dtype, batch if flat else (*batch, 1))
    for state in batching.state:
        yield TensorSpec(state.input_name, state.data_type, batch + _dims(state.input_name, state.dims))


def _scheduled_outputs(settings: ModelSettings, batch: tuple[Dim, ...]) -> Iterator[TensorSpec]:
    hidden = hidden_outputs(settings)
    for state in settings.sequence_batching.state if settings.sequence_batching else ():
        if state.output_name in hidden:
            yield TensorSpec(state.output_name, state.data_type, batch + _dims(state.output_name, state.dims))


def _dims(name: str, dims: Dims) -> tuple[Dim, ...]:
    return tuple(size if size > 0 else SymbolicDim(f"{name}_{axis}") for axis, size in enumerate(dims))


SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
NOT_IN_ENSEMBLES = ("instance_group", "optimization", "model_warmup", "backend", "warmup", "signatures")
"""Fields that are for models which run themselves."""


def check_model(settings: ModelSettings) -> None:
    _check_schedulers(settings)
    _check_preferred_sizes(settings)
    _check_cache(settings)
    _check_sequence(settings)
    _check_ensemble(settings)
    _check_warmup(settings)


def _check_schedulers(settings: ModelSettings) -> None:
    given = [name for name in SCHEDULERS if getattr(settings, name) is not None]
    if len(given) > 1:
        raise problem(f"a model has one scheduler: {' and '.join(given)} exclude each other", given[-1])
    if given and settings.model_transaction_policy.decoupled:
        raise problem(f"is not possible with {given[0]}", "model_transaction_policy", "decoupled")


def _check_preferred_sizes(settings: ModelSettings) -> None:
    largest = settings.max_batch_size
    for sizes, path in _preferred_sizes(settings):
        for index, size in enumerate(sizes):
            if 0 < largest < size:
                raise problem(
                    f"must be at most max_batch_size, {largest}; got {size}", *path, "preferred_batch_size", index
                )


def _preferred_sizes(settings: ModelSettings) -> Iterator[tuple[tuple[int, ...], FieldPath]]:
    if settings.dynamic_batching:
        yield settings.dynamic_batching.preferred_batch_size, ("dynamic_batching",)
    if settings.sequence_batching and settings.sequence_batching.oldest:
        yield settings.sequence_batching.oldest.preferred_batch_size, ("sequence_batching", "oldest")


def _check_cache(settings: ModelSettings) -> None:
    if settings.response_cache is None or not settings.response_cache.enable:
        return
    if settings.sequence_batching is not None:
        raise problem("is not possible with sequence_batching", "response_cache", "enable")
    if settings.model_transaction_policy.decoupled:
        raise problem("is not possible for a decoupled model", "response_cache", "enable")


def _check_sequence(settings: ModelSettings) -> None:
    """Tensors that the scheduler feeds are no inputs; a state that clients get too is the same tensor."""
    batching = settings.sequence_batching
    if batching is None:
        return
    inputs = {tensor.name for tensor in settings.input}
    outputs = {tensor.name: tensor for tensor in settings.output}
    for index, control in enumerate(batching.control_input):
        if control.name in inputs:
            raise problem(
                f'"{control.name}" is an input too; the scheduler alone feeds it',
                *("sequence_batching", "control_input", index, "name"),
            )
    for index, state in enumerate(batching.state):
        if state.input_name in inputs:
            raise problem(
                f'"{state.input_name}" is an input too; the scheduler alone feeds it',
                *("sequence_batching", "state", index, "input_name"),
            )
        output = outputs.get(state.output_name)
        if output is not None and (output.data_type, output.dims) != (state.data_type, state.dims):
            raise problem(
                f'"{state.output_name}" is an output too, of another data_type or dims',
                *("sequence_batching", "state", index, "output_name"),
            )


def _check_ensemble(settings: ModelSettings) -> None:
    scheduling = settings.ensemble_scheduling
    if scheduling is None:
        if settings.platform == PLATFORM:
            raise problem('platform "ensemble" needs ensemble_scheduling', "platform")
        return
    if settings.platform != PLATFORM:
        raise problem('needs platform: "ensemble"', "ensemble_scheduling")
    for name in NOT_IN_ENSEMBLES:
        if getattr(settings, name):
            raise problem("is not possible for an ensemble: its models have it", name)
    if not settings.retry_lost_batches:
        raise problem("is not possible for an ensemble: its models have it", "retry_lost_batches")
    for name in ("input", "output"):
        if not getattr(settings, name):
            raise problem(f"an ensemble needs its {name}s declared", "ensemble_scheduling")
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (settings.input, settings.output))
    check_graph(scheduling.step, inputs, outputs)


def _check_warmup(settings: ModelSettings) -> None:
    """Samples have no more rows than a run, and declared inputs as they are declared."""
    known = _inputs_of_the_model(settings)
    for index, sample in enumerate(settings.model_warmup):
        if 0 < settings.max_batch_size < sample.batch_size:
            raise problem(
                f"must be at most max_batch_size, {settings.max_batch_size}; got {sample.batch_size}",
                *("model_warmup", index, "batch_size"),
            )
        for name, tensor in sample.inputs.items() if settings.input else ():
            path = ("model_warmup", index, "inputs", name)
            if name not in known:
                raise problem(f"there is no such input{nearest(name, known)}", *path)
            data_type, dims = known[name]
            if tensor.data_type is not data_type:
                raise problem(f"expected {data_type.text}, got {tensor.data_type.text}", *path, "data_type")
            if not _fits(tensor.dims, dims):
                raise problem(f"expected {list(dims)}, got {list(tensor.dims)}", *path, "dims")


def _inputs_of_the_model(settings: ModelSettings) -> dict[str, tuple[DataType, Dims]]:
    """Declared inputs, controls and states."""
    known = {tensor.name: (tensor.data_type, tensor.dims) for tensor in settings.input}
    if settings.sequence_batching:
        known |= {each.name: (each.only.dtype, (1,)) for each in settings.sequence_batching.control_input}
        known |= {each.input_name: (each.data_type, each.dims) for each in settings.sequence_batching.state}
    return known


def _fits(dims: tuple[int, ...], declared: Dims) -> bool:
    return len(dims) == len(declared) and all(want in (-1, size) for size, want in zip(dims, declared, strict=True))
