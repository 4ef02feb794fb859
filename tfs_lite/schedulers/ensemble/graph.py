"""The choice of the steps that a request needs, and of those that can run now. Pure; the caller locks.

plan_for(graph, wanted outputs)  ->  Progress(plan).begin()  ->  done(step) for each, in any order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tfs_lite.schedulers.ensemble.types import EnsembleGraph, ModelStep


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The steps that the wanted outputs need. ``steps`` are in the order of the config. ``asked`` maps a step to the
    outputs that its model is asked for, ``after`` to the steps whose tensors it needs, ``before`` to those that need
    its own."""

    outputs: tuple[str, ...]
    steps: tuple[ModelStep, ...]
    asked: Mapping[int, tuple[str, ...]]
    after: Mapping[int, frozenset[int]]
    before: Mapping[int, tuple[int, ...]]


def plan_for(graph: EnsembleGraph, wanted: tuple[str, ...]) -> EnsemblePlan:
    """Plans the steps for ``wanted``, outputs of the ensemble; empty means all of them."""
    outputs = wanted or graph.signature.output_names
    needed: set[int] = set()
    used = set(outputs)
    open_tensors = list(outputs)
    while open_tensors:
        made = graph.makers.get(open_tensors.pop())
        if made is None or made[0].index in needed:
            continue
        needed.add(made[0].index)
        used.update(made[0].inputs.values())
        open_tensors.extend(made[0].inputs.values())
    steps = tuple(step for step in graph.steps if step.index in needed)
    after = {step.index: _makers_of(graph, step.inputs.values()) for step in steps}
    return EnsemblePlan(
        outputs,
        steps,
        {step.index: tuple(name for name, tensor in step.outputs.items() if tensor in used) for step in steps},
        after,
        {index: tuple(later for later in after if index in after[later]) for index in after},
    )


def _makers_of(graph: EnsembleGraph, tensors: Iterable[str]) -> frozenset[int]:
    return frozenset(graph.makers[tensor][0].index for tensor in tensors if tensor in graph.makers)


class Progress:
    """How far one request has come. A tensor that its maker left out counts as there: the steps that use it run
    without it.

    ``begin`` once; then ``done`` or ``failed`` once for every step that they gave out. Not locked.
    """

    __slots__ = ("_left", "_missing", "_plan", "in_flight", "over")

    def __init__(self, plan: EnsemblePlan) -> None:
        self._plan = plan
        self._missing = {index: set(after) for index, after in plan.after.items()}
        self._left = len(plan.steps)
        self.in_flight: set[int] = set()
        self.over = False
        """A step has failed, or the rest is not wanted: no step is given out any more."""

    @property
    def complete(self) -> bool:
        """Every step is done."""
        return not (self._left or self.over)

    @property
    def stuck(self) -> bool:
        """Steps are left, and none of them will ever run."""
        return not (self.over or self.in_flight) and self._left > 0

    def begin(self) -> list[int]:
        """The steps that need nothing but the ensemble's inputs."""
        return self._give_out([index for index, missing in self._missing.items() if not missing])

    def done(self, step: int) -> list[int]:
        """The steps that can run now that this one has ended well; none once it is over."""
        self.in_flight.discard(step)
        self._left -= 1
        ready = []
        for later in self._plan.before[step]:
            missing = self._missing[later]
            missing.discard(step)
            if not missing:
                ready.append(later)
        return self._give_out(ready)

    def failed(self, step: int) -> None:
        self.in_flight.discard(step)
        self.over = True

    def end(self) -> None:
        """The rest is not wanted."""
        self.over = True

    def _give_out(self, ready: list[int]) -> list[int]:
        if self.over:
            return []
        self.in_flight.update(ready)
        return ready
