"""The state of one managed version, and the only object that changes it.

A harness is bookkeeping without effects: it never calls its loader. The manager's flows move it along

    new -> load-requested -> load-approved -> loading -> ready
        -> unload-requested -> quiescing -> quiesced -> unloading -> disabled

and call the loader in between. Any state that is not final may end in error. One shortcut exists: a load that was
cancelled while it ran goes from loading to unloading.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from tfs_lite.core.callbacks import ignore
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import NO_RESOURCES, ResourceAllocation
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import OK, Reason, ServingError, Status, StatusCode, failed_precondition


class HarnessState(enum.Enum):
    """The inner life of a version, finer than :class:`tfs_lite.core.state.ManagerState`."""

    NEW = "new"
    """Managed; nothing was asked of it yet."""
    LOAD_REQUESTED = "load-requested"
    """Its load is queued, is being estimated, or waits for memory."""
    LOAD_APPROVED = "load-approved"
    """Its memory is reserved."""
    LOADING = "loading"
    """The loader is at work, or waits for the next attempt, or for what has to come first."""
    READY = "ready"
    """Handles are given out."""
    UNLOAD_REQUESTED = "unload-requested"
    """About to be withdrawn."""
    QUIESCING = "quiescing"
    """No new handles; some may be live."""
    QUIESCED = "quiesced"
    """The last handle is gone; the unload is queued."""
    UNLOADING = "unloading"
    """The loader is giving the memory back."""
    DISABLED = "disabled"
    """Final: unloaded."""
    ERROR = "error"
    """Final: ended with the status of the harness, without having been served or loaded."""


_S = HarnessState

LEGAL_FROM: dict[HarnessState, frozenset[HarnessState]] = {
    _S.NEW: frozenset(),
    _S.LOAD_REQUESTED: frozenset({_S.NEW}),
    _S.LOAD_APPROVED: frozenset({_S.LOAD_REQUESTED}),
    _S.LOADING: frozenset({_S.LOAD_APPROVED}),
    _S.READY: frozenset({_S.LOADING}),
    _S.UNLOAD_REQUESTED: frozenset({_S.READY}),
    _S.QUIESCING: frozenset({_S.UNLOAD_REQUESTED}),
    _S.QUIESCED: frozenset({_S.QUIESCING}),
    _S.UNLOADING: frozenset({_S.QUIESCED, _S.LOADING}),
    _S.DISABLED: frozenset({_S.UNLOADING}),
}
"""The states from which each state but ERROR may be entered."""

FINAL = frozenset({_S.DISABLED, _S.ERROR})
REMOVABLE = FINAL | {_S.NEW}
"""The states in which a version holds nothing and may stop being managed."""
LOADS = frozenset({_S.LOAD_REQUESTED, _S.LOAD_APPROVED, _S.LOADING})
"""The states of a version that is on the way to be ready."""
LEAVING = frozenset({_S.UNLOAD_REQUESTED, _S.QUIESCING, _S.QUIESCED, _S.UNLOADING})
"""The states of a version that is on the way out and still holds memory."""
IN_FLIGHT = LEAVING | {_S.LOAD_APPROVED, _S.LOADING}
"""Will end by itself, and may free memory when it does."""
HOLDS_RESOURCES = IN_FLIGHT | {_S.READY}
"""The estimate counts as used."""


class Overdue(enum.Enum):
    """The steps that may take longer than their bound. They go on."""

    LOAD = "load"
    DRAIN = "drain"
    """Requests of a version that was withdrawn or replaced."""
    UNLOAD = "unload"


def step_of(state: HarnessState) -> Overdue:
    """The step that a version in this state is in, which takes too long."""
    if state is HarnessState.QUIESCING:
        return Overdue.DRAIN
    return Overdue.UNLOAD if state in LEAVING else Overdue.LOAD


_REFUSALS = {
    _S.LOAD_REQUESTED: "Duplicate load request for servable",
    _S.UNLOAD_REQUESTED: "Servable not loaded, or unload already requested/ongoing:",
}


@dataclass(frozen=True, slots=True)
class ServableStateSnapshot:
    """One version as policies and observers see it. ``given_up``: as its source has said of it last."""

    id: ServableId
    state: HarnessState
    is_aspired: bool
    revision: str = ""
    status: Status = OK
    has_loader: bool = True
    is_overdue: bool = False
    given_up: bool = False


class LoaderHarness:
    """One managed version. Not locked: the manager's lock guards every field.

    ``loader`` is None for an item that arrived with an error. ``is_aspired`` and ``given_up`` are set by the manager of
    aspired versions and read by its policy. ``attempts`` counts calls of the loader's ``load``. ``estimate`` is what
    the version counts for while it holds resources. ``waits``: it is loading, and its last attempt said what has to
    come first. ``is_overdue``: its load, its last requests or its unload take longer than the bound; nothing waits
    for it any more; what it holds counts as held. ``on_error`` is called once, when the harness ends in ERROR;
    ``on_change`` after each change of what the registry counts by: the state, and the properties below.
    """

    __slots__ = (
        "_estimate",
        "_given_up",
        "_is_aspired",
        "_is_overdue",
        "_on_error",
        "_waits",
        "attempts",
        "cancelled",
        "id",
        "loader",
        "on_change",
        "refused_as_measured",
        "releases_seen",
        "revision",
        "state",
        "status",
    )

    def __init__(
        self,
        servable_id: ServableId,
        loader: Loader | None,
        revision: str = "",
        on_error: Callable[[LoaderHarness], None] = lambda harness: None,
    ) -> None:
        self.id = servable_id
        self.loader = loader
        self.revision = revision
        self.state = HarnessState.NEW
        self.status = OK
        self.cancelled = False
        self.attempts = 0
        self.releases_seen = 0
        """The registry's ``releases`` when this version ended in error."""
        self.refused_as_measured = False
        """It ended for lack of memory, which may come back without an unload: others than models hold some of it."""
        self.on_change: Callable[[LoaderHarness], None] = ignore
        self._is_aspired = True
        self._is_overdue = False
        self._given_up = False
        self._estimate: ResourceAllocation = NO_RESOURCES
        self._waits: Reason | None = None
        self._on_error = on_error

    @property
    def is_aspired(self) -> bool:
        return self._is_aspired

    @is_aspired.setter
    def is_aspired(self, is_aspired: bool) -> None:
        self._is_aspired = is_aspired
        self.on_change(self)

    @property
    def is_overdue(self) -> bool:
        return self._is_overdue

    @is_overdue.setter
    def is_overdue(self, is_overdue: bool) -> None:
        self._is_overdue = is_overdue
        self.on_change(self)

    @property
    def given_up(self) -> bool:
        return self._given_up

    @given_up.setter
    def given_up(self, given_up: bool) -> None:
        self._given_up = given_up
        self.on_change(self)

    @property
    def estimate(self) -> ResourceAllocation:
        return self._estimate

    @estimate.setter
    def estimate(self, estimate: ResourceAllocation) -> None:
        self._estimate = estimate
        self.on_change(self)

    @property
    def waits(self) -> Reason | None:
        return self._waits

    @waits.setter
    def waits(self, reason: Reason | None) -> None:
        self._waits = reason
        self.on_change(self)

    def transition(self, to: HarnessState) -> None:
        """Enters ``to``, or raises.

        A *request* (LOAD_REQUESTED, UNLOAD_REQUESTED) that comes at the wrong time is refused with
        FAILED_PRECONDITION and changes nothing. Any other wrong step is a defect of the manager: INTERNAL, and the
        harness ends in ERROR with that status. ERROR itself is entered through :meth:`error`.
        """
        if self.state in LEGAL_FROM[to]:
            self.state = to
            self.on_change(self)
            return
        if to in _REFUSALS:
            raise failed_precondition(f"{_REFUSALS[to]} {self.id} (state: {self.state.value})")
        violation = ServingError(
            StatusCode.INTERNAL, f"illegal transition of {self.id} from {self.state.value} to {to.value}"
        )
        self.error(violation.status)
        raise violation

    def error(self, status: Status) -> None:
        """Ends in ERROR, from any state that is not final; final states stay as they are."""
        if self.state in FINAL:
            return
        self.state, self.status = HarnessState.ERROR, status
        self._on_error(self)
        self.on_change(self)

    @property
    def in_flight(self) -> bool:
        """Whether it will get somewhere by itself, and may free memory when it does."""
        return self.state in IN_FLIGHT and self.waits is None and not self.is_overdue

    @property
    def is_awaited(self) -> bool:
        """Whether a manager that is closed waits for it: for requests always."""
        return self.state in IN_FLIGHT and (not self.is_overdue or self.state is HarnessState.QUIESCING)

    @property
    def is_leaving(self) -> bool:
        """Whether its memory will come free by itself."""
        return self.state in LEAVING and not self.is_overdue

    def snapshot(self) -> ServableStateSnapshot:
        has_loader = self.loader is not None
        return ServableStateSnapshot(
            self.id, self.state, self.is_aspired, self.revision, self.status, has_loader, self.is_overdue, self.given_up
        )
