"""The whole lifecycle in one object, in virtual time, one step at a time, watching over its own promises.

    file-system source (disk in memory) -> router -> adapters (fake loaders) -> AspiredVersionsManager

Nothing here has a thread, sleeps, or is left to chance: the caller of a :class:`Simulation` chooses what happens next
and how it interleaves. After each step every promise of
:mod:`tests.support.lifecycle.lifecycle_invariants` is checked; a violation is raised as AssertionError. Used by the
property test of the lifecycle, and by tests that replay a sequence of steps that it has found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.lifecycle.lifecycle_invariants import LifecycleChecker, Stage
from tests.support.lifecycle.simulated_loader import (
    MAX_RETRIES,
    TOTAL,
    TOTAL_GPU,
    InjectedError,
    SimulatedLoader,
    is_retryable,
)
from tests.support.lifecycle.simulated_models import Flaw, ModelStore
from tests.support.lifecycle.source_checker import SourceChecker
from tfs_lite.core.event_bus import EventBus
from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import GPU, MAIN, ResourceUtil
from tfs_lite.core.servable import ModelRef, ServableData, ServableId, StoragePath
from tfs_lite.core.source import ErrorInjectingSourceAdapter, SourceRouter, UnarySourceAdapter
from tfs_lite.core.state import ServableState
from tfs_lite.core.status import ServingError, Status, StatusCode
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager, AspiredVersionsManagerOptions
from tfs_lite.managers.policies import POLICIES, Action, Policy
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.managers.state_monitor import ServableStateMonitor
from tfs_lite.managers.survey import ManagerView
from tfs_lite.sources.file_system_source import FileSystemStoragePathSource
from tfs_lite.sources.look import FoundVersions, Look
from tfs_lite.sources.source_config import ServableToMonitor, SourceConfig
from tfs_lite.testing.lifecycle.clock import VirtualClock
from tfs_lite.testing.lifecycle.executor import ManualExecutor

RETRY_INTERVAL = 10.0
NO_PLATFORM = Status(StatusCode.INTERNAL, "No platform found for model")
MAX_ROUNDS = 500
SETTLING_POLLS = 6
"""Polls until nothing changes by itself: each version that fails brings another one, and one whose files changed while
it loaded is taken up anew."""
UNROUTED = 2
"""A route to no adapter: the versions of that model arrive with an error."""


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """What stays fixed for the length of one simulation. ``custom_policy`` takes the place of the one that is named."""

    policy: str = "availability"
    quiet_period: float = 0.0
    retry_interval: float = RETRY_INTERVAL
    custom_policy: Policy | None = None


class Simulation:
    """Steps, in any order, then ``close``. The disk is ``store``; what happens there needs no step.

    Executors, handles and the rest may be looked at between steps, to know which steps make sense.
    """

    def __init__(self, options: SimulationOptions, servables: Mapping[str, tuple[ServableToMonitor, int]]) -> None:
        """``servables``: by name, what to monitor, and its adapter (0 or 1; UNROUTED: none)."""
        self._options = options
        self.clock = VirtualClock()
        self.store = ModelStore(self.clock)
        self.loads, self.unloads = ManualExecutor(1), ManualExecutor(1)
        bus: EventBus[ServableState] = EventBus(self.clock)
        self.monitor = ServableStateMonitor(bus)
        self.checker = LifecycleChecker(options.policy, self.loads, self.unloads, self.monitor)
        bus.subscribe(self.checker.on_event)
        self._swallowed = _SwallowedErrors()
        logging.getLogger("tfs_lite").addHandler(self._swallowed)
        config = self._config(servables)
        self.source_checker = SourceChecker(self.store, self.clock, config)
        self._emitted: dict[str, Sequence[ServableData[StoragePath]]] = {}
        self._source = FileSystemStoragePathSource(
            config, self.store.disk, self.clock, self.source_checker.on_report, executor=ManualExecutor(0)
        )
        bus.subscribe(lambda timed: self._source.on_state(timed.event))
        bus.subscribe(lambda timed: self.source_checker.on_state(timed.event))
        self._routes = {name: port for name, (_, port) in servables.items()}
        self._manager = self._make_manager(bus)
        self.checker.watch(self._manager)
        self._router = self._connect()
        self._route(self._routes)

    # Steps.

    def poll(self) -> None:
        with self._step(Stage.SOURCE):
            self._poll()

    def tick(self) -> Action | None:
        with self._step(Stage.TICK):
            return self._tick()

    def advance(self, seconds: float) -> None:
        """Lets time pass, and what is due happen."""
        with self._step(Stage.TICK):
            self.clock.advance(seconds)

    def reload(self, servables: Mapping[str, tuple[ServableToMonitor, int]]) -> None:
        """Another config."""
        config = self._config(servables)
        new = {name: port for name, (_, port) in servables.items()}
        with self._step(Stage.SOURCE):
            self._route({**self._routes, **new})
            self._emitted.clear()
            self._source.update_config(config)
            self._routes = new
            self.checker.violations += self.source_checker.judge_update(config, self._emitted)

    def look_ahead(
        self, servables: Mapping[str, tuple[ServableToMonitor, int]], outcomes: Mapping[ServableId, bool]
    ) -> dict[str, Look]:
        """What the poll after a reload of this config would find, once versions have become available (True) or have
        failed (False); no step."""
        return self._source.look_ahead(self._config(servables), outcomes=outcomes)

    def survey(self) -> ManagerView:
        """Every version that the manager has; no step."""
        return self._manager.survey()

    def come_to_rest(self) -> None:
        """Everything runs that runs by itself; nothing is polled, and faults go on."""
        with self._step(Stage.TICK):
            self._come_to_rest(None)

    def start(self, executor: ManualExecutor) -> bool:
        """Begins the next queued task; False if it is not wanted any more."""
        with self._step(Stage.EXECUTOR):
            return executor.start()

    def work(self, executor: ManualExecutor, index: int) -> None:
        """The slow part of a running task."""
        with self._step(Stage.EXECUTOR):
            executor.work(index)

    def finish(self, executor: ManualExecutor, index: int) -> None:
        with self._step(Stage.EXECUTOR):
            executor.finish(index)

    def hang(self, executor: ManualExecutor, index: int) -> None:
        """A running task has run for so long that it is overdue."""
        with self._step(Stage.TICK):
            executor.pass_time(index)

    def move(self, executor: ManualExecutor) -> None:
        """Begins the next queued task if there is a thread for it, else finishes the one that began first."""
        with self._step(Stage.EXECUTOR):
            if executor.can_start:
                executor.start()
            elif executor.running:
                executor.finish()

    def resize_loads(self, num_threads: int) -> None:
        with self._step(Stage.TICK):
            self._manager.set_num_load_threads(num_threads)

    def change_room(self, name: str, has_room: bool) -> None:
        """The cluster gets room for the replicas of a stream, or has none any more; whoever watches it wakes the
        stream's versions, on a thread of its own."""
        with self._step(Stage.REQUEST):
            if has_room:
                self.checker.without_room.discard(name)
            else:
                self.checker.without_room.add(name)
            for servable_id in [id_ for id_ in self.checker.lives if id_.name == name]:
                self._manager.wake(servable_id)

    def take_handle(self, request: ModelRef) -> None:
        """A request begins. It must be answered by the version that the events promise."""
        with self._step(Stage.REQUEST):
            ready = [id_ for id_ in self.checker.available() if id_.name == request.name]
            if request.version is not None:
                ready = [id_ for id_ in ready if id_.version == request.version]
            try:
                handle = self._manager.get_servable_handle(request)
            except ServingError as error:
                honest = not ready and error.code is StatusCode.NOT_FOUND
                self.checker.expect(honest, f"{request}: {error.status}; Available are {ready}")
                return
            self.checker.handles.append(handle)
            expected = max(ready, default=None)
            self.checker.expect(handle.id == expected, f"{request}: {handle.id}; Available are {ready}")

    def lookup(self, request: ModelRef) -> ServableHandle:
        """The version that answers now. NOT_FOUND if there is none."""
        return self._manager.get_servable_handle(request)

    def found(self, name: str) -> FoundVersions:
        """What the source has found of a stream."""
        return self._source.found(name)

    def release_handle(self, index: int) -> None:
        """A request ends."""
        with self._step(Stage.REQUEST):
            self._release(self.checker.handles[index])

    def settle(self, held: str | None = None) -> None:
        """Faults that pass are over, the disk is quiet, requests end, everything runs: the convergence check.

        ``held``: a stream whose requests do not end, whose faults go on and whose loads and unloads may be stuck, as
        long as there are threads for the others.
        """
        streams = frozenset({*self.checker.aspired, *self.source_checker.config.by_name})
        with self._step(Stage.TICK):
            self.checker.forgiven = streams - {held}
            for handle in [handle for handle in self.checker.handles if handle.id.name != held]:
                self._release(handle)
            for _ in range(3):
                self._poll()
                self.clock.advance(self._options.quiet_period + 0.5)
            for _ in range(SETTLING_POLLS):
                self._poll()  # begins to check the digests of a version that is wanted for one that has failed
                self._poll(settled=True)
                self._come_to_rest(held)
            self.checker.check_rest(held)
            self.checker.forgiven = frozenset()

    def close(self) -> None:
        """Closes as a server does, whatever is going on; then requests end, and what was left running is run."""
        try:
            with self._step(Stage.EXECUTOR):
                self._source.close()
                self._router.detach()
                self.checker.closing = True
                self._manager.close(drain_timeout=0.0)
            while self.checker.handles:
                self.release_handle(0)
            with self._step(Stage.EXECUTOR):
                for _ in range(2):
                    for executor in (self.loads, self.unloads):
                        self._finish_all(executor)
                        executor.run_all()
                self.clock.advance(10 * RETRY_INTERVAL)
                self.checker.check_end()
        finally:
            logging.getLogger("tfs_lite").removeHandler(self._swallowed)

    # How it is put together.

    def _config(self, servables: Mapping[str, tuple[ServableToMonitor, int]]) -> SourceConfig:
        return SourceConfig(
            tuple(servable for servable, _ in servables.values()),
            poll_interval=None,
            quiet_period=self._options.quiet_period,
        )

    def _make_manager(self, bus: EventBus[ServableState]) -> AspiredVersionsManager:
        tracker = ResourceTracker(ResourceUtil({MAIN: 1, GPU: len(TOTAL_GPU)}), TOTAL)
        return AspiredVersionsManager(
            AspiredVersionsManagerOptions(
                clock=self.clock,
                load_executor=self.loads,
                unload_executor=self.unloads,
                event_bus=bus,
                resource_tracker=tracker,
                max_num_load_retries=MAX_RETRIES,
                load_retry_interval=self._options.retry_interval,
                should_retry_model_load=is_retryable,
                policy=self._options.custom_policy or POLICIES[self._options.policy],
                tick_interval=None,
            )
        )

    def _connect(self) -> SourceRouter[int, StoragePath]:
        to_manager = self._manager.aspired_versions_callback()

        def to_checker_and_manager(name: str, versions: Sequence[ServableData[Loader]]) -> None:
            sent = [(item.id, item.revision) for item in self._emitted[name]]
            came = [(item.id, item.revision) for item in versions]
            self.checker.expect(came == sent, f"(10) of {name} the source sent {sent}, the manager gets {came}")
            self.checker.on_list(name, versions)
            to_manager(name, versions)

        adapters = {port: UnarySourceAdapter(self._make_loader) for port in range(UNROUTED)}
        no_platform: ErrorInjectingSourceAdapter[StoragePath] = ErrorInjectingSourceAdapter(NO_PLATFORM)
        for adapter in (*adapters.values(), no_platform):
            adapter.set_aspired_versions_callback(to_checker_and_manager)
        router = SourceRouter(adapters, no_platform)
        to_router = router.aspired_versions_callback()

        def to_source_checker_and_router(name: str, versions: Sequence[ServableData[StoragePath]]) -> None:
            self._emitted[name] = versions
            to_router(name, versions)

        self._source.set_aspired_versions_callback(to_source_checker_and_router)
        return router

    def _make_loader(self, item: ServableData[StoragePath]) -> Loader:
        recipe = self.store.recipe_at(item.payload)
        if recipe.flaw is Flaw.UNREADABLE:
            raise ServingError(StatusCode.INVALID_ARGUMENT, "nobody can read this")
        return SimulatedLoader(item, recipe, self.store, self.checker)

    def _route(self, routes: Mapping[str, int]) -> None:
        self._router.update_routes({name: port for name, port in routes.items() if port != UNROUTED})

    # How it moves.

    @contextmanager
    def _step(self, stage: Stage) -> Iterator[None]:
        with self._on(stage):
            yield
        self.checker.check_step()
        violations = [*self.checker.violations, *self._swallowed.texts]
        self.checker.violations.clear()
        self._swallowed.texts.clear()
        assert not violations, "\n".join(violations)

    @contextmanager
    def _on(self, stage: Stage) -> Iterator[None]:
        before, self.checker.stage = self.checker.stage, stage
        try:
            yield
        finally:
            self.checker.stage = before

    def _poll(self, settled: bool = False) -> None:
        with self._on(Stage.SOURCE):
            self._emitted.clear()
            self._source.poll()
            self.checker.violations += self.source_checker.judge_poll(self._emitted, settled)

    def _tick(self) -> Action | None:
        with self._on(Stage.TICK):
            action = self._manager.tick()
            self.checker.check_tick(action)
            return action

    def _release(self, handle: ServableHandle) -> None:
        with self._on(Stage.REQUEST):
            self.checker.handles.remove(handle)
            handle.release()

    def _run_queued(self) -> bool:
        """Takes every queued task through all its steps; whether there was one."""
        with self._on(Stage.EXECUTOR):
            found = [executor.run_one() for executor in (self.loads, self.unloads)]
            while any(found):
                found = [executor.run_one() for executor in (self.loads, self.unloads)]
                if not any(found):
                    return True
            return False

    def _finish_all(self, executor: ManualExecutor, but: str | None = None) -> bool:
        """Finishes every running task but those of one stream; whether there was one."""
        with self._on(Stage.EXECUTOR):
            indices = [i for i, name in enumerate(executor.running) if but is None or f"{{name: {but} " not in name]
            for index in reversed(indices):
                executor.finish(index)
            return bool(indices)

    def _come_to_rest(self, held: str | None) -> None:
        """Until nothing moves by itself any more. Tasks of ``held`` stay stuck while other threads are free."""
        idle = 0
        for _ in range(MAX_ROUNDS):
            moved = self._tick() is not None
            for executor in (self.loads, self.unloads):
                moved |= self._finish_all(executor, but=held if executor.has_free_thread else None)
            moved |= self._run_queued()
            idle = 0 if moved else idle + 1
            if idle >= 3:
                due = self.clock.next_due
                if due is None:
                    return
                self.clock.advance(due)
                idle = 0
        self.checker.violations.append(f"(10) no rest after {MAX_ROUNDS} rounds")


class _SwallowedErrors(logging.Handler):
    """Collects exceptions that were caught and logged and that no test injected: catching them hides a defect."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, (ServingError, InjectedError)):
            self.texts.append(f"swallowed: {error!r} ({record.getMessage()})")
