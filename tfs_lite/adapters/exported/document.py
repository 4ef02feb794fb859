"""Reads what ``torch.export.save`` wrote: the members of a ``.pt2`` archive, its graph and its lists of weights.

Every archive must be whole: a sound frame, and every member as its checksum says. Unless the operator trusts the path,
it must also be harmless, because torch's own loader turns the graph's JSON into Python code and runs it. No pickle is
needed to attack through it: names of values are pasted into generated source, operators are looked up as attributes of
``torch`` (which has ``os``), sizes are evaluated (see ``expression``), and the trees of inputs and outputs may import
modules. So every name must be an identifier, every operator one of PyTorch's own that only computes, every tree made of
builtin containers. Texts that are not evaluated (stack traces, guards) may be anything.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import orjson

from tfs_lite.adapters.exported.expression import check_expression
from tfs_lite.adapters.exported.operators import HIGHER_ORDER, SIZE_FUNCTIONS
from tfs_lite.adapters.inspect.archive import FRAME, PROGRAM, Archive, check_members, damaged, open_archive, unsafe
from tfs_lite.core.status import failed_precondition
from tfs_lite.core.yielding import Yielder
from tfs_lite.transport.remembered import Remembered

T = TypeVar("T")
MAX_DEPTH = 200
COMPILED = "data/aotinductor/"
WEIGHTS, CONSTANTS = "data/weights/", "data/constants/"
SAMPLES = "data/sample_inputs/model.pt"
MOST_HARMLESS = 256
_HARMLESS = Remembered[bytes, bool](MOST_HARMLESS)
"""The SHA-256 of programs that have passed the check: the next version of a model mostly has other weights alone."""
_KNOWN = WeakValueDictionary[bytes, "KnownProgram"]()
"""The programs of the versions that are open, by the SHA-256 of their texts."""
_lock = threading.Lock()
"""Guards additions to both."""
_CONFIGS = {WEIGHTS: "model_weights_config.json", CONSTANTS: "model_constants_config.json"}
_VERSION = "0"
_OLD_PROGRAM = re.compile(r"(.*/)?serialized_(exported_program\.json|state_dict\.pt)")
FILES = (
    rf"{FRAME}|{re.escape(PROGRAM)}|{re.escape(SAMPLES)}"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
)
"""A pattern of the members of a program's archive."""
_MEMBERS = re.compile(FILES)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|", re.ASCII)
_PATH = re.compile(r"[\w.\- /:@+]*", re.ASCII)
_FREE_TEXT = frozenset(
    {"metadata", "as_string", "as_strings", "guards_code", "torch_version", "treespec_namedtuple_fields"}
    | {"as_float", "as_floats", "schema_version", "opset_version"}
)
_MAPS = frozenset(
    {"tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values"}
    | {"range_constraints", "as_string_to_argument"}
)
"""Fields whose keys the program chose. A value called ``metadata`` is a value, and no field of that name."""
_PATHS = frozenset({"parameter_name", "buffer_name", "tensor_constant_name", "fqn"})
_CUSTOM = frozenset({"as_custom_obj", "custom_obj", "custom_obj_values"})
_SCALARS = frozenset({int, float, bool, type(None)})
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.([a-zA-Z]\w*)", re.ASCII)
_HIGHER_ORDER = re.compile(r"torch\.ops\.higher_order\.(\w+)", re.ASCII)
_NAMESPACES = frozenset({"aten", "prims", "quantized", "quantized_decomposed", "onednn", "mkldnn"})
_TOUCHES_FILES = frozenset({"from_file", "save", "load"})
_DUNDER_OPERATORS = re.compile(r"__i?(and|or|xor|lshift|rshift)__")
_VISION = frozenset({"nms", "roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d"})
_SAFE_HIGHER_ORDER = re.compile(
    "associative_scan|auto_functionalized|auto_functionalized_v2|flex_attention|hints_wrapper|invoke_subgraph|"
    "out_dtype|scan|strict_mode|tag_activation_checkpoint|wrap"
)
_SCALAR_FUNCTIONS = re.compile(r"_operator\.getitem|torch\._?sym_[a-z]+", re.ASCII)
"""Scalar functions that are safe in addition to the ones that are built directly, as the higher-order operators above
are."""
_TREE_NODES = frozenset(
    {"builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", "collections.namedtuple"}
    | {"torch.fx.immutable_collections.immutable_list", "torch.fx.immutable_collections.immutable_dict"}
)


