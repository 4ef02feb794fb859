"""The pure model of ``soak_world.py``: what lies on the disk, what the configs say, and who may answer then.

Nothing here touches a file. A :class:`Model` is the state of one model in the world; a :class:`Step` is one thing that
people do, and :func:`phases` says through which states of the world it leads. :func:`settle` says which versions the
server has loaded once it has noticed a state. The rules are those of the design (a version that failed takes nobody's
place; a successor that is not there yet does not take the place of what answers; another path or other files are
another state of the version). Where they leave a choice there are several *loadings*, and each of them is right.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

REPOSITORY, CONFIG_FILE = "repository", "config"
"""The two ways in which the server learns of its models."""
HOME = "home"
"""The base path of a model inside the repository."""

Loading: TypeAlias = frozenset[tuple[int, int]]
"""What is loaded: versions with the serial number of their content."""
NOTHING: Loading = frozenset()
Labels: TypeAlias = tuple[tuple[str, int], ...]


class Quality(enum.Enum):
    """What a version directory holds."""

    GOOD = "it can be served"
    PARTIAL = "it is still being written, or was left half written"
    BAD = "it can never be served as it is"


@dataclass(frozen=True, slots=True)
class Content:
    """What one version directory holds. ``serial`` is added to every input, so an answer proves it."""

    serial: int
    quality: Quality = Quality.GOOD

    @property
    def is_good(self) -> bool:
        return self.quality is Quality.GOOD


Versions: TypeAlias = Mapping[int, Content]


@dataclass(frozen=True, slots=True)
class Policy:
    """``latest`` above 0: so many; ``versions``: exactly these; neither: all."""

    latest: int = 1
    versions: tuple[int, ...] = ()

    def takes(self, found: Iterable[int]) -> set[int]:
        known = sorted(found)
        if self.versions:
            return set(known) & set(self.versions)
        return set(known[-self.latest :] if self.latest else known)

    @property
    def yaml(self) -> str:
        if self.versions:
            return f"{{specific: {{versions: {list(self.versions)}}}}}"
        return f"{{latest: {{num_versions: {self.latest}}}}}" if self.latest else "{all: {}}"


ALL = Policy(latest=0)


@dataclass(frozen=True, slots=True)
class Place:
    """A base path. ``versions`` None: there is no such directory. ``inode`` differs for another directory."""

    versions: Versions | None
    inode: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """One model: its base paths by name, and what the repository's config and the server's config file say of it.
    ``loadings`` are the ones that are possible; ``seen`` is the place that the loaded versions came from."""

    name: str
    kind: str
    places: Mapping[str, Place]
    policy: Policy = Policy()
    """Of ``config.pbtxt`` in the repository."""
    path: str = HOME
    """Of the config file, like all below."""
    listed: bool = True
    file_policy: Policy = Policy()
    labels: Labels = ()
    hanging: bool = False
    """Its disk does not answer the server."""
    config_broken: bool = False
    """The config beside its versions makes no sense. Nothing can be said of new versions without a config of their
    own."""
    unmounted: Place | None = None
    """What its disk holds, which is not mounted now."""
    loadings: frozenset[Loading] = frozenset({NOTHING})
    seen: tuple[str, int] = (HOME, 0)

    def place(self, mode: str) -> Place:
        return self.places.get(HOME if mode == REPOSITORY else self.path, Place(None))

    def wants(self, mode: str) -> Policy:
        return self.policy if mode == REPOSITORY else self.file_policy

    @property
    def has_own_configs(self) -> bool:
        """Whether each version has a config, so that the one beside the versions counts only for the policy."""
        return self.kind == "python"

    def is_hurt_by_config(self, mode: str) -> bool:
        """Whether the config beside its versions is broken, and is read."""
        return self.config_broken and (mode == REPOSITORY or not self.has_own_configs)

    def is_served(self, mode: str) -> bool:
        """Whether it is a model of the server at all."""
        return self.place(mode).versions is not None if mode == REPOSITORY else self.listed

    def where(self, mode: str) -> tuple[str, int]:
        name = HOME if mode == REPOSITORY else self.path
        return name, self.place(mode).inode


def good_versions(model: Model, mode: str) -> dict[int, int]:
    """Versions on disk that can be served, with their serials."""
    return {version: found.serial for version, found in (model.place(mode).versions or {}).items() if found.is_good}


def settle(model: Model, mode: str, previous: frozenset[Loading] | None = None) -> frozenset[Loading]:
    """The loadings that are right once the server has noticed everything."""
    before = model.loadings if previous is None else previous
    return frozenset(after for loading in before for after in _next(model, mode, loading))


def _next(model: Model, mode: str, loaded: Loading) -> set[Loading]:
    if not model.is_served(mode):
        return {NOTHING}
    versions = model.place(mode).versions
    if model.hanging or versions is None:
        return {loaded}
    if not versions:
        return {NOTHING} if model.where(mode) == model.seen else {loaded}
    return _by_policy(model, versions, model.wants(mode), mode, loaded)


def _by_policy(model: Model, versions: Versions, policy: Policy, mode: str, loaded: Loading) -> set[Loading]:
    good = good_versions(model, mode)
    aspired = frozenset((version, good[version]) for version in policy.takes(good))
    if model.config_broken and not (model.has_own_configs and (loaded or mode == CONFIG_FILE)):
        return {loaded, aspired, NOTHING} if not loaded else {loaded}
    found = {aspired} if aspired else _kept(loaded)
    found |= _with_old_content(loaded, versions, good, policy)
    if aspired and loaded and _is_waiting(versions, policy):
        found |= {frozenset({*one, max(loaded)}) for one in set(found) if max(loaded)[0] not in dict(one)}
    return found


def _kept(loaded: Loading) -> set[Loading]:
    """Nothing that is wanted is there: whatever answers stays, with or without the older ones beside it."""
    return {loaded, frozenset({max(loaded)})} if loaded else {loaded}


def _with_old_content(loaded: Loading, versions: Versions, good: dict[int, int], policy: Policy) -> set[Loading]:
    """A loaded version whose files were replaced by worse ones may go on counting."""
    worse = {version: serial for version, serial in loaded if version in versions and not versions[version].is_good}
    if not worse:
        return set()
    counted = {**good, **worse}
    return {frozenset((version, counted[version]) for version in policy.takes(counted))} - {NOTHING}


def _is_waiting(versions: Versions, policy: Policy) -> bool:
    """Whether something that is not there yet would be wanted, once it is."""
    wanted = policy.takes(versions) | set(policy.versions)
    return any(version not in versions or not versions[version].is_good for version in wanted)


# What people do.


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is done to one model, or to the server (``model`` empty). ``serial`` is of the content that is
    written; ``files`` are the versions of a new directory (move, link, add). ``changes`` are those of a config file."""

    kind: str
    model: str = ""
    version: int = 0
    how: str = ""
    serial: int = 0
    files: tuple[tuple[int, Content], ...] = ()
    policy: Policy = Policy()
    labels: Labels = ()
    changes: tuple[Step, ...] = ()

    def __str__(self) -> str:
        words = [self.kind, self.model, f"@{self.version}" * bool(self.version), self.how]
        if self.kind in ("policy", "file_policy"):
            words.append(self.policy.yaml)
        words += [f"{name}={version}" for name, version in self.labels]
        words += [f"{version}:{content.quality.name}" for version, content in self.files]
        if self.changes:
            words.append("[" + "; ".join(map(str, self.changes)) + "]")
        return " ".join(word for word in words if word)


