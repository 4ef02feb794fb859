"""A servable whose model keeps state between the requests of a sequence: Triton's sequence batcher.

    submit -> SequenceManager: a slot, or the backlog -> Direct's workers or Oldest's batchers -> Model.run -> answers

All requests of a sequence go to one instance, in their order, one at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tfs_lite.config.model import ModelSettings
from tfs_lite.core.callbacks import ignore
from tfs_lite.core.clock import Clock
from tfs_lite.core.model import FixedInstances, JudgesCalls, Model, OnBatch, PredictCall, Traits
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, served
from tfs_lite.core.status import Status, StatusCode, invalid_argument
from tfs_lite.schedulers.calls import finish
from tfs_lite.schedulers.sequence.controls import Controls
from tfs_lite.schedulers.sequence.direct import DirectWorkers
from tfs_lite.schedulers.sequence.oldest import OldestBatchers
from tfs_lite.schedulers.sequence.request import SequenceId, SequenceSlot
from tfs_lite.schedulers.sequence.rows import RowPlan
from tfs_lite.schedulers.sequence.sequence_manager import OnForgotten, SequenceEntry, SequenceManager
from tfs_lite.schedulers.sequence.settings import (
    MAX_QUEUED,
    DirectSettings,
    SequenceSettings,
    direct_settings_of,
    oldest_settings_of,
    sequence_settings_of,
)
from tfs_lite.schedulers.sequence.states import States

logger = logging.getLogger(__name__)


class SequenceServable(FixedInstances, JudgesCalls):
    """A :class:`~tfs_lite.core.model.Servable` whose calls belong to sequences (``PredictCall.sequence``).

    Order: ``submit`` and ``cancel`` any number of times, perhaps ``stop``, then ``close`` once. Threads: all any, but
    ``close`` not on one of its own. Promises: every call is answered exactly once; of one sequence in order, none
    while another runs, and all by one instance. Calls carry one row, or have no batch dimension where the model has
    none; control tensors and states are added here, and are not among the ``signatures``.

    A sequence ends with its END, when no request of it came for the configured time, when one of its waiting requests
    is cancelled or has waited beyond its deadline (what waits behind it is answered CANCELLED, for the model would miss
    something), when it has waited in the backlog beyond a request's timeout, and when the worker of its instance dies.
    A failing run fails the calls in it and no sequence: what the model has done to a state of its own cannot be taken
    back, implicit state stays as it was.

    Errors, all through ``on_done``: INVALID_ARGUMENT (several rows, no id, an id of the wrong type, no START),
    UNIMPLEMENTED (an id that is too long), UNAVAILABLE (too many calls wait, stopped, closed, worker lost),
    DEADLINE_EXCEEDED and CANCELLED (before the start), what the model raises, FAILED_PRECONDITION for outputs that have
    not a row for each of the inputs', INTERNAL for anything else the model does.
    """

    def __init__(
        self,
        models: Sequence[Model],
        servable_id: ServableId,
        settings: ModelSettings,
        clock: Clock,
        on_batch: OnBatch = ignore,
        on_forgotten: OnForgotten | None = None,
        *,
        directory: Path | None = None,
        max_queued: int = MAX_QUEUED,
        traits: Traits | None = None,
    ) -> None:
        """Takes the models over: closes them in the end. ``settings`` have ``sequence_batching``. ``directory``: where
        the versions of the model lie. ``on_forgotten`` is told the id of every sequence that has ended, and of one that
        will end with what waits of it; ``on_batch`` counts null rows as padding. INVALID_ARGUMENT, with the models left
        to the caller, if settings and model do not fit."""
        if models[0].has_item_steps:
            raise invalid_argument("sequence_batching: a model with preprocess or postprocess cannot have sequences")
        self.id = servable_id
        self.models = tuple(models)
        self.traits = replace(traits or Traits(models[0].platform, settings.max_batch_size), keeps_sequences=True)
        controls, states = Controls.of(settings), States.of(settings, directory)
        signatures = models[0].signatures
        implicit = bool(states.states)
        stateless = implicit or models[0].concurrency > 1  # or threads would meet in what it keeps
        name = servable_id.name
        self._plans = {
            key: RowPlan.of(key, name, one, settings, controls, states, stateless) for key, one in signatures.items()
        }
        visible = {key: plan.visible for key, plan in self._plans.items()}
        self._signatures = served(visible, servable_id.name, self.traits.max_batch_size)
        self._controls = controls
        slots = self._slots(sequence_settings_of(settings, max_queued), stateless)
        self._manager = manager = SequenceManager(slots, len(models), servable_id, clock, on_forgotten, self._wake)
        self._runner: DirectWorkers | OldestBatchers
        if slots.oldest:
            self._runner = OldestBatchers(manager, models, oldest_settings_of(settings), on_batch, implicit, stateless)
        else:
            self._runner = DirectWorkers(
                manager, models, self._direct(direct_settings_of(settings)), on_batch, implicit
            )
        self._runner.start()

    @property
    def signatures(self) -> Mapping[str, Signature]:
        return self._signatures

    @property
    def pending(self) -> int:
        return self._manager.pending + self._runner.waiting

    @property
    def pending_rows(self) -> int:
        """One for each call."""
        return self.pending

    @property
    def live(self) -> int:
        """Sequences that go on: their next request needs no START."""
        with self._manager.lock:
            return self._manager.sequences.live

    @property
    def backlogged(self) -> int:
        """Sequences that wait for a slot."""
        with self._manager.lock:
            return self._manager.sequences.backlogged

    @property
    def kept_states(self) -> int:
        """Sequences whose implicit state is kept."""
        return self._manager.kept_states

    def knows(self, id: SequenceId) -> bool:
        """Whether this sequence goes on. ``on_forgotten`` may come after the same id has started again; ask."""
        with self._manager.lock:
            return self._manager.sequences.knows(id)

    def submit(self, call: PredictCall) -> None:
        plan = self._plans[call.signature]
        rows = plan.rows(call.inputs)
        refusal = self._check_call(call, rows)
        if refusal is not None:
            finish(call, refusal, self._manager.name)
        else:
            self._manager.admit(SequenceEntry(call, plan, plan.shape_key(call.inputs)), rows)

    def cancel(self, call: PredictCall) -> None:
        """A call that waits ends its sequence, and all that wait in it are answered CANCELLED."""
        entry = call.ticket
        if isinstance(entry, SequenceEntry):
            self._runner.cancel(entry)

    def stop(self) -> None:
        """Refuses every START from now on; sequences go on until they end. For a version that is to go."""
        self._manager.stop()

    def close(self) -> None:
        """Answers what waits with UNAVAILABLE, lets running batches finish, ends the threads and closes the models."""
        self._manager.close()
        self._runner.close()

    def _slots(self, slots: SequenceSettings, stateless: bool) -> SequenceSettings:
        """One in each instance where the model keeps state by row, and its rows take no company."""
        apart = [key for key, plan in self._plans.items() if plan.batched and plan.sharing.rule is None]
        if not apart or slots.slots_per_instance == 1:
            return slots
        if stateless or slots.oldest:
            logger.warning(
                "%s answers no two sequences together, although it has a max_batch_size: its signature %s has no batch "
                "that they could share",
                self.id,
                apart[0],
            )
            return slots
        logger.warning(
            "%s has one sequence at a time in each instance, although it has a max_batch_size: its signature %s has no "
            "batch that sequences could share, and their state may be in the model, by row",
            self.id,
            apart[0],
        )
        return replace(slots, slots_per_instance=1)

    def _direct(self, settings: DirectSettings) -> DirectSettings:
        """Requests that share no run wait for no others."""
        together = any(plan.sharing.rule is not None for plan in self._plans.values())
        return settings if together else DirectSettings()

    def _wake(self, slots: Collection[SequenceSlot]) -> None:
        self._runner.wake(slots)

    def _check_call(self, call: PredictCall, rows: int) -> Status | None:
        """Checks of a call what the manager does not check."""
        if rows == 0:
            text = f"inference request to model '{self.id.name}' must specify batch-size 1 due to requirements of "
            return Status(StatusCode.INVALID_ARGUMENT, f"{text}sequence batcher, got 0")
        if rows == 1 and call.sequence is not None and call.sequence.id:
            return self._controls.refusal(call.sequence, self.id.name)
        return None