class KnownProgram:
    """What was found out about a program, for as long as one version holds it. Versions whose ``models/model.json`` is
    the same, byte for byte, share it: the next version of a model mostly has other weights alone, and the graph of one
    that serves need not be read and compiled again. Any thread."""

    def __init__(self) -> None:
        self._found = dict[Hashable, Any]()

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """Returns what ``find`` returns, or has returned for this key before."""
        if key not in self._found:
            self._found[key] = find()
        found: T = self._found[key]
        return found


@dataclass(frozen=True)
class ProgramDocument:
    """The facts about its program that an archive states. The bytes of the weights stay in the archive.

    ``weights`` and ``constants`` map the name of a tensor to its entry: the member with its bytes, and its dtype, sizes
    and strides. One thread.
    """

    file: str
    known: KnownProgram
    read: Callable[[], Mapping[str, Any]]
    """Reads ``program``."""
    weights: Mapping[str, Any]
    constants: Mapping[str, Any]

    @cached_property
    def program(self) -> Mapping[str, Any]:
        """The JSON of ``models/model.json``, which is some milliseconds of work under the interpreter lock."""
        return self.read()


def read_document(archive: Archive, trusted: bool) -> ProgramDocument:
    """Reads everything but the bytes of the weights; unless it is trusted, it has to be harmless.

    DATA_LOSS if it is damaged, PERMISSION_DENIED if it is unsafe, FAILED_PRECONDITION for another version of the
    format.
    """
    if any(_OLD_PROGRAM.fullmatch(member) for member in archive.members):
        raise damaged(f"{archive.name} was written by a torch that is too old: export the model again")
    if archive.read("archive_format", 16) != b"pt2":
        raise damaged(f"{archive.name} is no archive of torch.export.save")
    if not trusted:
        check_members(archive, _MEMBERS)
    known, read = _known_program(archive.read(PROGRAM), archive.name, trusted)
    weights = read_payloads(archive, WEIGHTS, "weight_", trusted)
    constants = read_payloads(archive, CONSTANTS, "tensor_", trusted)
    version = archive.read("archive_version", 20).decode(errors="replace")
    if version != _VERSION:
        raise failed_precondition(f"{archive.name} has archive version {version:.20}, expected {_VERSION}")
    return ProgramDocument(archive.name, known, read, weights, constants)


def inspect_exported(path: str, name: str, trusted: bool) -> None:
    """Checks all that ``torch.export.save`` wrote, with every checksum. Errors as :func:`read_document`."""
    with open_archive(path, name) as archive:
        archive.verify_checksums()
        read_document(archive, trusted)


def _known_program(text: bytes, name: str, trusted: bool) -> tuple[KnownProgram, Callable[[], Mapping[str, Any]]]:
    """What is known of the program, and what reads it, which may have happened already. Errors as
    :func:`read_program`."""
    digest, read = hashlib.sha256(text).digest(), partial(read_program, text, name, trusted)
    with _lock:
        known = _KNOWN.get(digest)
    if known is not None and (trusted or digest in _HARMLESS):
        return known, read
    program = read()
    with _lock:
        return _KNOWN.setdefault(digest, KnownProgram()), lambda: program


def read_program(text: bytes, name: str, trusted: bool) -> Mapping[str, Any]:
    """Reads ``models/model.json``; a text that has passed its check is not checked again. DATA_LOSS if it cannot be
    read, PERMISSION_DENIED if it could run code."""
    document = _parse(text, name)
    if not isinstance(document, dict) or not isinstance(document.get("graph_module"), dict):
        raise damaged(f"{name} holds no exported program")
    if not trusted and (digest := hashlib.sha256(text).digest()) not in _HARMLESS:
        _Check(name).program(document)
        with _lock:
            _HARMLESS.add(digest, True)
    return document


def read_payloads(archive: Archive, directory: str, prefix: str, trusted: bool) -> Mapping[str, Any]:
    """The list of weights or constants: name -> entry. Unless it is trusted, every entry is raw bytes in a member
    called ``prefix`` and a number, and never a pickle. Errors as :func:`read_program`."""
    sizes = {
        member.removeprefix(directory): info.file_size
        for member, info in archive.members.items()
        if member.startswith(directory)
    }
    return check_payloads(archive.read(f"{directory}{_CONFIGS[directory]}"), archive.name, prefix, sizes, trusted)


def check_payloads(
    text: bytes, name: str, prefix: str, sizes: Mapping[str, int], trusted: bool = False
) -> Mapping[str, Any]:
    """The same for the text of the list; ``sizes`` maps the members that are there to their length."""
    check = _Check(name)
    try:
        entries: Mapping[str, Any] = _parse(text, name)["config"]
        for path, entry in entries.items():
            if not trusted:
                check.payload(path, entry, prefix, sizes)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise damaged(f"{name} has a list of {prefix}s that cannot be read") from None
    return entries


