"""Random small programs: a chain of steps on one to three inputs with a dynamic number of rows.

    python -m tests.support.exported.random_programs --seeds 0:5000

A step takes earlier values and gives a new one: arithmetic, reductions, views, casts, products, joins, indexing,
layers, sizes, writes to values, inputs and buffers, regions. While a program is drawn, every step runs at two numbers
of rows, and one that fails at either is left out; so most programs can be exported. The command exports the programs of
these seeds, loads each file with torch and directly, and compares every bit at several sizes.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import argparse
import math
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from tests.support.exported.comparison import assert_same, open_directly, open_with_torch
from tests.support.exported.zoo_program import floats, numbers
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.core.status import ServingError

SIZES = (0, 1, 3, 8)
DRAWN_AT = (4, 7)
"""The numbers of rows at which steps are tried; the first is the example of the export."""
MOST_NUMBERS = 4096
WIDTHS = (1, 2, 3, 4)
DTYPES = (
    (torch.float32,) * 6
    + (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int64, torch.int32)
    + (torch.uint8, torch.bool, torch.complex64)
)
Apply = Callable[..., Any]


@dataclass(frozen=True)
class Step:
    """``apply(module, *values)`` gives the next value, from those with the numbers ``operands``."""

    apply: Apply
    operands: tuple[int, ...]


@dataclass(frozen=True)
class InputSpec:
    dtype: torch.dtype
    shape: tuple[int, ...]

    def make(self, size: int, seed: int) -> Tensor:
        shape = (size, *self.shape)
        if self.dtype.is_floating_point or self.dtype.is_complex:
            return floats(*shape, dtype=self.dtype, seed=seed)
        return numbers(2 if self.dtype is torch.bool else 7, *shape, dtype=self.dtype, seed=seed)


class Steps(nn.Module):
    """Runs steps one after the other. Layers and buffers are added while they are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.results = list[Step](), list[int]()
        self.layers, self.nested = nn.ModuleList(), False

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        values = [value for value in (x, y, z) if value is not None]
        for step in self.steps:
            values.append(self.value_of(step, values))
        results = tuple(values[number] for number in self.results)
        return {"first": results[0], "rest": [None, results[1:]]} if self.nested else results

    def value_of(self, step: Step, values: Sequence[Any]) -> Any:
        return step.apply(self, *(values[number] for number in step.operands))


