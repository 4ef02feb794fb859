"""What loads have found of an architecture, for the versions of it that come later.

A check at the load tries ways to run a network on texts of many lengths: a dozen forwards and more, which are most of
the load of a large network, and which the requests of other models feel. What it finds follows from the network's code,
its config and the version's settings, and not from its weights. So a version of an architecture that this process has
checked before is checked in brief, with its own weights; if that does not confirm what is known, in full.

So does the network itself: transformers makes one of a config in some hundred modules, and finds a place for each
tensor of the files, in more time than it takes to read 50 MB of weights. The network of a version whose class, config,
and names, shapes and types of tensors are those of an earlier one is a copy of that one with its own weights.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from tfs_lite.adapters.pytorch.weight_file import WeightHeader
from tfs_lite.transport.remembered import Remembered

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

MOST = 64
"""Architectures that are known at once; the one that was found first is forgotten first."""
MOST_BUFFER_BYTES = 1 << 20
"""Of a network that is kept without its weights. Buffers are what it has worked out from its config."""
_PLAIN = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, FunctionType})
_DICTS = frozenset({dict, OrderedDict})
T = TypeVar("T")


class Architectures(Generic[T]):
    """The findings, by :func:`architecture`. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards additions
        self._found = Remembered[str, T](MOST)

    def find(self, key: str) -> T | None:
        return self._found.get(key)

    def add(self, key: str, found: T) -> None:
        with self._lock:
            self._found.add(key, found)


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """A network without weights. Any thread may copy it."""

    module: PreTrainedModel
    """Its parameters have no memory."""
    stored: Mapping[str, str]
    """The name of a parameter -> that of the file's tensor that it is."""

    def network(self, read: Callable[[str], torch.Tensor]) -> PreTrainedModel:
        """A new network whose parameters are the tensors of these names. Errors of ``read``."""
        tensors, known = dict[str, torch.nn.Parameter](), dict[int, Any]()
        for name, parameter in self.module.named_parameters():
            stored = self.stored[name]
            if stored not in tensors:
                tensors[stored] = torch.nn.Parameter(read(stored), requires_grad=False)
            known[id(parameter)] = tensors[stored]
        return _copy(self.module, known)


def plan_of(
    module: PreTrainedModel, headers: Mapping[str, WeightHeader], places: Mapping[str, int]
) -> NetworkPlan | None:
    """The plan of a network that was made with the tensors of ``headers``; ``places`` are the addresses of those that
    were read. None unless each parameter is one of them, as it was read and under its name, each of them is a
    parameter, and a copy shares nothing with the network: one of casted, joined or renamed tensors, or with functions
    that may hold parts of it, is made anew each time. So is one with two tensors that transformers has made one
    because they are alike: those of the next version may differ."""
    names = {address: name for name, address in places.items()}
    stored, empty = dict[str, str](), dict[int, Any]()
    for name, parameter in module.named_parameters():
        found = names.get(parameter.data_ptr(), "")
        if not _is_stored(name, parameter, found, headers):
            return None
        stored[name] = found
        empty[id(parameter)] = torch.nn.Parameter(torch.empty_like(parameter, device="meta"), requires_grad=False)
    buffers = list(module.buffers())
    if set(places) != set(stored.values()) or any(buffer.data_ptr() in names for buffer in buffers):
        return None
    if sum(buffer.nbytes for buffer in buffers) > MOST_BUFFER_BYTES or any(map(_may_hold_parts, _values_of(module))):
        return None
    if any(hasattr(part, "__deepcopy__") or "__reduce_ex__" in vars(type(part)) for part in module.modules()):
        return None
    try:
        return NetworkPlan(_copy(module, empty), stored)
    except Exception:  # some part cannot be copied
        return None


def _copy(module: PreTrainedModel, known: dict[int, Any]) -> PreTrainedModel:
    """What ``copy.deepcopy`` with this memo makes, in a fraction of the time: of the twenty values that a module has,
    nearly all are numbers, sets of names, and dicts of its parts and parameters."""
    parts = list(module.modules())
    for part in parts:
        known[id(part)] = type(part).__new__(type(part))
    for part in parts:
        values = vars(known[id(part)])
        for name, value in vars(part).items():
            if type(value) in _PLAIN:
                values[name] = value
            elif type(value) is set and all(type(item) in _PLAIN for item in value):
                values[name] = set(value)
            elif type(value) in _DICTS and all(id(item) in known or type(item) in _PLAIN for item in value.values()):
                values[name] = type(value)((key, known.get(id(item), item)) for key, item in value.items())
            else:
                values[name] = copy.deepcopy(value, known)
    return known[id(module)]  # type: ignore[no-any-return]


def _is_stored(name: str, parameter: torch.Tensor, stored: str, headers: Mapping[str, WeightHeader]) -> bool:
    """Whether the parameter is that tensor of the files. Files may lack the first part of its name, or have one more.
    The address alone does not tell: memory of a tensor that was cast and dropped may be that of another by now."""
    if not (name == stored or name.endswith(f".{stored}") or stored.endswith(f".{name}")):
        return False
    header = headers[stored]
    as_read = (header.shape, header.torch_dtype) == (tuple(parameter.shape), parameter.dtype)
    return as_read and parameter.is_contiguous() and type(parameter) is torch.nn.Parameter


def _values_of(module: torch.nn.Module) -> Iterator[object]:
    """What its parts hold, and what is in their dicts, lists and tuples."""
    for part in module.modules():
        for value in vars(part).values():
            yield value
            yield from value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()


def _may_hold_parts(value: object) -> bool:
    """Whether it is a function that a copy would share: with the network that it was made for."""
    if isinstance(value, FunctionType):
        return value.__closure__ is not None or value.__defaults__ is not None
    return isinstance(value, MethodType | functools.partial)


def architecture(module: PreTrainedModel, *settings: object) -> str:
    """What decides how a network may be run: its class, config, dtype and device, and the ``settings`` of the check,
    which are alike if their ``repr`` is."""
    return description(type(module), module.config, module.dtype, module.device.type, *settings)


def description(made: type, config: PreTrainedConfig, *settings: object) -> str:
    """A name for a class, a config and what else decides something, which is alike if its ``repr`` is."""
    fields = json.dumps(config.to_dict(), sort_keys=True, default=str)
    text = f"{made.__qualname__} {settings!r} {fields}"
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