def _parse(text: bytes, name: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        raise damaged(f"{name} holds JSON that cannot be read") from None


class _Check:
    """One walk over one document; remembers the names and expressions that passed, since they come again and again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._checked = set[str]()
        self._names = set[str]()
        self._yielder = Yielder()

    def program(self, document: Mapping[str, Any]) -> None:
        self._walk("", document, 0)

    def payload(self, path: str, entry: Any, prefix: str, sizes: Mapping[str, int]) -> None:
        self._path(path)
        member, meta = entry["path_name"], entry["tensor_meta"]
        if entry["use_pickle"] is not False or not re.fullmatch(rf"{prefix}\d+", member, re.ASCII):
            raise unsafe(f"{self._name} stores {path!r:.80} as a pickle")
        if member not in sizes:
            raise damaged(f"{self._name} has no {member}: it is incomplete")
        self._walk("tensor_meta", meta, 0)
        shape = [int(size["as_int"]) for size in meta["sizes"]]
        if sizes[member] == 0 and math.prod(shape) != 0:
            raise damaged(f"{self._name} has no data for {path!r:.80}")

    def _walk(self, key: str, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise unsafe(f"{self._name} holds a graph that is nested too deeply")
        if key in _FREE_TEXT or value is None:
            return
        if key in _CUSTOM:
            if value:
                raise unsafe(f"{self._name} holds a custom object")
        elif isinstance(value, str):
            self._text(key, value)
        elif isinstance(value, list):
            for item in value:
                self._walk(key, item, depth + 1)
        elif isinstance(value, dict):
            self._object(key, value, depth)

    def _object(self, key: str, value: Mapping[str, Any], depth: int) -> None:
        self._yielder()
        check = self._expression if key == "range_constraints" else self._identifier
        for name, item in value.items():
            check(name)
            if type(item) not in _SCALARS or name in _CUSTOM:
                self._walk("" if key in _MAPS else name, item, depth + 1)

    def _text(self, key: str, text: str) -> None:
        if key == "expr_str":
            self._expression(text)
        elif key in ("target", "as_operator"):
            self._operator(text)
        elif key in ("in_spec", "out_spec"):
            self._tree(key, text)
        elif key in _PATHS:
            self._path(text)
        else:
            self._identifier(text)

    def _expression(self, text: str) -> None:
        if text not in self._checked:
            check_expression(text, self._name)
            self._checked.add(text)

    def _identifier(self, text: str) -> None:
        if text not in self._names:
            if not _NAME.fullmatch(text):
                raise unsafe(f"{self._name} has a value called {text!r:.80}")
            self._names.add(text)

    def _path(self, text: str) -> None:
        if not _PATH.fullmatch(text):
            raise unsafe(f"{self._name} has a weight called {text!r:.80}")

    def _operator(self, target: str) -> None:
        if not (target in SIZE_FUNCTIONS or _is_plain_operator(target) or _SCALAR_FUNCTIONS.fullmatch(target)):
            raise unsafe(
                f"{self._name} uses {target!r:.80}, which is not one of PyTorch's own operators that only compute"
            )

    def _tree(self, key: str, text: str) -> None:
        try:
            self._tree_node(key, _parse(text.encode(), self._name)[1], 0)
        except (KeyError, IndexError, TypeError, ValueError):
            raise damaged(f"{self._name} has inputs or outputs that cannot be read") from None

    def _tree_node(self, key: str, node: Any, depth: int) -> None:
        if node["type"] is None:
            return
        if depth > MAX_DEPTH or node["type"] not in _TREE_NODES:
            raise unsafe(f"{self._name} takes or returns values of type {node['type']!r:.80}")
        context = node["context"] if node["context"] is None else orjson.loads(node["context"])
        names = context if isinstance(context, list) else [context or ""]
        for name in names:
            if not isinstance(name, str | int | float):
                raise unsafe(f"{self._name} takes or returns values with keys that are neither texts nor numbers")
            if key == "in_spec" and isinstance(name, str):
                self._identifier(name)
        for child in node["children_spec"]:
            self._tree_node(key, child, depth + 1)


def _is_plain_operator(target: str) -> bool:
    if found := _HIGHER_ORDER.fullmatch(target):
        return target in HIGHER_ORDER or _SAFE_HIGHER_ORDER.fullmatch(found[1]) is not None
    if not (found := _OPERATOR.fullmatch(target)):
        return False
    namespace, operator = found[1], found[2]
    if operator.startswith("__") and not _DUNDER_OPERATORS.fullmatch(operator):
        return False
    if namespace == "torchvision":
        return operator in _VISION
    return namespace in _NAMESPACES and operator not in _TOUCHES_FILES
