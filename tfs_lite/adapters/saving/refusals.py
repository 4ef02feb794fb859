"""Why a module cannot be exported, in one paragraph: which input, output or line it is, and what to write instead.

torch's own errors are made for those who know its compiler. The usual ones are recognised here by type or text and said
anew; an error that is not recognised keeps its first sentence, with the line of the module at which it happened.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from tfs_lite.adapters.failures import sentence, story
from tfs_lite.adapters.saving.examples import BATCH, Example
from tfs_lite.core.status import ServingError, failed_precondition

logger = logging.getLogger(__name__)
_NOT_OF_THE_MODULE = (os.path.dirname(torch.__file__), os.path.dirname(__file__), contextlib.__file__)
_CONSTANT = re.compile(r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)")
_EQUAL = re.compile(r"The values of (\w+) = .* and (\w+) = .* must always be equal")
_FIX = re.compile(r"^ *(\w+) = (.+)$", re.MULTILINE)


@contextlib.contextmanager
def without_torch_logs() -> Iterator[None]:
    """Keeps what torch prints about an export, such as graphs, out of the author's terminal."""
    loggers = [logging.getLogger(name) for name in ("torch.fx", "torch.export", "torch._export", "torch._dynamo")]
    before = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.filterwarnings("ignore", "The tensor attributes? .* assigned during export")
            for kind in (DeprecationWarning, FutureWarning):  # meant for torch itself
                warnings.filterwarnings("ignore", category=kind)
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)


def refusal(
    module: torch.nn.Module, given: Example, example: Example, dynamic_shapes: Any, error: Exception
) -> ServingError:
    """The FAILED_PRECONDITION for a failed export. ``given`` are the author's examples, ``example`` those of the
    export: the same, or twice as many rows."""
    logger.debug("%s cannot be exported", type(module).__name__, extra={"story": story(error)})
    if isinstance(error, ServingError):
        return error
    kind = type(module).__name__
    reason = _fails_itself(module, given, example) or _reason(error, _places(example, dynamic_shapes))
    return failed_precondition(f"{kind} cannot be exported: {reason}")


def layers_of(module: torch.nn.Module) -> dict[str, str]:
    """The class of each layer, by its name."""
    return {name: type(layer).__name__ for name, layer in module.named_modules()}


def check_layers(module: torch.nn.Module, before: Mapping[str, str]) -> None:
    """Raises FAILED_PRECONDITION for a module that has exchanged layers while it was called: by the size of the example
    it has chosen what the program would do with all sizes."""
    after = layers_of(module)
    for name in before:
        if after.get(name) != before[name]:
            kind = type(module).__name__
            raise failed_precondition(
                f"{kind} cannot be exported: called with the example it exchanges {name} ({before[name]} becomes "
                f"{after.get(name, 'nothing')}), and the program would do so for all sizes. Choose before you save; "
                'a BigBird attends to everything after model.set_attention_type("original_full")'
            )


def advised(module: torch.nn.Module, error: ServingError) -> ServingError:
    """An error of opening what was exported, with what to write instead, if that is known."""
    if "transformers.grouped_mm" not in str(error):
        return error
    return failed_precondition(
        f"{type(module).__name__} cannot be exported: its experts run an operator of transformers, and a program that "
        "needs no trust has PyTorch's alone. Choose them before you save it: "
        'model.set_experts_implementation("batched_mm")'
    )


def _fails_itself(module: torch.nn.Module, given: Example, example: Example) -> str:
    """Why the module fails without any export; empty if it does not."""
    fails = _call(module, given)
    if fails:
        takes = ", ".join(f"{name} {_text(value)}" for name, value in given.tensors.items())
        return (
            f"called with the example inputs ({takes}) the module itself fails: {fails}. Call it with them before you "
            "save it, and change example_inputs until it answers; a tuple gives forward's parameters in their order, "
            "a dict gives them by name"
        )
    fails = "" if given is example else _call(module, example)
    if fails:
        return (
            f"the module takes the one row of the example, but not two such rows in one batch: {fails}. Either let "
            "forward take any number of rows (its first dimension), or save it with dynamic_batch=False"
        )
    return ""


def _call(module: torch.nn.Module, example: Example) -> str:
    """The error of one call; empty if there is none."""
    own = example.replace({name: value.clone() for name, value in example.tensors.items()})
    try:
        with torch.no_grad():
            module(*own.args, **own.kwargs)
    except Exception as error:
        return f"{_line(error)}{type(error).__name__}: {sentence(error)}"
    return ""


