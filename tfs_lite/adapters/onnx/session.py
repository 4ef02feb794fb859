"""Sessions of onnxruntime: their options, and what their errors mean.

onnxruntime is imported when the first model is opened. What a config may say has the names that Triton has for it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tfs_lite.adapters.inspect.archive import unsafe
from tfs_lite.adapters.onnx.inspection import check_place
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.core.status import ServingError, StatusCode, failed_precondition, invalid_argument

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

CUSTOM_OPS = "custom_ops"
"""The parameter that names a library of operators among the files of the version."""
SAFE_ENTRIES = frozenset(
    {
        "session.disable_prepacking",
        "session.dynamic_block_base",
        "session.enable_quant_qdq_cleanup",
        "session.inter_op.allow_spinning",
        "session.intra_op.allow_spinning",
        "session.intra_op_thread_affinities",
        "session.qdqisint8allowed",
        "session.set_denormal_as_zero",
        "session.use_device_allocator_for_initializers",
    }
)
"""Entries that name no file and load nothing; all others need trust."""
MAX_MESSAGE = 600
CUDA = "CUDAExecutionProvider"
_ERRORS_ONLY = 3
_PREFIX = re.compile(r"\[ONNXRuntimeError\] : \d+ : (\w+) : ")
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ ")
_NO_MEMORY = ("bad allocation", "bad_alloc", "Failed to allocate memory", "out of memory")
_LEVELS = {"-1": "ORT_DISABLE_ALL", "0": "ORT_ENABLE_ALL", "1": "ORT_ENABLE_BASIC", "2": "ORT_ENABLE_EXTENDED"}
_BOOLEANS = {"0": False, "false": False, "1": True, "true": True}


def open_session(path: str, request: OpenRequest, gpu_bytes: int) -> InferenceSession:
    """A session on the request's device, of which it may take ``gpu_bytes`` if that is a GPU.

    INVALID_ARGUMENT for a parameter of the config that makes no sense, PERMISSION_DENIED for one that needs trust;
    otherwise what onnxruntime says about the file: see :func:`load_error`."""
    from onnxruntime import InferenceSession, get_available_providers

    options = _options(request, os.path.dirname(path))
    providers: list[Any] = ["CPUExecutionProvider"]
    if request.on_gpu and CUDA not in get_available_providers():
        raise _no_gpu()
    if request.on_gpu:
        providers.insert(0, (CUDA, _cuda_options(request.device, gpu_bytes)))
    try:
        session = InferenceSession(path, options, providers=providers)
    except ServingError:
        raise
    except Exception as error:
        failure = load_error(error)
    else:
        if request.on_gpu and CUDA not in session.get_providers():
            raise _no_gpu()
        return session
    raise failure


def _no_gpu() -> ServingError:
    return failed_precondition(
        "onnxruntime has no GPU here: install onnxruntime-gpu in place of onnxruntime, or have the model on the CPU by "
        "instance_group { kind: KIND_CPU }"
    )


def is_mapped(parameters: Mapping[str, str]) -> bool:
    """Whether weights in other files stay there, mapped, as long as the session is open."""
    return parameters.get("memory") == "mapped"


def check_parameters(parameters: Mapping[str, str], trusted: bool, directory: str) -> None:
    """Checks what the config of a version says about sessions: INVALID_ARGUMENT or PERMISSION_DENIED."""
    for name in ("intra_op_thread_count", "inter_op_thread_count"):
        _count(parameters, name)
    for name in ("execution_mode", "enable_mem_arena"):
        _flag(parameters, name)
    _choice(parameters, "graph_optimization_level", _LEVELS)
    _choice(parameters, "memory", {"mapped": "", "loaded": ""})
    for name in parameters:
        if name.startswith("session.") and name not in SAFE_ENTRIES and not trusted:
            raise unsafe(f"the parameter {name} may name files")
    if CUSTOM_OPS in parameters:
        if not trusted:
            raise unsafe(f"the parameter {CUSTOM_OPS} loads the library {parameters[CUSTOM_OPS]}")
        check_place(parameters[CUSTOM_OPS], directory, CUSTOM_OPS)


def leaves_threads(request: OpenRequest) -> bool:
    """Whether opening it starts threads: that of the import of the library, those of a GPU's driver, those of a team,
    and what a library of the user may."""
    alone = not request.on_gpu and _threads(request) == (1, 1) and CUSTOM_OPS not in request.settings.parameters
    return not alone or "onnxruntime" not in sys.modules


def _threads(request: OpenRequest) -> tuple[int, int]:
    """The threads inside an operator and between operators. INVALID_ARGUMENT for a parameter that is no number."""
    parameters = request.settings.parameters
    inside = _count(parameters, "intra_op_thread_count") or request.threads or torch.get_num_threads()
    return inside, _count(parameters, "inter_op_thread_count") or 1


def _options(request: OpenRequest, directory: str) -> SessionOptions:
    import onnxruntime

    parameters = request.settings.parameters
    check_parameters(parameters, request.trusted, directory)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = _threads(request)
    parallel = _flag(parameters, "execution_mode")
    options.execution_mode = getattr(onnxruntime.ExecutionMode, "ORT_PARALLEL" if parallel else "ORT_SEQUENTIAL")
    level = _choice(parameters, "graph_optimization_level", _LEVELS)
    if level:
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    arena = _flag(parameters, "enable_mem_arena")
    if arena is not None:
        options.enable_cpu_mem_arena = arena
    options.log_severity_level = _ERRORS_ONLY
    entries = {"session.intra_op.allow_spinning": "0", "session.load_model_format": "ONNX"}
    if is_mapped(parameters):
        entries["session.disable_prepacking"] = "1"
    entries |= {name: value for name, value in parameters.items() if name.startswith("session.")}
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    if CUSTOM_OPS in parameters:
        options.register_custom_ops_library(check_place(parameters[CUSTOM_OPS], directory, CUSTOM_OPS))
    return options


def _cuda_options(device: str, limit: int) -> dict[str, str]:
    """The options for CUDA, not tried yet: no GPU was at hand with onnxruntime's CUDA wheel."""
    return {
        "device_id": device.partition(":")[2] or "0",
        "gpu_mem_limit": str(limit),
        "arena_extend_strategy": "kSameAsRequested",
        "cudnn_conv_algo_search": "HEURISTIC",
    }


