"""The operators that an exported program may call when it is built directly, and what a call of each one is.

Allowed are PyTorch's own overloads that the dispatcher has a kernel for, arithmetic on sizes, and the higher-order
operators of :data:`HIGHER_ORDER`. Overloads without a kernel exist for TorchScript only; some of them write files. What
reads files, prints, or makes a tensor point to other memory is left out. Everything else is a program for torch's own
loader.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from tfs_lite.adapters.failures import RefusedInputs

MAX_BITS = 64
"""Sizes are whole numbers of 64 bits. Longer ones are no sizes, and their powers would fill the memory."""
_OVERLOAD = re.compile(r"torch\.ops\.(aten|prims|quantized_decomposed)\.(\w+)\.([a-zA-Z]\w*)", re.ASCII)
_NORMALISATION = re.compile(r"torch\.ops\.aten\.\w*(batch|instance)_norm\w*\.\w+")
_TRAINING = ("training", "train", "use_input_stats")
_DENIED = re.compile(r"from_file|save|load|_print|set_\w*|resize\w*|_resize\w*|record_stream|get_gradients", re.ASCII)

Call = Callable[..., Any]


class UnsupportedProgram(Exception):
    """The program has something that only torch's own loader can build; the message says what."""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a program.

    ``overload`` is None for arithmetic on sizes and for a higher-order operator. ``has_graphs`` is True for a
    higher-order operator, whose arguments are functions.
    """

    name: str
    call: Call
    overload: OpOverload[..., Any] | None = None
    has_graphs: bool = False

    @property
    def writes(self) -> bool:
        """Whether every call changes one of its arguments, as its schema says."""
        return self.overload is not None and bool(self.overload._schema.is_mutable)

    def keeps_statistics(self, arguments: Mapping[str, object]) -> bool:
        """Whether a call with these ``arguments`` may write to the running statistics of a normalisation, which its
        schema does not say. An argument that is not known to be False may be True."""
        return _NORMALISATION.fullmatch(self.name) is not None and any(
            arguments.get(name, False) is not False for name in _TRAINING
        )

    @property
    def branches(self) -> bool:
        """Whether a result decides what a call runs."""
        return self.has_graphs and self.name not in _REGIONS


@functools.lru_cache(maxsize=4096)
def find_operator(target: str) -> Operator:
    """The operator that the file calls ``target``. UnsupportedProgram if it is not allowed or not known."""
    if target in SIZE_FUNCTIONS:
        return Operator(target, SIZE_FUNCTIONS[target])
    if target in HIGHER_ORDER:
        return Operator(target, HIGHER_ORDER[target], has_graphs=True)
    found = _OVERLOAD.fullmatch(target)
    if found is None or _DENIED.fullmatch(found[2]):
        raise UnsupportedProgram(f"operator {target:.80} is not among those that are built directly")
    packet = getattr(getattr(torch.ops, found[1]), found[2], None)
    overload = getattr(packet, found[3], None) if isinstance(packet, OpOverloadPacket) else None
    if not isinstance(overload, OpOverload) or not torch._C._dispatch_has_kernel(_dispatch_name(overload)):
        raise UnsupportedProgram(f"operator {target:.80} is not known to torch {torch.__version__}")
    return Operator(target, _METHODS.get(target, overload._op), overload)


def _dispatch_name(overload: OpOverload[..., Any]) -> str:
    schema = overload._schema
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name


_ASSERTION = re.compile(r"Runtime assertion failed for expression (.+) on node '\w+'", re.DOTALL)


def refusal(message: str) -> RefusedInputs:
    """The exception that a program's own assertion raises."""
    found = _ASSERTION.fullmatch(message)
    if found is None:
        return RefusedInputs(message)
    computed = " and ".join(dict.fromkeys(re.findall(r"\bu\d+\b", found[1])))
    where = f", where {computed} is what it computes from them" if computed else ""
    return RefusedInputs(f"{found[1]} does not hold{where}")


def _assert_scalar(value: Any, message: str) -> None:
    if not value:
        raise refusal(message)


def _assert_tensor(value: torch.Tensor, message: str) -> None:
    """Asserts that a value is true; on a GPU the server does not wait for the value."""
    if not value.is_cpu:
        torch.ops.aten._assert_async.msg(value, message)
    elif not value:
        raise refusal(message)


