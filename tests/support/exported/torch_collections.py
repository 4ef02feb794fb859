"""torch's own collections of programs: ``torch._export.db``, and ``hop_db``, ``module_db`` and ``op_db`` of its tests.

    python -m tests.support.exported.torch_collections --results FILE [--seconds 3600] [--samples 5] [--ways auto]

Each program is exported as its example is (``fixed``) and with every size as ``Dim.AUTO`` (``auto``), served next to
torch's own loader, and asked at the example's sizes and at five others. Each runs in a process of its own, forked, so
that one that crashes is a line of the results. Results are lines of JSON; a program that has one is not run again. The
package ``expecttest`` has to be installed, as the extra ``dev`` does: torch's test modules import it.
"""

# mypy: allow-untyped-calls
from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree

from tests.support.exported.served import Tally, compare

WAYS = ("fixed", "auto")
FAULT = "an error that is neither a refusal nor torch's"
UNSET = re.compile(r"(new_)?empty|nn\.functional\.embedding_bag")
"""Operators that return what is in the memory, the last one where a bag is empty."""
MOST_NUMBERS = 1 << 16
LARGEST = 12
"""Of sizes that are drawn."""
PROGRAM_SECONDS = 90


@dataclass(frozen=True)
class Collected:
    """One program of a collection. ``make`` returns the module, which takes tensors, and examples of them."""

    name: str
    make: Callable[[], tuple[nn.Module, list[Tensor]]]


def collected(samples: int) -> Iterator[Collected]:
    """All programs, with at most so many ``samples`` of an operator or module."""
    yield from _of_the_exporter()
    if not samples:
        return
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db
    from torch.testing._internal.hop_db import hop_db

    for number in range(samples):
        for kind, database in (("hop", hop_db), ("op", op_db)):
            for index, op in enumerate(database):
                if UNSET.match(op.name):
                    continue
                label = f"{kind} {index} {op.name}.{op.variant_test_name}".rstrip(".")
                yield Collected(f"{label} {number}", partial(_of_op, op, number))
        for index, info in enumerate(module_db):
            yield Collected(f"module {index} {info.name} {number}", partial(_of_module, info, number))


def _of_the_exporter() -> Iterator[Collected]:
    from torch._export.db.examples import all_examples

    for name, case in all_examples().items():

        def make(case: Any = case) -> tuple[nn.Module, list[Tensor]]:
            return tensors_only(case.model, case.example_args, case.example_kwargs)

        yield Collected(f"exporter {name}", make)


def _of_op(op: Any, number: int) -> tuple[nn.Module, list[Tensor]]:
    dtypes = op.supported_dtypes("cpu")
    dtype = next(wanted for wanted in (torch.float32, *sorted(dtypes, key=str)) if wanted in dtypes)
    torch.manual_seed(0)
    sample = _item(op.sample_inputs("cpu", dtype), number)
    return tensors_only(op.op, (sample.input, *sample.args), sample.kwargs)


def _of_module(info: Any, number: int) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    found = info.module_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=False)
    sample = _item(found, number)
    module = info.module_cls(*sample.constructor_input.args, **sample.constructor_input.kwargs).eval()
    return tensors_only(module, sample.forward_input.args, sample.forward_input.kwargs)


class Missing(Exception):
    """There is no such sample, or it takes no tensors."""


def _item(samples: Any, number: int) -> Any:
    for index, sample in enumerate(samples):
        if index == number:
            return sample
    raise Missing


