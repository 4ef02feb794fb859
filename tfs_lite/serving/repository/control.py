"""Loading and unloading models by call, for servers in the explicit control mode.

A load call looks at the model on disk and brings the server to what it finds there:

    find model, config and versions -> change numbers of instances -> load what else has changed beside what is served
    -> offer new versions and wait for them -> put what was loaded in the place of the changed ones, or, without the
    memory for both, give those up and offer their new state -> offer exactly what is wanted

If anything fails before the end, what was offered before is offered again, so the old versions go on serving, and the
caller gets the error. The disk is looked at during a call and never in between. A version with a manifest is loaded
only if its files are those that the manifest lists.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.model_server import ModelConfig, ModelConfigList, ModelServerConfig
from tfs_lite.core.clock import Clock
from tfs_lite.core.executor import PoolExecutor
from tfs_lite.core.history import Cause, Origin, acting, current_origin
from tfs_lite.core.manifest import MANIFEST_NAME
from tfs_lite.core.servable import ServableData, ServableId
from tfs_lite.core.status import OK, ServingError, Status, StatusCode, invalid_argument
from tfs_lite.serving.config_sources import ModelLocator, model_config
from tfs_lite.serving.opening.model_configs import (
    ConfigOverride,
    base_settings,
    newest_config,
    settings_from_json,
    wanted_by,
)
from tfs_lite.serving.options import EVERY_MODEL
from tfs_lite.serving.repository.plan import (
    FoundVersion,
    LoadPlan,
    OfferedVersion,
    find_versions,
    load_failure,
    plan_load,
)
from tfs_lite.serving.repository.requests import (
    LoadRequest,
    RepositoryValue,
    UploadedModels,
    check_name,
    load_request,
    poll_failure,
)
from tfs_lite.serving.repository.resize import Resizes
from tfs_lite.serving.repository.waiter import LoadWait, is_at_start
from tfs_lite.serving.server_core import ServerCore
from tfs_lite.sources.completeness import Waiting
from tfs_lite.sources.disk import Disk, RealDisk
from tfs_lite.sources.inspector import VersionInspector

CALL = Origin(Cause.REPOSITORY_CALL)
START = "start"
"""What the revisions of the versions end with that are loaded at the start."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ModelOfCalls:
    """``explicit``: by a call of its own, not only as a part of an ensemble. ``upload``: its private directory.
    ``kept``: what earlier calls have offered, and a feature goes on to keep."""

    config: ModelConfig
    settings: ModelSettings
    explicit: bool
    upload: str = ""
    offered: Mapping[int, OfferedVersion] = field(default_factory=dict)
    kept: Mapping[int, OfferedVersion] = field(default_factory=dict)

    @property
    def steps(self) -> tuple[str, ...]:
        return steps_of(self.settings)

    @property
    def numbered_steps(self) -> list[tuple[int, str]]:
        """The first step of each model, and the model."""
        ensemble = self.settings.ensemble_scheduling
        models = [step.model_name for step in ensemble.step] if ensemble is not None else []
        return [(models.index(name), name) for name in self.steps]


def steps_of(settings: ModelSettings) -> tuple[str, ...]:
    """The models that an ensemble is made of; none for a model that is no ensemble."""
    ensemble = settings.ensemble_scheduling
    return tuple(dict.fromkeys(step.model_name for step in ensemble.step)) if ensemble is not None else ()


