"""A what-if asked of a running server: it gathers what the plan is made of, and puts the plan into words.

    checks of a reload -> look at the disk -> inspect what would be loaded -> plan -> what if

Nothing has effects: the source does not remember the look, no version is loaded or run, and no config is applied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tfs_lite.config.diff import ConfigDiff, diff
from tfs_lite.config.model_server import All, Latest, ModelConfig, ModelServerConfig, Specific
from tfs_lite.core.servable import MAX_VERSION, ServableData, ServableId, StoragePath
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument, not_found, status_of
from tfs_lite.managers.aspired_versions_manager import AspiredVersionsManager
from tfs_lite.managers.harness import HOLDS_RESOURCES, HarnessState, ServableStateSnapshot
from tfs_lite.managers.policies import POLICIES
from tfs_lite.managers.resource_tracker import ResourceTracker
from tfs_lite.operations.what_if.check_models import VersionVerdict, check_version, settings_of
from tfs_lite.operations.what_if.forecast import Fate, LabelMove, ModelForecast, VersionForecast, WhatIf
from tfs_lite.operations.what_if.plan import Course, Expected, ExpectedEnd, Lists, Managed, plan
from tfs_lite.operations.what_if.unpublished import UnpublishedVersion
from tfs_lite.serving.config_checks import below_allowed_roots
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.reload import Reloader
from tfs_lite.serving.source_chain import SourceChain
from tfs_lite.sources.disk import RealDisk
from tfs_lite.sources.look import Look
from tfs_lite.sources.source_config import SourceReport
from tfs_lite.sources.version_scan import versions_in
from tfs_lite.storage.url import is_url

Versions: TypeAlias = Sequence[ServableData[StoragePath]]
_ANSWERS = (Fate.LOAD, Fate.STAY, Fate.KEEP, Fate.FINISH)
_SETTLED = (HarnessState.READY, HarnessState.LOADING, HarnessState.LOAD_APPROVED, HarnessState.LOAD_REQUESTED)


@dataclass(frozen=True, slots=True)
class Inside:
    """The requests and live sequences that hold a version back from being unloaded: their number, by version."""

    requests: Callable[[ServableId], int]
    sequences: Callable[[], Mapping[ServableId, int]]


class Preview:
    """Any thread may call any method; each reads the disk, so never call one on the event loop."""

    def __init__(
        self,
        options: ServerOptions,
        reloader: Reloader,
        sources: SourceChain,
        manager: AspiredVersionsManager,
        tracker: ResourceTracker | None,
        inside: Inside,
        guarded: Callable[[str, Versions], Versions],
    ) -> None:
        """``guarded``: the list of a model that goes on to the manager, given that of the source."""
        self._options = options
        self._reloader = reloader
        self._sources = sources
        self._manager = manager
        self._tracker = tracker
        self._inside = inside
        self._guarded = guarded
        self._trusted = sources.trusted

    def config(self, config: ModelServerConfig) -> WhatIf:
        """Tells what a reload of ``config`` would change. UNAVAILABLE before the first config is in force."""
        before = self._require_config()
        refusals = self._reloader.refusals(config)
        return WhatIf(refusals=tuple(refusals)) if refusals else self._what_if(before, config)

    def published(self, name: str, version: int | None, directory: str) -> WhatIf:
        """Tells what would change if the files in ``directory``, which is of this machine, were published as a version
        of the model; as the next one if ``version`` is None. NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION or
        INVALID_ARGUMENT if they cannot be."""
        config = self._require_config()
        model = next((model for model in config.models if model.name == name), None)
        if model is None:
            raise not_found(f"the config has no model {name}")
        if is_url(model.base_path):
            message = f"model {name}: its base path is a URL, and a version is compared with directories only"
            raise ServingError(StatusCode.UNIMPLEMENTED, message)
        if not os.path.isabs(directory) or "\0" in directory:
            raise invalid_argument("the directory of the version has to be an absolute path")
        if not below_allowed_roots(directory, self._options.allowed_model_base_paths):
            raise invalid_argument("the directory is outside the allowed roots (--allowed_model_base_paths)")
        if not os.path.isdir(directory):
            raise not_found("there is no such directory on the server's machine")
        there = _versions(model.base_path)
        number = max(there, default=0) + 1 if version is None else version
        if number in there:
            raise ServingError(StatusCode.ALREADY_EXISTS, f"model {name} has a version {number} on disk already")
        if number > MAX_VERSION:
            raise invalid_argument(f"there is no version number above {MAX_VERSION}")
        unpublished = UnpublishedVersion(RealDisk(), model.base_path, number, directory)
        return self._what_if(config.only(model), config.only(model), unpublished)

    def _require_config(self) -> ModelServerConfig:
        config = self._reloader.config
        if config is None:
            raise ServingError(StatusCode.UNAVAILABLE, "the server is starting; try again in a moment")
        return config

    def _what_if(
        self, old: ModelServerConfig, new: ModelServerConfig, unpublished: UnpublishedVersion | None = None
    ) -> WhatIf:
        """Makes the forecast. With ``unpublished`` the models that ``new`` does not have stay as they are."""
        looks: dict[str, Look] = {}
        expected: dict[ServableId, Expected] = {}
        views = self._manager.survey().versions
        managed = Managed(
            [view.state for view in views.values()],
            {id: view.estimate for id, view in views.items() if view.state.state in HOLDS_RESOURCES},
            POLICIES[self._options.aspired_version_policy],
            self._tracker,
        )
        models = {model.name: model for model in new.models}
        known = {snapshot.id: snapshot for snapshot in managed.versions}
        removed = {s.id.name for s in managed.versions if s.id.name not in models} if unpublished is None else set()

        def look(outcomes: Mapping[ServableId, bool]) -> Lists:
            looks.update(self._sources.look_ahead(new, unpublished, outcomes))
            for name, found in looks.items():
                if found.aspired is not None:
                    found.aspired = list(self._guarded(name, found.aspired))
            for item in (item for look in looks.values() for item in look.aspired or ()):
                if item.id not in expected and _may_load(known.get(item.id), item):
                    expected[item.id] = self._expect(models[item.id.name], item, unpublished)
            return _lists(looks, removed, expected)

        courses = plan(managed, look({}), look)
        told = _Telling(self._options, diff(old, new), looks, courses, expected, known, self._inside)
        return WhatIf(tuple(told.models()))

    def _expect(
        self, model: ModelConfig, item: ServableData[StoragePath], unpublished: UnpublishedVersion | None
    ) -> Expected:
        """The load that is expected, from the files of the version alone."""
        place = item.payload
        path = unpublished.real_path(place) if unpublished is not None else place
        per_model = self._options.enable_per_model_batching_parameters
        check = check_version(item.id, path, model.platform or "", self._trusted, per_model, place)
        try:
            moved = ServableData.ok(item.id, path, item.revision)
            needs = self._sources.estimate(moved, model.platform, lambda _, name: settings_of(path, place, name))
            needs = self._tracker.verify(needs) if self._tracker is not None else needs
        except (ServingError, OSError) as error:
            return Expected(ExpectedEnd.NEVER_BEGINS, why=status_of(error).message)
        refused = check.verdict is VersionVerdict.REFUSED
        return Expected(ExpectedEnd.FAILS if refused else ExpectedEnd.LOADS, needs, check.reason)


@dataclass(frozen=True, slots=True)
class _Telling:
    """Puts the courses of the versions into the forecasts of the models."""

    options: ServerOptions
    difference: ConfigDiff
    looks: Mapping[str, Look]
    courses: Mapping[ServableId, Course]
    expected: Mapping[ServableId, Expected]
    known: Mapping[ServableId, ServableStateSnapshot]
    inside: Inside

    def models(self) -> Iterator[ModelForecast]:
        """First those whose config changes."""
        for model in self.difference.added:
            yield self._model(model, "added", before=None)
        for change in self.difference.changed:
            yield self._model(change.new, "changed", change.fields, change.old)
        for model in self.difference.removed:
            yield ModelForecast(
                model.name,
                "removed",
                versions=self._versions(model.name, "the config does not have the model"),
                labels=_moves(model, None),
                gap=self._gap(model.name),
            )
        for model in self.difference.unchanged:
            yield self._model(model, "unchanged", before=model)

    def _model(
        self, model: ModelConfig, change: str, fields: tuple[str, ...] = (), before: ModelConfig | None = None
    ) -> ModelForecast:
        name, look = model.name, self.looks.get(model.name)
        there = look.report.on_disk if look is not None else frozenset[int]()
        versions = self._versions(
            name, _why_unwanted(model), there if is_url(model.base_path) else _versions(model.base_path)
        )
        if look is not None:
            told = {version.version for version in versions}
            waiting = (
                VersionForecast(version, Fate.WAIT, reason)
                for version, reason in look.report.waiting.items()
                if version not in told
            )
            versions = tuple(sorted((*versions, *waiting), key=lambda version: version.version, reverse=True))
        return ModelForecast(
            name,
            change,
            fields,
            versions,
            _moves(before, model),
            look.report.problem.message if look is not None else "",
            self._gap(name),
            tuple(self._remarks(model, before)),
        )

    def _versions(
        self, name: str, unwanted: str, on_disk: Collection[int] | None = None
    ) -> tuple[VersionForecast, ...]:
        """Highest first. ``unwanted``: why a version goes that is on disk."""
        sequences, found = self.inside.sequences(), []
        report = self.looks[name].report if name in self.looks else SourceReport(name)
        for id, course in self.courses.items():
            if id.name != name:
                continue
            if report.keeps and course.fate is Fate.STAY and id.version not in report.waiting:
                course = replace(course, fate=Fate.KEEP, why=report.keeps)
            gone = on_disk is not None and id.version not in on_disk
            why = ("its directory is gone" if gone else unwanted) if course.fate is Fate.UNLOAD else course.why
            if id.version in report.stand_ins and not why:
                why = f"it stands in for {report.stands_in_for(id.version)}"
            if course.before:
                why = "; ".join(filter(None, (why, f"before that: {', then '.join(f.value for f in course.before)}")))
            found.append(
                VersionForecast(
                    id.version,
                    course.fate,
                    why,
                    self.expected[id].needs if id in self.expected else Expected().needs,
                    course.fits_now,
                    course.after,
                    self.inside.requests(id),
                    sequences.get(id, 0),
                )
            )
        return tuple(sorted(found, key=lambda version: version.version, reverse=True))

    def _gap(self, name: str) -> str:
        """The reason why a model that answers would not answer for some time, or no more."""
        courses = {id.version: course for id, course in self.courses.items() if id.name == name}
        answer = {v for v in courses if self._is_ready(ServableId(name, v))}
        if not answer or any(courses[version].fate in (Fate.STAY, Fate.KEEP) for version in answer):
            return ""
        after = sorted(version for version, course in courses.items() if course.fate in _ANSWERS)
        if not after:
            return "no version of it answers afterwards"
        if self.options.aspired_version_policy == "availability":
            return ""
        first = ", ".join(map(str, sorted(answer)))
        return (
            f"version {first} is unloaded before version {after[-1]} is loaded (--aspired_version_policy=resource); "
            "in between none answers"
        )

    def _remarks(self, model: ModelConfig, before: ModelConfig | None) -> Iterator[str]:
        look = self.looks.get(model.name)
        kept = [id.version for id, c in self.courses.items() if id.name == model.name and c.fate is Fate.STAY]
        if look is not None and look.aspired is None and before is not None:
            yield "its base path cannot be read: it keeps the versions that it has"
        elif before is not None and before.base_path != model.base_path and kept:
            numbers = ", ".join(map(str, kept))
            yield f"version {numbers} is there in the new base path, too: it is loaded anew from there, and swapped"
        for label, version in sorted(model.version_labels.items()):
            course = self.courses.get(ServableId(model.name, version))
            if course is None or course.fate not in _ANSWERS:
                yield f'label "{label}" names version {version}, which does not answer afterwards'

    def _is_ready(self, id: ServableId) -> bool:
        return id in self.known and self.known[id].state is HarnessState.READY


def _lists(looks: Mapping[str, Look], removed: Iterable[str], expected: Mapping[ServableId, Expected]) -> Lists:
    listed = {name: look.aspired for name, look in looks.items() if look.aspired is not None}
    wanted = {name: {item.id.version: item.revision for item in items} for name, items in listed.items()}
    given_up = frozenset(item.id for items in listed.values() for item in items if item.given_up)
    return Lists(wanted | {name: {} for name in removed}, expected, given_up)


def _may_load(known: ServableStateSnapshot | None, item: ServableData[StoragePath]) -> bool:
    """Whether the load of the version may begin: it is not in memory, nor on its way there."""
    return known is None or not (known.is_aspired or known.state is HarnessState.READY) or known.state not in _SETTLED


def _moves(before: ModelConfig | None, after: ModelConfig | None) -> tuple[LabelMove, ...]:
    old = before.version_labels if before is not None else {}
    new = after.version_labels if after is not None else {}
    moves = (LabelMove(label, old.get(label), new.get(label)) for label in sorted({*old, *new}))
    return tuple(move for move in moves if move.before != move.after)


def _why_unwanted(model: ModelConfig) -> str:
    match model.model_version_policy.choice:
        case Latest(num_versions=number):
            policy = f"latest {number}"
        case Specific(versions=versions):
            policy = f"specific {', '.join(map(str, versions))}"
        case All():
            policy = "all"
    return f"the version policy ({policy}) takes others"


def _versions(base_path: str) -> dict[int, str]:
    """The versions on disk: the directory of each."""
    try:
        return versions_in(entry.name for entry in RealDisk().list_directory(base_path) if entry.is_directory)
    except OSError:
        return {}
