"""The data-plane contract: what an adapter loads, and what a request does with it.

    adapter -> Model (one thread at a time) -> worker or scheduler -> Servable (any thread) -> Predictor

A :class:`Model` is the bare artefact. A :class:`Servable` is a model behind whatever decides who runs next; it is
what handles give out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import Status


class Model(Protocol):
    """A loaded artefact. ``run`` and ``close`` are called by one thread at a time; ``signatures`` by any."""

    @property
    def platform(self) -> str: ...

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    def run(self, signature: str, inputs: Mapping[str, Tensor], outputs: tuple[str, ...]) -> dict[str, Tensor]:
        """Runs one request or batch. Inputs were checked against the signature; arrays may be read-only and must not
        be written to. Returns exactly ``outputs`` (all of the signature's when empty). Raises ServingError."""

    def close(self) -> None:
        """Drops weights and threads. Called once, after the last ``run``."""


@dataclass(slots=True)
class PredictCall:
    """One request on its way through a servable.

    ``deadline`` is in seconds of ``time.monotonic``. ``on_done`` is called exactly once, on any thread, with the
    outputs or with the status of the failure; it must be short and must not raise. Setting ``cancelled`` lets the
    servable skip the call if it has not started; ``on_done`` is still called (CANCELLED). The servable sets
    ``run_seconds``, the time in the model, before it calls ``on_done``.
    """

    signature: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]
    deadline: float | None
    on_done: Callable[[Mapping[str, Tensor] | Status], None]
    cancelled: bool = field(default=False)
    run_seconds: float = field(default=0.0)


class Servable(Protocol):
    """A model that any number of threads may call. Made by a loader, given out through handles."""

    @property
    def platform(self) -> str: ...

    @property
    def signatures(self) -> Mapping[str, Signature]: ...

    def submit(self, call: PredictCall) -> None:
        """Queues the call and returns at once. A full queue answers UNAVAILABLE, an expired deadline
        DEADLINE_EXCEEDED, through ``on_done``."""

    def close(self) -> None:
        """Ends its threads and closes the model. Called once, when no handle is left and every call is answered."""


ServableFactory = Callable[[Model, str], Servable]
"""(model, name for threads and logs) -> servable. Passed to adapters, which do not know how servables run."""
