"""The first load, with more threads: what a server does before it is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tfs_lite.core.servable import ServableRequest
from tfs_lite.core.state import ManagerState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.managers.state_monitor import Answers, ServableStateMonitor


class Resizable(Protocol):
    """A manager whose load threads can be counted and changed."""

    @property
    def num_load_threads(self) -> int: ...

    def set_num_load_threads(self, num_threads: int) -> None: ...


def load_servables_fast(
    manager: Resizable,
    connect_sources: Callable[[], None],
    monitor: ServableStateMonitor,
    requests: Sequence[ServableRequest],
    num_threads: int,
    timeout: float | None = None,
) -> None:
    """Connects the sources and waits until every request is available or has failed, with ``num_threads`` load threads
    meanwhile; then sets the old number again, whatever happened.

    UNKNOWN, naming each servable and its error, if any failed; DEADLINE_EXCEEDED if any has no answer within
    ``timeout`` seconds (None: as long as it takes). Sources stay connected and what was loaded stays loaded.
    """
    threads = manager.num_load_threads
    manager.set_num_load_threads(num_threads)
    try:
        connect_sources()
        reached, answers = monitor.wait_until_servables_reach_state(requests, ManagerState.AVAILABLE, timeout)
    finally:
        manager.set_num_load_threads(threads)
    if not reached:
        raise _failure(requests, answers)


def _failure(requests: Sequence[ServableRequest], answers: Answers) -> ServingError:
    failed = [f"{state.id}: {state.health}" for state in answers.values() if state.state is not ManagerState.AVAILABLE]
    silent = [f"{request}: no answer in time" for request in requests if not _is_answered(request, answers)]
    code = StatusCode.DEADLINE_EXCEEDED if silent else StatusCode.UNKNOWN
    what = "; ".join([*failed, *silent])
    return ServingError(code, f"{len(failed) + len(silent)} servable(s) did not become available: {what}")


def _is_answered(request: ServableRequest, answers: Answers) -> bool:
    return any(
        servable_id.name == request.name and request.version in (None, servable_id.version) for servable_id in answers
    )
