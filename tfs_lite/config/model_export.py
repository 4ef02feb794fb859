"""A model's config as clients may ask for it: complete, with everything that the server found out or chose by itself.

ModelSettings + Signature -> config_message() -> ModelConfig
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict

from tfs_lite.config.ensemble import LATEST, PLATFORM
from tfs_lite.config.guard import guard_parameters
from tfs_lite.config.model import ModelSettings, control_names, hidden_outputs, state_names
from tfs_lite.config.sequence import MAX_CANDIDATES
from tfs_lite.config.tensors import UNSAID
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.protocols import messages
from tfs_lite.protocols.dtypes import FROM_CONFIG_NAME
from tfs_lite.protocols.messages import Message

_CONFIG_NAMES = {dtype: name for name, dtype in FROM_CONFIG_NAME.items()}
_MOST_VERSIONS = 2**32 - 1


def config_message(
    settings: ModelSettings, name: str, platform: str, signature: Signature | None = None, *, gpu: bool = False
) -> Message:
    """The ``inference.ModelConfig`` of a loaded model. Pure; any thread.

    ``platform`` is the one that serves it, ``signature`` the model's own under the default key; controls and states may
    be among its tensors and are not shown. ``gpu``: where instances run whose group does not say. What the settings say
    stands as it is. Tensors that they do not declare come from the signature, without the batch dimension if there is
    a ``max_batch_size``; without one a dimension of any size is -1.
    """
    message = messages.TritonModelConfig()
    ParseDict(_plain(settings), message)
    message.name = name
    message.platform = platform
    message.backend = settings.backend or _backend(platform)
    if message.version_policy.WhichOneof("policy_choice") is None:
        message.version_policy.latest.SetInParent()
    if message.version_policy.HasField("latest"):
        message.version_policy.latest.num_versions = message.version_policy.latest.num_versions or 1
    if signature is not None:
        _add_tensors(message, settings, signature)
    _fill_scheduler(message)
    message.model_transaction_policy.SetInParent()
    for field in ("model_warmup", "warmup"):
        for sample, said in zip(getattr(message, field), getattr(settings, field), strict=True):
            sample.count = said.count
    if not message.HasField("ensemble_scheduling"):
        _fill_instances(message, settings, gpu)
        message.optimization.input_pinned_memory.enable = True
        message.optimization.output_pinned_memory.enable = True
    return message


def _plain(settings: ModelSettings) -> dict[str, Any]:
    """The settings as plain values, in the form of the message."""
    fields: dict[str, Any] = _dumped(settings.model_dump(exclude_unset=True, by_alias=True))
    parameters = fields.pop("parameters", {}) | guard_parameters(fields.pop("guard", {}))
    fields["parameters"] = {key: {"string_value": value} for key, value in parameters.items()}
    latest = (fields.get("version_policy") or {}).get("latest")
    if latest:
        latest["num_versions"] = min(latest["num_versions"], _MOST_VERSIONS)
    return fields


def _dumped(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _dumped(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_dumped(item) for item in value]
    return _CONFIG_NAMES.get(value, UNSAID) if isinstance(value, DataType) else value


def _backend(platform: str) -> str:
    """Triton's word for what runs the model."""
    if platform == PLATFORM:
        return ""
    return "pytorch" if platform.startswith("pytorch") else platform


def _add_tensors(message: Message, settings: ModelSettings, signature: Signature) -> None:
    scheduled = {*control_names(settings), *state_names(settings)[0]}
    _add(message.input, _without(signature.inputs, scheduled), message.max_batch_size)
    _add(message.output, _without(signature.outputs, hidden_outputs(settings)), message.max_batch_size)
    for tensor in message.input:
        tensor.optional = tensor.optional or tensor.name in signature.dispensable


def _without(specs: Iterable[TensorSpec], names: Collection[str]) -> list[TensorSpec]:
    return [spec for spec in specs if spec.name not in names]


def _add(tensors: Any, specs: Iterable[TensorSpec], max_batch_size: int) -> None:
    """The specs that are not there yet. Where the rank is not declared, one dimension of any size stands for it."""
    known = {tensor.name for tensor in tensors}
    for spec in specs:
        if spec.name in known:
            continue
        shape = (SymbolicDim("?"),) if spec.shape is None else spec.shape
        if max_batch_size > 0 and spec.batch is not None:
            shape = shape[1:]
        sizes = [dim if isinstance(dim, int) else -1 for dim in shape]
        tensors.add(name=spec.name, data_type=_CONFIG_NAMES.get(spec.dtype, UNSAID), dims=sizes)


def _fill_scheduler(message: Message) -> None:
    largest = message.max_batch_size
    if message.HasField("dynamic_batching"):
        _prefer(message.dynamic_batching, largest)
    if message.HasField("sequence_batching"):
        batching = message.sequence_batching
        batching.max_sequence_idle_microseconds = batching.max_sequence_idle_microseconds or 1_000_000
        if batching.HasField("oldest"):
            candidates = batching.oldest.max_candidate_sequences or min(max(1, largest), MAX_CANDIDATES)
            batching.oldest.max_candidate_sequences = candidates
            _prefer(batching.oldest, largest)
        else:
            batching.direct.SetInParent()
    for step in message.ensemble_scheduling.step if message.HasField("ensemble_scheduling") else ():
        step.model_version = step.model_version if step.HasField("model_version") else LATEST


def _prefer(batching: Message, largest: int) -> None:
    if largest > 0 and not batching.preferred_batch_size:
        batching.preferred_batch_size.append(largest)


def _fill_instances(message: Message, settings: ModelSettings, gpu: bool) -> None:
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for index, group in enumerate(message.instance_group):
        group.name = group.name or f"{message.name}_{index}"
        group.count = settings.instance_group[index].count if settings.instance_group else 1
        if group.kind == group.KIND_AUTO:
            group.kind = group.KIND_GPU if gpu else group.KIND_CPU
        if group.kind != group.KIND_GPU:
            group.ClearField("gpus")
