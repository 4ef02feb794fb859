"""A version in replicas: how it is opened, moves from node to node, and gives its replicas back.

    loader -> VersionReplicas' places -> one ReplicaModel for each, all connecting at once -> enough have opened it

All instances exist from the start: one whose replica is still to come is like one that has lost its replica, and joins
by itself. Opening waits until as many are there as the config demands. Where room is missing it waits for nothing: it
raises ``WAITS_FOR_PLACE`` and keeps what it has, and the next attempt goes on from there. An instance that is closed
gives its replica back; so a version's replicas end when its servable is closed, which is after its last handle.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import cast

from tfs_lite.cluster.replicas.engine import ReplicaName, VersionKey
from tfs_lite.cluster.replicas.near import ReplicaModel
from tfs_lite.cluster.replicas.reconciler import Reconciler, ReplicaPlace
from tfs_lite.cluster.replicas.states import ReplicaState, SetStatus, VersionReplicas
from tfs_lite.core.status import Reason, ServingError, StatusCode
from tfs_lite.workers.wire import Description

logger = logging.getLogger(__name__)
MakeModel = Callable[[ReplicaPlace], ReplicaModel]
LOOK_SECONDS = 0.1
"""An opening looks at its instances so often: they can be asked a moment after their replicas were said to be ready."""
_ON_THE_WAY = (ReplicaState.PLACING, ReplicaState.LOST)


class ReplicatedVersion:
    """The replicas of one version, from the first attempt to load it until all its instances are closed.

    Threads: ``wait_open``, ``grow`` and ``close`` are for the loader's; the rest any.
    """

    def __init__(
        self, reconciler: Reconciler, wanted: VersionReplicas, needed: int, make: MakeModel, wake: Callable[[], None]
    ) -> None:
        """Opens all of them in the background. ``needed`` is how many have to be open before the version is. ``wake``
        is called when another attempt may succeed."""
        self.count = wanted.count
        self._reconciler = reconciler
        self._needed = needed
        self._make = make
        self._wake = wake
        self._changed = threading.Condition()  # guards what follows
        self._models: list[ReplicaModel] = []
        self._description: Description | None = None
        self.is_open = False
        self._group = reconciler.want(wanted, self._on_change, self._on_move)
        self._add(self._group.places)

    @property
    def key(self) -> VersionKey:
        return self._group.key

    @property
    def ended(self) -> bool:
        """Whether all instances are closed."""
        return not self._group.places

    def status(self) -> SetStatus:
        return self._group.status()

    def ongoing(self) -> dict[ReplicaName, int]:
        """How many batches each replica had when it answered last."""
        with self._changed:
            models = list(self._models)
        return {cast(ReplicaPlace, model.place).name: model.ongoing for model in models}

    def wait_open(self) -> list[ReplicaModel]:
        """The instances, once enough of them are open. Raises what an opening raised; FAILED_PRECONDITION if they
        describe different models; UNAVAILABLE with ``WAITS_FOR_PLACE`` if there is no room for as many as are
        needed."""
        with self._changed:
            models = list(self._models)
        self._wait(models, self._needed)
        self._description = next(model for model in models if model.opening.done()).opening.result()
        self._agree(models)
        self.is_open = True
        return models

    def grow(self, count: int) -> list[ReplicaModel]:
        """Opens so many more replicas of a version that is open. They are open, or wait for room and join later. Raises
        as :meth:`wait_open`, and wants no more than before then."""
        added = self._add(self._group.grow(count))
        try:
            try:
                self._wait(added, count)
            except ServingError as error:
                if not error.status.waits:
                    raise
            self._agree(added)
        except BaseException:
            for model in added:
                model.close()
            raise
        return added

    def withdraw(self) -> None:
        """Gives all replicas back."""
        self._group.close()

    def close(self) -> None:
        """Gives all replicas back, and closes the instances."""
        self.withdraw()
        with self._changed:
            models, self._models = self._models, []
        for model in models:
            model.close()

    def _add(self, places: tuple[ReplicaPlace, ...]) -> list[ReplicaModel]:
        added = [self._make(place) for place in places]
        with self._changed:
            self._models = [model for model in self._models if not model.closed] + added
        for model in added:
            model.opening.add_done_callback(lambda _: self._notify())
        return added

    def _wait(self, models: list[ReplicaModel], needed: int) -> None:
        with self._changed:
            while (open_now := self._count_open(models)) < needed:
                self._check_room(len(models) - open_now, needed - open_now)
                self._changed.wait(LOOK_SECONDS)

    def _agree(self, models: list[ReplicaModel]) -> None:
        assert self._description is not None
        for model in models:
            model.expect(self._description)

    def _count_open(self, models: list[ReplicaModel]) -> int:
        """Counts the models that can be asked now. Raises what an opening raised."""
        described = [model for model in models if model.opening.done()]
        for model in described:
            model.opening.result()
        return sum(model.alive for model in described)

    def _check_room(self, missing: int, needed: int) -> None:
        """Raises unless so many of the missing ones may still come as are needed."""
        is_cut_off = bool(self._reconciler.status().trouble)
        status = self._group.status()
        stuck = sum(bool(place.waits) or (is_cut_off and place.state in _ON_THE_WAY) for place in status.places)
        if missing - stuck < needed and status.waits:
            raise ServingError(StatusCode.UNAVAILABLE, status.waits, Reason.WAITS_FOR_PLACE)

    def _on_change(self) -> None:
        self._notify()
        if not self.is_open:
            self._wake()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _on_move(self, old: ReplicaPlace, new: ReplicaPlace) -> None:
        """The node of the replica in ``old`` drains: its instance opens the version in ``new`` and goes on there."""
        with self._changed:
            model = next((model for model in self._models if model.place is old), None)
        if model is None:
            new.close()
        else:
            threading.Thread(target=model.move, args=(new,), name="tfs-move", daemon=True).start()