class RandomProgram:
    """The program of a source of random choices."""

    def __init__(self, random: Random, most_steps: int = 14) -> None:
        self._random = random
        self.inputs = [
            InputSpec(random.choice(DTYPES), tuple(random.choice(WIDTHS) for _ in range(random.randint(0, 2))))
            for _ in range(random.randint(1, 3))
        ]
        self.module = Steps()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._draw(random.randint(1, most_steps))
        self._reset()

    def make(self, size: int) -> list[Tensor]:
        return [spec.make(size, seed) for seed, spec in enumerate(self.inputs)]

    def save(self, path: Path) -> Path:
        """Exports the program. Raises what ``torch.export`` raises."""
        args = tuple(self.make(DRAWN_AT[0]))
        dynamic = {name: {0: Dim.DYNAMIC} for name, _ in zip("xyz", args, strict=False)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(self.module, args, dynamic_shapes=dynamic)
            program.example_inputs = None
            torch.export.save(program, path)
        return path

    def _draw(self, count: int) -> None:
        runs = [self.make(size) for size in DRAWN_AT]
        for _ in range(4 * count):
            if len(self.module.steps) == count:
                break
            layers, buffers = len(self.module.layers), set(dict(self.module.named_buffers()))
            try:
                step = self._step(runs[0])
                added = [self.module.value_of(step, values) for values in runs]
            except (RuntimeError, ValueError, TypeError, IndexError, ZeroDivisionError, NotImplementedError):
                added = []
            if not added or not _of_one_kind(added):
                del self.module.layers[layers:]
                for name in set(dict(self.module.named_buffers())) - buffers:
                    delattr(self.module, name)
                continue
            self.module.steps.append(step)
            for values, value in zip(runs, added, strict=True):
                values.append(value)
        drawn = len(runs[0])
        recent = range(max(0, drawn - 6), drawn)
        self.module.results = [drawn - 1, *(self._random.choice(recent) for _ in range(self._random.randint(0, 3)))]
        self.module.nested = self._random.random() < 0.2

    def _step(self, values: Sequence[Any]) -> Step:
        tensors = [number for number, value in enumerate(values) if isinstance(value, Tensor)]
        recent = [*tensors[-4:], self._random.choice(tensors)]
        sizes = [number for number, value in enumerate(values) if isinstance(value, int)]
        if sizes and self._random.random() < 0.15:
            function = self._random.choice(BY_SIZE)
            given = self._random.choice(recent), self._random.choice(sizes)
            return Step(lambda module, x, size: function(x, size), given)
        family = self._random.choices(list(FAMILIES), [weight for _, weight in FAMILIES.values()])[0]
        make, _ = FAMILIES[family]
        operands = self._random.choices(recent, k=3)
        apply, taken = make(self._random, self.module, [values[number] for number in operands])
        return Step(apply, tuple(operands[:taken]))

    def _reset(self) -> None:
        """Undoes what drawing wrote to the buffers."""
        for name, buffer in self.module.named_buffers():
            with torch.no_grad():
                buffer.copy_(_initial(int(name.removeprefix("buffer")), buffer))


def _of_one_kind(values: Sequence[Any]) -> bool:
    """Whether the values at two sizes are tensors of one rank and a moderate size, or sizes."""
    if all(isinstance(value, Tensor) for value in values):
        return len({value.dim() for value in values}) == 1 and max(value.numel() for value in values) <= MOST_NUMBERS
    return all(isinstance(value, int) for value in values)


# Families of steps: each draws a function of the module and the first few of three given tensors.

Drawn = tuple[Apply, int]
UNARY: tuple[Callable[[Tensor], Any], ...] = (
    torch.relu, torch.neg, torch.abs, torch.exp, torch.sin, torch.tanh, torch.sigmoid, torch.floor, torch.sqrt,
    torch.reciprocal, torch.square, torch.sign, functional.gelu, functional.silu, torch.logical_not, torch.isnan,
    torch.bitwise_not, torch.log1p, torch.round, torch.erf, torch.rsqrt, torch.isfinite, torch.nan_to_num,
    functional.softplus, functional.hardtanh, torch.conj, torch.angle,
)  # fmt: skip
BINARY: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.eq, torch.lt, torch.ge, torch.ne,
    torch.logical_and, torch.logical_xor, torch.bitwise_xor, torch.atan2, torch.fmod, torch.remainder,
    torch.floor_divide, torch.hypot, torch.fmax, torch.copysign, torch.fmin, torch.pow,
)  # fmt: skip
BY_SCALAR: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, c: x + c, lambda x, c: c - x, lambda x, c: x * c, lambda x, c: x / c, lambda x, c: x // c,
    lambda x, c: x % c, lambda x, c: x**2, lambda x, c: x > c, lambda x, c: x.clamp(min=c), lambda x, c: c == x,
    lambda x, c: torch.add(x, x, alpha=c), lambda x, c: torch.where(x > c, x, c), lambda x, c: torch.full_like(x, c),
)  # fmt: skip
REDUCTIONS: tuple[Callable[[Tensor, int, bool], Any], ...] = (
    lambda x, d, k: x.sum(d, keepdim=k), lambda x, d, k: x.mean(d, keepdim=k), lambda x, d, k: x.amax(d, keepdim=k),
    lambda x, d, k: x.prod(d, keepdim=k), lambda x, d, k: x.any(d, keepdim=k), lambda x, d, k: x.argmax(d, keepdim=k),
    lambda x, d, k: x.var(d, keepdim=k), lambda x, d, k: x.logsumexp(d, keepdim=k), lambda x, d, k: x.cumsum(d),
    lambda x, d, k: x.softmax(d), lambda x, d, k: x.sort(d, descending=k).values, lambda x, d, k: x.argsort(d),
    lambda x, d, k: x.topk(1, d, largest=k).indices, lambda x, d, k: x.min(d, keepdim=k)[int(k)],
    lambda x, d, k: x.norm(dim=d, keepdim=k), lambda x, d, k: x.all(), lambda x, d, k: x.sum(), lambda x, d, k: x.std(),
    lambda x, d, k: x.cumprod(d), lambda x, d, k: x.count_nonzero(d), lambda x, d, k: x.cummax(d).values,
)  # fmt: skip
VIEWS: tuple[Callable[[Tensor, int, int], Any], ...] = (
    lambda x, d, n: x.unsqueeze(d), lambda x, d, n: x.squeeze(d), lambda x, d, n: x.transpose(d, -1),
    lambda x, d, n: x.flatten(), lambda x, d, n: x.reshape(x.shape[0], -1), lambda x, d, n: x.movedim(d, 0),
    lambda x, d, n: x.select(d, 0), lambda x, d, n: x[..., :n], lambda x, d, n: x[::n], lambda x, d, n: x[1:],
    lambda x, d, n: x.flip(d), lambda x, d, n: x.roll(n, d), lambda x, d, n: x.expand(n, *x.shape),
    lambda x, d, n: x.split(2, d)[-1], lambda x, d, n: x.chunk(n, d)[0], lambda x, d, n: x.unbind(d)[n % 2],
    lambda x, d, n: x.contiguous(), lambda x, d, n: x.permute(*reversed(range(x.dim()))), lambda x, d, n: x.mT,
    lambda x, d, n: x.unfold(d, n, 1), lambda x, d, n: x.diagonal(0, 0, -1), lambda x, d, n: x.repeat_interleave(n, d),
    lambda x, d, n: functional.pad(x, (n, 1)), lambda x, d, n: x.tril(), lambda x, d, n: torch.view_as_real(x),
    lambda x, d, n: x.real, lambda x, d, n: x.detach(), lambda x, d, n: x.narrow(d, 0, n), lambda x, d, n: x[-1],
    lambda x, d, n: x.tensor_split(n, d)[0], lambda x, d, n: x.unflatten(d, (-1, n)), lambda x, d, n: x.view(-1, n),
)  # fmt: skip
JOINS: tuple[Callable[[Tensor, Tensor, int], Any], ...] = (
    lambda x, y, d: torch.cat([x, y], d), lambda x, y, d: torch.stack([x, y], d), lambda x, y, d: torch.cat([x, x, y]),
    lambda x, y, d: torch.where(x > 0, x, y), lambda x, y, d: torch.where(y.bool(), x, 0), lambda x, y, d: x @ y.mT,
    lambda x, y, d: x.mT @ y, lambda x, y, d: torch.outer(x.flatten()[:5], y.flatten()[:5]),
    lambda x, y, d: x.masked_fill(y > 0, 2), lambda x, y, d: x.expand_as(y), lambda x, y, d: x.type_as(y),
    lambda x, y, d: torch.einsum("i...,i...->i", x, y), lambda x, y, d: x.gather(d, y.argsort(d)),
    lambda x, y, d: x.index_select(0, (y.flatten() != 0).long()), lambda x, y, d: x.reshape(y.shape),
    lambda x, y, d: x[(y.flatten() * 0).long()], lambda x, y, d: x.scatter(0, torch.zeros_like(y, dtype=torch.long), y),
    lambda x, y, d: x.new_zeros(x.shape).scatter_add(0, y.argsort(0), x), lambda x, y, d: x.addcmul(y, y, value=2),
    lambda x, y, d: torch.broadcast_tensors(x, y)[d % 2], lambda x, y, d: torch.bucketize(x, y.flatten().sort().values),
)  # fmt: skip
SIZES_OF: tuple[Callable[[Tensor], Any], ...] = (
    lambda x: x + x.shape[0], lambda x: x / x.shape[0], lambda x: x.new_ones(x.shape[0], 2),
    lambda x: x.shape[0] * 2 + 1,
    lambda x: torch.arange(x.shape[0]), lambda x: x[: x.shape[0] // 2], lambda x: x.expand(x.shape[0], *x.shape),
    lambda x: torch.zeros(x.shape[0] + 1, dtype=x.dtype), lambda x: x * (x.shape[0] % 3), lambda x: x.numel(),
    lambda x: x.reshape(x.shape[0] * x.shape[-1], -1), lambda x: torch.full((2,), x.shape[0] / 2), lambda x: x.shape[0],
    lambda x: x.view(*x.shape, 1), lambda x: x * torch.sym_max(x.shape[0], 3), lambda x: x - x.shape[0] ** 2,
    lambda x: torch.arange(x.shape[0], 0, -1) // 2, lambda x: x.new_empty(x.shape[0], 0), lambda x: x * -x.shape[0],
)  # fmt: skip
BY_SIZE: tuple[Callable[[Tensor, int], Any], ...] = (
    lambda x, size: x + size, lambda x, size: x[:size], lambda x, size: x.new_full((size,), 2),
    lambda x, size: size + 1, lambda x, size: x.reshape(size, -1), lambda x, size: x / size,
    lambda x, size: x.unsqueeze(0).expand(size, *x.shape), lambda x, size: size // 2,
    lambda x, size: torch.arange(size) * 2, lambda x, size: size * x.shape[0], lambda x, size: x[-size:],
)  # fmt: skip
WRITES: tuple[Callable[[Tensor, Tensor, int], Any], ...] = (
    lambda x, y, d: x.add_(1), lambda x, y, d: x.mul_(y), lambda x, y, d: x.copy_(y), lambda x, y, d: x.zero_(),
    lambda x, y, d: x.select(d, 0).fill_(3), lambda x, y, d: x[::2].mul_(2), lambda x, y, d: x.clamp_(max=1),
    lambda x, y, d: x.masked_fill_(y > 0, 1), lambda x, y, d: x.relu_(), lambda x, y, d: x.t().add_(y),
    lambda x, y, d: x.index_fill_(d, torch.tensor([0]), 5), lambda x, y, d: x.view(-1).sub_(1),
    lambda x, y, d: x.index_put_((torch.tensor([0]),), y[0], accumulate=True), lambda x, y, d: x.neg_(),
    lambda x, y, d: x.sub_(y, alpha=2), lambda x, y, d: x.cumsum_(d),
)  # fmt: skip


def _constant(random: Random) -> int | float | bool:
    return random.choice((2, 3, -1, 0, 0.5, -1.5, 1e-3, True, math.inf))


def _unary(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function = random.choice(UNARY)
    return lambda module, x: function(x), 1


def _binary(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function = random.choice(BINARY)
    return lambda module, x, y: function(x, y), 2


def _by_scalar(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function, constant = random.choice(BY_SCALAR), _constant(random)
    return lambda module, x: function(x, constant), 1


def _reduction(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function, dim, keep = random.choice(REDUCTIONS), random.randint(-1, 1), random.random() < 0.5
    return lambda module, x: function(x, dim, keep), 1


def _view(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function, dim, number = random.choice(VIEWS), random.randint(-1, 1), random.randint(1, 3)
    return lambda module, x: function(x, dim, number), 1


def _join(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function, dim = random.choice(JOINS), random.randint(-1, 1)
    return lambda module, x, y: function(x, y, dim), 2


def _cast(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    dtype = random.choice(DTYPES)
    return lambda module, x: x.to(dtype), 1


def _size(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    function = random.choice(SIZES_OF)
    return lambda module, x: function(x), 1


def _write(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    """To a new copy, or, less often, to a value that others see."""
    function, dim, is_copied = random.choice(WRITES), random.randint(-1, 1), random.random() < 0.7

    def apply(module: Steps, x: Tensor, y: Tensor) -> Any:
        target = x.clone() if is_copied else x
        function(target, y, dim)
        return target

    return apply, 2


def _layer(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    width, number = values[0].shape[-1], len(module.layers)
    torch.manual_seed(number)
    made = random.choice(
        (nn.Linear(width, 3), nn.LayerNorm(width), nn.Embedding(7, 2), nn.PReLU(), nn.Conv1d(width, 2, 1))
    )
    module.layers.append(made.eval())

    def apply(module: Steps, x: Tensor) -> Any:
        if isinstance(made, nn.Conv1d):
            return module.layers[number](x.float().reshape(-1, width, 1))
        return module.layers[number](x.long() % 7 if isinstance(made, nn.Embedding) else x.float())

    return apply, 1


def _initial(number: int, like: Tensor) -> Tensor:
    return torch.full_like(like, number + 1)


def _state(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    """A buffer that is written and returned, or read."""
    number, kind = random.randrange(2), random.randrange(4)
    name = f"buffer{number}"
    if not hasattr(module, name):
        buffer = _initial(number, torch.zeros(random.choice(WIDTHS)))
        module.register_buffer(name, buffer, persistent=random.random() < 0.7)

    def apply(module: Steps, x: Tensor) -> Any:
        buffer = getattr(module, name)
        if kind == 0:
            return buffer.add_(x.float().sum())
        if kind == 1:
            setattr(module, name, buffer * 2 - x.float().mean())
            return getattr(module, name)
        if kind == 2:
            buffer[0] = x.shape[0]
            return buffer.clone()
        return x.float().unsqueeze(-1) * buffer

    return apply, 1


def _region(random: Random, module: Steps, values: Sequence[Tensor]) -> Drawn:
    kind, function = random.randrange(3), random.choice(UNARY)

    def apply(module: Steps, x: Tensor) -> Any:
        if kind == 0:
            with torch.no_grad():
                return function(x) + 1
        if kind == 1:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return function(x) @ x.mT
        return torch.cond(x.sum() > 0, lambda v: v.sin(), lambda v: v * 2.0, (x,))

    return apply, 1


FAMILIES: dict[str, tuple[Callable[[Random, Steps, Sequence[Tensor]], Drawn], int]] = {
    "unary": (_unary, 14),
    "binary": (_binary, 16),
    "scalar": (_by_scalar, 10),
    "reduction": (_reduction, 12),
    "view": (_view, 20),
    "join": (_join, 16),
    "cast": (_cast, 6),
    "size": (_size, 8),
    "write": (_write, 10),
    "layer": (_layer, 6),
    "state": (_state, 7),
    "region": (_region, 2),
}


# The command


def check(random: Random, folder: Path, name: str) -> str:
    """Draws a program, loads it both ways and compares. Returns what came of it: that both answered the same, that
    there is nothing to compare, or why it does not go the direct way. Raises AssertionError for a difference."""
    program = RandomProgram(random)
    try:
        path = program.save(folder / f"{name}.pt2")
        expected = open_with_torch(path)
    except Exception as error:
        return f"torch does not export or load it: {type(error).__name__}"
    try:
        actual = open_directly(path)
    except UnsupportedProgram as error:
        return f"not direct: {error}"
    except ServingError as error:
        return f"refused: {error.status.message}"
    calls = [lambda size=size: program.make(size) for size in (*SIZES, SIZES[-1])]
    return "same" if assert_same(expected, actual, calls, name) else "same errors"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    first, end = map(int, parser.parse_args().seeds.split(":"))
    found, differences = Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="random-programs-") as folder:
        for seed in range(first, end):
            try:
                found[check(Random(seed), Path(folder), f"seed {seed}".replace(" ", "_"))] += 1
            except AssertionError as error:
                differences += 1
                print(f"seed {seed}: {error}", flush=True)
            for path in Path(folder).iterdir():
                path.unlink()
    for outcome, count in found.most_common():
        print(f"{count:6} {outcome}")
    print(f"{end - first:6} programs, {differences} differences")
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
