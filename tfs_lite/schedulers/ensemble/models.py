"""The models that an ensemble's steps name: are they there, do they fit, is the ensemble among them?

Asked when the ensemble is loaded. One that is not there makes the load wait; anything else that is wrong ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from tfs_lite.core.handle import ServableHandle
from tfs_lite.core.model import ModelAndVersion
from tfs_lite.core.status import Reason, ServingError, StatusCode, invalid_argument
from tfs_lite.schedulers.ensemble.checks import check_steps
from tfs_lite.schedulers.ensemble.run import pin
from tfs_lite.schedulers.ensemble.types import EnsembleGraph, ModelStep, interface_of

Resolve = Callable[[str, int | None], ServableHandle]
"""Returns a handle for a model's name and version (None means the newest); NOT_FOUND if it is not available."""
Wanted = ModelAndVersion


def check_models(graph: EnsembleGraph, resolve: Resolve) -> None:
    """Raises unless the models of all steps are available, and fit. The newest version of each is checked, whichever a
    step names."""
    with ExitStack() as handles:
        newest: dict[str, ServableHandle] = {}
        missing: list[Wanted] = []
        for wanted in dict.fromkeys(both for step in graph.steps for both in ((step.model, None), wanted_by(step))):
            try:
                handle = handles.enter_context(resolve(*wanted))
            except ServingError as error:
                if error.code is not StatusCode.NOT_FOUND:
                    raise
                missing.append(wanted)
            else:
                if wanted[1] is None:
                    newest[wanted[0]] = handle
        if contains(graph.name, (step.model for step in graph.steps), resolve):
            raise invalid_argument(f"ensemble {graph.name} contains itself: the steps of ensembles must make no cycle")
        if missing:
            raise _waits_for(graph, missing)
        check_steps(graph, [pin(newest[step.model], interface_of).interface for step in graph.steps])


def _waits_for(graph: EnsembleGraph, missing: Sequence[Wanted]) -> ServingError:
    """The error names the steps whose models are missing."""
    steps = [step for step in graph.steps if wanted_by(step) in missing or (step.model, None) in missing]
    message = f"it contains models that are not available: waits for {', '.join(map(str, steps))}"
    models = tuple(dict.fromkeys(name for name, _ in missing))
    return ServingError(StatusCode.UNAVAILABLE, message, Reason.WAITS_FOR_MODELS, models)


def wanted_by(step: ModelStep) -> Wanted:
    """The model of a step."""
    return step.model, step.version


def missing_of(wanted: Iterable[Wanted], resolve: Resolve) -> tuple[Wanted, ...]:
    """The models that are not available now, each once."""
    missing = []
    for item in dict.fromkeys(wanted):
        try:
            resolve(*item).release()
        except ServingError as error:
            if error.code is not StatusCode.NOT_FOUND:
                raise
            missing.append(item)
    return tuple(missing)


def contains(name: str, models: Iterable[str], resolve: Resolve) -> bool:
    """Whether ``name`` is among the models, or inside one that is an ensemble itself."""
    seen: set[str] = set()
    open_names = list(models)
    while open_names:
        model = open_names.pop()
        if model == name:
            return True
        if model in seen:
            continue
        seen.add(model)
        try:
            with resolve(model, None) as handle:
                open_names.extend(inner for inner, _ in handle.servable.traits.composing)
        except ServingError:
            continue
    return False


def model_text(wanted: Wanted) -> str:
    """The text ``model m`` or ``model m version 3``."""
    name, version = wanted
    return f"model {name}" if version is None else f"model {name} version {version}"


def loads_of(wanted: Iterable[Wanted], resolve: Resolve) -> tuple[int, ...]:
    """The load of each model that a call would get now; after that of an ensemble come those of its own models."""
    found: list[int] = []
    for item in wanted:
        with resolve(*item) as handle:
            traits = handle.servable.traits
        found += (traits.load, *loads_of(traits.composing, resolve))
    return tuple(found)