class RepositoryControl:
    """``load_first`` -> ``load`` and ``unload`` -> ``close``, from any thread but the event loop. One call at a time:
    the others wait for it."""

    def __init__(self, core: ServerCore, locator: ModelLocator) -> None:
        self._core = core
        self._locator = locator
        self._disk = RealDisk()
        self._check = ManifestCheck(self._disk, core.clock)
        self._wait = LoadWait(core)
        self._busy = threading.Lock()  # guards the fields below; held for the whole of a call
        self._loaded: dict[str, ModelOfCalls] = {}
        self._uploads = UploadedModels()
        self._refused: dict[str, dict[int, Status]] = {}  # replaced, never changed: it is read without the lock
        self._retired: list[tuple[str, str]] = []  # models that were given up, and their private directories
        self._offers = 0

    @property
    def refused(self) -> Mapping[str, Mapping[int, Status]]:
        """The reasons why the last call for a model did not even begin to load versions, by name and version. Any
        thread."""
        return self._refused

    def check(self) -> None:
        """Raises ServingError if the place that models come from is not there."""
        self._locator.check()

    # Calls.

    def load_first(self, names: Iterable[str]) -> dict[str, ServingError]:
        """Loads the models of the start, ``*`` for all; one that fails does not stop the others. The failures."""
        failures, wanted = {}, list(names)
        for name in self._locator.names() if wanted == [EVERY_MODEL] else wanted:
            try:
                with acting(Origin(Cause.START)):
                    self.load(name, {})
            except ServingError as error:
                failures[name] = error
                if self._core.waiter.closed:
                    break
                logger.error("%s", str(error))
        return failures

    def load(self, name: str, parameters: Mapping[str, RepositoryValue]) -> None:
        """Returns once every version that the model's policy wants is available. INVALID_ARGUMENT for a wrong call and
        for a version that cannot be loaded, INTERNAL for a model that is not there or a config that is wrong,
        DEADLINE_EXCEEDED and UNAVAILABLE when it took too long or the server stops: what was served before is served
        then, too. What it keeps of earlier calls changes only when it succeeds."""
        with acting(current_origin() or CALL):
            try:
                request = load_request(name, parameters, self._core.options.max_message_bytes)
                with self._busy:
                    self._remove_retired()
                    self._load(request, explicit=True, above=())
            except ServingError as error:
                self._core.reloader.refused(error.status, name)
                raise

    def unload(self, name: str, unload_dependents: bool = False) -> None:
        """Returns once no version answers any more; a model that is not loaded is fine. ``unload_dependents``: also the
        parts of an ensemble that were loaded for it alone."""
        with acting(current_origin() or CALL), self._busy:
            self._remove_retired()
            self._unload(name, unload_dependents)

    def close(self) -> None:
        """Removes the files that calls brought; called after the core is closed."""
        with self._busy:
            self._uploads.close()
            self._check.close()

    # Loading.

    def _load(self, request: LoadRequest, *, explicit: bool, above: tuple[str, ...]) -> None:
        old = self._loaded.get(request.name)
        ask, upload = self._core.disk_calls.call, ""
        override = ask(f"the config of model {request.name}", lambda: self._override(request, old))
        if request.files:
            upload = self._uploads.write(request)
        try:
            model, found = ask(f"the base path of model {request.name}", lambda: self._look(request, override, upload))
            self._load_steps(model, found, above)
            model = replace(model, explicit=explicit or (old is not None and old.explicit), upload=upload)
            self._bring_up(model, found, old, override)
        except BaseException:
            self._uploads.remove(upload)
            raise
        if old is not None and old.upload:
            self._retired.append((request.name, old.upload))

    def _override(self, request: LoadRequest, old: ModelOfCalls | None) -> ConfigOverride | None:
        """The config that counts from now on in place of a file: this call's, or an earlier one's that still holds."""
        if request.config is not None:
            try:
                return ConfigOverride(settings_from_json(request.config, request.name), time.time_ns())
            except ServingError as error:
                raise poll_failure(request.name, str(error)) from None
        before = self._core.model_configs.override(request.name)
        if before is None or old is None or old.upload:
            return None
        return before if newest_config(old.config.base_path) <= before.time_ns else None

    def _look(
        self, request: LoadRequest, override: ConfigOverride | None, upload: str
    ) -> tuple[ModelOfCalls, list[FoundVersion]]:
        """The model as it is now, and its versions. INTERNAL if it is not there or cannot be read."""
        name = request.name
        try:
            config = model_config(name, upload) if upload else self._locator.find(name)
            if config is None:
                raise poll_failure(name, "")
            settings = override.settings if override is not None else base_settings(config.base_path, name)
        except ServingError as error:
            raise error if error.code is StatusCode.INTERNAL else poll_failure(name, str(error)) from None
        if self._locator.is_repository or upload:
            config = config.model_copy(update={"model_version_policy": wanted_by(settings)})
        return ModelOfCalls(config, settings, explicit=False), find_versions(config, settings, self._disk)

    def _load_steps(self, model: ModelOfCalls, found: Iterable[FoundVersion], above: tuple[str, ...]) -> None:
        """An ensemble's models come before it. Without one of them the versions that were ``found`` are refused."""
        name = model.config.name
        above = (*above, name)
        for number, step in model.numbered_steps:
            try:
                if step in above:
                    raise invalid_argument(f"ensemble steps in a circle: {step}")
                check_name(step)
                self._load(LoadRequest(step), explicit=False, above=above)
            except ServingError as error:
                where = f"load failed for model '{name}': step {number} (model {step}) of the ensemble"
                message = f"{where}: {error.status.message}"
                status = replace(error.status, message=message)
                self._refused = {**self._refused, name: {item.version: status for item in found}}
                raise ServingError(status.code, message, status.reason) from None
        self._forget_refusal(name)

    def _forget_refusal(self, name: str) -> None:
        self._refused = {other: problems for other, problems in self._refused.items() if other != name}

    def _bring_up(
        self, model: ModelOfCalls, found: list[FoundVersion], old: ModelOfCalls | None, override: ConfigOverride | None
    ) -> None:
        """Serves what was found, or what was served before."""
        name, configs = model.config.name, self._core.model_configs
        offered = _offered_to(found, old) if old is not None else {}
        plan = plan_load(found, offered, self._core.manager.available_versions(name))
        self._wait.bounded(
            f"the check of model {name}",
            lambda: self._require_whole(name, [item for item in found if item.version not in plan.kept]),
        )
        before, resizes = configs.override(name), Resizes(self._core, name)
        configs.set_override(name, override)
        try:
            plan = resizes.carry_out(plan, found)
            model = replace(model, offered=self._offers_of(name, plan, found, offered))
            if old is None or not plan.changes_nothing or model.config != old.config:
                self._carry_out(plan, model, offered)
        except BaseException:
            configs.set_override(name, before)
            resizes.undo()
            self._roll_back(name, old)
            raise
        finally:
            self._core.sources.drop_preloads(name)
        known = {**old.kept, **offered} if old is not None else {}
        kept = self._wait.kept(name) - model.offered.keys()
        self._loaded[name] = replace(model, kept={version: known[version] for version in kept & known.keys()})

    def _require_whole(self, name: str, versions: Iterable[FoundVersion]) -> None:
        problems = {item.version: self._check.problem(item.path) for item in versions}
        failures = {version: problem for version, problem in problems.items() if not problem.ok}
        if failures:
            raise load_failure(name, failures)

    def _offers_of(
        self, name: str, plan: LoadPlan, found: Iterable[FoundVersion], offered: Mapping[int, OfferedVersion]
    ) -> dict[int, OfferedVersion]:
        """The offers: what is kept as it was offered, the rest anew."""
        return {
            item.version: replace(offered[item.version], instances=item.instances)
            if item.version in plan.kept
            else self._offer(name, item)
            for item in found
        }

    def _offer(self, name: str, found: FoundVersion) -> OfferedVersion:
        """Each offer has a revision of its own, so that nothing takes it for one that failed before. At the start of
        the server it is the same each time: that is no order to load what an operator did not want any more."""
        self._offers += 1
        number = START if is_at_start() else str(self._offers)
        item = ServableData.ok(ServableId(name, found.version), found.path, f"{found.state}-{number}")
        return OfferedVersion(item, found.state, found.instances)

    def _carry_out(self, plan: LoadPlan, model: ModelOfCalls, offered: Mapping[int, OfferedVersion]) -> None:
        name, wait = model.config.name, self._wait
        beside = self._core.options.aspired_version_policy == "availability"
        if beside:
            self._preload(plan.swapped, model)
        self._configure(model.config.model_copy(update={"version_labels": {}}))
        if beside and plan.added:
            added = {version: model.offered[version] for version in plan.added}
            wait.offer(name, {**offered, **added}, awaited=plan.added)
        replaced = {version for version in plan.swapped if beside and wait.replace(model.offered[version].item)}
        given_up = plan.swapped - replaced
        if given_up:
            staying = plan.kept | replaced | plan.added if beside else plan.kept
            wait.withdraw(name, {v: model.offered[v] for v in staying}, gone=given_up)
        wait.offer(name, model.offered, awaited=given_up if beside else given_up | plan.added)
        if plan.dropped:
            wait.withdraw(name, model.offered, gone=plan.dropped)
        if model.config.version_labels:
            self._configure(model.config)

    def _preload(self, versions: Collection[int], model: ModelOfCalls) -> None:
        for version in sorted(versions):
            self._wait.preload(model.offered[version].item, model.config.platform)

    def _roll_back(self, name: str, old: ModelOfCalls | None) -> None:
        try:
            self._configure(None if old is None else old.config, name)
            if old is not None:
                self._core.sources.offer(name, [offer.item for offer in old.offered.values()])
        except ServingError as error:  # the server stops
            logger.info("model %s is not put back to what it was before the load call: %s", name, str(error))

    def _configure(self, model: ModelConfig | None, name: str = "") -> None:
        """Serves this model, or none of that name, and all others as before."""
        name = model.name if model is not None else name
        models = [other.config for key, other in self._loaded.items() if key != name]
        if model is not None:
            models.append(model)
        models.sort(key=lambda config: config.name)
        self._core.reloader.follow(ModelServerConfig(model_config_list=ModelConfigList(config=tuple(models))))

    # Unloading.

    def _unload(self, name: str, unload_dependents: bool) -> None:
        self._forget_refusal(name)
        model = self._loaded.get(name)
        if model is None:
            return
        self._configure(None, name)
        del self._loaded[name]
        self._core.model_configs.set_override(name, None)
        if model.upload:
            self._retired.append((name, model.upload))
        self._wait.gone(name)
        for step in model.steps if unload_dependents else ():
            part = self._loaded.get(step)
            used = any(step in other.steps for other in self._loaded.values())
            if part is not None and not part.explicit and not used:
                self._unload(step, True)

    def _remove_retired(self) -> None:
        """Files of a model that was given up, once none of its versions is in memory."""
        kept = []
        for name, upload in self._retired:
            if not self._core.view.live_versions(name) or self._is_newer(name, upload):
                self._uploads.remove(upload)
            else:
                kept.append((name, upload))
        self._retired = kept

    def _is_newer(self, name: str, upload: str) -> bool:
        """Whether every version that is in memory is one of a later load."""
        model = self._loaded.get(name)
        return (
            model is not None and self._core.view.live_versions(name) == set(model.offered) and model.upload != upload
        )


def _offered_to(found: Iterable[FoundVersion], old: ModelOfCalls) -> Mapping[int, OfferedVersion]:
    """What the manager was offered: by the last call, and what is kept of earlier ones, as far as it is ``found``."""
    versions = {item.version for item in found}
    return {**{version: offer for version, offer in old.kept.items() if version in versions}, **old.offered}


class ManifestCheck:
    """One thread at a time; ``close`` once at the end."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self._executor = PoolExecutor("tfs-load-digests", 0)
        self._inspector = VersionInspector(disk, clock, self._executor)

    def problem(self, path: str) -> Status:
        """OK for a version that is whole, and for one without a manifest: its load will tell. Reads all its files."""
        if not os.path.isfile(os.path.join(path, MANIFEST_NAME)):
            return OK
        try:
            verdict = self._inspector.inspect(path, 0.0)
            if isinstance(verdict, Waiting) and verdict.settling:
                self._executor.run_pending()
                verdict = self._inspector.inspect(path, 0.0)
        finally:
            self._inspector.forget()
        return Status(StatusCode.UNAVAILABLE, verdict.reason) if isinstance(verdict, Waiting) else OK

    def close(self) -> None:
        self._inspector.close()
        self._executor.shutdown()
