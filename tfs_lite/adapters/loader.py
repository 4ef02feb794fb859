"""The loader of every platform: trust, device, memory and worker are the same for all of them.

    find the platform -> may its files be loaded? -> open on the device, once per instance -> add the signatures
    -> pass the models to the servable factory -> warm up the servable -> hold it against recorded answers

A version of a composed platform has nothing to open: the factory gets no models, and makes the servable of others.
Everything that can fail happens inside ``load``; afterwards the loader holds a servable, or nothing at all. Who loads
and unloads returns the memory to the system (:class:`tfs_lite.adapters.memory.MemoryReturn`). When only
the instance groups of a config change, ``resize`` opens and closes single instances: it compares the placements of the
old and the new config.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import SupportsIndex

from tfs_lite.adapters import memory
from tfs_lite.adapters.detect import UNREAD, choose_platform, read_version, recognising, unread_files
from tfs_lite.adapters.device import check_device, gpu_bytes, usable_gpus, uses_gpu
from tfs_lite.adapters.failures import label_of, load_failure
from tfs_lite.adapters.gpu_placement import GpuReservations
from tfs_lite.adapters.inspect.archive import unsafe
from tfs_lite.adapters.instances import (
    CPU,
    Difference,
    check_gpus,
    copies_of,
    differ_in_instances_only,
    difference,
    placements,
)
from tfs_lite.adapters.measured import MeasuredVersions, on_device, total, workspace_of
from tfs_lite.adapters.memory import drop_file_caches
from tfs_lite.adapters.opening import (
    LoadedFiles,
    OpenedModel,
    OpenedModelAround,
    OpenRequest,
    Platform,
    VersionFiles,
    shown,
)
from tfs_lite.adapters.python.imports import importing_in_turns
from tfs_lite.adapters.reshape import reshaped, seen_by_model
from tfs_lite.adapters.signatures import sign
from tfs_lite.adapters.trust import NO_TRUST, TrustedPaths
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.scheduling import InstanceGroup, replica_options
from tfs_lite.core.generation import LanguageModel
from tfs_lite.core.loader import Loader, LoadMeter, LoadPhase, LoadProgress
from tfs_lite.core.model import Model, Servable, close_models
from tfs_lite.core.resources import GPU, MAIN, NO_RESOURCES, Resource, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import Reason, ServingError, StatusCode, failed_precondition, invalid_argument
from tfs_lite.core.threads import call_in_background
from tfs_lite.core.yielding import giving_way

MAX_RESIDENT = 1 << 57
"""Bytes of main memory that a model cannot hold: more than processors address."""
logger = logging.getLogger(__name__)

MakeServable = Callable[[Sequence[OpenedModel], OpenRequest], Servable]
"""A function from equal models of one version to the servable, which gets the requests, and closes the models. Without
models the version is composed of others, as the request's settings say."""

Opens = Callable[[Platform, OpenRequest], Sequence[OpenedModel]]
"""Opens the instances of a version, in this process or in others."""


def open_here(platform: Platform, request: OpenRequest) -> Sequence[OpenedModel]:
    """One instance, in this process. UNIMPLEMENTED for a platform that is only known."""
    return [platform.start(request)]