def phases(step: Step, model: Model) -> Sequence[Model]:
    """The states of the world that the step leads through, for one model; the last one is its end. Total: a step that
    does not fit (because others were cut away) changes less, or nothing."""
    return _PHASES[step.kind](step, model)


def _put(model: Model, version: int, content: Content | None, place: str = HOME) -> Model:
    """Puts a version into a base path, or takes it away."""
    versions = dict(model.places.get(place, Place(None)).versions or {})
    versions.pop(version, None)
    if content is not None:
        versions[version] = content
    old = model.places.get(place, Place(None))
    return replace(model, places={**model.places, place: replace(old, versions=versions)})


def _write(step: Step, model: Model, quality: Quality, halfway: bool, place: str) -> list[Model]:
    states = []
    if halfway:
        states.append(_put(model, step.version, Content(step.serial, Quality.PARTIAL), place))
    states.append(_put(model, step.version, Content(step.serial, quality), place))
    return states


AT_ONCE = frozenset({"publish", "mv", "rename_over", "two_mv", "exchange"})
"""Ways in which no half of a version is ever seen."""
AWAY_FIRST = frozenset({"rm_cp", "two_mv", "rm_rsync"})
"""Ways to put other content under the same number in which the version is gone for a moment."""


def current_place(step: Step, model: Model) -> str:
    """The base path that a step works in: where the config file points, which is the repository's at first."""
    return step.how.partition("@")[2] or HOME


def _push(step: Step, model: Model) -> list[Model]:
    place = current_place(step, model)
    return _write(step, model, Quality.GOOD, step.how.partition("@")[0] not in AT_ONCE, place)


def _half(step: Step, model: Model) -> list[Model]:
    return _write(step, model, Quality.PARTIAL, False, current_place(step, model))


