"""Exported programs to be changed: a dozen small ones, and changes of their files that keep most of what they mean.

An input is a JSON object, ``{"program": NAME, "edits": [...]}``; any other bytes are changes of single bytes of the
first program's archive. An edit is a list:

    ["set", PATH, VALUE]   ["delete", PATH]
    ["copy", FROM, TO]     ["insert", FROM, TO]      as one more item of a list
    ["nest", PATH, DEPTH]  in so many lists          ["repeat", PATH, TIMES]  an item of a list, or a text
    ["byte", AT, VALUE]    ["cut", AT, LENGTH]       ["bytes", AT, TEXT]      of the archive

A path begins with the document: ``model``, ``weights`` or ``constants``. An edit that does not fit its document is left
out, so that every input is an archive.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from words import FLOATS, NUMBERS

DOCUMENTS = {
    "model": "models/model.json",
    "weights": "data/weights/model_weights_config.json",
    "constants": "data/constants/model_constants_config.json",
}
MAX_EDITS = 12
MOST_REPEATS = 3000
_HOSTILE = (
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.save.default",
    "torch.ops.aten.manual_seed.default",
    "torch.ops.aten.set_.source_Tensor",
    "torch.ops.aten.resize_.default",
    "torch.ops.aten._print.default",
    "torch.ops.aten.record_stream.default",
    "torch.ops.aten.get_gradients.default",
    "torch.ops.aten.warn.default",
    "torch.ops.aten.as_strided.default",
    "torch.ops.aten.as_strided_.default",
    "torch.ops.aten._unsafe_index.Tensor",
    "torch.ops.aten._unsafe_view.default",
    "torch.ops.aten.alias.default",
    "torch.ops.aten._assert_async.msg",
    "torch.ops.aten.numpy_T.default",
    "torch.ops.aten.item.default",
    "torch.ops.prims.as_strided.default",
    "torch.ops.prims.resize.default",
    "torch.ops.prims.minimum_value.default",
    "torch.ops.profiler._record_function_enter.default",
    "torch.ops.inductor.resize_storage_bytes_.default",
    "torch.ops.higher_order.scan",
    "torch.ops.higher_order.wrap",
    "torch.ops.load_library",
    "_operator.attrgetter",
    "_operator.getitem",
    "_operator.methodcaller",
    "_operator.pow",
    "_operator.lshift",
    "_operator.mul",
    "math.pow",
    "torch.sym_ite",
    "builtins.eval",
    "torch.os.system",
)
_EXPRESSIONS = (
    "Symbol('s77', positive=True, integer=True)",
    "Integer(3)",
    "Mul(Integer(2), Symbol('s77', positive=True, integer=True))",
    "Pow(Integer(9), Pow(Integer(9), Integer(9)))",
    "FloorDiv(Symbol('s77'), Integer(0))",
    "Symbol('u0')",
    "__import__('os').getpid()",
    "9**9**9**9",
    "(" * 200,
    "s0" * 400,
)
_TEXTS = (
    "",
    "x",
    "y",
    "self",
    "a b",
    "x\n",
    "\x00",
    "None",
    "values",
    "v1",
    "__class__",
    "é",
    "x" * 300,
    "mean",
    "sum",
)
_KINDS = (
    *("as_none", "as_tensor", "as_tensors", "as_int", "as_ints", "as_float", "as_floats", "as_string", "as_strings"),
    *(
        "as_sym_int",
        "as_sym_ints",
        "as_scalar_type",
        "as_memory_format",
        "as_layout",
        "as_device",
        "as_bool",
        "as_bools",
    ),
    *("as_graph", "as_optional_tensors", "as_custom_obj", "as_operator", "as_sym_bool", "as_sym_float", "as_complex"),
)
Path = list[str | int]
Inputs = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Exported:
    """The members of an archive, its documents by name, and inputs that the program takes, by position."""

    root: str
    members: Mapping[str, bytes]
    documents: Mapping[str, Any]
    inputs: Inputs


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.norm(self.first(x))).flatten(1))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(9, 4), nn.Linear(4, 12)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        q, k, v = self.inner(self.table(ids)).split(4, -1)
        found = nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, :].expand(-1, ids.shape[1], -1))
        return {"text": found, "tied": found @ self.table.weight.t(), "sizes": torch.arange(ids.shape[0])}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(3, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found, (state, _) = self.cell(x)
        return found, state


class Counting(nn.Module):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2, 3))
        self.register_buffer("passing", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor, into: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.sum(0))
        into.mul_(2)
        return self.seen + into.sum() + self.passing


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,))


class Looping(nn.Module):
    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        return while_loop(lambda turns, x: turns < 3, lambda turns, x: (turns + 1, x + turns), (turns, x))[1]


class Regions(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            y = x @ x.t()
        return y.float() + 1


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, width = x.shape
        halves = x.reshape(rows * width // 2, 2).chunk(2, 1)
        grid = nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear")
        return (
            torch.cat([*halves, x.new_full((rows * width // 2, 1), float("inf"))], 1),
            grid,
            x[-1:],
            x[:, ::2].clone(),
        )


class Numbers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.tensor([[1 + 2j, 3.0], [0, 1j]])

    def forward(self, i: torch.Tensor, b: torch.Tensor, z: torch.Tensor, s: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"i": i // 2 * s, "b": ~b | (i > 2), "z": z @ self.table, "h": s.to(torch.bfloat16) ** 2}


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(7, 3, mode="mean")

    def forward(self, ids: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch.cumsum(self.bags(ids, offsets).topk(2).values, 0)


class Rowwise(nn.Module):
    def forward(self, x: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
        from torch._higher_order_ops.map import map as map_rows

        return map_rows(lambda row, more: row * more + 1, x, more)


_ROWS = torch.arange(6.0).reshape(2, 3) - 2
_MODULES: Mapping[str, Callable[[], tuple[nn.Module, Inputs, bool]]] = {
    "linear": lambda: (nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2)), (_ROWS,), True),
    "normed": lambda: (Normed(), (torch.arange(32.0).reshape(2, 1, 4, 4) / 9,), True),
    "attending": lambda: (Attending(), (torch.tensor([[1, 2, 3]] * 2), torch.tensor([[True, True, False]] * 2)), True),
    "recurrent": lambda: (Recurrent(), (torch.arange(12.0).reshape(2, 2, 3) / 7,), True),
    "counting": lambda: (Counting(), (_ROWS, torch.ones(2, 3)), False),
    "branching": lambda: (Branching(), (_ROWS,), True),
    "looping": lambda: (Looping(), (_ROWS, torch.tensor(0)), False),
    "regions": lambda: (Regions(), (_ROWS,), False),
    "sizes": lambda: (Sizes(), (torch.arange(16.0).reshape(4, 4),), True),
    "numbers": lambda: (
        Numbers(),
        (torch.arange(4).reshape(2, 2), torch.tensor([[True, False]] * 2), torch.ones(2, 2) * 1j, torch.tensor(3)),
        False,
    ),
    "bags": lambda: (Bags(), (torch.tensor([1, 2, 4, 5]), torch.tensor([0, 1, 3])), False),
    "rowwise": lambda: (Rowwise(), (_ROWS, torch.ones(3)), False),
}


@functools.cache
def exported(name: str) -> Exported:
    """One of the programs; written once, which takes up to a second."""
    torch.manual_seed(0)
    module, inputs, dynamic = _MODULES[name]()
    rows = tuple({0: torch.export.Dim.DYNAMIC} if value.dim() else None for value in inputs) if dynamic else None
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=rows)
        program.example_inputs = None
        torch.export.save(program, file)
    with zipfile.ZipFile(file) as archive:
        members = {item.partition("/")[2]: archive.read(item) for item in archive.namelist()}
        root = archive.namelist()[0].partition("/")[0]
    documents = {key: json.loads(members[member]) for key, member in DOCUMENTS.items()}
    return Exported(root, members, documents, inputs)


def programs() -> list[str]:
    return list(_MODULES)


def archive_of(data: bytes) -> tuple[Exported, bytes]:
    """The program that an input begins with, and the changed archive."""
    name, edits = _read(data)
    start = exported(name)
    documents = copy.deepcopy(dict(start.documents))
    for edit in edits:
        _edit(documents, edit)
    members = dict(start.members)
    for key, member in DOCUMENTS.items():
        if documents[key] != start.documents[key]:
            members[member] = _dump(documents[key])
    archive = bytearray(_zip(start.root, members))
    for edit in edits:
        _edit_bytes(archive, edit)
    return start, bytes(archive)


def _read(data: bytes) -> tuple[str, list[list[Any]]]:
    try:
        found = json.loads(data)
        name, edits = found["program"], found["edits"]
        if name in _MODULES and isinstance(edits, list):
            return name, [edit for edit in edits if isinstance(edit, list) and len(edit) > 1][:MAX_EDITS]
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    steps = [data[at : at + 4] for at in range(0, min(len(data), 64), 4)]
    return programs()[0], [["byte", int.from_bytes(step[:3], "big"), step[-1]] for step in steps if len(step) == 4]


def _dump(document: Any) -> bytes:
    try:
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"[" * 100_000


def _zip(root: str, members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}", (1980, 1, 1, 0, 0, 0)), data)
    return file.getvalue()


def _edit(documents: dict[str, Any], edit: list[Any]) -> None:
    try:
        match edit:
            case ["set", list(path), value]:
                container, key = _place(documents, path)
                container[key] = copy.deepcopy(value)
            case ["delete", list(path)]:
                container, key = _place(documents, path)
                del container[key]
            case ["copy", list(source), list(path)]:
                found = copy.deepcopy(_at(documents, source))
                container, key = _place(documents, path)
                container[key] = found
            case ["insert", list(source), list(path)]:
                found = copy.deepcopy(_at(documents, source))
                container, key = _place(documents, path)
                container.insert(key, found)
            case ["nest", list(path), int(depth)]:
                container, key = _place(documents, path)
                for _ in range(min(depth, 500)):
                    container[key] = [container[key]]
            case ["repeat", list(path), int(times)]:
                container, key = _place(documents, path)
                if isinstance(container[key], str):
                    container[key] *= min(times, MOST_REPEATS)
                else:
                    container[key:key] = [container[key]] * min(times, MOST_REPEATS)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return


def _edit_bytes(archive: bytearray, edit: list[Any]) -> None:
    match edit:
        case ["byte", int(at), int(value)] if archive:
            archive[at % len(archive)] = value % 256
        case ["cut", int(at), int(length)] if archive:
            at %= len(archive)
            del archive[at : at + max(length, 0)]
        case ["bytes", int(at), str(text)] if archive:
            at %= len(archive)
            archive[at:at] = text.encode()


def _place(documents: dict[str, Any], path: Sequence[Any]) -> tuple[Any, Any]:
    """The container and the key of a place; only inside of the documents. Raises what a wrong path raises."""
    if len(path) < 2:
        raise KeyError
    container = _at(documents, path[:-1])
    key = path[-1]
    if isinstance(container, dict):
        return container, str(key)
    return container, key % max(len(container), 1)


def _at(documents: dict[str, Any], path: Sequence[Any]) -> Any:
    found: Any = documents
    for key in path:
        found = found[str(key)] if isinstance(found, dict) else found[key % max(len(found), 1)]
    return found


def change(data: bytes, chance: random.Random) -> bytes:
    """One more edit, or one less, or one of the edits another one."""
    name, edits = _read(data)
    if chance.random() < 0.1:
        name = chance.choice(programs())
    if edits and (chance.random() < 0.25 or len(edits) >= MAX_EDITS):
        del edits[chance.randrange(len(edits))]
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        edits.append(_new_edit(exported(name).documents, chance))
    return json.dumps({"program": name, "edits": edits}).encode()


def _new_edit(documents: Mapping[str, Any], chance: random.Random) -> list[Any]:
    path = _random_path(documents, chance)
    match chance.randrange(24):
        case 0:
            return ["delete", path]
        case 1:
            return ["byte", chance.randrange(1 << 16), chance.randrange(256)]
        case 2:
            return chance.choice(
                (["cut", chance.randrange(1 << 16), chance.choice((1, 8, 900))], ["bytes", 9, "PK\x01\x02"])
            )
        case 3:
            return ["nest", path, chance.choice((1, 2, 40, 250))]
        case 4:
            return ["repeat", path, chance.choice((1, 2, 70, MOST_REPEATS))]
        case 5 | 6 | 7:
            same = [other for other in _paths(documents) if other[-1] == path[-1]]
            return ["copy", chance.choice(same), path]
        case 8 | 9:
            nodes = len(documents["model"]["graph_module"]["graph"]["nodes"]) or 1
            node = ["model", "graph_module", "graph", "nodes"]
            places = [*node, chance.randrange(nodes)], [*node, chance.randrange(nodes)]
            return [chance.choice(("insert", "copy")), *places]
        case _:
            return ["set", path, _value(documents, path, chance)]


def _value(documents: Mapping[str, Any], path: Path, chance: random.Random) -> Any:
    """Something that could stand there."""
    key, old = path[-1], _at(dict(documents), path)
    if key == "target":
        return chance.choice(
            (chance.choice(_HOSTILE), chance.choice(_operators()), chance.choice(_relatives(str(old))))
        )
    if isinstance(old, int) and chance.random() < 0.6:
        return chance.choice((old + 1, old - 1, -old, old * 2, 0, 1, 2))
    if key == "expr_str":
        return chance.choice(_EXPRESSIONS)
    if key == "name" or (isinstance(old, str) and chance.random() < 0.5):
        names = [_at(dict(documents), other) for other in _paths(documents) if other[-1] == "name"]
        return chance.choice([*names, *_TEXTS])
    if key == "arg" or (isinstance(old, dict) and len(old) == 1):
        return {chance.choice(_KINDS): _leaf(chance)} if chance.random() < 0.7 else {"as_tensor": {"name": "x"}}
    return _leaf(chance)


def _leaf(chance: random.Random) -> Any:
    match chance.randrange(8):
        case 0:
            return [chance.choice(NUMBERS) for _ in range(chance.choice((0, 1, 2, 4)))]
        case 1:
            number = chance.choice(FLOATS)
            return (
                number if number == number and abs(number) < 1e300 else chance.choice(("Infinity", "NaN", "-Infinity"))
            )
        case 2:
            return chance.choice((None, True, False, [], {}, [[]], {"as_int": 3}, {"as_name": "sym_size_int"}))
        case 3:
            return chance.choice(_TEXTS)
        case 4:
            return {chance.choice(("as_int", "as_name", "name", "type", "graph", "real")): chance.choice(NUMBERS)}
        case 5:
            return chance.choice(({"type": "cuda", "index": 7}, {"type": "meta", "index": None}, {"type": "cpu"}))
        case _:
            return chance.choice((chance.choice(NUMBERS), chance.randint(-4, 36)))


def _random_path(documents: Mapping[str, Any], chance: random.Random) -> Path:
    """Every other one in the nodes, which torch's loader checks the least; few in the tree of calls."""
    paths = _paths(documents)
    nodes = [path for path in paths if "nodes" in path]
    if nodes and chance.random() < 0.5:
        return chance.choice(nodes)
    path = chance.choice(paths)
    return chance.choice(paths) if "module_call_graph" in path else path


