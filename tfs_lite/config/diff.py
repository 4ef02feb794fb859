"""The difference when one config replaces another. Pure: nothing is applied here.

Applying a new config touches only the models named by the difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfs_lite.config.model_server import ModelConfig, ModelServerConfig
from tfs_lite.core.status import invalid_argument


@dataclass(frozen=True, slots=True)
class ModelChange:
    """A model in both configs with different settings. ``fields`` names those that differ."""

    old: ModelConfig
    new: ModelConfig
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ConfigDiff:
    """Every model of either config, in exactly one of the four; each in the order of its config."""

    added: tuple[ModelConfig, ...]
    removed: tuple[ModelConfig, ...]
    changed: tuple[ModelChange, ...]
    unchanged: tuple[ModelConfig, ...]


def diff(old: ModelServerConfig | None, new: ModelServerConfig) -> ConfigDiff:
    """The difference between ``new`` and ``old``; None is the config of a server that has none yet."""
    before = {model.name: model for model in old.models} if old else {}
    after = {model.name for model in new.models}
    added, changed, unchanged = [], [], []
    for model in new.models:
        if model.name not in before:
            added.append(model)
        elif fields := _differing_fields(before[model.name], model):
            changed.append(ModelChange(before[model.name], model, fields))
        else:
            unchanged.append(model)
    removed = tuple(model for name, model in before.items() if name not in after)
    return ConfigDiff(tuple(added), removed, tuple(changed), tuple(unchanged))


def check_platforms(difference: ConfigDiff) -> None:
    """INVALID_ARGUMENT if a model that stays is asked to change from one platform to another.

    From or to "find out" is no change by itself: each version's artefact decides.
    """
    for change in difference.changed:
        old, new = change.old.platform, change.new.platform
        if old and new and old != new:
            raise invalid_argument(
                f"Illegal to change a model's platform. For model {change.new.name}: from {old} to {new}. "
                f"Remove the model in one reload and add it in another."
            )


def _differing_fields(old: ModelConfig, new: ModelConfig) -> tuple[str, ...]:
    compared = {
        "base_path": (old.base_path, new.base_path),
        "model_platform": (old.platform, new.platform),
        "model_version_policy": (old.model_version_policy.choice, new.model_version_policy.choice),
        "version_labels": (old.version_labels, new.version_labels),
        "logging_config": (old.logging_config, new.logging_config),
    }
    return tuple(name for name, (before, after) in compared.items() if before != after)