def _bad(step: Step, model: Model) -> list[Model]:
    return _write(step, model, Quality.BAD, True, current_place(step, model))


def _again(step: Step, model: Model, quality: Quality = Quality.GOOD) -> list[Model]:
    how, place = step.how.partition("@")[0], current_place(step, model)
    states = [_put(model, step.version, None, place)] if how in AWAY_FIRST else []
    return states + _write(step, model, quality, how not in AT_ONCE, place)


def _again_bad(step: Step, model: Model) -> list[Model]:
    return _again(step, model, Quality.BAD)


def _remove_version(step: Step, model: Model) -> list[Model]:
    return [_put(model, step.version, None, current_place(step, model))]


def _nothing(step: Step, model: Model) -> list[Model]:
    return [model]


def _set(**fields: object) -> object:
    return lambda step, model: [replace(model, **fields)]


def _policy(step: Step, model: Model) -> list[Model]:
    return [replace(model, policy=step.policy)]


def _file_policy(step: Step, model: Model) -> list[Model]:
    return [replace(model, file_policy=step.policy, labels=step.labels)]


def _new_place(step: Step, model: Model, name: str) -> Model:
    inode = model.places.get(name, Place(None)).inode
    place = Place(None if step.how == "missing" else dict(step.files), inode + 1)
    return replace(model, places={**model.places, name: place})


def _move(step: Step, model: Model) -> list[Model]:
    """The config file names another base path."""
    name = f"moved{step.serial}"
    return [replace(_new_place(step, model, name), path=name, labels=())]


def _link(step: Step, model: Model) -> list[Model]:
    """The base path is a link, which is switched."""
    return [_new_place(step, model, HOME)]


def _unmount(step: Step, model: Model) -> list[Model]:
    """The disk goes, and leaves the empty directory that it was mounted on."""
    place = model.places[HOME]
    if model.unmounted is not None:
        return [model]
    return [replace(model, places={**model.places, HOME: Place({}, place.inode + 1)}, unmounted=place)]


def _mount(step: Step, model: Model) -> list[Model]:
    if model.unmounted is None:
        return [model]
    return [replace(model, places={**model.places, HOME: model.unmounted}, unmounted=None)]


def _remove(step: Step, model: Model) -> list[Model]:
    """``rm -r`` takes one version after the other, in any order: for a moment any of them may be the last."""
    home = model.places.get(HOME, Place(None))
    left = [Place({version: found}, home.inode) for version, found in (home.versions or {}).items()]
    states = [*(left if step.how == "rm" else []), Place(None, home.inode + 1)]
    return [replace(model, places={**model.places, HOME: state}) for state in states]


def _add(step: Step, model: Model) -> list[Model]:
    whole = replace(_new_place(step, model, HOME), policy=Policy(), config_broken=False)
    if step.how == "mv":
        return [whole]
    states = [replace(whole, places={**whole.places, HOME: replace(whole.places[HOME], versions={})})]
    for version, content in step.files:
        states.append(_put(states[-1], version, replace(content, quality=Quality.PARTIAL)))
        states.append(_put(states[-1], version, content))
    return states


_PHASES = {
    "push": _push,
    "half": _half,
    "fill": _half,
    "finish": lambda step, model: _write(step, model, Quality.GOOD, False, current_place(step, model)),
    "bad": _bad,
    "again": _again,
    "again_bad": _again_bad,
    "rm": _remove_version,
    "litter": _nothing,
    "touch": _nothing,
    "odd": _nothing,
    "kill": _nothing,
    "policy": _policy,
    "break_config": _set(config_broken=True),
    "mend_config": _set(config_broken=False),
    "hang": _set(hanging=True),
    "unhang": _set(hanging=False),
    "unmount": _unmount,
    "mount": _mount,
    "link": _link,
    "move": _move,
    "file_policy": _file_policy,
    "unlist": _set(listed=False, labels=()),
    "list": _set(listed=True),
    "remove": _remove,
    "add": _add,
    "break_file": _nothing,
    "write_file": _nothing,
    "restart": _nothing,
}
KINDS = frozenset(_PHASES)


@dataclass(frozen=True, slots=True)
class Course:
    """What a round does to one model: its state at the end, and every loading that may be seen on the way."""

    end: Model
    on_the_way: frozenset[Loading]
    after_restart: frozenset[Loading] = frozenset()
    """Those that a server which was started on the way may have."""


