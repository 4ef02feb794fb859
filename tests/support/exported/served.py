"""An exported program as the product serves it, next to the same file as torch loads it: both answer the same bits, or
both refuse.

torch checks sizes in two ways: by the guards of ``ExportedProgram.module()``, which it makes if the file has example
inputs, and by a hook before a module without guards. Neither is the whole: the guards forget that ``8*s0`` is a
multiple of eight, the hook knows nothing of ``guards_code``. What either refuses is refused, with two exceptions: the
hook takes no 0 for a symbol, so that by it 0 is no multiple of eight, and the guards solve ``3*s0 + 1`` and ``8*s0 +
2`` for each other in floats, so that by them 99 is no 98.99999999999999.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tests.support.exported.comparison import same
from tfs_lite.adapters.detect import read_version
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest
from tfs_lite.adapters.pytorch.export import ExportedModel, open_by_torch, open_exported
from tfs_lite.adapters.pytorch.tensors import to_arrays, to_tensor
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.runs import Run, call_inputs

CPU = torch.device("cpu")
Outcome = Sequence[Any] | Exception


@dataclass
class Tally:
    """What came of many comparisons. ``differences`` are lines for people."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts += other.counts
        self.differences += other.differences


def open_served(directory: Path) -> tuple[ExportedModel, str]:
    """The model as a server opens it, and the way that it went. Raises what the opening raises."""
    request = OpenRequest(ServableId("m", 1), read_version(str(directory)), "cpu", trusted=True)
    try:
        return open_exported(request), "direct"
    except NeedsProcess:
        return open_by_torch(request), "torch's loader"


def ask_served(model: ExportedModel, inputs: Sequence[Tensor]) -> Outcome:
    """The outputs in their order, or the refusal: the checks of a request, and then the run."""
    signature = model.signatures[DEFAULT_SIGNATURE]
    arrays = to_arrays(dict(zip(signature.input_names, inputs, strict=True)), CPU)
    try:
        checked = call_inputs(signature, Run(DEFAULT_SIGNATURE, arrays))  # type: ignore[arg-type]
        results = model.run(DEFAULT_SIGNATURE, checked, ())
    except ServingError as error:
        return error
    return [to_tensor(results[name], CPU, share=False) for name in signature.output_names]  # type: ignore[arg-type]


class TorchProgram:
    """The file as torch loads it, with its guards and with its hook."""

    def __init__(self, path: Path, examples: Sequence[Tensor]) -> None:
        program = torch.export.load(path)
        spec = program.call_spec.in_spec
        assert spec is not None
        if program.example_inputs is None:
            program.example_inputs = pytree.tree_unflatten(list(examples), spec)
        self._spec = spec
        self._guarded = program.module()
        self._hooked = program.module(check_guards=False)

    def ask(self, inputs: Sequence[Tensor]) -> tuple[Outcome, Outcome]:
        """(the answer of the guarded module, that of the hooked one)."""
        return self._ask(self._guarded, inputs), self._ask(self._hooked, inputs)

    def _ask(self, module: torch.nn.Module, inputs: Sequence[Tensor]) -> Outcome:
        args, kwargs = pytree.tree_unflatten([value.clone() for value in inputs], self._spec)
        torch.manual_seed(0)
        with torch.inference_mode():
            try:
                return pytree.tree_leaves(module(*args, **kwargs))
            except Exception as error:
                return error


def compare(directory: Path, name: str, examples: Sequence[Tensor], asked: Iterable[Sequence[Tensor]]) -> Tally:
    """Compares ``directory``/model.pt2 for each of the inputs."""
    tally = Tally()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = TorchProgram(directory / "model.pt2", examples)
        except Exception as error:
            tally.counts[f"torch does not load it: {type(error).__name__}"] += 1
            return tally
        try:
            ours, way = open_served(directory)
        except ServingError as error:
            tally.counts[f"not served: {error.status.message.partition(':')[0]:.90}"] += 1
            return tally
        tally.counts[f"programs: {way}"] += 1
        for inputs in asked:
            guarded, hooked = theirs.ask(inputs)
            torch.manual_seed(0)
            answer = ask_served(ours, [value.clone() for value in inputs])
            outcome = _verdict(guarded, hooked, answer)
            tally.counts[outcome] += 1
            if outcome.startswith("DIFFERENT"):
                shapes = [tuple(value.shape) for value in inputs]
                tally.differences.append(
                    f"{name} {shapes}: {outcome}: torch {_shown(guarded)}, {_shown(hooked)}; served {_shown(answer)}"
                )
    return tally


def _verdict(guarded: Outcome, hooked: Outcome, answer: Outcome) -> str:
    refused = isinstance(guarded, Exception) or (isinstance(hooked, Exception) and not _is_mistaken(hooked))
    if isinstance(answer, ServingError):
        if not refused:
            return f"DIFFERENT: {answer.code.name} where torch answers"
        return f"same: refused {answer.code.name}"
    assert not isinstance(answer, Exception)
    if isinstance(guarded, Exception) and not isinstance(hooked, Exception) and _IN_FLOATS.search(str(guarded)):
        guarded, refused = hooked, False
    if refused or isinstance(guarded, Exception):
        return "DIFFERENT: answered where torch refuses"
    tensors = [value for value in guarded if isinstance(value, Tensor)]
    if len(answer) == len(tensors) and all(map(same, tensors, answer)):
        return "same: answered"
    if not isinstance(hooked, Exception) and not all(map(same, guarded, hooked)):
        return "torch answers twice differently"
    return "DIFFERENT: another answer"


def _is_mistaken(error: Exception) -> bool:
    """Whether the hook refuses a size because its symbol would be 0."""
    found = _NOT_OF_THE_FORM.search(str(error))
    return found is not None and int(found[1]) == int(found[2] or 0)


_IN_FLOATS = re.compile(r"Guard failed: .*\d / \d.* == \w+\.size\(\)\[\d\]")
_NOT_OF_THE_FORM = re.compile(r"= (\d+) to be of the form (?:\d+\*)?s\d+(?: \+ (\d+))?,")


def _shown(outcome: Outcome) -> str:
    if isinstance(outcome, Exception):
        code = f" {outcome.code.name}" if isinstance(outcome, ServingError) else ""
        return f"{type(outcome).__name__}{code}({str(outcome).strip():.160})"
    return str([tuple(value.shape) if isinstance(value, Tensor) else value for value in outcome])


INTERNAL = f"same: refused {StatusCode.INTERNAL.name}"
