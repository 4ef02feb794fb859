"""A graph of an exported program as one Python function of its inputs.

One statement is written for each node: ``v7 = o2(v6, w3, c4)``. ``v`` are the values of a run, ``w`` weights, ``c``
constants, ``o`` operators and ``g`` functions of other graphs, all numbered: nothing of the file becomes source text. A
value is dropped after its last use. ``compile`` is one step that no other thread can interrupt, so a long graph is cut
into parts, each of which hands the values that are still needed to the next.

    add_input*, add_weight*  ->  add_node*  ->  write_back*  ->  set_outputs  ->  compiled  ->  make
"""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from tfs_lite.adapters.exported.arguments import (
    Argument,
    Constant,
    Listed,
    Named,
    Subgraph,
    names_in,
    read_argument,
    union,
)
from tfs_lite.adapters.exported.operators import Operator, UnsupportedProgram, find_operator
from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.core.yielding import Yielder

PART = 64
"""Statements in one part."""
MAX_DEPTH = 32
"""Graphs inside graphs."""
_SOURCE = "<exported program>"
_BY_KEYWORD: Mapping[int | None, bool | None] = {None: None, 0: None, 1: False, 2: True}
"""How an argument is given, by the file's code; None if it does not say."""
_ONE = ("as_tensor", "as_sym_int", "as_sym_float", "as_sym_bool")
_SEVERAL = ("as_tensors", "as_sym_ints", "as_sym_floats", "as_sym_bools")
_COPY = "torch.ops.aten.copy_.default"

Forward = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Given:
    """An argument of a node. ``by_keyword`` is None if the file does not say."""

    name: str
    value: Argument
    by_keyword: bool | None


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of the function. ``makes`` and ``uses`` are variables: names that begin with ``v``."""

    text: str
    makes: Sequence[str]
    uses: frozenset[str]


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A function that lacks its weights. Any thread may make any number of functions of it.

    ``parts`` each define a function of the list of values that the one before has returned; ``names`` are the operators
    and constants that they call by their numbers, ``weights`` the names of the weights, ``inputs`` their number.
    """

    parts: Sequence[CodeType]
    names: Mapping[str, Any]
    weights: Mapping[str, str]
    inputs: int

    def make(self, weights: Mapping[str, object], single: bool = False) -> Forward:
        """The function with these weights: it takes the inputs by position, and returns a tuple of the outputs, or with
        ``single`` the only one. It does not refer to itself, so that dropping it drops the weights."""
        count = self.inputs
        names = {**self.names, **{name: weights[weight] for weight, name in self.weights.items()}}
        parts = [_defined(part, names) for part in self.parts]

        def forward(*inputs: Any) -> Any:
            if len(inputs) != count:
                raise TypeError(f"the program takes {count} inputs, got {len(inputs)}")
            values = list(inputs)
            del inputs
            for part in parts:
                values = part(values)
            return values[0] if single else tuple(values)

        return forward


def _defined(part: CodeType, names: dict[str, Any]) -> Callable[[list[Any]], list[Any]]:
    scope = dict[str, Any]()
    exec(part, names, scope)
    function: Callable[[list[Any]], list[Any]] = scope["part"]
    return function