@dataclass(frozen=True, slots=True)
class _Opened:
    """The servable's models and their placements, and what opened them."""

    platform: Platform
    request: OpenRequest
    models: tuple[OpenedModel, ...]
    placements: tuple[InstanceGroup, ...]


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """The decisions of a server for all its models.

    ``opens`` opens the instances of a version; ``model_settings`` finds the config of a version by its directory and
    the model's name (None: there are no configs); ``warm_models`` and ``warm_up`` run the first requests on the models
    and then on the servable; ``gate`` decides, as the last step of the load, whether the version may answer. Errors of
    all of them fail the load. ``drop_file_caches``
    removes loaded files from the system's cache. ``worker``: where instances live whose config does not say.
    ``measured`` knows what versions took; ``gpus`` what they have reserved on each GPU; ``batch_rows`` which numbers of
    rows batches of a version will mostly have.
    """

    servable_factory: MakeServable
    device: str = "auto"
    _: KW_ONLY
    opens: Opens = field(default=open_here)
    trusted: TrustedPaths = NO_TRUST
    model_settings: Callable[[str, str], ModelSettings | None] | None = None
    warm_up: Callable[[Servable, OpenRequest], None] | None = None
    gate: Callable[[Servable, OpenRequest], None] | None = None
    drop_file_caches: bool = False
    warm_models: Callable[[Sequence[Model], OpenRequest], None] | None = None
    worker: str = "auto"
    measured: MeasuredVersions = field(default_factory=MeasuredVersions)
    gpus: GpuReservations = field(default_factory=lambda: GpuReservations(gpu_bytes))
    batch_rows: Callable[[OpenRequest], tuple[int, ...]] = lambda request: (1,)


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Bytes: of each copy of the weights on its device, of main memory while copies for a GPU are loaded, and of main
    memory for a moment while any copy is opened. How many copies each device has."""

    of_copy: int
    while_loading: int
    copies: Mapping[Resource, int]
    for_a_moment: int = 0

    @property
    def allocation(self) -> ResourceAllocation:
        return memory.estimate(self.of_copy, self.copies, self.while_loading, self.for_a_moment)


class ArtifactLoader(Loader):
    """Loads one version of model ``name`` from its directory. With an empty ``platform`` the config names it, or the
    files decide."""

    def __init__(
        self,
        directory: str,
        platform: str,
        settings: AdapterSettings,
        platforms: Mapping[str, Platform],
        name: str = "",
    ) -> None:
        self._directory = directory
        self._name = name
        self._platform = platform
        self._settings = settings
        self._platforms = platforms
        self._reserved: _Reserved | None = None
        self._file_bytes: int | None = None
        self._placed: ResourceAllocation | None = None  # from the load's begin to the unload
        self._measured: ResourceAllocation | None = None
        self._servable: Servable | None = None
        self._opened: _Opened | None = None
        self._meter: LoadMeter | None = None  # while ``load`` runs

    def estimate_resources(self) -> ResourceAllocation:
        if self._measured is not None:
            return self._measured
        if self._will_live_elsewhere():
            return NO_RESOURCES
        check_device(self._settings.device)
        return self._placed or self._reserve().allocation

    def load(self, servable_id: ServableId) -> None:
        self._meter = LoadMeter()
        try:
            with giving_way(), importing_in_turns():  # to its end, however long the executor's patience is
                self._load(servable_id, self._meter)
        finally:
            self._meter = None

    def _load(self, servable_id: ServableId, meter: LoadMeter) -> None:
        try:
            self._servable = self._make(servable_id, meter)
        except BaseException as error:  # a model that calls sys.exit() fails like any other
            failure = load_failure(servable_id, error)
        else:
            return
        self._forget_place()
        # By now the error is freed, and with it its stack, which held what had been built.
        raise failure

    def resize(self, settings: ModelSettings) -> bool:
        """Opens and warms up new instances before the first of them is added; removed ones finish their runs."""
        servable, opened = self._servable, self._opened
        if servable is None or opened is None or not differ_in_instances_only(opened.request.settings, settings):
            return False
        try:
            with giving_way(), importing_in_turns():
                return self._resize(servable, opened, replace(opened.request, settings=settings))
        except BaseException as error:
            failure = load_failure(opened.request.id, error)
        memory.release_memory()
        raise failure

    def unload(self) -> None:
        servable, opened, self._servable, self._opened = self._servable, self._opened, None, None
        try:
            if servable is not None:
                servable.close()
        except BaseException:
            name = label_of(opened.request.id) if opened is not None else "a model"
            logger.exception("%s: its unload goes on, though closing it failed", name)
        del opened
        del servable
        self._forget_place()

    @property
    def servable(self) -> Servable | None:
        return self._servable

    @property
    def progress(self) -> LoadProgress | None:
        meter = self._meter
        return None if meter is None else meter.progress

    @property
    def file_bytes(self) -> int | None:
        return self._file_bytes

    def _reserve(self) -> _Reserved:
        """The bytes to reserve; remembered, because an estimate must not grow when files are added."""
        if self._reserved is None:
            files = read_version(self._directory)
            self._file_bytes = files.unpacked_bytes
            platform = None
            try:
                settings = self._read_settings(self._name)
                platform = self._likely_platform(files, self._platform or settings.platform)
                self._reserved = self._reserve_for(files, platform, settings)
            except ServingError:
                platform = platform or self._likely_platform(files, self._platform)
                if platform is not None and platform.reserve is not None:
                    raise
                self._reserved = self._reserve_for(files, platform, ModelSettings())  # the load says what is wrong
        return self._reserved

    def _likely_platform(self, files: VersionFiles, wanted: str) -> Platform | None:
        """The platform that bounds the memory: the wanted one, if it recognises the files. The load says what is wrong
        if it does not, or others do too."""
        found, _ = recognising(files, self._platforms)
        return found.get(wanted) or next(iter(found.values()), None)

    def _reserve_for(self, files: VersionFiles, platform: Platform | None, settings: ModelSettings) -> _Reserved:
        """The memory to reserve: as the platform bounds it, as a version like this one was measured, or else by the
        size of the files."""
        on_gpu, copies = uses_gpu(self._settings.device), self._copies(platform, settings, self._default_device())
        if platform is not None and platform.reserve is not None:
            bound = platform.reserve(files, settings, on_gpu)
            return _Reserved(bound, bound, copies, platform.for_a_moment(files) if copies else 0)
        by_files = memory.bytes_to_reserve(files.unpacked_bytes)
        known = self._settings.measured.bound(self._name, files.unpacked_bytes, _size_settings(settings))
        of_copy = by_files if known is None else known + memory.FIXED_BYTES
        return _Reserved(of_copy + (workspace_of(settings.parameters) if on_gpu else 0), by_files, copies)

    def _copies(self, platform: Platform | None, settings: ModelSettings, default: str) -> Mapping[Resource, int]:
        """The number of copies on each device. INVALID_ARGUMENT if the config names a GPU that is not there."""
        groups = settings.instance_group or (InstanceGroup(),)
        check_gpus(groups, usable_gpus(self._settings.device))

        def shares(group: InstanceGroup) -> bool:
            return (
                platform is not None
                and platform.shares_weights
                and (group.worker or self._settings.worker) in ("auto", "thread")
            )

        return copies_of(groups, default, shares)

    def _default_device(self) -> str:
        """The device of instances whose group names no GPU: ``cpu``, ``cuda:N``, or ``cuda`` while that is open."""
        usable = usable_gpus(self._settings.device)
        return CPU if not usable else f"cuda:{usable[0]}" if len(usable) == 1 else "cuda"

    def _find_place(self) -> str:
        """Reserves the version's memory on its devices, and returns the one of instances whose group names no GPU."""
        default = self._default_device()
        self._placed, picked = self._settings.gpus.place(self, self._reserve().allocation)
        if default != "cuda":
            return default
        named = [place.instance for place in self._placed.entries if place.device == GPU]
        return f"cuda:{picked if picked is not None else named[0] if named else 0}"

    def _discard(self, servable: Servable) -> None:
        """Discards a servable that is not taken."""
        self._measured, self._opened = None, None
        servable.close()
        self._forget_place()

    def _forget_place(self) -> None:
        self._placed = None
        self._settings.gpus.release(self)

    def _read_settings(self, model: str) -> ModelSettings:
        read = self._settings.model_settings
        return (None if read is None else read(self._directory, model)) or ModelSettings()

    def _make(self, servable_id: ServableId, meter: LoadMeter) -> Servable:
        """UNAVAILABLE if the files have changed meanwhile: what was read may be of both. Code of the version may write
        into its directory: what a second load finds changed as the first did is taken for that."""
        before: list[str] = []
        while True:
            request, platform, files = self._plan(servable_id, meter)
            servable = self._make_of(request, platform)
            try:
                changed = files.changes()
                if not changed or changed == before:
                    break
                if before or not platform.needs_trust:
                    names = shown(changed)
                    what = f"its files changed while it was loaded ({names})"
                    raise ServingError(StatusCode.UNAVAILABLE, what, Reason.FILES_CHANGED)
            except ServingError:
                self._discard(servable)
                raise
            self._discard(servable)
            before = changed
        if changed:
            logger.warning("%s: its load writes %s into its own directory", label_of(servable_id), shown(changed))
        files.note_loaded(accept=bool(changed))
        unread = unread_files(request.files, files.paths, platform, request.settings)
        if unread:
            logger.warning("%s: %s: %s", label_of(servable_id), UNREAD, shown(unread))
        return servable

    def _make_of(self, request: OpenRequest, platform: Platform) -> Servable:
        models = [] if platform.composed else self._open(platform, request)
        try:
            measured = self._measure(models, platform, request)
            servable = self._settings.servable_factory(models, request)
        except BaseException:
            close_models(models, label_of(request.id))
            raise
        try:
            self._warm_up(servable, request)
            if self._settings.gate is not None:
                self._settings.gate(servable, request)
        except BaseException:
            servable.close()
            raise
        self._measured = measured
        self._opened = _opened(platform, request, models)
        return servable

    def _warm_up(self, servable: Servable, request: OpenRequest) -> None:
        if self._settings.warm_up is not None:
            self._settings.warm_up(servable, request)
        if self._settings.drop_file_caches:
            drop_file_caches(self._directory)

    def _open(self, platform: Platform, request: OpenRequest) -> list[OpenedModel]:
        """The instances that the settings ask for, with the signatures of clients, after the first runs of each."""
        request.meter.begin(LoadPhase.OPENING)
        models = list(self._settings.opens(platform, replace(request, settings=seen_by_model(request.settings))))
        try:
            models = [sign(reshaped(model, request.settings), request) for model in models]
            request.meter.begin(LoadPhase.WARMING_UP)
            if self._settings.warm_models is not None:
                self._settings.warm_models([model for model in models if model.worker.up], request)
        except BaseException:
            close_models(models, label_of(request.id))
            raise
        return models

    def _will_live_elsewhere(self) -> bool:
        """Whether the version's models live in processes elsewhere; False for a config that is wrong: the load says
        so."""
        try:
            return self._lives_elsewhere(self._read_settings(self._name))
        except ServingError:
            return False

    def _lives_elsewhere(self, settings: ModelSettings) -> bool:
        """Whether all instances are replicas, which take nothing of this machine."""
        return replica_options(settings.instance_group, self._settings.worker) is not None

    def _measure(self, models: Sequence[OpenedModel], platform: Platform, request: OpenRequest) -> ResourceAllocation:
        """The memory that the version takes on each device. The next version like it is admitted by this figure."""
        placed = self._placed
        if placed is None or self._lives_elsewhere(request.settings):
            return NO_RESOURCES
        copies = self._copies(platform, request.settings, request.device)
        resident = _sum(_resident_bytes(model, platform) for model in models)
        parts = total([model.measured_bytes() for model in models])
        held = {place: taken for place in copies if (taken := on_device(parts, _name_of(place)))}
        if held:
            of_copy = max(-(-taken // copies[place]) for place, taken in held.items())
            settings = _size_settings(request.settings)
            self._settings.measured.learn(self._name, request.files.unpacked_bytes, settings, of_copy)
        elif resident is not None and len(copies) == 1:
            held = dict.fromkeys(copies, resident)
        workspace = workspace_of(request.settings.parameters)
        held = {
            place: taken + (workspace * copies[place] if place.device == GPU else 0) for place, taken in held.items()
        }
        measured = memory.measured(request.id, resident, held, placed, copies)
        self._settings.gpus.place(self, measured)
        return measured

    def _resize(self, servable: Servable, opened: _Opened, request: OpenRequest) -> bool:
        """Resizes a servable; ``request`` is that of all instances. False also for a device on which nothing is
        reserved."""
        copies = self._copies(opened.platform, request.settings, request.device)
        if (
            not self._lives_elsewhere(request.settings)
            and not copies.keys() <= self.estimate_resources().entries.keys()
        ):
            return False
        change = difference(opened.placements, placements(request.settings, request.on_gpu))
        added = self._open_more(opened, request, change) if change.add else []
        removed = [opened.models[index] for index in change.remove]
        try:
            alike = all(model.signatures == opened.models[0].signatures for model in added)
            joined = alike and ((not added and not removed) or servable.resize(added, removed))
        except BaseException:
            close_models(added, label_of(request.id))
            raise
        if not joined:
            close_models(added, label_of(request.id))
            return False
        kept = [index for index in range(len(opened.models)) if index not in change.remove]
        models = (*(opened.models[index] for index in kept), *added)
        self._opened = replace(
            opened,
            request=request,
            models=models,
            placements=(*(opened.placements[index] for index in kept), *change.add),
        )
        self._measured = self._measure(models, opened.platform, request)
        return True

    def _open_more(self, opened: _Opened, request: OpenRequest, change: Difference) -> list[OpenedModel]:
        """Opens new instances, after their first requests, which a servable of their own has run."""
        more = request.settings.model_copy(update={"instance_group": change.add})
        beside = tuple(model for index, model in enumerate(opened.models) if index not in change.remove)
        request.require_files()
        models = self._open(opened.platform, replace(request, settings=more, beside=beside))
        try:
            request.require_files()
            self._warm_up_beside([model for model in models if model.worker.up], replace(request, settings=more))
        except BaseException:
            close_models(models, label_of(request.id))
            raise
        return models

    def _warm_up_beside(self, models: Sequence[OpenedModel], request: OpenRequest) -> None:
        """Warms up new instances; those that have no replica yet run their first requests when they have joined."""
        if not models:
            return
        alone = replace(request, settings=request.settings.model_copy(update={"response_cache": None}))
        servable = self._settings.servable_factory(list(map(unowned, models)), alone)
        try:
            self._warm_up(servable, request)
        finally:
            servable.close()

    def _plan(self, servable_id: ServableId, meter: LoadMeter) -> tuple[OpenRequest, Platform, LoadedFiles]:
        """Plans a load: what to open, by which platform, and the files that it is opened from."""
        if uses_gpu(self._settings.device):  # whose driver starts threads
            return self._planned(servable_id, meter)
        return call_in_background(lambda: self._planned(servable_id, meter), "tfs-plan")

    def _planned(self, servable_id: ServableId, meter: LoadMeter) -> tuple[OpenRequest, Platform, LoadedFiles]:
        settings = self._read_settings(servable_id.name)
        if settings.name not in ("", servable_id.name):
            raise invalid_argument(f'the config is for model "{settings.name}"')
        loaded = LoadedFiles(self._directory, settings)
        files = read_version(self._directory)
        platform = choose_platform(files, self._platform or settings.platform, self._platforms)
        if platform.composed != (settings.ensemble_scheduling is not None):
            raise invalid_argument(
                f"platform {platform.name} "
                + ("needs ensemble_scheduling in the config" if platform.composed else "has no ensemble_scheduling")
            )
        check_device(self._settings.device)
        check_gpus(settings.instance_group, usable_gpus(self._settings.device))
        device = self._find_place()
        trusted = self._settings.trusted.allows_all_of(self._directory)
        request = OpenRequest(servable_id, files, device, trusted, settings, meter=meter, loaded_from=loaded)
        request = replace(request, batch_rows=self._settings.batch_rows(request))
        if platform.needs_trust and not request.trusted:
            refusal = unsafe(f"platform {platform.name} runs code of the version ({platform.artefact})")
            raise ServingError(refusal.code, str(refusal), Reason.NEEDS_TRUST)
        return request, platform, loaded


def _size_settings(settings: ModelSettings) -> Hashable:
    """The settings in a config that the size of a version depends on."""
    return tuple(placements(settings, on_gpu=True)), tuple(sorted(settings.parameters.items()))


def _opened(platform: Platform, request: OpenRequest, models: Sequence[OpenedModel]) -> _Opened | None:
    """The instances that a later resize changes; None if their placements are unknown, or the instances of the version
    cannot change."""
    found, settings = tuple(placements(request.settings, request.on_gpu)), request.settings
    if platform.composed or settings.sequence_batching is not None or len(found) != len(models):
        return None
    if isinstance(models[0], LanguageModel):
        return None
    return _Opened(platform, request, tuple(models), found)


def _name_of(place: Resource) -> str:
    """The name of a device, as in :data:`~tfs_lite.adapters.measured.Measured`."""
    return MAIN if place.device == MAIN else f"{GPU}/{place.instance}"


def _resident_bytes(model: OpenedModel, platform: Platform) -> int | None:
    """The bytes that the model says it holds. FAILED_PRECONDITION for what cannot be a number of bytes: later loads are
    admitted by it."""
    found: object = model.resident_bytes()
    if found is None:
        return None
    if isinstance(found, SupportsIndex) and 0 <= (size := operator.index(found)) < MAX_RESIDENT:
        return size
    raise failed_precondition(
        f"platform {platform.name}: resident_bytes returned {found!r:.80}, expected a number of bytes or None"
    )


def _sum(sizes: Iterable[int | None]) -> int | None:
    """The sum; None if a size is unknown."""
    known = list(sizes)
    return None if None in known else sum(size for size in known if size is not None)


class _UnownedModel(OpenedModelAround):
    """The model, except that ``close`` leaves it open."""

    def close(self) -> None:
        """The owner closes the model."""


def unowned(model: OpenedModel) -> OpenedModel:
    """The model for a servable that closes its models but does not own this one."""
    return _UnownedModel(model)
