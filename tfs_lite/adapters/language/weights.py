"""Weights of a version: the headers of its files, and the network that they are loaded into.

    read_headers(files)  ->  budget: how much memory that takes
    load_network(files)  ->  a module of transformers, on its device

transformers gets tensors and never a path, so it searches and fetches nothing. Tensors that are missing or have another
shape, of which it only warns, are errors here that name file and tensor.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from tfs_lite.adapters.failures import out_of_memory, sentence, story
from tfs_lite.adapters.inspect.archive import damaged
from tfs_lite.adapters.language.architectures import Architectures, NetworkPlan, description, plan_of
from tfs_lite.adapters.language.family import network_class
from tfs_lite.adapters.language.hf_files import CONFIG, INDEX, shown, weight_files
from tfs_lite.adapters.opening import VersionFiles
from tfs_lite.adapters.pytorch.weight_file import WeightFile, WeightHeader, open_weights
from tfs_lite.core.loader import LoadMeter, LoadPhase
from tfs_lite.core.status import ServingError, failed_precondition

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_PIECE = 1 << 18
"""Numbers that are looked at in one piece."""
Report = Mapping[str, Collection[Any]]
_CLEAN: Report = {"mismatched_keys": (), "missing_keys": (), "error_msgs": ()}
_Made = tuple["PreTrainedModel", Report]
logger = logging.getLogger(__name__)
_PLANS = Architectures[tuple[NetworkPlan, Collection[str]]]()
"""The networks that were made of the same config and tensors, and the tensors that have no place in them."""
_transformers_lock = threading.Lock()
"""Held while transformers makes a network: it patches functions of its own and of torch for the whole process, and two
threads at once would not restore them."""


def read_headers(files: VersionFiles) -> dict[str, WeightHeader]:
    """Reads the tensors of all files of weights, by name. DATA_LOSS for a damaged file or a tensor in two of them;
    errors of :func:`~tfs_lite.adapters.language.hf_files.weight_files`."""
    with ExitStack() as stack:
        names = weight_files(files)
        return _headers_of({name: stack.enter_context(open_weights(files.directory, name)) for name in names})


def _headers_of(opened: Mapping[str, WeightFile]) -> dict[str, WeightHeader]:
    found: dict[str, WeightHeader] = {}
    for file in opened.values():
        for name, header in file.headers.items():
            if name in found:
                raise damaged(f"tensor {name} is in {found[name].file} and in {header.file}")
            found[name] = header
    if not found:
        raise failed_precondition(f"the weights ({shown(opened)}) have no tensor")
    return found


def load_network(
    files: VersionFiles,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    meter: LoadMeter | None = None,
    made: Any = None,
    **arguments: object,
) -> PreTrainedModel:
    """The network with the version's weights, in eval mode, without gradients. ``made`` is its class, None that of a
    language model; its constructor gets the ``arguments``. ``meter`` counts what is read
    of the files.

    FAILED_PRECONDITION, with file and tensor, if weights are missing or do not fit; DATA_LOSS for damaged files, and
    for weights that are not finite; UNAVAILABLE for files that change while they are read. One load at a time; others
    wait. Call it in a thread that ends soon after.
    """
    made = made or network_class(config)
    own = config if made.config_class in (None, type(config)) else config.get_text_config()
    meter = meter or LoadMeter()
    with ExitStack() as stack:
        opened = {name: stack.enter_context(open_weights(files.directory, name, meter)) for name in weight_files(files)}
        headers = _headers_of(opened)
        meter.begin(LoadPhase.READING, sum(header.nbytes for header in headers.values()))
        tensors = _Tensors(opened, headers)
        shapes = [(name, each.dtype, each.shape) for name, each in headers.items()]
        key = description(made, own, dtype, arguments, shapes)
        known = _PLANS.find(key)
        if known is None:
            found = _load_weights(_with_dtype(made, dtype), own, tensors, arguments)
        else:
            found = _copied(*known, tensors)
    if isinstance(found, ServingError):
        raise found
    module, report = found
    _check_report(report, headers, files.directory)
    meter.begin(LoadPhase.OPENING)
    if known is None:
        module.__class__ = made
        module.config.dtype = dtype
        module.requires_grad_(False)
        module.train(False)
        if (plan := plan_of(module, headers, tensors.places)) is not None:
            _PLANS.add(key, (plan, report["unexpected_keys"]))
    _check_numbers(module)
    if device.type != "cpu":
        torch.nn.Module.to(module, device)
    return module


def _copied(plan: NetworkPlan, unexpected: Collection[str], tensors: _Tensors) -> _Made | ServingError:
    """As :func:`_load_weights`, of a network that is known."""
    try:
        return plan.network(tensors.read), {**_CLEAN, "unexpected_keys": unexpected}
    except ServingError:
        return tensors.failures[0]


def _load_weights(
    made: Any, config: PreTrainedConfig, tensors: _Tensors, arguments: Mapping[str, object]
) -> _Made | ServingError:
    """The module, and a report of tensors that do not fit. An error is returned and not raised, because its traceback
    would keep the weights in memory."""
    with _transformers_lock:
        try:
            module, report = made.from_pretrained(
                None,
                config=config,
                state_dict={name: _Stored(tensors, name) for name in tensors.headers},
                dtype=torch.float32,
                attn_implementation=attention_of(config),
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **arguments,
            )
        except Exception as error:
            if out_of_memory(error):
                raise
            if not tensors.failures:
                logger.warning("transformers could not put the weights in", extra={"story": story(error)})
                tensors.failures.append(
                    failed_precondition(f"{CONFIG} and the weights make no {made.__name__}: {sentence(error)}")
                )
    return tensors.failures[0] if tensors.failures else (module, report)


def attention_of(config: PreTrainedConfig) -> str | None:
    """The attention that a network begins with; None for the library's choice. Older releases of the library choose
    one that does not cap scores also where the config says so."""
    return "eager" if getattr(config, "attn_logit_softcapping", None) else None


def _with_dtype(made: type[PreTrainedModel], dtype: torch.dtype) -> type[PreTrainedModel]:
    """A subclass of ``made`` whose parameters have ``dtype`` from the beginning.

    transformers would set torch's default dtype instead, which is that of the whole process: other models that run at
    that moment would compute in it.
    """
    if dtype is torch.float32:
        return made

    def constructor(self: PreTrainedModel, config: PreTrainedConfig, **arguments: object) -> None:
        made.__init__(self, config, **arguments)
        _cast(self, dtype)

    return type(made.__name__, (made,), {"__init__": constructor, "__module__": made.__module__})


def _check_numbers(module: torch.nn.Module) -> None:
    """Raises DATA_LOSS for weights that are not finite: the files were overwritten, or the training failed. The least
    and the largest number tell it, in a tenth of the time of ``isfinite``, which makes a copy besides."""
    for name, parameter in module.named_parameters():
        pieces = torch.split(parameter.detach().flatten(), _PIECE) if parameter.numel() else ()
        if not all(math.isfinite(end.item()) for piece in pieces for end in torch.aminmax(piece)):
            raise damaged(f"the weights have numbers that are not finite, in {name}")


def _cast(module: PreTrainedModel, dtype: torch.dtype) -> None:
    """Casts parameters, which have no memory yet; those that transformers wants in float32 stay so."""
    kept = set(module._keep_in_fp32_modules_strict or ())
    if dtype is torch.float16:
        kept |= set(module._keep_in_fp32_modules or ())
    for name, parameter in module.named_parameters():
        if parameter.is_floating_point() and not any(part in name for part in kept):
            parameter.data = parameter.data.to(dtype)


class _Tensors:
    """The tensors of a version's open files. Any thread."""

    def __init__(self, opened: Mapping[str, WeightFile], headers: Mapping[str, WeightHeader]) -> None:
        self.headers = headers
        self.places = dict[str, int]()
        """The addresses at which tensors were read."""
        self.failures = list[ServingError]()
        """What reads have raised: transformers swallows errors."""
        self._opened = opened

    def read(self, name: str) -> torch.Tensor:
        """A tensor in memory of its own. Errors of :meth:`WeightFile.read`."""
        try:
            found = self._opened[self.headers[name].file].read(name)
        except ServingError as error:
            self.failures.append(ServingError(error.code, error.status.message))
            raise
        self.places[name] = found.data_ptr()
        return found