_METHODS: Mapping[str, Call] = {
    "torch.ops.aten.sym_size.int": torch.Tensor.size,
    "torch.ops.aten.sym_stride.int": torch.Tensor.stride,
    "torch.ops.aten._assert_scalar.default": _assert_scalar,
    "torch.ops.aten._assert_async.msg": _assert_tensor,
}
"""Functions that do the same as the operator: methods of tensors take a tenth of the time, and a failed assertion is
the fault of the request."""


def _bounded(function: Callable[[Any, Any], Any]) -> Call:
    """The function of two numbers; OverflowError if the result is a whole number of more than 64 bits."""

    def call(a: Any, b: Any) -> Any:
        result = function(a, b)
        if isinstance(result, int) and result.bit_length() > MAX_BITS:
            raise OverflowError("a size has more than 64 bits")
        return result

    return call


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * b > MAX_BITS + a.bit_length():
        raise OverflowError("a size has more than 64 bits")
    return operator.pow(a, b)


def _left_shift(a: Any, b: Any) -> Any:
    if isinstance(b, int) and b > MAX_BITS:
        raise OverflowError("a size has more than 64 bits")
    return operator.lshift(a, b)


_OF_OPERATOR = "eq ne le ge lt gt neg pos add sub floordiv mod truediv and_ or_ not_ rshift abs"
_OF_MATH = "trunc ceil floor sqrt pow isnan isinf"
_OF_TORCH = "sym_not sym_int sym_float sym_ite sym_max sym_min sym_sqrt"

SIZE_FUNCTIONS: Mapping[str, Call] = {
    **{f"_operator.{name}": getattr(operator, name) for name in _OF_OPERATOR.split()},
    **{f"math.{name}": getattr(math, name) for name in _OF_MATH.split()},
    **{f"torch.{name}": getattr(torch, name) for name in _OF_TORCH.split()},
    "_operator.mul": _bounded(operator.mul),
    "_operator.pow": _bounded(_power),
    "_operator.lshift": _bounded(_left_shift),
}
"""Arithmetic on sizes by the name that the file has for it. Arguments are numbers and tensors."""


def _cond(predicate: Any, if_true: Call, if_false: Call, operands: Sequence[Any] = ()) -> Any:
    return if_true(*operands) if predicate else if_false(*operands)


def _while_loop(condition: Call, body: Call, carried: Sequence[Any], more: Sequence[Any] = ()) -> tuple[Any, ...]:
    """Results of a loop without a single turn are copies, so that they are never an input."""
    if not condition(*carried, *more):
        return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in carried)
    going = True
    while going:
        carried = body(*carried, *more)
        going = bool(condition(*carried, *more))
    return tuple(carried)


def _map(body: Call, mapped: Sequence[torch.Tensor], more: Sequence[Any] = ()) -> tuple[torch.Tensor, ...]:
    """Calls ``body`` with each row and stacks the results. RuntimeError without rows, as torch has it."""
    rows = [body(*row, *more) for row in zip(*(value.unbind(0) for value in mapped), strict=True)]
    if not rows:
        raise RuntimeError("map needs at least one row")
    return tuple(torch.stack(results) for results in zip(*rows, strict=True))


def _with_grad(enabled: bool, body: Call, *arguments: Any) -> Any:
    with torch.set_grad_enabled(enabled):
        return body(*arguments)


def _with_autocast(device: str, dtype: Any, enabled: bool, cache: bool | None, body: Call, *arguments: Any) -> Any:
    with torch.autocast(device, dtype, enabled, cache):
        return body(*arguments)


HIGHER_ORDER: Mapping[str, Call] = {
    "torch.ops.higher_order.cond": _cond,
    "torch.ops.higher_order.while_loop": _while_loop,
    "torch.ops.higher_order.map_impl": _map,
    "torch.ops.higher_order.wrap_with_set_grad_enabled": _with_grad,
    "torch.ops.higher_order.wrap_with_autocast": _with_autocast,
}
"""Operators that run graphs, as plain Python: what torch does as well once a program is not traced."""

_REGIONS = frozenset(name for name in HIGHER_ORDER if ".wrap_with_" in name)
"""Higher-order operators that run their one graph exactly once."""
