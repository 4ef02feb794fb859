"""Checks of a config against this server, and what the source, the labels and the request log take from it.

The config itself was validated when it was read. Here it is compared with this server: the platforms that it has, and
the roots that base paths must lie below. Nothing but symbolic links is read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from tfs_lite.config.diff import ConfigDiff
from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.config.model_server import All, ModelConfig, ModelServerConfig, Specific, unsupported_platform
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import invalid_argument, not_found
from tfs_lite.serving.options import ServerOptions
from tfs_lite.sources.disk import DirectoryEntry, RealDisk
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy


def check_models(config: ModelServerConfig, platforms: Collection[str], allowed_roots: Collection[str]) -> None:
    """INVALID_ARGUMENT for a platform this server does not have, or a base path it may not or cannot read."""
    for model in config.models:
        if model.platform is not None and model.platform not in platforms:
            raise invalid_argument(unsupported_platform(model.name, model.platform, platforms))
        _check_base_path(model, allowed_roots)


def check_versions_present(config: ModelServerConfig) -> None:
    """NOT_FOUND if the base path of a model holds no version."""
    for model in config.models:
        try:
            there = any(entry.is_directory and parse_version(entry.name) is not None for entry in _children(model))
        except OSError:
            there = False
        if not there:
            raise not_found(f"model {model.name}: its base path holds no version (--servable_versions_always_present)")


def _children(model: ModelConfig) -> list[DirectoryEntry]:
    return RealDisk().list_directory(model.base_path)


def check_actual_platforms(difference: ConfigDiff, actual: Mapping[str, str]) -> None:
    """INVALID_ARGUMENT if a config gives a model another platform than the one found in its files. ``actual``: the
    platforms of the models that are loaded."""
    for change in difference.changed:
        now, wanted = actual.get(change.new.name), change.new.platform
        if change.old.platform is None and wanted and now and now != wanted:
            raise invalid_argument(
                f"Illegal to change a model's platform. For model {change.new.name}: from {now}, found in its files, "
                f"to {wanted}. Remove the model in one reload and add it in another."
            )


def source_config(config: ModelServerConfig, options: ServerOptions) -> SourceConfig:
    """The config of the file-system source. With ``model_control_mode`` none it looks once, at the start."""
    interval = options.file_system_poll_wait_seconds if options.follows_changes else 0
    return SourceConfig(
        servables=tuple(ServableToMonitor(m.name, m.base_path, scan_policy(m)) for m in config.models),
        poll_interval=interval if interval >= 0 else None,
        quiet_period=options.version_quiet_period_seconds,
        versions_always_present=options.servable_versions_always_present,
    )


def base_directory(options: ServerOptions) -> Path | None:
    """The directory that relative base paths of a reload are below; None means that they are refused."""
    return Path(options.model_config_list_root_dir) if options.model_config_list_root_dir else None


def version_labels(config: ModelServerConfig) -> dict[str, dict[str, int]]:
    """Model -> label -> version; models without labels are left out."""
    return {model.name: dict(model.version_labels) for model in config.models if model.version_labels}


def logged_models(config: ModelServerConfig) -> dict[str, LoggingSettings]:
    """The models whose requests are logged."""
    return {model.name: model.logging_config for model in config.models if model.logging_config is not None}


def scan_policy(model: ModelConfig) -> VersionPolicy:
    """The config of the scan: which versions of the model are wanted."""
    choice = model.model_version_policy.choice
    if isinstance(choice, All):
        return AllPolicy()
    if isinstance(choice, Specific):
        return SpecificPolicy(choice.versions)
    return LatestPolicy(choice.num_versions)


def _check_base_path(model: ModelConfig, allowed_roots: Collection[str]) -> None:
    if "://" in model.base_path:
        raise invalid_argument(
            f"model {model.name}: base_path is a URI; this server reads directories of its own machine only"
        )
    if not below_allowed_roots(model.base_path, allowed_roots):
        raise invalid_argument(
            f"model {model.name}: base_path is outside the allowed roots (--allowed_model_base_paths)"
        )


def below_allowed_roots(path: str, allowed_roots: Collection[str]) -> bool:
    """Whether the server may read the path; any path if no roots are given."""
    return not allowed_roots or any(_is_below(path, root) for root in allowed_roots)


def _is_below(path: str, root: str) -> bool:
    """Symbolic links are resolved first, so that none leads out of the root."""
    real_root = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(path), real_root]) == real_root
