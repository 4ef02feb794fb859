"""The place of the guard in the chain of lists: between the sources and everything that follows them.

Every list passes :meth:`GuardStage.observe`. The stage adds the old version of a trial, drops what is rejected, and
sends the last list again when its own state has changed.

Locks: the stage's lock is held while it computes and while it passes a list on, so lists of a model keep their order;
it lies below the locks of sources. Effects that may call back (``GuardEffects``, second group) are carried out later,
without it, by :meth:`GuardStage.tick` and :meth:`GuardStage.command`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfs_lite.core.clock import Clock
from tfs_lite.core.servable import ServableData, ServableId, StoragePath
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.status import Status
from tfs_lite.operations.guard.trial import (
    NO_JUDGEMENT,
    Command,
    Effect,
    Judgement,
    ModelState,
    Outcome,
    Rejection,
    Running,
    TrialSettings,
    nothing,
)
from tfs_lite.serving.lifecycle_events import LifecycleEvent


def files_of(revision: str) -> str:
    """The part of a revision that tells the files of a version, without its configs."""
    return revision.partition("/")[0]


@dataclass(frozen=True, slots=True)
class GuardEffects:
    """What the stage asks and does.

    Called under the stage's lock; short, and they take no lock of a source and call nothing of the stage:

    ``hold(id, held)``: whether the version may be "latest"; also before it is known to the manager, and after it is
    gone. ``set_trials(name, trials)``: all trials of the model from now on, armed ones too, so that requests are
    shielded from the first one; a trial whose ``new`` and ``files`` were there before goes on with its evidence, also
    where its ``stage`` or ``old`` has changed. ``judgement(id)``: how the trial of this new version stands;
    ``NO_JUDGEMENT`` where nothing is known. ``answered(id)``: the requests that it has answered. ``wake()``: the guard's thread is to call ``tick`` soon.

    Called without the stage's lock, but perhaps on a source's thread while it sends a list (so it must take no lock
    that is held then): ``on_disk(name)``: the items, as the source would offer them, of every version that is there and
    complete (in the last list or not); None where that cannot be told now, and what was known stays.

    Called without any lock, on the guard's thread or that of a command: ``reject(name, versions)``: all rejected
    versions of the model from now on, for the source's stand-ins. ``report(name, effect)``: something has happened, for
    history and metrics. ``save()``: ``saved`` has changed.
    """

    hold: Callable[[ServableId, bool], None]
    set_trials: Callable[[str, Sequence[Running]], None]
    judgement: Callable[[ServableId], Judgement]
    answered: Callable[[ServableId], int]
    wake: Callable[[], None]
    on_disk: Callable[[str], Mapping[int, ServableData[StoragePath]] | None]
    reject: Callable[[str, frozenset[int]], None]
    report: Callable[[str, Effect], None]
    save: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """How the last trial of a model ended, and when, in seconds since 1970."""

    version: int
    outcome: Outcome
    text: str
    at: float


@dataclass(frozen=True, slots=True)
class GuardView:
    """How a model stands, for reports. ``trial``: the one that runs, or the highest that is armed. ``since`` and
    ``until``: its begin and the earliest end of the bake, in seconds since 1970 (``until`` None while it is armed).
    ``rejected``: the highest version first. ``going_back``: the version that an operator waits for. ``kept``: the
    versions that are in memory for the guard alone. ``ended``: the last trial that ended, since the start."""

    name: str
    trial: Running | None = None
    since: float | None = None
    until: float | None = None
    judgement: Judgement = NO_JUDGEMENT
    rejected: tuple[Rejection, ...] = ()
    going_back: int | None = None
    kept: frozenset[int] = frozenset()
    ended: EndedTrial | None = None


@dataclass(frozen=True, slots=True)
class SavedTrial:
    """A trial that a restart begins anew."""

    new: int
    files: str
    old: int


@dataclass(frozen=True, slots=True)
class SavedModel:
    """What a restart must know of a model. ``accepted``: the files of versions that an operator has accepted."""

    rejected: tuple[Rejection, ...] = ()
    accepted: Mapping[int, str] = field(default_factory=nothing)
    trials: tuple[SavedTrial, ...] = ()


class GuardStage:
    """``restore`` -> ``observe`` -> lists, events, commands and ticks in any order, from any thread."""

    def __init__(
        self,
        effects: GuardEffects,
        clock: Clock,
        settings_of: Callable[[ServableData[StoragePath]], TrialSettings],
        files_of: Callable[[str], str] = files_of,
    ) -> None:
        """``settings_of`` gives the settings that a load of the item would have, ``OFF`` under the policy resource; it
        may read the disk, and is called without the stage's lock, once for each revision of a version. ``files_of``
        gives the part of a revision that ends a rejection when it changes: in the mode explicit the whole of it,
        because each call to load is an order."""

    def observe(self, callback: AspiredVersionsCallback[StoragePath]) -> AspiredVersionsCallback[StoragePath]:
        """The callback for the sources; called once."""
        raise NotImplementedError

    def on_event(self, event: LifecycleEvent) -> None:
        """Queues what concerns the guard and wakes its thread; takes no lock of the stage. Needs ``StateChanged``,
        ``LoadParked`` and ``ModelGone``."""

    def tick(self) -> bool:
        """Takes what has happened, moves every trial on, and carries effects out. Whether it must be called again in a
        second although nothing wakes it. One at a time."""
        raise NotImplementedError

    def command(self, name: str, command: Command) -> None:
        """Carries an order out; returns when the list is sent, not when it is done. Raises ServingError and nothing has
        changed: NOT_FOUND for an unknown model or version, FAILED_PRECONDITION where there is nothing to do."""
        raise NotImplementedError

    # What it says. Any thread; never waits for a list.

    def view(self, name: str) -> GuardView | None:
        """None for a model without a list."""
        raise NotImplementedError

    def rejected(self, name: str) -> Mapping[int, Status]:
        """The versions that the guard keeps from answering: ABORTED, with the reason."""
        raise NotImplementedError

    def accepts(self, id: ServableId) -> bool:
        """Whether an operator takes the version as it is: its load skips the replay gate."""
        raise NotImplementedError

    def kept(self, name: str) -> frozenset[int]:
        """The versions that the guard has added to the last list of the source."""
        raise NotImplementedError

    def state(self, name: str) -> ModelState:
        """For ``guarded`` elsewhere, as what-if does it."""
        raise NotImplementedError

    # Over a restart.

    def saved(self) -> Mapping[str, SavedModel]:
        """What a restart must know, of the models that have anything to remember."""
        raise NotImplementedError

    def restore(self, saved: Mapping[str, SavedModel]) -> None:
        """Before ``observe``. A trial whose version has other files at its first list is forgotten."""
        raise NotImplementedError
