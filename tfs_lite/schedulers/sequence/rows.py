"""Requests of several sequences become one run, a row each, and its results are split again.

    requests, control tensors, states -> assemble -> Model.run(signature, inputs, outputs) -> answer and state of a row

A null row belongs to no request: it has the shapes of the others, zeros or empty texts, and control tensors that say
so. It is company as every other row is: where the batcher would let no calls share a run, a request has a run of its
own, without null rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import cast

import numpy as np

from tfs_lite.config.model import ModelSettings, hidden_outputs
from tfs_lite.core.model import Model, PredictCall, SequenceFlags
from tfs_lite.core.signature import Signature, Tensor
from tfs_lite.core.status import ServingError, Status
from tfs_lite.protocols.dtypes import Array
from tfs_lite.schedulers.batching.assembly import batch_memory, rows_fault
from tfs_lite.schedulers.batching.rules import BatchRule, with_batch
from tfs_lite.schedulers.batching.settings import BatchSettings
from tfs_lite.schedulers.batching.sharing import Sharing
from tfs_lite.schedulers.calls import Answer, complete
from tfs_lite.schedulers.sequence.controls import Controls
from tfs_lite.schedulers.sequence.states import States, Values


@dataclass(frozen=True, slots=True)
class Row:
    """A request in a run, and the state of its sequence before it."""

    call: PredictCall
    flags: SequenceFlags
    state: Values

    @property
    def inputs(self) -> Mapping[str, Array]:
        return cast("Mapping[str, Array]", self.call.inputs)


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How the requests of one signature become rows. Pure; any thread. Make it with :meth:`of`.

    Inputs and outputs of a request have a first dimension of 1 where the model has a batch, and none where it has not;
    then a run has one row.
    """

    key: str
    model: str
    """The model's name, for messages."""
    visible: Signature
    """The signature that clients see: neither control tensors nor states."""
    controls: Controls
    states: States
    batched: bool
    movable: bool
    """A request may run in any row: the model keeps nothing by row."""
    sharing: Sharing
    """Which requests share a run."""

    @classmethod
    def of(
        cls,
        key: str,
        model: str,
        signature: Signature,
        settings: ModelSettings,
        controls: Controls,
        states: States,
        movable: bool = True,
    ) -> RowPlan:
        """Makes the plan of a signature. ``signature`` is the model's. INVALID_ARGUMENT if it lacks a tensor that the
        settings name."""
        where = f"signature {key} of {model}"
        controls.check(signature, where)
        states.check(signature, where)
        added, kept = {*controls.names, *states.inputs}, hidden_outputs(settings)
        visible = replace(
            signature,
            inputs=tuple(spec for spec in signature.inputs if spec.name not in added),
            outputs=tuple(spec for spec in signature.outputs if spec.name not in kept),
            conditions=None,  # they are about all inputs, and about runs of several sequences: the model checks them
        )
        rows = settings.max_batch_size
        whole = with_batch(signature) if rows > 0 else signature
        sharing = Sharing(whole, BatchRule.of(whole, BatchSettings(max_batch_size=rows)))
        return cls(key, model, visible, controls, states, rows > 0, movable, sharing)

    def rows(self, inputs: Mapping[str, Tensor]) -> int:
        """The batch size of a request; of several, one that is not 1."""
        if not self.batched:
            return 1
        sizes = (array.shape[0] for array in inputs.values() if array.shape)
        return next((size for size in sizes if size != 1), 1)

    def shape_key(self, inputs: Mapping[str, Tensor]) -> Hashable:
        """The key of a request's shapes: only requests with equal keys can be rows of one run: they send the same
        inputs, in the same shapes."""
        return tuple((name, array.shape, array.dtype.str) for name, array in sorted(inputs.items()))

    def fits(self, rows: Sequence[Row | None]) -> bool:
        """Whether requests of equal shapes share this run, at least one of them, with each other and the null rows."""
        found = [row for row in rows if row is not None]
        if len(rows) == 1:
            return True
        if self.sharing.is_alone(found[0].inputs):
            return False
        if not self.sharing.may_run_apart:
            return True
        shown = self.sharing.shows_rows(self.outputs([row.call for row in found]), len(rows))
        return shown and self.sharing.takes([self.own_inputs(found[0])], len(rows))

    def outputs(self, calls: Sequence[PredictCall]) -> tuple[str, ...]:
        """The outputs to ask the model for; empty means all."""
        if any(not call.outputs for call in calls):
            wanted: Sequence[str] = self.visible.output_names
        else:
            wanted = list(chain.from_iterable(call.outputs for call in calls))
        return tuple(dict.fromkeys((*wanted, *self.states.outputs))) if wanted else ()

    def assemble(self, model: Model, rows: Sequence[Row | None]) -> dict[str, Array]:
        """The inputs of a run whose requests have equal shapes, at least one of them; None is a null row. In the memory
        of ``model.stage``: call ``model.run`` next, on this thread. Raises what ``model.stage`` raises."""
        first = next(row for row in rows if row is not None)
        if not self.batched:
            return {**first.inputs, **first.state, **self.control_tensors([first.flags])}
        shapes = {name: (array.shape[1:], array.dtype) for name, array in first.inputs.items()}
        shapes |= {name: (array.shape, array.dtype) for name, array in first.state.items()}
        batch = {name: ((len(rows), *tail), dtype) for name, (tail, dtype) in shapes.items()}
        arrays = batch_memory(model, self.key, batch | self.controls.shapes(len(rows)))
        for index, row in enumerate(rows):
            for name in shapes:
                array = arrays[name]
                if row is None:
                    array[index] = b"" if array.dtype.hasobject else 0
                else:
                    array[index] = row.state[name] if name in row.state else row.inputs[name][0]
        self.controls.write(arrays, [None if row is None else row.flags for row in rows])
        return arrays

    def control_tensors(self, rows: Sequence[SequenceFlags | None]) -> dict[str, Array]:
        """Makes the control tensors, in memory of their own."""
        arrays = {name: np.empty(*shape) for name, shape in self.controls.shapes(len(rows)).items()}
        self.controls.write(arrays, rows)
        return arrays

    def own_inputs(self, row: Row) -> dict[str, Array]:
        """The inputs of a run of one request alone, in the memory of the request and the sequence."""
        states = {name: array[np.newaxis] if self.batched else array for name, array in row.state.items()}
        return {**row.inputs, **states, **self.control_tensors([row.flags])}

    def fault(self, results: Mapping[str, Tensor], rows: int) -> Status | None:
        """FAILED_PRECONDITION if the results of a run cannot be told apart by rows. A single row needs that only of
        states, where outputs are served as they come."""
        if not self.batched:
            return None
        if self.sharing.evidence is not None:
            self.sharing.evidence.note(results, rows)
        if rows == 1 and self.sharing.as_they_come:
            results = {name: results[name] for name in self.states.outputs if name in results}
        return rows_fault(results, rows)

    def outcome(
        self, results: Mapping[str, Tensor], index: int | None, call: PredictCall, before: Values
    ) -> tuple[Mapping[str, Tensor] | Status, Values]:
        """What the request in row ``index`` is answered, and the state of its sequence after it; None: the results are
        its own, and it gets them as they are. If the model did not give what was asked for, or wrote what is no state:
        INTERNAL, and the state from before."""
        try:
            state, answer = self._state(results, index, before), self._answer(results, index, call)
            return answer, before if isinstance(answer, Status) else state
        except ServingError as error:
            return error.status, before

    def _answer(self, results: Mapping[str, Tensor], index: int | None, call: PredictCall) -> Answer:
        """Of the row what was asked for, and nothing that is hidden."""
        hidden = {*self.states.outputs} - {*self.visible.output_names}
        arrays = cast("Mapping[str, Array]", results)
        names = [name for name in call.outputs or results if name in results and name not in hidden]
        whole, row = index is None or not self.batched, index or 0
        found = {name: arrays[name] if whole else arrays[name][row : row + 1] for name in names}
        return complete(call, found, call.outputs or self.visible.output_names, self.model)

    def _state(self, results: Mapping[str, Tensor], index: int | None, before: Values) -> Values:
        if not self.states.states:
            return before
        arrays = cast("Mapping[str, Array]", results)
        own = {name: arrays[name] for name in self.states.outputs if name in arrays}
        if self.batched:
            row = index or 0
            if index is None and (fault := rows_fault(own, 1)) is not None:
                raise ServingError(fault.code, fault.message)
            own = {name: array[row : row + 1].copy()[0] for name, array in own.items()}
        return self.states.written(own, before, self.model)