def tensors_only(function: Any, args: Any, kwargs: Any) -> tuple[nn.Module, list[Tensor]]:
    """A module that takes the tensors among the arguments as ``x0``, ``x1``, ..., knows all others, and returns the
    tensors of the results."""
    leaves, spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not places:
        raise Missing

    class OnlyTensors(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            if isinstance(function, nn.Module):
                self.inner = function

        def call(self, *tensors: Tensor) -> Any:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            args, kwargs = pytree.tree_unflatten(given, spec)
            found = pytree.tree_leaves(function(*args, **kwargs))
            return tuple(value for value in found if isinstance(value, Tensor))

    names = [f"x{number}" for number in range(len(places))]
    scope: dict[str, Any] = {}
    exec(f"def forward(self, {', '.join(names)}): return self.call({', '.join(names)})", scope)
    OnlyTensors.forward = scope["forward"]
    tensors = [leaves[place].detach().resolve_conj().resolve_neg().clone().contiguous() for place in places]
    return OnlyTensors().eval(), tensors


def other_sizes(tensors: Sequence[Tensor], random: Random) -> Iterator[list[Tensor]]:
    """The tensors themselves, and at five other sizes."""
    shapes = [tuple(tensor.shape) for tensor in tensors]
    sizes = sorted({size for shape in shapes for size in shape})

    def mapped(change: Callable[[int], int]) -> list[tuple[int, ...]]:
        return [tuple(map(change, shape)) for shape in shapes]

    drawn = [{size: random.randint(0, LARGEST) for size in sizes} for _ in range(2)]
    one = [list(shape) for shape in shapes]
    axes = [(number, axis) for number, shape in enumerate(shapes) for axis in range(len(shape))]
    if axes:
        number, axis = random.choice(axes)
        one[number][axis] = random.choice([0, 1, one[number][axis] + 1, one[number][axis] * 2])
    others = [
        mapped(lambda size: size + 1),
        mapped(lambda size: 2 * size),
        mapped(drawn[0].__getitem__),
        mapped(drawn[1].__getitem__),
        [tuple(shape) for shape in one],
    ]
    for found in (shapes, *others):
        resized = [_resized(tensor, shape) for tensor, shape in zip(tensors, found, strict=True)]
        if sum(tensor.numel() for tensor in resized) <= MOST_NUMBERS:
            yield resized


def _resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The values again and again: indices stay indices."""
    count = torch.Size(shape).numel()
    flat = tensor.reshape(-1)
    if not flat.numel():
        return torch.ones(shape, dtype=tensor.dtype)
    return flat[torch.arange(count) % flat.numel()].reshape(shape)


def run(program: Collected, way: str) -> Tally:
    """Exports, loads and compares. Raises Missing, and what torch raises."""
    module, tensors = program.make()
    dynamic = [dict.fromkeys(range(tensor.dim()), Dim.AUTO) or None for tensor in tensors]
    with tempfile.TemporaryDirectory(prefix="collected-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        examples = tuple(tensor.clone() for tensor in tensors)
        shapes = tuple(dynamic) if way == "auto" else None
        with torch.no_grad():
            exported = torch.export.export(module, examples, dynamic_shapes=shapes)
        torch.export.save(exported, Path(folder) / "model.pt2")
        del exported
        asked = other_sizes(tensors, Random(f"{program.name} {way}"))
        return compare(Path(folder), f"{program.name} {way}", tensors, asked)


def outcome_of(program: Collected, way: str) -> dict[str, Any]:
    """As a line of the results has it."""
    try:
        tally = run(program, way)
        return {"counts": tally.counts, "differences": tally.differences}
    except Missing:
        return {"missing": True}
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)
        ours = any("tfs_lite/" in frame.filename and "testing" not in frame.filename for frame in where)
        kind = FAULT if ours else "torch does not export or load it"
        return {"counts": {kind: 1}, "error": f"{type(error).__name__}: {error!s:.200}"}


def _forked(program: Collected, way: str) -> dict[str, Any]:
    """The outcome, computed in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            signal.alarm(PROGRAM_SECONDS)
            with os.fdopen(writing, "w") as pipe:
                json.dump(outcome_of(program, way), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"counts": {"the process ended": 1}, "error": f"status {status}"}


def report(results: Path) -> int:
    """Prints what the lines of the results say. Returns the number of differences."""
    total, programs, differences = Counter[str](), Counter[str](), list[str]()
    for line in results.read_text().splitlines():
        found = json.loads(line)
        if not found.get("missing"):
            programs[found["name"].split()[0] + " " + found["way"]] += 1
        total.update(found.get("counts", {}))
        differences += found.get("differences", ())
        if FAULT in found.get("counts", {}) or "the process ended" in found.get("counts", {}):
            differences.append(f"{found['name']} {found['way']}: {found['counts']} {found['error']}")
    for what, count in (*sorted(programs.items()), *sorted(total.items())):
        print(f"{count:7} {what}")
    print(*differences, sep="\n")
    return len(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--part", default="0/1", help="this one of so many parts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    known = set[tuple[str, str]]()
    if options.results.exists():
        lines = map(json.loads, options.results.read_text().splitlines())
        known = {(line["name"], line["way"]) for line in lines}
    end = time.monotonic() + options.seconds
    part, parts = map(int, options.part.split("/"))
    with options.results.open("a") as file:
        for number, program in enumerate(collected(options.samples)):
            for way in options.ways:
                if number % parts != part or options.only not in program.name or (program.name, way) in known:
                    continue
                if time.monotonic() > end:
                    break
                json.dump({"name": program.name, "way": way, **_forked(program, way)}, file)
                file.write("\n")
                file.flush()
    sys.exit(report(options.results) > 0)


if __name__ == "__main__":
    main()
