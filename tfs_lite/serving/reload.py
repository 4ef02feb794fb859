"""Applying a config to a running server: checked whole, compared, and only then carried out.

A config that cannot be accepted changes nothing. One that is accepted stays, also when a model in it fails to load:
the failure is reported, and the model is tried again when its files change.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import TypeVar

from tfs_lite.config.diff import ConfigDiff, ModelChange, check_platforms, diff
from tfs_lite.config.model_server import ModelServerConfig
from tfs_lite.core.clock import Clock
from tfs_lite.core.history import Cause, Origin, acting, current_origin
from tfs_lite.core.model import Servable
from tfs_lite.core.servable import ServableId
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import ServingError, Status, StatusCode, failed_precondition
from tfs_lite.core.threads import BoundedCalls
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.labels import Labels, VersionLabels, check_labels
from tfs_lite.request_log.sampler import RequestLogs
from tfs_lite.serving.config_checks import (
    check_actual_platforms,
    check_models,
    check_versions_present,
    logged_models,
    scan_policy,
    version_labels,
)
from tfs_lite.serving.lifecycle_events import (
    ConfigApplied,
    ConfigRefused,
    LifecycleEvent,
    ModelAdded,
    ModelGone,
    Reloaded,
)
from tfs_lite.serving.load_waiter import ModelWaiter
from tfs_lite.serving.model_states import ModelStates
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.source_chain import SourceChain, served_platforms
from tfs_lite.sources.version_scan import SpecificPolicy
from tfs_lite.storage.url import is_url

T = TypeVar("T")
KEPT_MODELS = 100
logger = logging.getLogger(__name__)


class GoneModels:
    """The models that were removed from the config: the facts about them stay for a while. One thread at a time."""

    def __init__(self, keep: int = KEPT_MODELS) -> None:
        self._keep = keep
        self._names: list[str] = []

    def update(self, added: Collection[str], removed: Collection[str]) -> list[str]:
        """The names of which nothing is to be kept any more: those that have been gone the longest."""
        self._names = [name for name in self._names if name not in added] + list(removed)
        surplus = max(len(self._names) - self._keep, 0)
        dropped, self._names = self._names[:surplus], self._names[surplus:]
        return dropped


class AppliedButIncomplete(ServingError):
    """The config is in force, but not every new model of it became available. Any other error of a reload means that
    it was refused and nothing changed."""

    def __init__(self, reason: ServingError) -> None:
        super().__init__(reason.code, f"config applied; {reason}")


@dataclass(frozen=True, slots=True)
class ConfigRefusal:
    """The reason why the config would be refused. ``model`` is empty if the reason is none of one model."""

    model: str
    status: Status


class Reloader:
    """Applies one config at a time. A second caller of ``reload`` waits for the first, for a limited time; ``follow``
    waits for no models. Both block, so never call them on the event loop. Each outcome is published."""

    def __init__(
        self,
        options: ServerOptions,
        *,
        sources: SourceChain,
        manager: AspiredVersionsManager,
        labels: VersionLabels,
        states: ModelStates,
        waiter: ModelWaiter,
        logs: RequestLogs,
        clock: Clock,
        publish: Callable[[LifecycleEvent], None],
        rejected: Callable[[str], Mapping[int, Status]],
    ) -> None:
        """``rejected``: the versions of a model that must not answer, and why."""
        self._options = options
        self._sources = sources
        self._manager = manager
        self._labels = labels
        self._states = states
        self._waiter = waiter
        self._logs = logs
        self._clock = clock
        self._publish = publish
        self._rejected = rejected
        self._gone = GoneModels()
        self._disk_calls = BoundedCalls(options.disk_timeout_seconds)
        self._applying = threading.Lock()  # held by one caller of apply at a time, its wait included
        self._committing = threading.Lock()  # guards _config; held while a config is carried out, never in a wait
        self._config: ModelServerConfig | None = None

    def check(self, config: ModelServerConfig) -> None:
        """Raises what :meth:`reload` would raise before it changes anything, labels aside."""
        roots, logged = self._options.allowed_model_base_paths, logged_models(config)
        present = self._options.servable_versions_always_present and self._options.looks_at_disk

        def check() -> None:
            check_models(config, served_platforms(), roots)
            if present:
                check_versions_present(config)
            self._logs.check(logged)

        if roots or logged or present:  # links and directories are looked at
            self._disk_calls.call("what the config names", check)
        else:
            check()

    @property
    def config(self) -> ModelServerConfig | None:
        """The config in force; None before the first."""
        return self._config

    def refusals(self, config: ModelServerConfig) -> list[ConfigRefusal]:
        """Every reason why :meth:`reload` would refuse the config now, at least one for each model that has one. Empty
        if it would be accepted. Nothing is changed."""
        difference = diff(self._config, config)
        if self._config is not None and not (difference.added or difference.removed or difference.changed):
            return []
        alone = [self._refusal(model.name, config.only(model), difference) for model in config.models]
        found = [refusal for refusal in alone if refusal is not None]
        together = None if found else self._refusal("", config, difference)
        return [together] if together is not None else found

    def _refusal(self, name: str, config: ModelServerConfig, difference: ConfigDiff) -> ConfigRefusal | None:
        """The reason why ``config``, the model's own, would be refused; it concerns all models if the name is empty."""
        changed = tuple(change for change in difference.changed if name in ("", change.new.name))
        try:
            self.check(config)
            self._check_against(config, ConfigDiff((), (), changed, ()))
        except ServingError as error:
            return ConfigRefusal(name, error.status)
        return None

    def reload(self, config: ModelServerConfig) -> str:
        """Returns once every new model is available, with what was applied. :class:`AppliedButIncomplete` names those
        that are not, with the reasons (UNKNOWN), or says that the server stops (UNAVAILABLE).

        Any other error leaves everything as it was: INVALID_ARGUMENT, FAILED_PRECONDITION, also where the options say
        that nothing changes, and UNAVAILABLE before the first config or when another reload takes too long.
        """
        self.require_following()
        with acting(current_origin() or Origin(Cause.OPERATOR)):
            return self._published(self._apply, config, is_logged=True)

    def follow(self, config: ModelServerConfig) -> None:
        """Applies the config of a watched file or repository. Like :meth:`reload`, but returns without waiting for the
        models: one that takes long to load must not hold up the next change. Their states tell what becomes of them."""
        self._published(self._follow, config, is_logged=False)

    def refused(self, status: Status, model: str = "") -> None:
        """A config was refused before it got here: a reload that failed. ``model``: the one that a call wanted to load;
        that is no reload."""
        if not model:
            self._publish(Reloaded(ok=False))
        self._publish(ConfigRefused(status, model))

    def require_following(self) -> None:
        """FAILED_PRECONDITION where the options say that neither configs nor the disk are followed."""
        options = self._options
        if not options.follows_changes:
            mode = options.model_control_mode
            how = "change by the repository calls of V2 only" if options.is_explicit else "do not change"
            raise failed_precondition(f"the server was started with model_control_mode {mode}: its models {how}")

    def _published(self, apply: Callable[[ModelServerConfig], T], config: ModelServerConfig, *, is_logged: bool) -> T:
        """Publishes the outcome of the block. With ``is_logged=False`` the caller logs a refusal: it tries again at
        each look, and logs each cause once."""
        try:
            result = apply(config)
        except ServingError as error:
            refused = "" if isinstance(error, AppliedButIncomplete) else "config refused, nothing changed: "
            if is_logged:
                logger.warning("%s%s", refused, str(error))
            self._publish(Reloaded(ok=False))
            if refused:
                self._publish(ConfigRefused(error.status))
            raise
        self._publish(Reloaded(ok=True))
        return result

    def _apply(self, config: ModelServerConfig) -> str:
        if not self._applying.acquire(timeout=self._options.reload_timeout_seconds):
            raise ServingError(StatusCode.UNAVAILABLE, "another config is still being applied; try again later")
        try:
            since = self._clock.time()
            wanted = version_labels(config)
            tried = {id for name in wanted for id in self._states.aspired(name)}
            with self._committing:
                self._require_started()
                change = self._commit(config)
            at_urls = {model.name for model in config.models if is_url(model.base_path)}
            self._sources.wake(at_urls)  # also what the config does not change: storages are looked at once a minute
            ends = self._clock.monotonic() + self._options.reload_timeout_seconds
            result = self._waiter.wait(change.awaited, self._options.reload_timeout_seconds, since=since)
            labels = self._wait_for_labels(wanted, ends, lambda id: 0.0 if id in tried else since)
        finally:
            self._applying.release()
        if self._waiter.closed:
            raise AppliedButIncomplete(ServingError(StatusCode.UNAVAILABLE, "the server is shutting down"))
        if result.error is not None:
            raise AppliedButIncomplete(result.error)
        if labels:
            raise AppliedButIncomplete(ServingError(StatusCode.UNKNOWN, "; ".join(labels)))
        return change.summary

    def _wait_for_labels(self, wanted: Labels, ends: float, since: Callable[[ServableId], float]) -> list[str]:
        """Returns when every label means what the config says, with a sentence for each whose version has failed, or
        has not come by ``ends``, in seconds of ``monotonic``. ``since``: what ended earlier, in seconds since 1970, is
        loaded anew."""
        found: dict[tuple[str, str], str] = {}

        def over() -> bool:
            found.clear()
            pending = False
            for name, before in self._labels.waiting.items():
                for label, meant in before.items():
                    if (version := wanted.get(name, {}).get(label)) is None:
                        continue
                    id = ServableId(name, version)
                    status = self._failure(id, since(id))
                    why = "is still loading" if status is None else f"does not come: {status}"
                    now = "the version that answers" if meant is None else f"version {meant}"
                    found[name, label] = f'label "{label}" of model {name} still means {now}: {version} {why}'
                    pending |= status is None
            return not pending

        self._waiter.wait_until(over, ends)
        return list(found.values())

    def _failure(self, servable_id: ServableId, since: float) -> Status | None:
        """The reason why the version will not be available, as things stand. An end before ``since`` is none, and
        a load that was cancelled says nothing: the version was not wanted then."""
        timed = self._states.version_states(servable_id.name).get(servable_id.version)
        ended = timed is not None and timed.state.state is ManagerState.END and timed.time >= since
        if timed is not None and ended and not timed.state.health.ok:
            return None if timed.state.health.code is StatusCode.CANCELLED else timed.state.health
        report = self._states.source_report(servable_id.name)
        if report is not None and servable_id.version in report.waiting.keys() - report.settling - report.fetching:
            return Status(StatusCode.DATA_LOSS, report.waiting[servable_id.version])
        attempt = self._states.last_attempt(servable_id)
        return attempt.status if attempt is not None and not attempt.status.ok and not attempt.status.waits else None

    def _follow(self, config: ModelServerConfig) -> None:
        with self._committing:
            self._require_started()
            self._commit(config)

    def apply_first(self, config: ModelServerConfig) -> None:
        """Applies the config of the start without waiting. Labels apply when their versions are available."""
        with self._committing:
            self._commit(config)

    def _require_started(self) -> None:
        if self._waiter.closed:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is shutting down")
        if self._config is None:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is starting; try again in a moment")

    def _commit(self, config: ModelServerConfig) -> _ConfigChange:
        """Carries the config out. The models to wait for are the new ones."""
        old, difference = self._config, diff(self._config, config)
        if old is not None and not (difference.added or difference.removed or difference.changed):
            return _ConfigChange((), _summary(difference))
        self.check(config)
        self._check_against(config, difference)
        self._logs.configure(logged_models(config))
        self._config = config
        before, summary = self._labels.table, _summary(difference)
        self._labels.replace(version_labels(config), self._states.is_available)
        self._states.configure(model.name for model in config.models)
        self._publish(ConfigApplied(difference, summary, before, self._labels.table))
        self._sources.reconfigure(config)
        added, removed = ([model.name for model in models] for models in (difference.added, difference.removed))
        for name in added:
            self._publish(ModelAdded(name))
        for name in self._gone.update(added, removed):
            self._publish(ModelGone(name))
        logger.info("config applied: %s", summary)
        return _ConfigChange(tuple(m.name for m in difference.added if self._options.looks_at_disk), summary)

    def _check_against(self, config: ModelServerConfig, difference: ConfigDiff) -> None:
        check_platforms(difference)
        check_actual_platforms(difference, self._loaded_platforms())
        check_labels(
            version_labels(config),
            self._labels.table,
            self._states.is_available,
            rejected=self._rejected,
            brought=lambda name: self._brought(config, name),
            allow_unavailable=self._options.allow_version_labels_for_unavailable_models,
            first_config=self._config is None,
        )

    def _brought(self, config: ModelServerConfig, name: str) -> Set[int]:
        """The versions that the config names for the model by number, and that will be loaded: they are complete, but
        for digests that were not checked yet, or at a URL, from which they come."""
        model = next(model for model in config.models if model.name == name)
        policy, found = scan_policy(model), self._sources.found(name)
        if not isinstance(policy, SpecificPolicy) or found is None:
            return frozenset()
        if is_url(model.base_path):
            return found.versions & set(policy.versions)
        alone = config.only(model)
        look = self._disk_calls.call(
            "what the config names", lambda: self._sources.look_ahead(alone, takes_unchecked=True)[name]
        )
        return {item.id.version for item in look.aspired or ()} & set(policy.versions)

    def _loaded_platforms(self) -> Mapping[str, str]:
        """The platforms of the loaded models, by model."""
        found = {}
        for servable_id, handle in self._manager.get_available_servable_handles().items():
            with handle:
                servable: Servable = handle.servable
                found[servable_id.name] = servable.traits.platform
        return found


@dataclass(frozen=True, slots=True)
class _ConfigChange:
    """The effect of a config: the models to wait for, and a summary in words."""

    awaited: tuple[str, ...]
    summary: str


def _summary(difference: ConfigDiff) -> str:
    """``added [a], removed [b], changed [c: base_path], 3 unchanged``."""
    added = ", ".join(model.name for model in difference.added)
    removed = ", ".join(model.name for model in difference.removed)
    changed = ", ".join(map(_described, difference.changed))
    return f"added [{added}], removed [{removed}], changed [{changed}], {len(difference.unchanged)} unchanged"


def _described(change: ModelChange) -> str:
    """``m: base_path and version_labels``, with a warning for a base path that does not exist."""
    path = change.new.base_path
    is_gone = not is_url(path) and not os.path.isdir(path)
    warned = {"base_path": "base_path (it does not exist; the model keeps the versions that it has)"} if is_gone else {}
    return f"{change.new.name}: {' and '.join(warned.get(field, field) for field in change.fields)}"
