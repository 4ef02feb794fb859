"""The parameters ``cpu_layout`` and ``cpu_dtype`` of exported programs: a faster layout or type of the weights, checked
against the plain program.

The plain program and the other one answer the same made-up inputs at the load. If they differ by more than rounding, or
one of them fails, the plain one serves, with a line in the log.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tfs_lite.adapters.aoti.machine import cpu_flags
from tfs_lite.adapters.exported.document import ProgramDocument
from tfs_lite.adapters.exported.layout import AUTO, CHANNELS_LAST, PACKED, PLAIN, choose_layout
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import Program, build_program
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.inspect.archive import Archive
from tfs_lite.adapters.pytorch.self_check import made_up
from tfs_lite.adapters.pytorch.tensors import CPU
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, example_shapes
from tfs_lite.core.status import invalid_argument

LAYOUT, DTYPE = "cpu_layout", "cpu_dtype"
BFLOAT16 = "bfloat16"
TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 3e-2
"""The tolerances, in parts of the largest number in an answer."""
_ROWS = 2
_MOST_ROWS = 65
_KNOWN = (PLAIN, CHANNELS_LAST, PACKED, AUTO)
_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of ``/proc/cpuinfo`` for processors that multiply bfloat16."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CpuForm:
    """The form that a config asks for."""

    layout: str = PLAIN
    bfloat16: bool = False

    @property
    def is_plain(self) -> bool:
        return self.layout == PLAIN and not self.bfloat16

    @property
    def tolerance(self) -> float:
        return BFLOAT16_TOLERANCE if self.bfloat16 else TOLERANCE

    def __str__(self) -> str:
        parts = [f"{LAYOUT}={self.layout}"] if self.layout != PLAIN else []
        return ", ".join([*parts, f"{DTYPE}={BFLOAT16}"] if self.bfloat16 else parts)


def wanted_form(parameters: Mapping[str, str]) -> CpuForm:
    """Reads the form. INVALID_ARGUMENT for one that is unknown."""
    layout, dtype = parameters.get(LAYOUT, PLAIN), parameters.get(DTYPE, "")
    if layout not in _KNOWN:
        raise invalid_argument(f'parameters.{LAYOUT} is "{layout}", expected {", ".join(_KNOWN[:-1])} or {AUTO}')
    if dtype not in ("", BFLOAT16):
        raise invalid_argument(f'parameters.{DTYPE} is "{dtype}", expected {BFLOAT16}')
    return CpuForm(layout, dtype == BFLOAT16)


def build_in_form(
    archive: Archive, document: ProgramDocument, signature: Signature, wanted: CpuForm, servable_id: ServableId
) -> Program:
    """The program as ``wanted``, or plain if that does not fit it. Only one of both is in memory at a time. Errors as
    those of ``build_program``."""
    if wanted.bfloat16 and not cpu_flags() & _BFLOAT16_FLAGS:
        logger.warning("%s: %s=%s is left out: this processor does not compute in it", servable_id, DTYPE, BFLOAT16)
        wanted = replace(wanted, bfloat16=False)
    layout = choose_layout(document, wanted.layout, wanted.bfloat16)
    plain = build_program(archive, document, CPU)
    if layout.is_plain:
        logger.info("%s: %s changes nothing", servable_id, wanted)
        return plain
    inputs = _made_up(signature)
    expected, problem = _run(plain, inputs) if inputs else ((), "none are of sizes that it takes")
    del plain
    if problem:
        problem = f"on made-up inputs it fails: {problem}"
    else:
        try:
            changed = build_program(archive, document, CPU, layout=layout)
            answers, problem = _run(changed, inputs)
            difference = 0.0 if problem else _difference(expected, answers)
            if difference > wanted.tolerance:
                problem = f"an answer differs by more than {wanted.tolerance:g} of its largest number"
        except (RuntimeError, UnsupportedProgram) as error:
            problem = sentence(error)
        else:
            if not problem:
                logger.info("%s: %s: %s; answers differ by %.0e at most", servable_id, wanted, layout, difference)
                # a run may have changed a state
                return build_program(archive, document, CPU, layout=layout) if changed.writes else changed
            del changed
    logger.warning("%s stays plain, %s does not fit it: %s", servable_id, wanted, problem)
    return build_program(archive, document, CPU)


def _run(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[Sequence[object], str]:
    """The answers, or why there are none."""
    try:
        with torch.inference_mode():
            return program.forward(*(value.clone() for value in inputs)), ""
    except Exception as error:
        return (), sentence(error)


def _made_up(signature: Signature) -> list[torch.Tensor]:
    """Made-up inputs; none at all if no size that is tried fits the signature."""
    tried = (example_shapes(signature, size) for size in (_ROWS, *range(1, _MOST_ROWS)))
    shapes = next(filter(None, tried), None)
    return [] if shapes is None else made_up(signature, shapes)


def _difference(expected: Sequence[object], answers: Sequence[object]) -> float:
    """The largest one, relative to the largest number of its output; infinite for outputs of other shapes or kinds."""
    worst = 0.0
    for left, right in zip(expected, answers, strict=True):
        if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)) or left.shape != right.shape:
            return math.inf
        first, second = left.to(torch.float64), right.to(torch.float64)
        differs = ~((first == second) | (first.isnan() & second.isnan()))
        if not differs.any():
            continue
        largest = first.nan_to_num(0.0, 0.0, 0.0).abs().max().item()
        found = (first - second)[differs].abs().max().item()
        if not largest or not math.isfinite(found):
            return math.inf
        worst = max(worst, found / largest)
    return worst
