"""Random programs with conditions on their sizes, as served and as torch loads them.

    python -m tests.support.exported.sized_programs --seeds 0:2000

A program takes one to three inputs. Their sizes are fixed, a ``Dim`` with bounds, a multiple of one, one and a
constant, or whatever the exporter finds (``Dim.AUTO``), some of them shared. Its steps look at sizes: they branch,
check, reshape, slice, join, interpolate, pool. Each program is asked at sizes that are right by its declaration, and at
others.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

from tests.support.exported.served import Tally, compare

ASKED = 10
MOST_NUMBERS = 1 << 14
Step = Callable[[Sequence[Tensor], list[Tensor]], None]


class Sized(nn.Module):
    """Runs steps, each of which may look at the inputs' sizes and adds results."""

    def __init__(self, steps: Sequence[Step]) -> None:
        super().__init__()
        self._steps = steps

    def forward(self, x: Tensor, y: Tensor | None = None, z: Tensor | None = None) -> Any:
        inputs = [value for value in (x, y, z) if value is not None]
        results: list[Tensor] = []
        for step in self._steps:
            step(inputs, results)
        return tuple(results) or (x + 1,)


class Size:
    """One symbol of a program: how it is declared, and the sizes that this allows."""

    def __init__(self, random: Random, name: str) -> None:
        self.least, self.most, self.declared = 0, 24, None
        kind = random.choice(("auto", "auto", "auto", "dynamic", "plain", "bounded", "bounded"))
        self.kind = kind
        if kind == "bounded":
            self.least = random.choice((0, 1, 2, 3, 5, 7))
            self.most = self.least + random.choice((3, 6, 17))
            least = {} if random.random() < 0.3 else {"min": self.least}
            most = {} if random.random() < 0.3 else {"max": self.most}
            self.declared = Dim(name, **least, **most)
        elif kind == "plain":
            self.declared = Dim(name)
        self.example = random.randint(max(self.least, 3), max(self.most // 2, self.least + 1, 4))

    def draw(self, random: Random, inside: bool) -> int:
        return random.randint(self.least, self.most) if inside else random.randint(0, self.most + 4)


class Axis:
    """One dimension of an input: ``factor`` times a symbol plus a constant, or fixed."""

    def __init__(self, random: Random, symbols: Sequence[Size]) -> None:
        self.size = random.choice(symbols)
        self.factor, self.constant, self.fixed = 1, 0, 0
        chance = random.random()
        if chance < 0.2:
            self.fixed = random.choice((1, 2, 3, 8))
        elif chance < 0.6 and self.size.declared is not None:
            self.factor = random.choice((1, 1, 2, 3, 4, 8))
            self.constant = random.choice((0, 0, 0, 1, 2))

    def at(self, sizes: dict[Size, int]) -> int:
        return self.fixed or self.factor * sizes[self.size] + self.constant

    @property
    def dynamic(self) -> Any:
        if self.fixed:
            return None
        if self.size.declared is None:
            return Dim.AUTO if self.size.kind == "auto" else Dim.DYNAMIC
        found = self.size.declared if self.factor == 1 else self.factor * self.size.declared
        return found + self.constant if self.constant else found


class SizedProgram:
    """The program of a source of random choices."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._symbols = [Size(random, f"d{number}") for number in range(random.randint(1, 3))]
        self._inputs = [
            [Axis(random, self._symbols) for _ in range(random.randint(1, 3))] for _ in range(random.randint(1, 3))
        ]
        self.module = Sized([self._step() for _ in range(random.randint(0, 4))])
        self._deferred = random.random() < 0.2

    def example(self) -> list[Tensor]:
        return self._make({symbol: symbol.example for symbol in self._symbols})

    def asked(self) -> Iterator[list[Tensor]]:
        """Inputs at the example's sizes, at sizes inside of the declaration, and at others."""
        random = self._random
        yield self.example()
        for number in range(ASKED):
            inside = number < ASKED // 2
            shapes = self._shapes({symbol: symbol.draw(random, inside) for symbol in self._symbols})
            if not inside and random.random() < 0.6:
                shape = random.choice(shapes)
                shape[random.randrange(len(shape))] += random.choice((-2, -1, 1, 1, 2, 4))
            if all(size >= 0 for shape in shapes for size in shape):
                inputs = [_values(shape, seed) for seed, shape in enumerate(shapes)]
                if sum(value.numel() for value in inputs) <= MOST_NUMBERS:
                    yield inputs

    def save(self, path: Path) -> None:
        """Exports the program. Raises what ``torch.export`` raises."""
        args = tuple(self.example())
        dynamic = {
            name: {axis: found for axis, each in enumerate(axes) if (found := each.dynamic) is not None}
            for name, axes in zip("xyz", self._inputs, strict=False)
        }
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.export.export(
                self.module, args, dynamic_shapes=dynamic, prefer_deferred_runtime_asserts_over_guards=self._deferred
            )
            torch.export.save(program, path)

    def _shapes(self, sizes: dict[Size, int]) -> list[list[int]]:
        return [[axis.at(sizes) for axis in axes] for axes in self._inputs]

    def _make(self, sizes: dict[Size, int]) -> list[Tensor]:
        return [_values(shape, seed) for seed, shape in enumerate(self._shapes(sizes))]

    def _step(self) -> Step:
        random = self._random
        places = [(number, axis) for number, axes in enumerate(self._inputs) for axis in range(len(axes))]
        (a, i), (b, j) = random.choice(places), random.choice(places)
        number, other = random.choice((2, 3, 4, 5, 8)), random.choice((1, 2, 3, 7))
        scale = random.choice((0.5, 0.7, 1.3, 1.5, 2, 2.5))
        kind = random.choice(STEPS)
        return lambda inputs, results: kind(inputs, results, (a, i, b, j, number, other, scale))


Choice = tuple[int, int, int, int, int, int, float]


def _compared(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, b, j, number, other, _ = choice
    left, right = inputs[a].shape[i], inputs[b].shape[j]
    results.append(inputs[a] * 2 if left * other >= right + number else inputs[b] - 1)


def _unequal(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, _, _, number, other, _ = choice
    results.append(inputs[a] + (1 if inputs[a].shape[i] != number + other else 2))


def _divisible(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, _, _, number, _, _ = choice
    results.append(inputs[a].sum() if inputs[a].shape[i] % number == 0 else inputs[a].mean())


def _checked(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, b, j, number, _, _ = choice
    torch._check(inputs[a].shape[i] + number >= inputs[b].shape[j])
    results.append(inputs[a] + 3)


def _blocks(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, _, _, number, _, _ = choice
    results.append(inputs[a].reshape(-1, number).sum(1))


def _sliced(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, _, _, number, other, _ = choice
    results.append(inputs[a].narrow(i, 0, inputs[a].shape[i] // number) * other)


def _added(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, b, _, _, _, _ = choice
    results.append(inputs[a] + inputs[b])


def _joined(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, b, _, number, _, _ = choice
    whole = torch.cat([inputs[a].reshape(-1), inputs[b].reshape(-1)])
    results.append(whole[: whole.shape[0] // number * number].reshape(-1, number).mean(1))


def _interpolated(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, b, _, _, _, scale = choice
    wide = functional.interpolate(inputs[a].reshape(1, 1, -1), scale_factor=scale)
    other = inputs[b].reshape(1, 1, -1)
    results.append(wide + other if wide.shape[-1] == other.shape[-1] else wide)


def _pooled(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, _, _, number, other, _ = choice
    results.append(functional.max_pool1d(inputs[a].reshape(1, 1, -1), number, min(other, number)))


def _unfolded(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, _, _, number, other, _ = choice
    results.append(inputs[a].unfold(i, number, other).sum(-1))


def _multiplied(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, _, b, _, _, _, _ = choice
    results.append(inputs[a].reshape(-1, inputs[a].shape[-1]) @ inputs[b].reshape(inputs[b].shape[0], -1))


def _split(inputs: Sequence[Tensor], results: list[Tensor], choice: Choice) -> None:
    a, i, _, _, number, _, _ = choice
    results.append(torch.stack([part.sum() for part in inputs[a].chunk(number, i)]))


STEPS = (
    *(_compared, _compared, _unequal, _divisible, _checked, _blocks, _sliced, _added),
    *(_joined, _interpolated, _pooled, _unfolded, _multiplied, _split),
)


def _values(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def check(random: Random, folder: Path, name: str) -> Tally:
    """Draws a program and compares it. Its errors are part of what is returned."""
    program = SizedProgram(random)
    folder.mkdir(exist_ok=True)
    try:
        program.save(folder / "model.pt2")
    except Exception as error:
        tally = Tally()
        tally.counts[f"torch does not export it: {type(error).__name__}"] += 1
        return tally
    return compare(folder, name, program.example(), program.asked())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    first, end = map(int, parser.parse_args().seeds.split(":"))
    torch.set_num_threads(1)
    total = Tally()
    with tempfile.TemporaryDirectory(prefix="sized-programs-") as folder, open(os.devnull, "w") as null:
        stderr, sys.stderr = sys.stderr, null
        for seed in range(first, end):
            try:
                tally = check(Random(seed), Path(folder), f"seed {seed}")
            except Exception as error:
                tally = Tally(differences=[f"seed {seed}: {type(error).__name__}: {error!s:.300}"])
            print(*tally.differences, sep="\n", end="\n" * bool(tally.differences), flush=True)
            total.add(tally)
        sys.stderr = stderr
    for outcome, count in total.counts.most_common():
        print(f"{count:6} {outcome}")
    print(f"{end - first:6} programs drawn, {len(total.differences)} differences")
    sys.exit(len(total.differences) > 0)


if __name__ == "__main__":
    main()
