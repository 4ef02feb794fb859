"""The seam: how a capability gets into a server without the server's knowing it.

A feature is one folder and one class. It hears what happens to models, it may wrap what loads them, and it lives as
long as the core. What asks for a feature finds it by its class (:meth:`ServerCore.find`); nothing in this room names
one that is not its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from types import MappingProxyType
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Counter

from tfs_lite.adapters.opening import OpenedModel, OpenRequest, Platform
from tfs_lite.config.replicas import ReplicaOptions
from tfs_lite.core.loader import Loader
from tfs_lite.core.model import OnBatch, OnCall
from tfs_lite.core.servable import ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.state import ReplicaReport
from tfs_lite.core.status import OK, ServingError, Status, failed_precondition
from tfs_lite.core.threads import JOIN_SECONDS, all_within, is_users
from tfs_lite.core.trial import NO_TRIALS, Trials
from tfs_lite.serving.lifecycle_events import LifecycleEvent

NOTHING_REJECTED: Mapping[int, Status] = MappingProxyType({})
C = TypeVar("C")
F = TypeVar("F", bound="Feature")
T = TypeVar("T")
logger = logging.getLogger(__name__)


class Feature:
    """One capability of a server. Every method has an answer that does nothing.

    A feature is made with the core, before its source and its loaders; ``start`` -> events -> ``stopping`` -> more
    events, while versions are unloaded -> ``close``. Any thread may call any other method. What a method raises, but
    ``open``, is a defect of the feature. Where it is made or started, the server does not start, and the error names
    it; otherwise the first failure in each method is logged, all are counted, and what was asked goes on without the
    feature (:class:`Features`). Each failure of ``on_run`` and ``on_call`` is logged.

    ``on_run`` is called after each run of a model, on the thread of the run; ``on_call`` when a call has ended, which
    is a request or a step of an ensemble. Both are on a request's way: None, and not a function that does nothing,
    where a feature does not ask.
    """

    on_run: OnBatch | None = None
    on_call: OnCall | None = None
    trials: Trials = NO_TRIALS
    """The versions on trial; one mapping for the life of the feature, whose values change."""

    # The way of a version.

    def wrap(self, id: ServableId, loader: Loader) -> Loader:
        """The loader that loads and unloads the version, around ``loader``. The feature that comes first is the
        innermost."""
        return loader

    def open(self, platform: Platform, request: OpenRequest, replicas: ReplicaOptions) -> Sequence[OpenedModel] | None:
        """The instances of a version whose config wants replicas; None from a feature that has none. The first one
        that has any is asked. Raises ServingError, and nothing is left behind."""
        return None

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        """A callback for the lists of the sources, which passes them on to ``callback``, and may change them: what the
        manager, the states and the other features see is what it passes on. Any thread."""
        return callback

    # What happens.

    def on_event(self, event: LifecycleEvent) -> None:
        """Short, and never under a lock that another method of the feature waits with. See
        :mod:`~tfs_lite.serving.lifecycle_events`."""

    # What it says about versions.

    def accepted(self, id: ServableId) -> bool:
        """Whether an operator takes the version as it is: neither its signature nor recorded answers hold it back."""
        return False

    def silence(self, id: ServableId) -> Status:
        """The reason why a version that is available refuses every request, as far as the feature knows; OK if it does
        not."""
        return OK

    def explains(self, name: str, version: int | None) -> Mapping[str, Sequence[Any]]:
        """What the feature adds to an explanation of the model, or of its version: JSON values by the name of their
        member. ``notes`` are sentences, which a terminal shows."""
        return {}

    def rejected(self, name: str) -> Mapping[int, Status]:
        """The versions of the model that the feature keeps from answering although they are on disk, each with the
        reason. What a label on such a version means: :func:`tfs_lite.managers.labels.instead_of`."""
        return NOTHING_REJECTED

    def replicas(self) -> Iterable[ReplicaReport]:
        """The replicas of every version that lives in replicas of the feature, also while it is loaded."""
        return ()

    # From start to close.

    def start(self) -> None:
        """Starts the feature; nothing is loaded yet."""

    def first_load_ended(self) -> None:
        """Every model that is known at the start is available or has failed."""

    def stopping(self) -> None:
        """No more configs and versions come; what is loaded is about to be unloaded. Has the bound of :meth:`close`."""

    def close(self) -> None:
        """The last version was unloaded. All features together have a bound of
        :data:`~tfs_lite.core.threads.JOIN_SECONDS`."""


class Features:
    """The features of a core as one, in the order in which they hear what happens."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._all: tuple[Feature, ...] = ()
        self._rejecting: tuple[Feature, ...] = ()  # those that keep versions from answering: labels ask on each request
        self._failures = Counter(
            "tfs_lite_feature_failures", "Calls of a feature that raised.", ("feature", "what"), registry=registry
        )
        self._told = set[tuple[str, str]]()  # feature and call, of the failures in the log

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._all)

    def make(self, core: C, makers: Iterable[Callable[[C], Feature | None]], own: Sequence[Feature]) -> None:
        """Makes those before ``own``; each finds ``own`` and those before it. Raises ServingError."""
        made: list[Feature] = []
        self._all = tuple(own)
        for make in makers:
            with starting(make, "be made"):
                feature = make(core)
            if feature is not None:
                made.append(feature)
                self._all = (*made, *own)
        self._rejecting = tuple(feature for feature in self if type(feature).rejected is not Feature.rejected)

    def find(self, kind: type[F]) -> F | None:
        """The feature of this class; None if there is none."""
        return next((feature for feature in self if isinstance(feature, kind)), None)

    def ask(self, what: str, call: Callable[[F], T], features: Iterable[F]) -> list[T]:
        """The answers of these features. Each failure is counted; the first one of a feature in ``what`` is logged."""
        answers = []
        for feature in features:
            try:
                answers.append(call(feature))
            except BaseException as error:
                if is_users(error):
                    raise
                self._failed(type(feature).__name__, what)
        return answers

    def _failed(self, name: str, what: str) -> None:
        self._failures.labels(name, what).inc()
        if (name, what) not in self._told:
            self._told.add((name, what))
            logger.exception("the feature %s failed on %s; further failures are only counted", name, what)

    # What each of them is asked.

    def wrap(self, id: ServableId, loader: Loader) -> Loader:
        for feature in self:
            (loader,) = self.ask("wrap", methodcaller("wrap", id, loader), (feature,)) or (loader,)
        return loader

    def open(self, platform: Platform, request: OpenRequest, replicas: ReplicaOptions) -> Sequence[OpenedModel] | None:
        opened = (feature.open(platform, request, replicas) for feature in self)
        return next((models for models in opened if models is not None), None)

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        for feature in self:
            callback = feature.observe(callback)
        return callback

    @property
    def trials(self) -> Trials:
        """Those of the first feature that has any to tell of."""
        return next((feature.trials for feature in self if feature.trials is not NO_TRIALS), NO_TRIALS)

    def rejected(self, name: str) -> Mapping[int, Status]:
        found = self.ask("rejected", lambda feature: feature.rejected(name), self._rejecting)
        return next((rejected for rejected in found if rejected), NOTHING_REJECTED)

    def accepted(self, id: ServableId) -> bool:
        return any(self.ask("accepted", lambda feature: feature.accepted(id), self))

    def publish(self, event: LifecycleEvent) -> None:
        self.ask(type(event).__name__, lambda feature: feature.on_event(event), self)

    def silence(self, id: ServableId) -> Status:
        found = self.ask("silence", lambda feature: feature.silence(id), self)
        return next((status for status in found if not status.ok), OK)

    def explains(self, name: str, version: int | None) -> dict[str, list[Any]]:
        more: dict[str, list[Any]] = {}
        for found in self.ask("explains", lambda feature: _lists(feature.explains(name, version)), self):
            for member, values in found.items():
                more.setdefault(member, []).extend(values)
        return more

    def replicas(self) -> list[ReplicaReport]:
        found = self.ask("replicas", lambda feature: list(feature.replicas()), self)
        return [report for reports in found for report in reports]

    def start(self) -> None:
        """Raises ServingError."""
        for feature in self:
            with starting(feature, "start"):
                feature.start()

    def first_load_ended(self) -> None:
        self.ask("first_load_ended", lambda feature: feature.first_load_ended(), self)

    def stopping(self) -> None:
        self._end(lambda feature: feature.stopping())

    def close(self) -> None:
        self._end(lambda feature: feature.close())

    def _end(self, call: Callable[[Feature], None]) -> None:
        all_within(JOIN_SECONDS, [(f"tfs-{type(feature).__name__}", partial(call, feature)) for feature in self])


@contextmanager
def starting(feature: object, what: str) -> Iterator[None]:
    """Names the feature, or what makes it, in the error by which a server does not start: FAILED_PRECONDITION. A
    ServingError speaks for itself."""
    name = feature if isinstance(feature, str) else getattr(feature, "__qualname__", type(feature).__name__)
    try:
        yield
    except ServingError:
        raise
    except BaseException as error:
        if is_users(error):
            raise
        logger.exception("the feature %s cannot %s", name, what)
        raise failed_precondition(f"the feature {name} cannot {what}: {type(error).__name__}: {error}") from None


def _lists(found: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    return {member: list(values) for member, values in found.items()}