def course(model: Model, steps: Sequence[Step], mode: str, restart_in: str = "") -> Course:
    """``steps`` follow one another. The server may notice or miss any state that another one follows. ``restart_in``:
    it starts anew in this mode, at some moment between the first state and the last."""
    states = [model]
    for step in steps:
        states += phases(step, states[-1])
    alive, seen = model.loadings, set(model.loadings)
    restarted: frozenset[Loading] = frozenset()
    reborn: set[Loading] = set()
    last_seen = model.seen
    for number, state in enumerate(states):
        is_last = number == len(states) - 1
        if number:
            alive = _noticed(state, mode, alive, is_last, last_seen)
            seen |= alive
        if restart_in:
            fresh = settle(replace(state, seen=state.where(restart_in)), restart_in, frozenset({NOTHING}))
            running = _noticed(state, restart_in, restarted, is_last, state.where(restart_in))
            restarted = running | fresh
            reborn |= restarted
    after_mode = restart_in or mode
    loadings = restarted if restart_in else alive
    end = replace(states[-1], loadings=loadings, seen=_seen_after(states[-1], after_mode, last_seen, bool(restart_in)))
    return Course(end, frozenset(seen), frozenset(reborn))


def _seen_after(state: Model, mode: str, before: tuple[str, int], restarted: bool) -> tuple[str, int]:
    return state.where(mode) if restarted or good_versions(state, mode) else before


def _noticed(
    state: Model, mode: str, before: frozenset[Loading], is_last: bool, seen: tuple[str, int]
) -> frozenset[Loading]:
    after = settle(replace(state, seen=seen), mode, before)
    return after if is_last else after | before


# Who may answer.


@dataclass(frozen=True, slots=True)
class Right:
    """The right answers to one kind of question. ``must``: it has to be answered."""

    serials: frozenset[int] = frozenset()
    must: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """The right answers to every question about one model, for a stretch of time. Versions and labels that are not
    named need no answer; what a named version answers then has to be one of ``anything``."""

    unversioned: Right = Right()
    versions: Mapping[int, Right] = field(default_factory=dict)
    labels: Mapping[str, Right] = field(default_factory=dict)
    leaving: frozenset[int] = frozenset()
    """Serials that were right before this stretch, and are no more at its end."""


def rights(
    model: Model, on_the_way: frozenset[Loading] | None = None, before: Model | None = None, mode: str = CONFIG_FILE
) -> Rights:
    """At rest with one of the loadings of ``model``; or, with ``on_the_way``, while the world goes from ``before`` to
    ``model``. Labels are those of the config file; a repository has none."""
    ends = model.loadings
    loadings = ends if on_the_way is None else on_the_way | ends
    serials = frozenset(max(one)[1] for one in loadings if one)
    if on_the_way is not None:
        serials |= frozenset(serial for one in loadings for _, serial in one)
    versions = {
        version: Right(_serials_of(version, loadings), all(version in dict(one) for one in loadings))
        for version in {version for one in loadings for version, _ in one}
    }
    steady = before is None or before.labels == model.labels
    labels = {label: _label_right(versions, version, steady) for label, version in model.labels}
    for label, version in before.labels if before is not None else ():
        old = versions.get(version, Right())
        new = labels.get(label, Right())
        labels[label] = Right(old.serials | new.serials, steady and old.must)
    started = before.loadings if before is not None else ends
    leaving = frozenset(serial for one in started for _, serial in one)
    leaving -= frozenset(serial for one in ends for _, serial in one)
    unversioned = Right(serials, all(loadings) and bool(loadings))
    return Rights(unversioned, versions, labels if mode == CONFIG_FILE else {}, leaving)


def _label_right(versions: Mapping[int, Right], version: int, steady: bool) -> Right:
    found = versions.get(version, Right())
    return Right(found.serials, found.must and steady)


def _serials_of(version: int, loadings: Iterable[Loading]) -> frozenset[int]:
    return frozenset(serial for one in loadings for number, serial in one if number == version)


# What is wrong and stays so.


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something bad that stands. ``version`` None: it is about the whole model."""

    model: str
    what: str
    version: int | None = None


def troubles(model: Model, mode: str) -> list[Trouble]:
    """What ``explain`` has to name, with a remedy, when everything has settled."""
    if not model.is_served(mode):
        return []
    if model.hanging:
        return [Trouble(model.name, "its disk hangs")]
    if model.is_hurt_by_config(mode):
        return [Trouble(model.name, "its config is broken")]
    versions = model.place(mode).versions
    if versions is None:
        return [Trouble(model.name, "its base path is missing")]
    if not versions:
        return [Trouble(model.name, "its base path is empty")]
    policy = model.wants(mode)
    wanted = policy.takes(versions) | set(policy.versions)
    found = []
    for version in sorted(wanted):
        content = versions.get(version)
        if content is None or not content.is_good:
            found.append(Trouble(model.name, content.quality.value if content else "it is not on disk", version))
    return found
