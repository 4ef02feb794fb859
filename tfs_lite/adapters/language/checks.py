"""Which fields of a model's config make no sense for a language model: its engine decides what they would say."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import invalid_argument

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "input": "a language model has inputs of its own",
        "output": "a language model has outputs of its own",
        "signatures": "a language model has one signature",
        "dynamic_batching": "texts join and leave at every step; see max_num_seqs and max_queue of parameters",
        "sequence_batching": "a request is a whole text, and its state ends with it",
        "model_warmup": "a language model does not run single requests; it is run while it is loaded, see also warmup",
    }
)
"""Field -> why it has to go."""


def check_settings(settings: ModelSettings) -> None:
    """INVALID_ARGUMENT, with the field's name, for what a language model cannot have. Pure."""
    for name, reason in REFUSED.items():
        if getattr(settings, name):
            raise invalid_argument(f"{name}: {reason}")
    if settings.model_transaction_policy.decoupled:
        raise invalid_argument("model_transaction_policy.decoupled: each request says whether it wants a stream")
    if settings.response_cache is not None and settings.response_cache.enable:
        raise invalid_argument("response_cache.enable: answers of a language model are drawn anew each time")
    count = sum(group.count for group in settings.instance_group)
    if count > 1:
        raise invalid_argument(
            f"instance_group: {count} instances; a language model is one that runs many texts at once, so raise "
            "max_num_seqs of parameters"
        )
    for index, group in enumerate(settings.instance_group):
        if group.worker == "process":
            raise invalid_argument(f"instance_group[{index}].worker: a language model runs in the server's process")
