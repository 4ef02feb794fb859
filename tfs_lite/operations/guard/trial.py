"""The rules of a trial, and of the way back, as pure functions.

One :class:`ModelState` a model. :func:`step` says what becomes of it, given what is :class:`Seen` now and perhaps a
:class:`Command`; :func:`guarded` makes the list that goes on from the list of the source.

    NONE -> armed -> SHADOW -> BAKING -> over: the new version stays
                                      -> taken back: the old one answers again, the new one is rejected

Nothing here reads a clock, a disk or a lock. Times: ``now`` in seconds of ``Clock.monotonic``, ``at`` in seconds since
1970.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from tfs_lite.core.servable import ServableData, StoragePath
from tfs_lite.core.status import Status

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
    ``tells_only``: the version is never taken back; what would have been is told. ``shadow_percent`` and
    ``shadow_seconds``: both above 0 for a shadow before the bake.
    """

    bake_seconds: float = 0.0
    bake_requests: int = 0
    tells_only: bool = False
    shadow_percent: float = 0.0
    shadow_seconds: float = 0.0

    @property
    def bakes(self) -> bool:
        return self.bake_seconds > 0

    @property
    def shadows(self) -> bool:
        return self.shadow_percent > 0 and self.shadow_seconds > 0

    @property
    def longest(self) -> float:
        """The seconds after which a trial ends although the votes lean against its version."""
        return max(6 * self.bake_seconds, 3600.0)


OFF = TrialSettings()


@dataclass(frozen=True, slots=True)
class Judgement:
    """How the evidence of a trial stands. ``rule``: 1 or 2 if that rule wants the version taken back, else 0.
    ``leaning``: the trial must not end yet, because the votes lean against the version. ``against`` and ``votes_for``
    count the votes, ``needed`` says how many against it rule 1 takes as it stands. ``text``: the numbers in words, to
    stand behind "taken back after 11 s: "."""

    rule: int = 0
    leaning: bool = False
    against: int = 0
    votes_for: int = 0
    needed: int = 15
    text: str = ""


NO_JUDGEMENT = Judgement()


class Stage(enum.Enum):
    """Where a trial is."""

    ARMED = "ARMED"
    """The new version is in the list, and does not answer yet."""
    SHADOW = "SHADOW"
    """It runs copies of requests, and the old one answers."""
    BAKING = "BAKING"
    """It answers."""


@dataclass(frozen=True, slots=True)
class Running:
    """A trial, armed or running. ``files``: the part of the new version's revision that tells its files. ``since``: the
    moment, of ``monotonic``, when the stage began. ``told``: with ``tells_only``, the verdict has been told."""

    new: int
    old: int
    files: str
    stage: Stage
    since: float
    settings: TrialSettings
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
    rolled_back: bool
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
    def at_rest(self) -> bool:
        """Whether lists pass unchanged, and nothing has to be looked at while time passes."""
        return not (self.armed or self.running or self.rejected or self.retries or self.going_back)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one step looks at.

    ``listed``: the files of every version of the source's last list, by version. ``on_disk``: the files of every other
    version that could be offered. ``available``: the versions that the manager gives handles to. ``failed``: those that
    ended with an error, since they were last begun. ``memory_needed``: a load on this server waits for memory or for
    place, and this trial is the one to give some. ``judgement`` of the running trial; ``answered``: the requests that its
    new version has answered. ``at``: now, in seconds since 1970.
    """

    listed: Mapping[int, str]
    on_disk: Mapping[int, str] = field(default_factory=nothing)
    available: frozenset[int] = frozenset()
    failed: Mapping[int, Status] = field(default_factory=nothing)
    memory_needed: bool = False
    judgement: Judgement = NO_JUDGEMENT
    answered: int = 0
    at: float = 0.0


class Verb(enum.Enum):
    """What an operator may say; the values are those of the doors."""

    ACCEPT = "accept"
    """The version stays: its trial is over; or it is loaded, without replay gate and trial, although it was rejected or
    held back."""
    RETRY = "retry"
    """The version is loaded again, as if it had been pushed."""
    UNDO = "undo"
    """The version goes, and the one before it answers."""
    ROLLBACK = "rollback"
    """The version answers, and every higher one on disk goes."""
    UNDO_ROLLBACK = "undo_rollback"
    """What rollbacks have rejected may answer again. Names no version."""


@dataclass(frozen=True, slots=True)
class Command:
    """``version`` None: the version on trial; without a trial the one that the verb can only mean (``ACCEPT`` and
    ``RETRY``: the highest that was rejected or has failed; ``UNDO``: the one that answers; ``ROLLBACK``: back to the
    highest below it). ``who``: a name or an address for people."""

    verb: Verb
    version: int | None = None
    who: str = ""


# What a step wants done, besides another state. Who carries it out: ``stage``.


@dataclass(frozen=True, slots=True)
class BakeBegun:
    """The trial has begun to run: it is in SHADOW or BAKING, with ``BAKING`` also after a shadow."""

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


def step(
    now: float, settings: Mapping[int, TrialSettings], state: ModelState, seen: Seen, command: Command | None = None
) -> tuple[ModelState, tuple[Effect, ...]]:
    """What becomes of a model, and what is to be done about it; the first row that holds counts, and the caller steps
    again until nothing changes. ``settings``: those of listed versions, where they are not ``OFF``. Raises ServingError
    for a command that cannot be carried out (NOT_FOUND: no such version; FAILED_PRECONDITION: nothing to do), and
    nothing has changed."""
    raise NotImplementedError


def held(state: ModelState, available: frozenset[int]) -> frozenset[int]:
    """The versions that must not be "latest": those that are rejected, as long as another one is available, and the one
    in a shadow."""
    raise NotImplementedError


def guarded(items: Items, state: ModelState, on_disk: Mapping[int, ServableData[StoragePath]]) -> Items:
    """The list that goes on: without rejected versions, with the old version of every trial, and with what an operator
    goes back to. ``on_disk``: versions that could be offered and are not in ``items``. An empty list stays empty, and
    no other one becomes empty. The result is sorted as sources sort: by version, the highest last."""
    raise NotImplementedError
