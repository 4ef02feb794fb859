"""Ensembles: ``ensemble_scheduling`` of a model's config, in Triton's names, and the check of the graph it draws.

An ensemble is a pipeline of other models. Its tensors have names of their own: clients send those that are the
ensemble's inputs, steps write the others, and those that are its outputs go back.

    input -> step -> tensor -> step -> output
                  -> tensor -> step -> output
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from pydantic import Field, StrictInt, StrictStr, model_validator

from tfs_lite.config.settings import FieldPath, Settings, problem
from tfs_lite.config.signatures import Name
from tfs_lite.core.servable import MAX_VERSION

PLATFORM = "ensemble"
LATEST = -1
MAX_STEPS = 256


class EnsembleStep(Settings):
    """One model of the pipeline. The maps lead from the model's names to the ensemble's."""

    model_name: Name
    model_version: Annotated[StrictInt, Field(ge=LATEST, le=MAX_VERSION)] = LATEST
    """-1: the newest that is available."""
    input_map: Annotated[Mapping[Name, Name], Field(min_length=1)]
    """Input of the model -> tensor of the ensemble that feeds it."""
    output_map: Annotated[Mapping[Name, Name], Field(min_length=1)]
    """Output of the model -> tensor of the ensemble that it writes."""
    model_namespace: StrictStr = ""
    """Always empty."""

    @model_validator(mode="after")
    def _no_namespace(self) -> EnsembleStep:
        if self.model_namespace:
            raise problem("namespaces are not supported; leave it out", "model_namespace")
        return self


class EnsembleScheduling(Settings):
    """The model is an ensemble."""

    step: Annotated[tuple[EnsembleStep, ...], Field(min_length=1, max_length=MAX_STEPS)]
    max_inflight_requests: Annotated[StrictInt, Field(ge=0, lt=2**32)] = 0
    """The number of requests that may be inside at a time; 0: as many as may wait for any model."""


def check_graph(steps: Sequence[EnsembleStep], inputs: Collection[str], outputs: Collection[str]) -> None:
    """Raises a :func:`~tfs_lite.config.settings.problem` unless the graph is sound: each tensor is written once and
    read, each input of the ensemble is used, each output is written, and no step waits for itself.

    ``inputs`` and ``outputs`` are the names of the ensemble's own. The problem's path begins at the model's settings.
    """
    writers = _writers(steps, inputs)
    read = {tensor for step in steps for tensor in step.input_map.values()}
    for index, name in enumerate(inputs):
        if name not in read:
            raise problem(f'ensemble input "{name}" is not used by any step', "input", index, "name")
    for index, name in enumerate(outputs):
        if name not in writers:
            raise problem(f'ensemble output "{name}" is not written by any step', "output", index, "name")
    for name, path, step in _mentions(steps, "output_map"):
        if name not in read and name not in outputs:
            raise problem(f'ensemble tensor "{name}" is unused: {step} writes it and no step reads it', *path)
    for name, path, step in _mentions(steps, "input_map"):
        if name not in writers and name not in inputs:
            raise problem(f'ensemble tensor "{name}" is unused: {step} reads it and no step writes it', *path)
    _check_order(steps, writers)


def _writers(steps: Sequence[EnsembleStep], inputs: Collection[str]) -> dict[str, int]:
    """The step that writes each tensor."""
    found: dict[str, int] = {}
    for name, path, step in _mentions(steps, "output_map"):
        if name in inputs:
            raise problem(f'{step} writes "{name}", which is an input of the ensemble', *path)
        if name in found:
            raise problem(f'{step} writes "{name}", which {_shown(steps, found[name])} writes already', *path)
        found[name] = int(path[2])
    return found


def _check_order(steps: Sequence[EnsembleStep], writers: Mapping[str, int]) -> None:
    """No cycles: each step can run after those that write what it reads."""
    before = {
        index: {writers[tensor] for tensor in step.input_map.values() if tensor in writers}
        for index, step in enumerate(steps)
    }
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        circle = list(reversed(error.args[1]))
        story = " needs ".join(_shown(steps, index) for index in circle)
        raise problem(f"the steps form a cycle: {story}", "ensemble_scheduling", "step", circle[0]) from None


def _mentions(steps: Sequence[EnsembleStep], field: str) -> Iterator[tuple[str, FieldPath, str]]:
    """(tensor, path, step for people) for every entry of the maps called ``field``."""
    for index, step in enumerate(steps):
        for key, tensor in getattr(step, field).items():
            yield tensor, ("ensemble_scheduling", "step", index, field, key), _shown(steps, index)


def _shown(steps: Sequence[EnsembleStep], index: int) -> str:
    return f'step {index} (model "{steps[index].model_name}")'
