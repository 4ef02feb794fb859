"""The parameter ``cpu_layout`` of exported programs: a faster layout of the weights, checked against the plain program.

The plain program and the other one answer the same made-up inputs at the load. If they differ by more than rounding, or
one of them fails, the plain one serves, with a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch

from tfs_lite.adapters.exported.document import Document
from tfs_lite.adapters.exported.layout import AUTO, CHANNELS_LAST, PACKED, PLAIN, choose_layout
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import Program, build_program
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.inspect.archive import Archive
from tfs_lite.adapters.pytorch.tensors import CPU, TORCH_DTYPES
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import Signature, SymbolicDim
from tfs_lite.core.status import invalid_argument

PARAMETER = "cpu_layout"
TOLERANCE = 1e-4
"""Of the largest number in an answer."""
_ROWS = 2
_KNOWN = (PLAIN, CHANNELS_LAST, PACKED, AUTO)
logger = logging.getLogger(__name__)


def wanted_layout(parameters: Mapping[str, str]) -> str:
    """INVALID_ARGUMENT for an unknown one."""
    wanted = parameters.get(PARAMETER, PLAIN)
    if wanted not in _KNOWN:
        raise invalid_argument(f'parameters.{PARAMETER} is "{wanted}", expected {", ".join(_KNOWN[:-1])} or {AUTO}')
    return wanted


def build_in_layout(
    archive: Archive, document: Document, signature: Signature, wanted: str, servable_id: ServableId
) -> Program:
    """The program in the layout ``wanted``, or plain if that does not fit it. Only one of both is in memory at a time.
    Errors as those of ``build_program``."""
    layout = choose_layout(document, wanted)
    plain = build_program(archive, document, CPU)
    if layout.is_plain:
        logger.info("%s: %s=%s changes nothing", servable_id, PARAMETER, wanted)
        return plain
    inputs = _made_up(signature)
    expected, problem = _run(plain, inputs)
    del plain
    if problem:
        problem = f"on made-up inputs it fails: {problem}"
    else:
        try:
            changed = build_program(archive, document, CPU, layout=layout)
            answers, problem = _run(changed, inputs)
            problem = problem or _difference(expected, answers)
        except (RuntimeError, UnsupportedProgram) as error:
            problem = sentence(error)
        else:
            if not problem:
                logger.info("%s: %s=%s: %s", servable_id, PARAMETER, wanted, layout)
                # a run may have changed a state
                return build_program(archive, document, CPU, layout=layout) if changed.writes else changed
            del changed
    logger.warning("%s stays plain, %s=%s does not fit it: %s", servable_id, PARAMETER, wanted, problem)
    return build_program(archive, document, CPU)


def _run(program: Program, inputs: Sequence[torch.Tensor]) -> tuple[Sequence[object], str]:
    """The answers, or why there are none."""
    try:
        with torch.inference_mode():
            return program.forward(*(value.clone() for value in inputs)), ""
    except Exception as error:
        return (), sentence(error)


def _made_up(signature: Signature) -> list[torch.Tensor]:
    """Inputs that most models take: random numbers between 0 and 1, integers and truth values of 1."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for spec in signature.inputs:
        shape = [min(dim.maximum or _ROWS, _ROWS) if isinstance(dim, SymbolicDim) else dim for dim in spec.shape or ()]
        dtype = TORCH_DTYPES[spec.dtype]
        value = (
            torch.rand(shape, generator=generator) if dtype.is_floating_point or dtype.is_complex else torch.ones(shape)
        )
        inputs.append(value.to(dtype))
    return inputs


def _difference(expected: Sequence[object], answers: Sequence[object]) -> str:
    """Empty if the answers are the same but for rounding."""
    for index, (left, right) in enumerate(zip(expected, answers, strict=True)):
        if not (isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor)) or left.shape != right.shape:
            return f"output {index} has another shape"
        first, second = left.to(torch.float64), right.to(torch.float64)
        largest = first.nan_to_num(0.0, 0.0, 0.0).abs().max().item() if first.numel() else 0.0
        if not torch.allclose(first, second, rtol=0.0, atol=TOLERANCE * largest, equal_nan=True):
            return f"output {index} differs by more than {TOLERANCE} of its largest number"
    return ""