def load_error(error: Exception) -> Exception:
    """Why a session could not be opened: DATA_LOSS for a missing file, UNIMPLEMENTED for what this onnxruntime cannot
    do, RESOURCE_EXHAUSTED for lack of memory, otherwise FAILED_PRECONDITION."""
    kind, text = _said(error)
    if any(words in text for words in _NO_MEMORY):
        return MemoryError(text)
    codes = {"NO_SUCHFILE": StatusCode.DATA_LOSS, "NOT_IMPLEMENTED": StatusCode.UNIMPLEMENTED}
    return ServingError(codes.get(kind, StatusCode.FAILED_PRECONDITION), f"onnxruntime refuses the model: {text}")


def run_error(error: Exception) -> Exception:
    """An error of a run as one that :mod:`tfs_lite.adapters.failures` knows."""
    _, text = _said(error)
    return MemoryError(text) if any(words in text for words in _NO_MEMORY) else RuntimeError(text)


def _said(error: Exception) -> tuple[str, str]:
    """The kind of an error, and its first line without places in onnxruntime's source."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    prefix = _PREFIX.match(text)
    text = text[prefix.end() :] if prefix else text
    place = _SOURCE.search(text)
    if place:
        text = text[: place.start()] + _behind_function(text[place.end() :])
    return prefix[1] if prefix else "", re.sub(r"(?:[\w.-]*/)+([\w.-]+)", r"\1", text)[:MAX_MESSAGE]


def _behind_function(text: str) -> str:
    """The text behind the signature of a C++ function, with whose parentheses it begins."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character in "(<") - (character in ")>")
        if character == ")" and depth == 0:
            return text[position + 1 :].removeprefix(" const").strip()
    return text


def _count(parameters: Mapping[str, str], name: str) -> int:
    """The number in a parameter; 0 if it is not there."""
    value = parameters.get(name, "0")
    if not (value.isascii() and value.isdigit() and int(value) <= 1024):
        raise invalid_argument(f'the parameter {name} is "{value[:100]}", expected a number of threads')
    return int(value)


def _flag(parameters: Mapping[str, str], name: str) -> bool | None:
    if name not in parameters:
        return None
    value = parameters[name].lower()
    if value not in _BOOLEANS:
        raise invalid_argument(f'the parameter {name} is "{value[:100]}", expected 0 or 1')
    return _BOOLEANS[value]


def _choice(parameters: Mapping[str, str], name: str, choices: Mapping[str, str]) -> str:
    """The choice in a parameter; empty if it is not there."""
    if name not in parameters:
        return ""
    value = parameters[name]
    if value not in choices:
        raise invalid_argument(f'the parameter {name} is "{value[:100]}", expected {" or ".join(choices)}')
    return choices[value]