def _paths(documents: Mapping[str, Any]) -> list[Path]:
    key = id(documents)
    if key not in _PATHS:
        _PATHS[key] = list(_walk([], documents))
    return _PATHS[key]


_PATHS: dict[int, list[Path]] = {}
"""By the identity of documents, which live as long as the process."""


def _walk(path: Path, value: Any) -> Iterator[Path]:
    if len(path) > 1:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key != "metadata":
            yield from _walk([*path, key], item)


@functools.cache
def _relatives(target: str) -> tuple[str, ...]:
    """The overloads of the same operator, and of its sisters in all programs, which take the same arguments."""
    base = target.rpartition(".")[0] + "."
    sisters = {
        node["target"]
        for name in programs()
        for node in exported(name).documents["model"]["graph_module"]["graph"]["nodes"]
    }
    return tuple(sorted({target, *sisters, *(other for other in _operators() if other.startswith(base))}))


@functools.cache
def _operators() -> tuple[str, ...]:
    """Every overload of torch's own namespaces, also those without a kernel."""
    found = []
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        if space in ("aten", "prims", "quantized_decomposed", "quantized", "profiler"):
            base, _, overload = rest.partition(".")
            found.append(f"torch.ops.{space}.{base}.{overload or 'default'}")
    return tuple(sorted(found))