def _text(value: torch.Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def _reason(error: Exception, places: Mapping[str, str]) -> str:
    message, line = str(error), _line(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return (
            f"{line}the code decides by the values in a tensor, and a program has one way for all values. Compute both "
            "results and choose with torch.where(condition, a, b), or with torch.cond where both cost much. Decisions "
            "are `if` and `while` on a tensor, .item(), int(), float() and bool() of one, and the size of a selection "
            "such as x[x > 0], which a product with a mask can replace"
        )
    if found := _CONSTANT.search(message):
        return _constant(found[1], found[2], places)
    if found := _EQUAL.search(message):
        first, second = (places.get(name, f'"{name}"') for name in found.groups())
        return (
            f"{first} and {second} may have any size, each its own, but the module works only if both are the same. "
            f'Give them one name: "{found[2]}" for both in dynamic_dims'
        )
    if "torch.classes.quantized" in message:
        return (
            "its layers are quantised with torch.ao.quantization, and the exporter cannot read their weights. Save the "
            "module that was quantised, or serve this one as TorchScript: torch.jit.script(module).save(...) writes "
            "the model.pt of a version"
        )
    if "sparse" in message.lower() and isinstance(error, NotImplementedError | RuntimeError):
        return (
            f"{line}a program does not make or keep sparse tensors ({sentence(error)}). Compute with dense ones, and "
            "let forward return them"
        )
    if "Constraints violated" in message:
        return _constraint(message, places)
    if "numpy" in message:
        return (
            f"{line}the code leaves torch for NumPy ({sentence(error)}), and a program can only hold what torch "
            "computes. Write this step with torch's functions, or do it before the request and give the result as an "
            "input"
        )
    return f"{line}{sentence(error)}"


def _constant(symbol: str, size: str, places: Mapping[str, str]) -> str:
    place = places.get(symbol, f'the dimension "{symbol}"')
    if symbol == BATCH:  # the example's rows, or two for an example of one row
        kept = "program would take one number of rows only"
        remedy = "If it is to take the example's number of rows and no other, save it with dynamic_batch=False"
    else:
        kept = f"module works for {size} only, the size in the example"
        remedy = f'If {size} is the only size that you need, leave "{symbol}" out of dynamic_dims'
    return (
        f"{place} is to have any size, but the {kept}. The reason is a "
        f"number in the code (reshape({size}, -1) in place of reshape(x.shape[0], -1)), or Python code that goes "
        "through the dimension: a loop over x, a list of as many tensors, len(x), x.tolist(). Write it as one "
        f"operation on the whole tensor. {remedy}"
    )


def _constraint(message: str, places: Mapping[str, str]) -> str:
    """The module takes only some sizes; torch may know which."""
    fixes = dict(_FIX.findall(message.partition("Suggested fixes:")[2].partition("\n\n")[0]))
    named = {name: fix for name, fix in fixes.items() if name in places}
    for name, fix in named.items():
        if "Dim(" in fix:
            write = f"torch.export.{fix}"
        elif found := re.search(r"_\w+", fix):
            write = fix.replace(found[0], f'torch.export.Dim("{found[0]}")')
        else:
            continue
        return (
            f"{places[name]} is to have any size, but the module takes only some sizes. In dynamic_dims, write {write} "
            f'in place of "{name}", which says which ones; or leave it out if one size is enough'
        )
    asked = ", ".join(places.values()) or "a dimension"
    return (
        f"the module takes only some sizes where any were asked for ({asked}): {_violation(message)}. "
        "Leave these dimensions out of dynamic_dims, or save with dynamic_batch=False"
    )


def _violation(message: str) -> str:
    lines = [line.strip(" -") for line in message.splitlines() if line.startswith("  - ")]
    return lines[0][:300] if lines else message.splitlines()[0]


def _places(example: Example, dynamic_shapes: Any) -> dict[str, str]:
    """The places of each dimension by its name, such as ``dimension 1 of input_ids and mask``, as far as they are
    known."""
    shapes = dynamic_shapes
    if isinstance(shapes, tuple | list):
        shapes = dict(zip(example.names, shapes, strict=False))
    found: dict[tuple[str, int], list[str]] = {}
    for name, dims in shapes.items() if isinstance(shapes, Mapping) else ():
        for index, dim in dims.items() if isinstance(dims, Mapping) else ():
            found.setdefault((getattr(dim, "__name__", ""), index), []).append(name)
    texts: dict[str, list[str]] = {}
    for (symbol, index), names in found.items():
        texts.setdefault(symbol, []).append(f"dimension {index} of {' and '.join(names)}")
    return {symbol: f'{" and ".join(parts)} ("{symbol}")' for symbol, parts in texts.items()}


def _line(error: BaseException) -> str:
    """The line of the module at which it failed, to begin a sentence with; empty if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if os.path.isfile(frame.filename) and not frame.filename.startswith(_NOT_OF_THE_MODULE):
            if frame.filename == _INSPECT:
                return ""
            return f"at line {frame.lineno} of {os.path.basename(frame.filename)} (`{(frame.line or '').strip()}`) "
    return ""


_INSPECT = contextlib.__file__.replace("contextlib", "inspect")
