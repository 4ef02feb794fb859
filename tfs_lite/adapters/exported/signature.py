"""The signature of an exported program: the names, dtypes and shapes of its inputs and results.

Names of inputs are those of ``forward``'s parameters, first those by position, then those by keyword. Results are named
by the keys of a dict or the fields of a named tuple, otherwise numbered. What the program says of sizes beyond shapes
and maxima are the signature's conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from tfs_lite.adapters.exported.arguments import DTYPES, union
from tfs_lite.adapters.exported.conditions import bounds_of, conditions_of
from tfs_lite.adapters.exported.document import ProgramDocument
from tfs_lite.adapters.exported.expression import format_expression
from tfs_lite.adapters.pytorch.tensors import DATA_TYPES
from tfs_lite.adapters.results import numbered
from tfs_lite.core.signature import Dim, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError, failed_precondition


def signature_of(document: ProgramDocument) -> Signature:
    """Names, dtypes and shapes as exported. FAILED_PRECONDITION if an input or a result is no plain tensor."""
    return document.known.once("signature", lambda: _read(document))


def _read(document: ProgramDocument) -> Signature:
    module = document.program["graph_module"]
    specs, call, metas = (
        module["signature"],
        module["module_call_graph"][0]["signature"],
        module["graph"]["tensor_values"],
    )
    taken = {
        name: metas[_tensor_name(_content(spec), f"input {name}")]
        for name, spec in zip(_input_names(call), user_inputs(specs), strict=True)
    }
    given = {
        name: metas[_tensor_name(spec["user_output"]["arg"], f"result {name}")]
        for name, spec in zip(_output_names(call, module), user_outputs(specs), strict=True)
    }
    return Signature(
        tuple(_spec(name, meta, document) for name, meta in taken.items()),
        tuple(_spec(name, meta, document) for name, meta in given.items()),
        conditions=conditions_of(document, {name: meta["sizes"] for name, meta in taken.items()}),
    )


def user_inputs(specs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [spec for spec in specs["input_specs"] if "user_input" in spec or "constant_input" in spec]


def user_outputs(specs: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [spec for spec in specs["output_specs"] if "user_output" in spec]


def _content(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The argument of a user's input; a constant looks like one."""
    content: Mapping[str, Any] = spec["user_input"]["arg"] if "user_input" in spec else spec["constant_input"]["value"]
    return content


def _input_names(call: Mapping[str, Any] | None) -> Sequence[str]:
    names = list((call and call["forward_arg_names"]) or ())
    children = [child for part in _tree(call, "in_spec")["children_spec"] for child in part["children_spec"]]
    if len(names) != len(children):
        raise failed_precondition("the program does not name its inputs: export the model again")
    _check_leaves("input", names, children)
    return names


def _output_names(call: Mapping[str, Any] | None, module: Mapping[str, Any]) -> Sequence[str]:
    tree = _tree(call, "out_spec")
    if tree["type"] is None:
        return numbered(1)
    children = tree["children_spec"]
    names: Sequence[str] = numbered(len(children))
    context: Any = orjson.loads(tree["context"]) if tree["context"] else None
    if _kind(tree) in ("dict", "OrderedDict", "immutable_dict"):
        names = [str(key) for key in context]
    elif _kind(tree) == "namedtuple":
        names = module["treespec_namedtuple_fields"][context]["field_names"]
    _check_leaves("result", names, children)
    return names


def _tree(call: Mapping[str, Any] | None, key: str) -> Mapping[str, Any]:
    """The root of a tree of inputs or results: ``[1, root]``."""
    if call is None:
        raise failed_precondition("the program does not name its inputs: export the model again")
    root: Mapping[str, Any] = orjson.loads(call[key])[1]
    return root


def _check_leaves(what: str, names: Sequence[str], children: Sequence[Mapping[str, Any]]) -> None:
    for name, child in zip(names, children, strict=True):
        if list(names).count(name) > 1:
            raise failed_precondition(f"{what} {name} is there twice; give each a name of its own")
        if child["type"] is not None:
            raise _refusal(f"{what} {name}", f"a {_kind(child)} of values")


def _kind(tree: Mapping[str, Any]) -> str:
    return str(tree["type"]).rpartition(".")[2]


def _tensor_name(argument: Mapping[str, Any], what: str) -> str:
    kind, content = union(argument)
    if kind == "as_tensor":
        return str(content["name"])
    if kind.startswith("as_sym"):
        raise _refusal(what, "a number")
    raise _refusal(what, f"the constant {None if kind == 'as_none' else content!r}")


def _refusal(what: str, found: str) -> ServingError:
    return failed_precondition(f"{what} is {found}; export the model so that it takes and returns only tensors")


def _spec(name: str, meta: Mapping[str, Any], document: ProgramDocument) -> TensorSpec:
    dtype = DTYPES.get(meta["dtype"])
    if dtype is None or dtype not in DATA_TYPES:
        raise failed_precondition(f"{name} is of type {dtype}, which cannot be sent")
    return TensorSpec(name, DATA_TYPES[dtype], tuple(_dim(size, document) for size in meta["sizes"]))


def _dim(size: Mapping[str, Any], document: ProgramDocument) -> Dim:
    kind, content = union(size)
    if kind == "as_int":
        return int(content)
    expression = format_expression(content["expr_str"])
    if expression.isdecimal():
        return int(expression)
    _, most = bounds_of(document, content["expr_str"])
    return SymbolicDim(expression, most)
