"""The rules of a trial, and of the way back, as pure functions.

One :class:`ModelState` a model. :func:`step` says what becomes of it, given what is :class:`Seen` now and perhaps a
:class:`Command`; :func:`guarded` makes the list that goes on from the list of the source.

    NONE -> ARMED -> BAKING -> over: the new version stays
                            -> taken back: the old one answers again, the new one is rejected

Nothing here reads a clock, a disk or a lock. Times: ``now`` in seconds of ``Clock.monotonic``, ``at`` in seconds since
1970.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.status import Status, failed_precondition, not_found

Items: TypeAlias = Sequence[ServableData[StoragePath]]
"""A list of versions, as a source wants them."""
NOTHING: Mapping[int, Any] = MappingProxyType({})


def nothing() -> Mapping[int, Any]:
    return NOTHING


MAX_REMEMBERED = 64
"""The most rejected versions of a model, and the most that an operator has accepted."""
MAX_SECONDS = 86400.0
"""The most seconds that a trial waits for ``bake_requests`` answers."""
LAST_VOTES_SECONDS = 20.0
"""The seconds after the bake until its last votes are in."""


@dataclass(frozen=True, slots=True)
class TrialSettings:
    """The settings of one trial: those of the new version's load.

    ``bake_seconds``: 0 for no trial. ``bake_requests``: the trial also waits for so many answers of the new version.
    ``tells_only``: the version is never taken back; what would have been is told. ``repeats``: a request may run twice,
    so that the old version may be asked where the new one has failed.
    """

    bake_seconds: float = 0.0
    bake_requests: int = 0
    tells_only: bool = False
    repeats: bool = True

    @property
    def bakes(self) -> bool:
        return self.bake_seconds > 0

    def longest(self, judgement: Judgement) -> float:
        """The seconds after which a trial ends, if the evidence stays as it is: with the bake, unless too few requests
        were answered or the votes lean against its version, which have bounds of their own."""
        seconds = self.bake_seconds + LAST_VOTES_SECONDS
        if judgement.answered < self.bake_requests:
            seconds = max(seconds, MAX_SECONDS)
        return max(seconds, 6 * self.bake_seconds, 3600.0) if judgement.leaning else seconds


OFF = TrialSettings()


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the evidence of a trial stands. ``rule``: 1 or 2 if that rule wants the version taken back, else 0.
    ``leaning``: the trial must not end yet, because the votes lean against the version. ``against`` and ``votes_for``
    count the votes, ``needed`` says how many against it rule 1 takes as it stands. ``answered`` and ``failed``: the
    requests that the version has answered well, and those that it has failed. ``text``: the numbers in words, to stand
    behind "taken back after 11 s: "."""

    rule: int = 0
    leaning: bool = False
    against: int = 0
    votes_for: int = 0
    needed: int = 15
    answered: int = 0
    failed: int = 0
    text: str = ""

    @property
    def doubts(self) -> bool:
        """Whether anything speaks against the version, so that no other one is to be judged by it."""
        return self.against > 0 or self.failed > 0


NO_JUDGEMENT = Judgement()


class Stage(enum.Enum):
    """Where a trial is."""

    ARMED = "ARMED"
    """The new version is in the list, and does not answer yet."""
    BAKING = "BAKING"
    """It answers."""


@dataclass(frozen=True, slots=True)
class Running:
    """A trial, armed or running. ``files``: the part of the new version's revision that tells its files. ``since``: the
    moment, of ``monotonic``, when the stage began. ``told``: with ``tells_only``, the verdict has been told."""

    new: int
    old: int
    files: str
    stage: Stage = Stage.ARMED
    since: float = 0.0
    settings: TrialSettings = OFF
    told: bool = False