class _Stored:
    """A tensor of a file as transformers takes it: what is asked for an index reads it. Any thread."""

    def __init__(self, tensors: _Tensors, name: str) -> None:
        self._tensors = tensors
        self._name = name

    def get_shape(self) -> list[int]:
        return list(self._tensors.headers[self._name].shape)

    def get_dtype(self) -> str:
        return self._tensors.headers[self._name].dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self._tensors.read(self._name)[index]


def _check_report(report: Report, headers: Mapping[str, WeightHeader], directory: str) -> None:
    where = INDEX if len({each.file for each in headers.values()}) > 1 else next(iter(headers.values())).file
    if report["mismatched_keys"]:
        name, stored, wanted = min(report["mismatched_keys"])
        file = headers[name].file if name in headers else where
        raise failed_precondition(
            f"{file}: tensor {name} has shape {list(stored)}, the network of {CONFIG} has {list(wanted)}"
        )
    if report["missing_keys"]:
        raise failed_precondition(f"{where} lacks tensors that {CONFIG} calls for: {shown(report['missing_keys'])}")
    if report["error_msgs"]:
        raise failed_precondition(f"{where}: {next(iter(report['error_msgs']))!s:.300}")
    if report["unexpected_keys"]:
        path = os.path.join(directory, where)
        logger.warning("%s has tensors without a place in the network: %s", path, shown(report["unexpected_keys"]))
