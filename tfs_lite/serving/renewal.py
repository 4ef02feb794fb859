"""The renewal of versions that serve into another state: other files, another config, another number of instances.

What can be done without a load is done in place; for all else a second load is made while the first serves, and takes
its place.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from tfs_lite.adapters.opening import SeenFiles
from tfs_lite.adapters.platforms import check_config
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ModelRef, ServableData, ServableId, StoragePath
from tfs_lite.core.status import Status
from tfs_lite.managers.registry import Done
from tfs_lite.managers.retrier import RetryPolicy
from tfs_lite.serving.lifecycle_events import LoadGivenUp, LoadWantedAnew, Replaced
from tfs_lite.serving.opening.device_resources import may_be_retried
from tfs_lite.serving.opening.servable_factory import ServingSettings
from tfs_lite.serving.parts import Parts
from tfs_lite.serving.version_follower import FollowerEffects, FollowerOptions, LoadedAs, VersionFollower


class Renewal:
    """``follower`` does by itself what changes on the disk ask for; None: the options follow no changes. Any thread may
    call any method."""

    def __init__(self, core: Parts, settings: ServingSettings) -> None:
        """``settings``: with which config, and from which files, each servable was loaded."""
        self._core = core
        self._settings = settings
        self.follower = self._make_follower() if core.options.follows_changes else None

    def settings_of(self, servable: Servable) -> ModelSettings:
        """The model config with which a version was loaded."""
        return self._settings.of(servable)

    def resize(self, servable_id: ServableId, settings: ModelSettings) -> ModelSettings | None:
        """Brings a version that answers to the number of instances in ``settings`` without loading it anew. Returns the
        settings it had before; None if that is not possible, and nothing has changed. Raises the loader's error."""
        core = self._core
        with core.handle(ModelRef(servable_id.name, servable_id.version)) as handle:
            servable, loader = handle.servable, core.journal.loader(servable_id)
            if loader is None or loader.servable is not servable:
                return None
            before = self._settings.of(servable)
            if not loader.resize(settings):
                return None
            self._settings.changed(servable, settings)
            return before

    def replace(self, item: ServableData[StoragePath], done: Done) -> None:
        """Puts another load of a version that answers in its place, without a gap. ``done`` is called once, on any
        thread; a failure leaves what serves as it is. NOT_FOUND if the version does not answer."""
        core = self._core
        with core.handle(ModelRef(item.id.name, item.id.version)) as handle:
            old = weakref.ref(handle.servable)

        def replaced(status: Status) -> None:
            if status.ok:
                self._on_replaced(item, old)
            else:
                core.publish(LoadGivenUp(item.id))
            done(status)

        core.publish(LoadWantedAnew(item.id))
        data = ServableData.ok(item.id, core.sources.make_loader(item), item.revision)
        core.manager.replace_servable(data, replaced)

    def _on_replaced(self, item: ServableData[StoragePath], old: Callable[[], Any]) -> None:
        self._core.sources.on_replaced(item)
        self._core.publish(Replaced(item.id, old))

    def _make_follower(self) -> VersionFollower:
        core, options = self._core, self._core.options
        read = core.disk_calls.call

        return VersionFollower(
            FollowerOptions(
                quiet_period=options.version_quiet_period_seconds,
                beside=options.aspired_version_policy == "availability",
                retry=RetryPolicy(options.max_num_load_retries, options.load_retry_interval_micros / 1e6),
                may_be_retried=may_be_retried,
            ),
            core.manager,
            FollowerEffects(
                read=lambda directory, model: read(
                    f"the config of model {model}", lambda: core.model_configs(directory, model)
                ),
                loaded_as=self._loaded_as,
                state_of=lambda directory, settings: read(
                    f"the version at {os.path.basename(directory)}", lambda: SeenFiles.look(directory, settings).state
                ),
                check=lambda directory, settings: read(
                    f"the version at {os.path.basename(directory)}", lambda: check_config(directory, settings)
                ),
                make_loader=lambda item: core.sources.make_loader(item),
                resize=self.resize,
                remark=core.states.remark,
                wake_source=lambda: core.sources.wake(),
                on_replaced=self._on_replaced,
                on_given_up=lambda servable_id: core.publish(LoadGivenUp(servable_id)),
            ),
            core.clock,
        )

    def _loaded_as(self, servable: Servable) -> LoadedAs:
        files = self._settings.files_of(servable)
        return LoadedAs(self._settings.of(servable), files.state if files is not None else "")