class By(enum.Enum):
    """Who rejected a version."""

    GUARD = "GUARD"
    OPERATOR = "OPERATOR"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A version that must not answer, as long as it has these ``files``. ``why``: a sentence for people. ``at``: in
    seconds since 1970. ``rolled_back``: it was rejected because an operator wanted an older version, and not for
    itself; ``rollback --undo`` lifts it."""

    version: int
    files: str
    why: str
    at: float
    by: By = By.GUARD
    rolled_back: bool = False


@dataclass(frozen=True, slots=True)
class GoingBack:
    """An operator wants version ``to`` to answer, which is not available yet. When it is, every version of ``rejects``
    is rejected; until then all go on as before. ``who``: a name or an address for people."""

    to: int
    rejects: frozenset[int]
    why: str
    who: str = ""


@dataclass(frozen=True, slots=True)
class ModelState:
    """What the guard knows of a model. ``armed``: trials that have not begun, by their new version. ``accepted``: the
    files of versions that get no trial any more, by version; of those in ``ungated`` an operator has said so, and they
    skip the replay gate. ``retries``: how often an operator wanted another load of a version."""

    armed: Mapping[int, Running] = field(default_factory=nothing)
    running: Running | None = None
    rejected: Mapping[int, Rejection] = field(default_factory=nothing)
    accepted: Mapping[int, str] = field(default_factory=nothing)
    ungated: frozenset[int] = frozenset()
    retries: Mapping[int, int] = field(default_factory=nothing)
    going_back: GoingBack | None = None

    @property
    def trials(self) -> tuple[Running, ...]:
        """Every trial, armed or running, the highest version first."""
        running = () if self.running is None else (self.running,)
        return tuple(sorted((*self.armed.values(), *running), key=lambda trial: trial.new, reverse=True))

    @property
    def remembered(self) -> ModelState:
        """What a restart goes on with, and a model that goes and comes back. Trials begin anew, and take their settings
        from the first list."""
        accepted = {version: self.accepted[version] for version in self.ungated if version in self.accepted}
        return ModelState(
            armed={trial.new: Running(trial.new, trial.old, trial.files) for trial in self.trials},
            rejected=self.rejected,
            accepted=accepted,
            ungated=frozenset(accepted),
        )

    @property
    def at_rest(self) -> bool:
        """Whether lists pass unchanged, and nothing has to be looked at while time passes."""
        return not (self.armed or self.running or self.rejected or self.retries or self.going_back)


NO_STATE = ModelState()


@dataclass(frozen=True, slots=True)
class Seen:
    """What one step looks at.

    ``listed``: the files of every version of the source's last list, by version. ``on_disk``: the files of every other
    version that could be offered. ``available``: the versions that the manager gives handles to. ``failed``: those that
    ended with an error, since they were last begun. ``memory_needed``: a load on this server waits for memory or for
    place, and this trial is the one to give some. ``judgement`` of the running trial. ``at``: now, in seconds
    since 1970.
    """

    listed: Mapping[int, str]
    on_disk: Mapping[int, str] = field(default_factory=nothing)
    available: frozenset[int] = frozenset()
    failed: Mapping[int, Status] = field(default_factory=nothing)
    memory_needed: bool = False
    judgement: Judgement = NO_JUDGEMENT
    at: float = 0.0


class Verb(enum.Enum):
    """What an operator may say; the values are those of the doors."""

    ACCEPT = "accept"
    """The version stays: its trial is over; or it is loaded, without replay gate and trial, although it was rejected or
    held back."""
    RETRY = "retry"
    """The version is loaded again, as if it had been pushed."""
    UNDO = "undo"
    """The version on trial goes, and the one before it answers."""
    ROLLBACK = "rollback"
    """The version answers, and every higher one on disk goes."""
    UNDO_ROLLBACK = "undo_rollback"
    """What rollbacks have rejected may answer again. Names no version."""


@dataclass(frozen=True, slots=True)
class Command:
    """``version`` None: the version on trial; without a trial the one that the verb can only mean (``ACCEPT`` and
    ``RETRY``: the highest that was rejected or has failed; ``ROLLBACK``: back to the highest below the one that
    answers). ``who``: a name or an address for people."""

    verb: Verb
    version: int | None = None
    who: str = ""


# What a step wants done, besides another state. Who carries it out: ``stage``.


@dataclass(frozen=True, slots=True)
class BakeBegun:
    """The version answers, and its trial has begun."""

    trial: Running


class Outcome(enum.Enum):
    """How a trial ended."""

    PASSED = "PASSED"
    """The bake is over, and nothing spoke against the version."""
    ACCEPTED = "ACCEPTED"
    """An operator has accepted it."""
    TAKEN_BACK = "TAKEN_BACK"
    LOAD_FAILED = "LOAD_FAILED"
    """Its load failed or was held back, before any request."""
    SUPERSEDED = "SUPERSEDED"
    """A later push answers."""
    GONE = "GONE"
    """The new version is not wanted any more, or is gone from the disk."""
    OLD_GONE = "OLD_GONE"
    """There is nothing to go back to."""
    MEMORY = "MEMORY"
    """Another load needed the memory of the old version."""


@dataclass(frozen=True, slots=True)
class BakeEnded:
    """The trial is over and its version was not rejected. ``text``: why, and how it stood, for people. Trials that were
    only armed end so too, with ``LOAD_FAILED``, ``GONE`` or ``ACCEPTED``."""

    trial: Running
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class TakenBack:
    """The version was rejected, at the end of this trial or (None) without one. ``to``: the version that answers
    now. ``who``: the operator, empty for the guard."""

    rejection: Rejection
    to: int
    trial: Running | None = None
    who: str = ""


@dataclass(frozen=True, slots=True)
class WouldTakeBack:
    """With ``tells_only``: what would have been; once a trial."""

    trial: Running
    text: str


@dataclass(frozen=True, slots=True)
class Lifted:
    """A rejection is over. ``forced``: nothing else could answer. ``text``: why, for people."""

    version: int
    text: str
    forced: bool = False
    who: str = ""


@dataclass(frozen=True, slots=True)
class Renewed:
    """An operator wanted another load of the version; failures of before do not count."""

    version: int
    who: str = ""


@dataclass(frozen=True, slots=True)
class WayBackFailed:
    """The version that an operator wanted to go back to cannot be loaded, or is gone; everything is as it was."""

    to: int
    text: str


Effect: TypeAlias = BakeBegun | BakeEnded | TakenBack | WouldTakeBack | Lifted | Renewed | WayBackFailed


Result: TypeAlias = tuple[ModelState, tuple[Effect, ...]]
Settings: TypeAlias = Mapping[int, TrialSettings]


def step(now: float, settings: Settings, state: ModelState, seen: Seen, command: Command | None = None) -> Result:
    """What becomes of a model, and what is to be done about it; the first row that holds counts, and the caller steps
    again until nothing changes. ``settings``: those of listed versions, where they are not ``OFF``. Raises ServingError
    for a command that cannot be carried out (NOT_FOUND: no such version; FAILED_PRECONDITION: nothing to do), and
    nothing has changed."""
    if command is not None:
        return _VERBS[command.verb](now, state, seen, command)
    if not seen.listed:
        return _emptied(state)
    for row in _ROWS:
        found = row(now, settings, state, seen)
        if found is not None:
            return found
    return state, ()


def guarded(items: Items, state: ModelState, on_disk: Mapping[int, ServableData[StoragePath]]) -> Items:
    """The list that goes on: without rejected versions, with both versions of every trial, and with what an operator
    goes back to; what is added comes last. ``on_disk``: versions that could be offered and are not in ``items``. An
    empty list stays empty, and no other one becomes empty."""
    if not items:
        return items
    listed = {item.id.version: item for item in items}
    wanted = {version: item for version, item in listed.items() if version not in state.rejected}
    added = [version for trial in state.trials for version in (trial.new, trial.old)]
    added += [] if state.going_back is None else [state.going_back.to]
    for version in added:
        if version not in wanted and version not in state.rejected and version in on_disk:
            wanted[version] = on_disk[version]
    if all(item.given_up for item in wanted.values()):
        instead = _stand_in(listed.keys(), on_disk.keys(), state)
        wanted.update({} if instead is None else {instead: on_disk[instead]})
    if not wanted:
        return items
    return [_renewed(item, state.retries) for item in wanted.values()]


def _renewed(item: ServableData[StoragePath], retries: Mapping[int, int]) -> ServableData[StoragePath]:
    """The item with another revision, if an operator wanted another load: the manager begins it anew."""
    times = retries.get(item.id.version, 0)
    return replace(item, revision=f"{item.revision}~{times}") if times else item


def _stand_in(listed: Collection[int], on_disk: Iterable[int], state: ModelState) -> int | None:
    """The version that answers where a list has only rejected ones: the highest one below the highest of them, an
    accepted one if there is any. Others get their trial when the source wants them."""
    rejected = state.rejected
    dropped = [version for version in listed if version in rejected]
    lower = [v for v in on_disk if v not in rejected and v not in listed and v < max(dropped, default=0)]
    return max((v for v in lower if v in state.accepted), default=max(lower, default=None))


def answering(state: ModelState, seen: Seen) -> int | None:
    """The version that answers requests without a version; None if nothing does."""
    return max(seen.available - state.rejected.keys(), default=max(seen.available, default=None))


def _there(seen: Seen) -> Mapping[int, str]:
    return {**seen.on_disk, **seen.listed}


# The rows, in their order. Each answers None where it does not hold.


def _emptied(state: ModelState) -> Result:
    """The model is not configured, or was unloaded by a call. What is rejected stays so, and trials begin anew when it
    comes back, as after a restart."""
    kept = state.remembered
    if kept == state:
        return state, ()
    ended = tuple(BakeEnded(trial, Outcome.GONE, "the model was unloaded") for trial in state.trials)
    failed = () if state.going_back is None else (WayBackFailed(state.going_back.to, "the model was unloaded"),)
    return kept, ended + failed


def _files_changed(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """Other files of a rejected version end its rejection: it is a new push."""
    for version, rejection in state.rejected.items():
        if seen.listed.get(version, rejection.files) != rejection.files:
            lifted = Lifted(version, "its files have changed")
            return replace(state, rejected=_without(state.rejected, version)), (lifted,)
    return None


def _forced(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """Nothing is left but rejected versions: a guard must not leave a model less available than none."""
    wanted = [version for version in seen.listed if version in state.rejected]
    if not wanted or any(version not in state.rejected for version in seen.available):
        return None
    listed = any(version not in state.rejected and version not in seen.failed for version in seen.listed)
    on_disk = [version for version in seen.on_disk if version not in seen.failed]
    if listed or _stand_in(seen.listed.keys(), on_disk, state) is not None:
        return None
    version = max((v for v in wanted if v not in seen.failed), default=max(wanted))
    state = _accept(replace(state, rejected=_without(state.rejected, version)), version, seen.listed[version])
    return state, (Lifted(version, "nothing else can answer", forced=True),)


def _gone_back(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """What an operator goes back to is available, or cannot become so."""
    back = state.going_back
    if back is None:
        return None
    if back.to in seen.available:
        return _reject(replace(state, going_back=None), seen, back)
    if back.to not in _there(seen) or back.to in seen.failed:
        status = seen.failed.get(back.to)
        text = "it is gone from the disk" if status is None else f"its load failed: {status.message}"
        return replace(state, going_back=None), (WayBackFailed(back.to, text),)
    return None


def _armed_in_vain(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """A version that is on trial soon has failed, is not wanted, is another one, or has nothing to go back to."""
    for version, trial in state.armed.items():
        changed = _armed_now(trial, settings.get(version, OFF), state, seen)
        if changed is None:
            return replace(state, armed=_without(state.armed, version)), (_ended_armed(trial, state, seen),)
        if changed != trial:
            return replace(state, armed={**state.armed, version: changed}), ()
    return None


def _armed_now(trial: Running, settings: TrialSettings, state: ModelState, seen: Seen) -> Running | None:
    """The armed trial as it is now; None if it does not begin."""
    new = trial.new
    if new not in seen.listed or new in seen.failed:
        return None
    if trial.settings == OFF:  # it comes from before a restart
        if not settings.bakes or seen.listed[new] != trial.files:
            return None
        trial = replace(trial, settings=settings)
    elif seen.listed[new] != trial.files:
        trial = replace(trial, files=seen.listed[new], settings=settings if settings != OFF else trial.settings)
    current = _known_to_answer(state, seen)
    if current is not None and current < new:
        return replace(trial, old=current)
    if current is not None and current > new and state.running is None:
        return None
    return trial if trial.old in _there(seen) and trial.old not in seen.failed else None


def _ended_armed(trial: Running, state: ModelState, seen: Seen) -> BakeEnded:
    if trial.new in seen.failed:
        return BakeEnded(trial, Outcome.LOAD_FAILED, seen.failed[trial.new].message)
    if trial.new not in seen.listed:
        return BakeEnded(trial, Outcome.GONE, "it is not wanted any more")
    current = _known_to_answer(state, seen)
    if current is not None and current > trial.new:
        return BakeEnded(trial, Outcome.SUPERSEDED, f"version {current} answers")
    return BakeEnded(trial, Outcome.OLD_GONE, f"version {trial.old} is gone, there is nothing to go back to")


def _pushed(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """A new number above the answering one is a push. Where nothing answers, all that is wanted is taken as it is."""
    old = _bounded({v: files for v, files in state.accepted.items() if v not in seen.listed})
    accepted = {version: files for version, files in state.accepted.items() if version in seen.listed or version in old}
    if len(accepted) < len(state.accepted):
        return replace(state, accepted=accepted), ()
    known = state.armed.keys() | state.rejected.keys()
    if state.running is not None:
        known |= {state.running.new}
    new = {v: files for v, files in sorted(seen.listed.items()) if v not in known and accepted.get(v) != files}
    current = _known_to_answer(state, seen)
    if current is None and new:
        return replace(state, accepted={**accepted, **new}, ungated=state.ungated.difference(new)), ()
    for version, files in new.items():
        if current is None or version <= current or version in seen.failed:
            continue
        wanted = settings.get(version, OFF)
        if not wanted.bakes:
            return _accept(state, version, files), ()
        armed = Running(version, current, files, Stage.ARMED, now, wanted)
        return replace(state, armed={**state.armed, version: armed}), ()
    return None


def _known_to_answer(state: ModelState, seen: Seen) -> int | None:
    """The version that a push would follow: that of the running trial which answers, else the highest that answers and
    was accepted. One that a manager has loaded anew by itself, after its load had failed, may answer before anybody
    has heard of it."""
    running = state.running
    if running is not None:
        return running.new
    open_ones = seen.available - state.rejected.keys()
    return max((version for version in open_ones if version in state.accepted), default=None)


def _begun(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """A version that was armed is available. A trial that runs ends: its new version is the old one now, unless it is
    doubted: then its old version stays the old one, and the doubted one is a push again where it is wanted later."""
    for version, armed in sorted(state.armed.items()):
        if version not in seen.available or armed.old not in seen.available:
            continue
        left, running = replace(state, armed=_without(state.armed, version)), state.running
        if running is not None and version < running.new:
            continue  # its turn comes if that one is taken back
        trial, effects = replace(armed, stage=Stage.BAKING, since=now), list[Effect]()
        if running is not None:
            stays = seen.judgement.doubts and running.old in seen.available
            trial = replace(trial, old=running.old if stays else running.new)
            text = f"version {version} was pushed{_so_far(seen)}"
            effects.append(BakeEnded(running, Outcome.SUPERSEDED, text))
        left = _accept(left, trial.old, _there(seen).get(trial.old, ""))
        return replace(left, running=trial), (*effects, BakeBegun(trial))
    return None


def _gone(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    """One of the two is gone. A version that a higher one has pushed out of the list stays until that is available."""
    running = state.running
    if running is None:
        return None
    new, there = running.new, _there(seen)
    pushed_out = any(version > new and version not in seen.available for version in seen.listed)
    if new not in seen.available or not (new in seen.listed or (pushed_out and new in there)):
        why = "it is gone from the disk" if new not in there else "it is not wanted any more"
        return replace(state, running=None), (BakeEnded(running, Outcome.GONE, why + _so_far(seen)),)
    if running.old not in seen.available or running.old not in there:
        why = f"version {running.old} is gone, there is nothing to go back to"
        return _pass(state, running, Outcome.OLD_GONE, _forced_words(seen.judgement) + why + _so_far(seen))
    return None


def _forced_words(judgement: Judgement) -> str:
    """Said first where a version stays that would not have passed."""
    if judgement.leaning or judgement.rule:
        return "forced, although the votes are against it: "
    if judgement.failed and not judgement.answered:
        return "forced, although it has answered nothing well: "
    return ""


def _judged(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    running = state.running
    if running is None or not seen.judgement.rule:
        return None
    text = f"after {now - running.since:.0f} s: {seen.judgement.text}"
    if not running.settings.tells_only:
        rejection = Rejection(running.new, running.files, f"taken back {text}", seen.at)
        return _take_back(state, seen, rejection, running)
    if running.told:
        return None
    told = replace(running, told=True)
    return replace(state, running=told), (WouldTakeBack(told, f"would have been taken back {text}"),)


def _memory_needed(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    running = state.running
    if running is None or not seen.memory_needed or seen.judgement.leaning:
        return None
    why = f"another load needed the memory of version {running.old}"
    return _pass(state, running, Outcome.MEMORY, why + _so_far(seen))


def _bake_over(now: float, settings: Settings, state: ModelState, seen: Seen) -> Result | None:
    running = state.running
    if running is None:
        return None
    if now - running.since < running.settings.longest(seen.judgement):
        return None
    return _pass(state, running, Outcome.PASSED, "the bake is over" + _so_far(seen))


_Row: TypeAlias = Callable[[float, Settings, ModelState, Seen], "Result | None"]
_ROWS: tuple[_Row, ...] = (
    _files_changed,
    _forced,
    _gone_back,
    _armed_in_vain,
    _pushed,
    _begun,
    _gone,
    _judged,
    _memory_needed,
    _bake_over,
)


# What operators say.


def _accepted(now: float, state: ModelState, seen: Seen, command: Command) -> Result:
    running, version = state.running, _meant(state, seen, command, "accept")
    if running is not None and version == running.new:
        return _pass(state, running, Outcome.ACCEPTED, f"accepted{_by(command.who)}{_so_far(seen)}")
    if version in state.armed:
        armed = state.armed[version]
        state = _ungate(replace(state, armed=_without(state.armed, version)), version, armed.files)
        return state, (BakeEnded(armed, Outcome.ACCEPTED, f"accepted{_by(command.who)}"),)
    files = _files(version, state, seen)
    return _begin_anew(_ungate(state, version, files), version, command, "accepted")


def _retried(now: float, state: ModelState, seen: Seen, command: Command) -> Result:
    version = _meant(state, seen, command, "retry")
    if version not in state.rejected and version not in seen.failed:
        raise failed_precondition(f"version {version} was neither taken back nor has its load failed")
    ungated = state.ungated - {version}
    state = replace(state, accepted=_without(state.accepted, version), ungated=ungated)
    return _begin_anew(state, version, command, "tried again")


def _meant(state: ModelState, seen: Seen, command: Command, verb: str) -> int:
    """The version of an ``ACCEPT`` or ``RETRY``."""
    open_ones = [trial.new for trial in state.trials] if command.verb is Verb.ACCEPT else []
    others = state.rejected.keys() | (seen.failed.keys() & _there(seen).keys())
    if command.version is None:
        found = max(open_ones or others, default=None)
        if found is None:
            raise failed_precondition(
                f"there is nothing to {verb}: no version is on trial, was taken back or has failed"
            )
        return found
    if command.version not in others | set(open_ones):
        state_of_it = "neither on trial nor taken back, and its load has not failed"
        raise failed_precondition(f"version {command.version} is {state_of_it}; there is nothing to {verb}")
    return command.version


def _begin_anew(state: ModelState, version: int, command: Command, what: str) -> Result:
    """The version is loaded again, whatever was said of it."""
    effects: tuple[Effect, ...] = (Renewed(version, command.who),)
    if version in state.rejected:
        effects = (Lifted(version, f"{what}{_by(command.who)}", who=command.who), *effects)
    times = {**state.retries, version: state.retries.get(version, 0) + 1}
    return replace(state, rejected=_without(state.rejected, version), retries=_bounded(times)), effects


def _undone(now: float, state: ModelState, seen: Seen, command: Command) -> Result:
    """The version of a trial goes."""
    trials = sorted(state.trials, key=lambda trial: trial.stage is Stage.ARMED)
    trial = next((trial for trial in trials if command.version in (None, trial.new)), None)
    if trial is None:
        raise failed_precondition("it has no trial" if not trials else f"version {command.version} is not on trial")
    why = f"taken back by {command.who or 'an operator'}"
    rejection = Rejection(trial.new, trial.files, why, seen.at, By.OPERATOR)
    return _take_back(state, seen, rejection, trial, command.who)


def _rolled_back(now: float, state: ModelState, seen: Seen, command: Command) -> Result:
    to = command.version
    if to is None:
        to = state.running.old if state.running is not None else _next_below_the_bad(state, seen)
    return _go_back(state, seen, to, command.who)


def _next_below_the_bad(state: ModelState, seen: Seen) -> int:
    rejected = state.rejected.keys()
    top = bad_version(seen.listed.keys() | seen.available, rejected, seen.failed.keys(), answering(state, seen))
    to = next_below(top, _there(seen).keys(), rejected, seen.failed.keys())
    if to is None:
        raise failed_precondition(f"there is no version below {top} to go back to")
    return to


def bad_version(wanted: Set[int], rejected: Set[int], failed: Set[int], answers: int | None) -> int:
    """The version that an operator means who wants to go back: the one that answers. If the newest one has failed, it
    is that, and the one that answers in its place stays. 0: there is none."""
    newest = max(wanted - rejected, default=0)
    return newest if answers is None or newest in failed else answers


def next_below(top: int, there: Set[int], rejected: Set[int], failed: Set[int]) -> int | None:
    """The highest complete version below ``top`` that may answer; None if there is none."""
    return max((version for version in there - rejected - failed if version < top), default=None)


def _go_back(state: ModelState, seen: Seen, to: int, who: str) -> Result:
    there = _there(seen)
    if to not in there:
        raise not_found(
            f"version {to} is not on disk, or not complete; complete are {', '.join(map(str, sorted(there))) or 'none'}"
        )
    above = frozenset(version for version in there.keys() | seen.available if version > to)
    if not above:
        raise failed_precondition(f"version {to} is the highest one already")
    if len(above | state.rejected.keys()) > MAX_REMEMBERED:
        raise failed_precondition(f"more than {MAX_REMEMBERED} versions are above version {to}; delete some")
    back = GoingBack(to, above, f"rolled back to version {to}{_by(who)}", who)
    state = _ungate(state, to, there[to])
    effects: tuple[Effect, ...] = ()
    if to in state.rejected or to in seen.failed:
        state, effects = _begin_anew(state, to, Command(Verb.ROLLBACK, to, who), f"version {to} is wanted again")
    if to not in seen.available:
        return replace(state, going_back=back), effects
    state, more = _reject(replace(state, going_back=None), seen, back)
    return state, effects + more


def _rollback_undone(now: float, state: ModelState, seen: Seen, command: Command) -> Result:
    lifted = [rejection.version for rejection in state.rejected.values() if rejection.rolled_back]
    if not lifted and state.going_back is None:
        raise failed_precondition("no rollback is in force")
    rejected = {version: rejection for version, rejection in state.rejected.items() if not rejection.rolled_back}
    why = f"the rollback was undone{_by(command.who)}"
    effects: list[Effect] = [Lifted(version, why, who=command.who) for version in sorted(lifted)]
    if state.going_back is not None:
        effects.append(WayBackFailed(state.going_back.to, why))
    return replace(state, rejected=rejected, going_back=None), tuple(effects)


_VERBS: Mapping[Verb, Callable[[float, ModelState, Seen, Command], Result]] = {
    Verb.ACCEPT: _accepted,
    Verb.RETRY: _retried,
    Verb.UNDO: _undone,
    Verb.ROLLBACK: _rolled_back,
    Verb.UNDO_ROLLBACK: _rollback_undone,
}


# What they have in common.


def _pass(state: ModelState, running: Running, outcome: Outcome, text: str) -> Result:
    """The trial is over, and its version stays."""
    state = _accept(replace(state, running=None), running.new, running.files)
    return state, (BakeEnded(running, outcome, text),)


def _take_back(state: ModelState, seen: Seen, rejection: Rejection, trial: Running, who: str = "") -> Result:
    version = rejection.version
    state = replace(
        state,
        armed=_without(state.armed, version),
        running=None if state.running is not None and state.running.new == version else state.running,
        rejected=_remembered(state.rejected, [rejection]),
        accepted=_without(state.accepted, version),
        ungated=state.ungated - {version},
    )
    to = answering(state, seen)
    return state, (TakenBack(rejection, trial.old if to is None else to, trial, who),)


def _reject(state: ModelState, seen: Seen, back: GoingBack) -> Result:
    """Rejects what is above the version that an operator has gone back to, which is available."""
    there, trials = _there(seen), {trial.new: trial for trial in state.trials}
    rejections = [
        Rejection(version, there.get(version, ""), back.why, seen.at, By.OPERATOR, rolled_back=True)
        for version in sorted(back.rejects - state.rejected.keys())
    ]
    effects = tuple(TakenBack(each, back.to, trials.get(each.version), back.who) for each in rejections)
    gone = {each.version for each in rejections}
    return replace(
        state,
        armed={version: trial for version, trial in state.armed.items() if version not in gone},
        running=None if state.running is not None and state.running.new in gone else state.running,
        rejected=_remembered(state.rejected, rejections),
    ), effects


def _accept(state: ModelState, version: int, files: str) -> ModelState:
    """It gets no trial any more, as long as it has these files."""
    ungated = state.ungated
    if version in ungated and state.accepted.get(version) != files:
        ungated -= {version}
    return replace(state, accepted={**state.accepted, version: files}, ungated=ungated)


def _ungate(state: ModelState, version: int, files: str) -> ModelState:
    """An operator takes the version as it is, also over a restart."""
    ungated = frozenset(sorted(state.ungated | {version}, reverse=True)[:MAX_REMEMBERED])
    return replace(_accept(state, version, files), ungated=ungated)


def _files(version: int, state: ModelState, seen: Seen) -> str:
    rejection = state.rejected.get(version)
    return _there(seen).get(version, rejection.files if rejection is not None else "")


def _remembered(rejected: Mapping[int, Rejection], more: Iterable[Rejection]) -> Mapping[int, Rejection]:
    return _bounded({**rejected, **{rejection.version: rejection for rejection in more}})


def _bounded(values: Mapping[int, Any]) -> Mapping[int, Any]:
    """The highest versions: lower ones are not wanted again before those are."""
    return {version: values[version] for version in sorted(values, reverse=True)[:MAX_REMEMBERED]}


def _without(values: Mapping[int, Any], version: int) -> Mapping[int, Any]:
    return {other: value for other, value in values.items() if other != version}


def _so_far(seen: Seen) -> str:
    return f"; {seen.judgement.text}" if seen.judgement.text else ""


def _by(who: str) -> str:
    return f" by {who}" if who else ""