class GraphFunction:
    """Writes the function of one graph. ``device`` is where it will run, ``file`` what messages call the file,
    ``find`` says what a node calls.

    DATA_LOSS for a graph that uses a value before it is made, or makes one twice; UnsupportedProgram for what only
    torch's own loader can build; KeyError, TypeError and the like for a graph that is not as the schema says. One
    thread.
    """

    def __init__(
        self,
        device: torch.device,
        file: str,
        yielder: Yielder,
        depth: int = 0,
        find: Callable[[Mapping[str, Any]], Operator] = lambda node: find_operator(node["target"]),
    ) -> None:
        if depth > MAX_DEPTH:
            raise UnsupportedProgram(f"graphs are nested more than {MAX_DEPTH} deep")
        self.operators = set[Operator]()
        self.writes = False
        """Whether a node changes an input or a weight."""
        self.weights = dict[str, str]()
        """The name of a weight -> the first value of the graph that is it."""
        self._device = device
        self._file = file
        self._yielder = yielder
        self._depth = depth
        self._find = find
        self._globals: dict[str, Any] = {"__builtins__": builtins}
        self._operands: dict[str, str] = {}
        self._calls: dict[Operator, str] = {}
        self._written_back: dict[str, str] = {}
        self._inputs: list[str] = []
        self._statements: list[_Statement] = []
        self._results: list[str] = []
        self._variables = 0

    def add_input(self, name: str | None) -> None:
        """The next input by position; None for one that no node refers to."""
        variable = self._new_variable()
        self._inputs.append(variable)
        if name is not None:
            self._define(name, variable)

    def add_weight(self, name: str, weight: str) -> None:
        """A value that is the same in all runs: :meth:`make` gets it under the name ``weight``."""
        first = self.weights.setdefault(weight, name)
        self._define(name, f"w{len(self.weights)}" if first == name else self._operands[first])

    def add_node(self, node: Mapping[str, Any]) -> None:
        """One node as the file has it."""
        self._yielder()
        operator = self._find(node)
        self.operators.add(operator)
        given = [self._given(entry) for entry in node["inputs"]]
        self.writes = self.writes or operator.writes or operator.keeps_statistics(_values(given))
        texts = self._by_position(operator, given) if operator.overload is None else self._by_schema(operator, given)
        call = f"{self._called(operator)}({', '.join(texts)})"
        uses = self._variables_in(*(argument.value for argument in given))
        self._assign(operator, node, call, uses)

    def write_back(self, target: str, value: str) -> None:
        """Copies a value into an input or a weight after all nodes. Where the value is an output, the function returns
        the target, as torch does."""
        copy, variable = find_operator(_COPY), self._new_variable()
        self.operators.add(copy)
        self.writes = True
        text = f"{variable} = {self._called(copy)}({self._operand(target)}, {self._operand(value)})"
        self._statements.append(_Statement(text, [variable], self._variables_in(Named(target), Named(value))))
        self._written_back[value] = variable

    def set_outputs(self, outputs: Sequence[Argument]) -> None:
        for output in outputs:
            written = self._written_back.get(output.name) if isinstance(output, Named) else None
            self._results.append(written or self._text(output))

    def compiled(self) -> CompiledFunction:
        """The function, which lacks its weights. What it took to write it is not kept."""
        parts = [self._compile(number, text) for number, text in enumerate(self._part_texts())]
        variables = {weight: self._operands[name] for weight, name in self.weights.items()}
        return CompiledFunction(parts, self._globals, variables, len(self._inputs))

    def make(self, weights: Mapping[str, object], single: bool = False) -> Forward:
        """The function with its weights."""
        return self.compiled().make(weights, single)

    def _compile(self, number: int, text: str) -> CodeType:
        self._yielder()
        return compile(text, f"{_SOURCE} part {number}", "exec")

    def _part_texts(self) -> Iterator[str]:
        """The source of each part: a function of the list of values that the one before has returned."""
        last = self._last_uses()
        alive = list(self._inputs)
        for start in range(0, max(len(self._statements), 1), PART):
            end = min(start + PART, len(self._statements))
            lines = [f"{', '.join(alive)}, = values" if alive else "", "values.clear()"]
            alive = [variable for variable in alive if last.get(variable, -1) >= start]
            for index in range(start, end):
                statement = self._statements[index]
                lines.append(statement.text)
                dead = [name for name in {*statement.makes, *statement.uses} if last[name] == index]
                if dead:
                    lines.append(f"del {', '.join(dead)}")
                alive += statement.makes
                alive = [name for name in alive if last[name] > index]
            handed = self._results if end == len(self._statements) else alive
            yield "\n ".join(["def part(values):", *filter(None, lines), f"return [{', '.join(handed)}]"])

    def _last_uses(self) -> dict[str, int]:
        """Variable -> the number of the statement after which it is dead."""
        last: dict[str, int] = {}
        for index, statement in enumerate(self._statements):
            last |= dict.fromkeys([*statement.makes, *statement.uses], index)
        return last | {result: len(self._statements) for result in self._results if result.startswith("v")}

    def _given(self, entry: Mapping[str, Any]) -> _Given:
        kind = entry.get("kind")
        if kind not in _BY_KEYWORD:
            raise UnsupportedProgram(f"an argument is given in the way {kind!r:.40}")
        return _Given(entry["name"], read_argument(entry["arg"], self._device), _BY_KEYWORD[kind])

    def _by_position(self, operator: Operator, given: Sequence[_Given]) -> list[str]:
        """Operators without a schema. Arithmetic is for numbers and tensors: a list times a number might fill the
        memory."""
        for argument in given:
            if argument.by_keyword and argument.name:
                raise UnsupportedProgram(f"{operator.name} has an argument called {argument.name!r:.40}")
            numbers = isinstance(argument.value, Named) or (
                isinstance(argument.value, Constant) and isinstance(argument.value.value, int | float)
            )
            if not (numbers or operator.has_graphs):
                raise UnsupportedProgram(f"{operator.name} has an argument that is no number")
        return [self._text(argument.value) for argument in given]

    def _by_schema(self, operator: Operator, given: Sequence[_Given]) -> list[str]:
        """Arguments in the order of the operator's schema; by keyword where the file says so, and after a gap."""
        assert operator.overload is not None
        arguments = {argument.name: argument for argument in given}
        if len(arguments) != len(given):
            raise damaged(f"{self._file} gives {operator.name} an argument twice")
        texts, gap = list[str](), False
        for expected in operator.overload._schema.arguments:
            argument = arguments.pop(expected.name, None)
            if argument is None:
                gap = True
                continue
            by_keyword = argument.by_keyword
            if by_keyword is None:
                by_keyword = expected.has_default_value()
            elif gap and not by_keyword:
                raise UnsupportedProgram(f"{operator.name} has an argument by position after one that is missing")
            text = self._text(argument.value)
            if not (gap or by_keyword or expected.kwarg_only):
                texts.append(text)
            elif keyword.iskeyword(expected.name):
                raise UnsupportedProgram(f"{operator.name} has an argument called {expected.name}")
            else:
                gap = True
                texts.append(f"{expected.name}={text}")
        if arguments:
            raise UnsupportedProgram(f"{operator.name} has no argument {next(iter(arguments))!r:.40}")
        return texts

    def _assign(self, operator: Operator, node: Mapping[str, Any], call: str, uses: frozenset[str]) -> None:
        """Statements for the call and for the values that the file makes of its result."""
        outputs = [union(output) for output in node["outputs"]]
        match outputs:
            case [] | [("as_none", _)]:
                self._statements.append(_Statement(call, [], uses))
            case [(kind, content)] if kind in _ONE and not (operator.has_graphs and not _is_single(node)):
                variable = self._define_result(kind, content)
                self._statements.append(_Statement(f"{variable} = {call}", [variable], uses))
            case [(kind, content)] if kind in _SEVERAL:
                self._unpack(call, [(_ONE[_SEVERAL.index(kind)], item) for item in content], uses)
            case _:
                self._unpack(call, outputs, uses)

    def _unpack(self, call: str, outputs: Sequence[tuple[str, Any]], uses: frozenset[str]) -> None:
        """A result of several values. At run time it may have more items than the file has names for: ``split`` of a
        dynamic size, for one."""
        result = self._new_variable()
        lines, makes = [f"{result} = {call}"], [result]
        for index, (kind, content) in enumerate(outputs):
            if kind in _ONE:
                variable = self._define_result(kind, content)
                lines.append(f"{variable} = {result}[{index}]")
                makes.append(variable)
            elif kind in _SEVERAL:
                for place, item in enumerate(content):
                    variable = self._define_result(_ONE[_SEVERAL.index(kind)], item)
                    lines.append(f"{variable} = {result}[{index}][{place}]")
                    makes.append(variable)
            elif kind != "as_none":
                raise UnsupportedProgram(f"a result is of kind {kind!r:.40}")
        self._statements.append(_Statement("; ".join(lines), makes, uses))

    def _define_result(self, kind: str, content: Any) -> str:
        argument = read_argument({kind: content}, self._device)
        if not isinstance(argument, Named):
            raise UnsupportedProgram("a result is a constant")
        variable = self._new_variable()
        self._define(argument.name, variable)
        return variable

    def _text(self, argument: Argument) -> str:
        match argument:
            case Named(name):
                return self._operand(name)
            case Listed(items):
                return f"[{', '.join(map(self._text, items))}]"
            case Subgraph(graph):
                return self._bind("g", self._function_of(graph))
            case Constant(value):
                return str(value) if value is None or isinstance(value, bool) else self._bind("c", value)

    def _function_of(self, graph: Mapping[str, Any]) -> Forward:
        inner = GraphFunction(self._device, self._file, self._yielder, self._depth + 1)
        for value in graph["inputs"]:
            argument = read_argument(value, self._device)
            inner.add_input(argument.name if isinstance(argument, Named) else None)
        for node in graph["nodes"]:
            inner.add_node(node)
        outputs = [read_argument(value, self._device) for value in graph["outputs"]]
        inner.set_outputs(outputs)
        single = _flag(graph, "is_single_tensor_return")
        if single and len(outputs) != 1:
            raise damaged(f"{self._file} has a graph with {len(outputs)} results, expected one")
        self.operators |= inner.operators
        self.writes = self.writes or inner.writes
        return inner.make({}, single)

    def _variables_in(self, *arguments: Argument) -> frozenset[str]:
        operands = (self._operand(name) for argument in arguments for name in names_in(argument))
        return frozenset(operand for operand in operands if operand.startswith("v"))

    def _called(self, operator: Operator) -> str:
        if operator not in self._calls:
            self._calls[operator] = self._bind("o", operator.call)
        return self._calls[operator]

    def _bind(self, letter: str, value: object) -> str:
        name = f"{letter}{len(self._globals)}"
        self._globals[name] = value
        return name

    def _new_variable(self) -> str:
        self._variables += 1
        return f"v{self._variables}"

    def _define(self, name: str, operand: str) -> None:
        if name in self._operands:
            raise damaged(f"{self._file} makes the value {name!r:.80} twice")
        self._operands[name] = operand

    def _operand(self, name: str) -> str:
        if name not in self._operands:
            raise damaged(f"{self._file} uses the value {name!r:.80} before it is made")
        return self._operands[name]


def _values(given: Sequence[_Given]) -> dict[str, object]:
    """The values of arguments, by name. The value of an argument that is no constant is the argument."""
    return {each.name: each.value.value if isinstance(each.value, Constant) else each.value for each in given}


def _is_single(node: Mapping[str, Any]) -> bool:
    """Whether a higher-order operator returns its only result itself, and not in a tuple."""
    return _flag(node, "is_hop_single_tensor_return")


def _flag(value: Mapping[str, Any], key: str) -> bool:
    """A field that is true, false, or not given, which means false."""
    found = value.get(key)
    if found is not None and not isinstance(found, bool):
        raise UnsupportedProgram(f"{key} is {found!r:.40}")
    return found is True
