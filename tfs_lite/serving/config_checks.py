"""Checks of a config against this server, and what the source, the labels and the request log take from it.

The config itself was validated when it was read. Here it is compared with this server: the platforms that it has, and
the roots that base paths must lie below. Nothing but symbolic links is read, and no storage is asked.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Mapping
from pathlib import Path

from tfs_lite.config.diff import ConfigDiff
from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.config.model_server import All, ModelConfig, ModelServerConfig, Specific, unsupported_platform
from tfs_lite.core.servable import parse_version
from tfs_lite.core.status import ServingError, invalid_argument, not_found
from tfs_lite.serving.options import ServerOptions
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.sources.version_scan import AllPolicy, LatestPolicy, SpecificPolicy, VersionPolicy
from tfs_lite.storage.objects import open_storage
from tfs_lite.storage.url import StorageUrl, is_below, is_url

JITTER = random.uniform(0.9, 1.1)
"""The share of ``remote_poll_wait_seconds`` that this process waits: servers that were started at the same moment do
not go on asking at the same moments."""


def check_models(config: ModelServerConfig, platforms: Collection[str], allowed_roots: Collection[str]) -> None:
    """INVALID_ARGUMENT for a platform this server does not have, or a base path it may not or cannot read;
    FAILED_PRECONDITION for a URL that this installation cannot read."""
    places = dict[str, ModelConfig]()
    for model in config.models:
        if model.platform is not None and model.platform not in platforms:
            raise invalid_argument(unsupported_platform(model.name, model.platform, platforms))
        _check_base_path(model, allowed_roots)
        if is_url(model.base_path):
            places.setdefault(StorageUrl.parse(model.base_path).place, model)
    for model in places.values():
        _check_url(model)


def check_versions_present(config: ModelServerConfig) -> None:
    """NOT_FOUND if the base path of a model holds no version. A URL is not asked: a storage that cannot be reached says
    nothing about what it holds, and a base path there that is emptied withdraws nothing anyway."""
    for model in config.models:
        if not is_url(model.base_path) and not _holds_version(model.base_path):
            raise not_found(f"model {model.name}: its base path holds no version (--servable_versions_always_present)")


def _holds_version(base_path: str) -> bool:
    try:
        children = RealDisk().list_directory(base_path)
    except OSError:
        return False
    return any(entry.is_directory and parse_version(entry.name) is not None for entry in children)


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
    """The config of the source of this machine's directories. With ``model_control_mode`` none it looks once, at the
    start."""
    return SourceConfig(
        servables=tuple(
            ServableToMonitor(m.name, m.base_path, scan_policy(m)) for m in config.models if not is_url(m.base_path)
        ),
        poll_interval=_interval(options, options.file_system_poll_wait_seconds),
        quiet_period=options.version_quiet_period_seconds,
        versions_always_present=options.servable_versions_always_present,
    )


def remote_config(config: ModelServerConfig, options: ServerOptions) -> SourceConfig:
    """The config of the sources of URLs. ``file_system_poll_wait_seconds`` of 0 or less means the same for them."""
    return SourceConfig(
        servables=tuple(
            ServableToMonitor(m.name, StorageUrl.parse(m.base_path).text, scan_policy(m))
            for m in config.models
            if is_url(m.base_path)
        ),
        poll_interval=_interval(options, options.remote_poll_wait_seconds * JITTER),
        quiet_period=options.remote_quiet_seconds,
        versions_always_present=options.servable_versions_always_present,
    )


def _interval(options: ServerOptions, seconds: float) -> float | None:
    """None: nothing is looked at by itself; 0: it is, once."""
    if not options.looks_at_disk:
        return None
    follows = options.follows_changes and options.file_system_poll_wait_seconds > 0
    return seconds if follows else 0


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
    if is_url(model.base_path):
        try:
            StorageUrl.parse(model.base_path)
        except ServingError as error:
            raise _about_url(model, error) from None
    if not below_allowed_roots(model.base_path, allowed_roots):
        raise invalid_argument(
            f"model {model.name}: base_path is outside the allowed roots (--allowed_model_base_paths)"
        )


def _check_url(model: ModelConfig) -> None:
    """FAILED_PRECONDITION where such a URL cannot be read from this machine: the extra is missing, or the settings of
    its environment are wrong."""
    try:
        open_storage(StorageUrl.parse(model.base_path))
    except ServingError as error:
        raise _about_url(model, error) from None


def _about_url(model: ModelConfig, error: ServingError) -> ServingError:
    return ServingError(error.code, f"model {model.name}: base_path: {error.status.message}")


def below_allowed_roots(path: str, allowed_roots: Collection[str]) -> bool:
    """Whether the server may read the path or URL; any if no roots are given."""
    same_kind = [root for root in allowed_roots if is_url(root) is is_url(path)]
    is_inside = is_below if is_url(path) else _is_below
    return not allowed_roots or any(is_inside(path, root) for root in same_kind)


def _is_below(path: str, root: str) -> bool:
    """Symbolic links are resolved first, so that none leads out of the root."""
    real_root = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(path), real_root]) == real_root
