"""The settings of one model: ``config.pbtxt`` or ``config.yaml`` beside its versions, in Triton's field names.

The file in ``BASE/<version>/`` replaces the one in ``BASE/`` for that version. All of it is optional: what is not
said is found out from the artefact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, model_validator

from tfs_lite.config.ensemble import EnsembleScheduling
from tfs_lite.config.inert import ModelMetrics, ModelOperations, NoBatchInputs, NoBatchOutputs, Optimization
from tfs_lite.config.model_checks import check_model
from tfs_lite.config.model_warmup import ModelWarmup, check_model_warmup
from tfs_lite.config.repository_policy import (
    RepositoryAgents,
    ResponseCache,
    TransactionPolicy,
    VersionPolicySettings,
)
from tfs_lite.config.scheduling import DynamicBatching, InstanceGroup, check_instances
from tfs_lite.config.sequence import FLATTEN_PARAMETER, SequenceBatching
from tfs_lite.config.settings import Settings
from tfs_lite.config.signatures import ModelSignature, Name, WarmupRequest, check_warmup, file_below
from tfs_lite.config.tensors import INPUTS_ONLY, OUTPUTS_ONLY, Dims, ModelTensor, check_tensors
from tfs_lite.core.signature import Dim, Signature, SymbolicDim, TensorSpec

__all__ = ["ModelSettings", "ModelTensor", "control_names", "hidden_outputs", "signature_of", "state_names"]

BATCH_SYMBOL = "batch"


def _parameter(value: object) -> object:
    """A parameter is a text. Messages wrap it in ``string_value``; YAML may write numbers and booleans bare."""
    if isinstance(value, dict) and set(value) <= {"string_value"}:
        value = value.get("string_value", "")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class ModelSettings(Settings):
    """What an operator says about a model. Defaults mean "find out from the artefact"."""

    name: StrictStr = ""
    """If given, it must be the model's name: a file copied to the wrong place is noticed."""
    platform: StrictStr = ""
    backend: StrictStr = ""
    """Kept: the platform is found by ``platform`` or the artefact. So is ``runtime``."""
    runtime: StrictStr = ""
    default_model_filename: Annotated[StrictStr, AfterValidator(file_below)] = ""
    cc_model_filenames: Mapping[StrictStr, Annotated[StrictStr, AfterValidator(file_below)]] = {}
    """By compute capability of the device. Kept."""
    version_policy: VersionPolicySettings | None = None
    """Which versions are served, where the server's own config does not say."""
    max_batch_size: Annotated[StrictInt, Field(ge=0, lt=2**31)] = 0
    """The most rows of one run; 0: the artefact decides whether there is a batch dimension."""
    input: Annotated[tuple[ModelTensor, ...], AfterValidator(lambda tensors: check_tensors(tensors, OUTPUTS_ONLY))] = ()
    output: Annotated[tuple[ModelTensor, ...], AfterValidator(lambda tensors: check_tensors(tensors, INPUTS_ONLY))] = ()
    batch_input: NoBatchInputs = ()
    """Always empty, as is ``batch_output``."""
    batch_output: NoBatchOutputs = ()
    parameters: Mapping[StrictStr, Annotated[StrictStr, BeforeValidator(_parameter)]] = {}
    dynamic_batching: DynamicBatching | None = None
    """None: nothing is said about batching."""
    sequence_batching: SequenceBatching | None = None
    """Not None: the model takes sequences of requests."""
    ensemble_scheduling: EnsembleScheduling | None = None
    """Not None: the model is made of others."""
    instance_group: Annotated[tuple[InstanceGroup, ...], AfterValidator(check_instances)] = ()
    """How many copies of the model there are; empty: one."""
    model_transaction_policy: TransactionPolicy = TransactionPolicy()
    response_cache: ResponseCache | None = None
    model_warmup: Annotated[tuple[ModelWarmup, ...], AfterValidator(check_model_warmup)] = ()
    """What each instance runs before a version becomes available, in Triton's form."""
    optimization: Optimization | None = None
    """Kept, as are the next three."""
    model_operations: ModelOperations | None = None
    model_metrics: ModelMetrics | None = None
    metric_tags: Mapping[StrictStr, StrictStr] = {}
    model_repository_agents: RepositoryAgents | None = None
    signatures: Mapping[Name, ModelSignature] = {}
    """Ways to call the model beside its own, which stays ``serving_default`` unless that key is among these."""
    warmup: Annotated[tuple[WarmupRequest, ...], AfterValidator(check_warmup)] = ()
    """What is asked of a version before it becomes available."""

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
    return Signature(tuple(inputs), tuple(outputs))


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
