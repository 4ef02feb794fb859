"""Programs of the zoo that keep state, write to their inputs, branch, loop, or run in regions of their own.

The last ones use what only torch's own loader knows, or what no loader takes from strangers.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils.checkpoint import checkpoint

from tests.support.exported.zoo_program import floats, in_zoo, numbers, rows

# State


@in_zoo(rows(3))
class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Any:
        self.count.add_(1)
        return x + self.count, self.count


@in_zoo(rows(3))
class AssignedState(nn.Module):
    """A buffer that is replaced, one that is not saved, and one that is only read."""

    total: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.ones(3), persistent=False)

    def forward(self, x: Tensor) -> Any:
        before = self.total.clone()
        self.total = self.total + x.sum(0)
        self.last = self.total * 2 - self.last
        return before, self.total, self.last + 1


@in_zoo(rows(3, 4, 4), sizes=(2, 4, 9), train=True)
def make_running_statistics() -> nn.Module:
    return nn.BatchNorm2d(3)


@in_zoo(lambda size: (floats(1, size + 1, 4), numbers(4, 1)), sizes=(0, 1, 4), dynamic=({1: Dim("step", max=7)}, None))
class KeyCache(nn.Module):
    """A cache that is written at a position and read whole."""

    cache: Tensor
    filled: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 12, 4))
        self.register_buffer("filled", torch.zeros(12, dtype=torch.bool))

    def forward(self, x: Tensor, start: Tensor) -> Any:
        places = start + torch.arange(x.shape[1])
        self.cache[:, places] = x
        self.filled.index_fill_(0, places, True)
        return self.cache * self.filled[:, None], self.filled.sum()


@in_zoo(rows(3))
class TrainedWhileServing(nn.Module):
    """A parameter that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.weight.mul_(0.5)
        return x * self.weight


@in_zoo(lambda size: (floats(size, 3), floats(size, 3, seed=2)))
def written_input(x: Tensor, y: Tensor) -> Any:
    x.add_(y)
    y[:, 0] = 7
    return x.sum(), x, y * 2


@in_zoo(rows(3), decompose=True)
class DecomposedState(nn.Module):
    """After decomposition every write is one at the end of the program."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x: Tensor) -> Any:
        self.count.add_(x.sum(0))
        x.mul_(2)
        self.count[1] = 5
        return x + self.count, self.count.clone(), self.count


@in_zoo(rows(6))
def written_in_place(x: Tensor) -> Any:
    y = x.clone()
    y[:, ::2] = 0
    y[:, 1].mul_(3)
    y.view(-1, 2, 3)[:, 0].add_(1).clamp_(max=2)
    return y.relu_(), torch.relu_(x + 1), y.neg()


# Regions


@in_zoo(rows(6))
class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inner = self.first(x)
            with torch.autocast("cpu", enabled=False):
                inner = self.second(inner.float())
            product = inner @ inner.t()
        return inner, product, x + 1


@in_zoo(rows(6))
class NoGradient(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            fixed = self.layer(x)
            with torch.enable_grad():
                free = fixed.relu() + x.shape[0]
            fixed = fixed.add_(1)
        return self.layer(fixed) + free, fixed.detach()


@in_zoo(rows(6))
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Any:
        return checkpoint(lambda value: self.layer(value).relu(), x, use_reentrant=False) + 1


# Branches and loops


@in_zoo(rows(3), sizes=(1, 4, 9))
class Branches(nn.Module):
    """A branch on a value, one on a size, and one within another; the branches use weights."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Any:
        def inner(value: Tensor) -> Any:
            return torch.cond(value.sum() > 1, lambda v: v.sin(), lambda v: v.cos(), (value,))

        first = torch.cond(x.mean() > 0, lambda v: self.left(v), lambda v: self.right(v) + 1, (x,))
        return first, torch.cond(x.shape[0] > 3, inner, lambda v: v * 2, (x,))


@in_zoo(lambda size: (torch.tensor(size), floats(3)), dynamic=None)
def loop(count: Tensor, x: Tensor) -> Any:
    def body(left: Tensor, value: Tensor) -> Any:
        return left - 1, value * 2 + left

    return torch.while_loop(lambda left, value: left > 0, body, (count, x))


@in_zoo(rows(3), sizes=(1, 4, 9))
def mapped(x: Tensor) -> Any:
    from torch._higher_order_ops.map import map as map_over

    over: Any = map_over
    return over(lambda row, other: row.sin() + other, x, torch.ones(3))


@in_zoo(rows(3), sizes=(1, 4, 9))
def scanned(x: Tensor) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda carry, row: (carry + row, carry * row), torch.zeros(3), x)


# Not for the direct way

LIBRARY = torch.library.Library("tfs_lite_zoo", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")


@in_zoo(rows(3))
def operator_of_another_library(x: Tensor) -> Any:
    return torch.ops.tfs_lite_zoo.twice(x) + 1
