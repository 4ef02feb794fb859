"""Exported programs as a function of bytes that raises when a promise is broken, see ``targets`` and ``programs``.

An archive is refused with a status, left to torch's own loader, or built. A program that is built calls allowed
operators only. It runs in a child process, whose memory and time are bounded, for operators may ask for any: there it
answers or raises, and where torch's own loader accepts the file and answers too, the answers are the same bit for bit.
As a model it gives what its signature says, or a status.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import select
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from programs import archive_of, programs
from promises import Violation, check_error, require
from torch.utils._python_dispatch import TorchDispatchMode

from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import Program, build_program
from tfs_lite.adapters.exported.torch_loader import load_program
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.adapters.opening import NeedsProcess, OpenRequest, VersionFiles
from tfs_lite.adapters.pytorch.export import open_exported
from tfs_lite.adapters.pytorch.tensors import as_array
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DEFAULT_SIGNATURE, SymbolicDim
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.dtypes import to_numpy

BLAMES_THE_FILE = frozenset({StatusCode.DATA_LOSS, StatusCode.PERMISSION_DENIED, StatusCode.FAILED_PRECONDITION})
MAX_WORDS = 500
"""Characters of a reason."""
LOAD_SECONDS = 1.0
LOAD_BYTES = 32 << 20
"""By which opening a program may raise the most memory of the process; the files have 20 KB."""
RUN_BYTES = 1 << 30
RUN_SECONDS = 4
"""Of processor time; a loop without an end runs into it."""
_CPU = torch.device("cpu")
_ALLOWED = re.compile(
    r"torch\.ops\.(aten|prims|quantized_decomposed)\.\w+\.\w+|torch\.sym_\w+|math\.\w+"
    r"|_operator\.(eq|ne|le|ge|lt|gt|neg|pos|add|sub|mul|pow|floordiv|mod|truediv|and_|or_|not_|lshift|rshift|abs)"
    r"|torch\.ops\.higher_order\.(cond|while_loop|map_impl|wrap_with_set_grad_enabled|wrap_with_autocast)"
)
_DENIED = re.compile(
    r"torch\.ops\.\w+\.(from_file|save|load|manual_seed|_print|warn|set_\w*|resize\w*|record_stream|get_gradients)\.\w+"
)
_UNDEFINED = re.compile(
    r"\.(\w*empty\w*|\w*rand\w*|\w*dropout\w*|bernoulli\w*|normal\w*|multinomial|resize\w*|exponential\w*)"
)
"""Operators whose results are whatever was in memory, or are drawn."""
OUTCOMES = Counter[str]()
"""How inputs ended, for whoever looks at a run."""


def prepare_programs() -> None:
    """Exports the programs, which takes some seconds, and loads what a first run would."""
    torch.set_num_threads(1)
    for name in programs():
        program(json.dumps({"program": name, "edits": []}).encode())


def program(data: bytes) -> None:
    """The changes of a program."""
    start, archive = archive_of(data)
    directory = Path(_scratch())
    (directory / "model.pt2").write_bytes(archive)
    built = _build(directory)
    if built is not None:
        names = [operator.name for operator in built.operators]
        for name in names:
            require(_ALLOWED.fullmatch(name) and not _DENIED.fullmatch(name), f"{name} may be called")
        OUTCOMES[_in_child(lambda: _run(directory, start.inputs, names), names)] += 1


def _build(directory: Path) -> Program | None:
    before, began = reset_memory_peak(), time.process_time()
    try:
        with open_archive(os.fspath(directory / "model.pt2"), "model.pt2") as archive:
            return build_program(archive, read_document(archive, trusted=False), _CPU)
    except UnsupportedProgram as error:
        require(0 < len(str(error)) <= MAX_WORDS and "\n" not in str(error), f"a reason: {error!s:.600}")
        OUTCOMES["left to torch"] += 1
    except ServingError as error:
        check_error(error, BLAMES_THE_FILE)
        require(len(str(error)) <= MAX_WORDS and os.fspath(directory) not in str(error), f"a reason: {error!s:.600}")
        OUTCOMES[error.code.name] += 1
    finally:
        took, memory = time.process_time() - began, memory_peak() - before
        require(took < LOAD_SECONDS, f"opening took {took:.1f} s")
        require(memory < LOAD_BYTES, f"opening took {memory >> 20} MB")
    return None


# In a child process.


def _run(directory: Path, inputs: Sequence[torch.Tensor], names: Sequence[str]) -> str:
    """How it went, in a word; Violation."""
    _check_namespaces(_open(directory), inputs)
    ours = _answers(lambda: _open(directory), inputs)
    _run_as_model(directory, inputs)
    if isinstance(ours, Exception):
        return "a run raises"
    try:
        theirs = _answers(lambda: _load(directory), inputs)
    except Exception:
        return "answers, torch refuses the file"
    if isinstance(theirs, Exception):
        return "answers, torch's raises"
    if any(_UNDEFINED.search(name) for name in names):
        return "answers, and may not be compared"
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        require(len(one) == len(other), f"run {number} has {len(one)} results, torch's {len(other)}")
        for place, pair in enumerate(zip(one, other, strict=True)):
            require(_same(*pair), f"run {number}: result {place} is {_shown(pair[0])}, torch's is {_shown(pair[1])}")
    return "answers as torch does"


def _open(directory: Path) -> Program:
    with open_archive(os.fspath(directory / "model.pt2"), "model.pt2") as archive:
        return build_program(archive, read_document(archive, trusted=False), _CPU)


def _load(directory: Path) -> Program:
    with open_archive(os.fspath(directory / "model.pt2"), "model.pt2") as archive:
        return load_program(archive, read_document(archive, trusted=False), _CPU)


class _Called(TorchDispatchMode):
    """Notes the namespaces of what is called, decomposed operators too."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.namespaces.add(func.namespace)
        return func(*args, **(kwargs or {}))


def _check_namespaces(built: Program, inputs: Sequence[torch.Tensor]) -> None:
    called = _Called()
    with contextlib.suppress(Exception), torch.inference_mode(), called:
        built.forward(*(value.clone() for value in inputs))
    require(called.namespaces <= {"aten", "prims", "quantized_decomposed"}, f"{called.namespaces} were called")


def _answers(make: Callable[[], Program], inputs: Sequence[torch.Tensor]) -> list[list[Any]] | Exception:
    """The flat results of two runs, for a program may keep a state, or what a run raised. Raises what ``make`` does."""
    built, found = make(), []
    for _ in range(2):
        torch.manual_seed(0)
        given = [value.clone() for value in inputs]
        try:
            with torch.inference_mode():
                results = built.forward(*given)
            found.append([value.clone() if isinstance(value, torch.Tensor) else value for value in [*results, *given]])
        except (Exception, MemoryError) as error:
            return error
    return found


def _run_as_model(directory: Path, inputs: Sequence[torch.Tensor]) -> None:
    """A model that lies about its inputs or outputs fails when it is opened or run, with a status."""
    files = VersionFiles(os.fspath(directory), frozenset({"model.pt2"}))
    try:
        model = open_exported(OpenRequest(ServableId("m", 1), files, "cpu", False))
        declared = model.signatures[DEFAULT_SIGNATURE]
        arrays = dict(zip(declared.input_names, map(as_array, (value.clone() for value in inputs)), strict=False))
        outputs = model.run(DEFAULT_SIGNATURE, arrays, ())
    except (ServingError, NeedsProcess):
        return
    for spec in declared.outputs:
        array = np.asarray(outputs[spec.name])
        fits = array.dtype == to_numpy(spec.dtype) and (spec.shape is None or len(spec.shape) == array.ndim)
        for dim, size in zip(spec.shape or (), array.shape, strict=False):
            fits = fits and (dim == size or isinstance(dim, SymbolicDim) or dim is None)
        require(fits, f"output {spec.name} is {array.dtype} {array.shape}, declared as {spec}")


def _same(one: Any, other: Any) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return type(one) is type(other) and (one == other or one != one)
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout != torch.strided:
        return True
    bits = [value.contiguous().reshape(-1).view(torch.uint8) if value.numel() else value for value in (one, other)]
    return torch.equal(*bits) or bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


def _shown(value: Any) -> str:
    return (
        f"{tuple(value.shape)} {value.dtype} {value.flatten()[:4].tolist()}" if hasattr(value, "shape") else repr(value)
    )


def _in_child(work: Callable[[], str], names: Sequence[str]) -> str:
    """What ``work`` returns in a process of its own, or ``a run without an end``. A process that dies is a
    Violation."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        _be_child(work, writer)
    os.close(writer)
    told = bytearray()
    try:
        ends = time.monotonic() + 60
        while (left := ends - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
            piece = os.read(reader, 1 << 16)
            if not piece:
                break
            told += piece
    finally:
        os.close(reader)
        if time.monotonic() >= ends:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return "a run without an end"
        raise Violation(f"signal {number} in a run of {', '.join(sorted(set(names)))}")
    kind, _, text = told.decode().partition(":")
    require(kind == "ok", text)
    return text


def _be_child(work: Callable[[], str], writer: int) -> None:
    try:
        _bound_child()
        text = f"ok:{work()}"
    except Violation as error:
        text = f"violation:{error}"
    except MemoryError:
        text = "ok:no memory"
    except BaseException as error:
        text = f"error:{type(error).__name__}: {error!s:.300}"
    try:
        os.write(writer, text.encode(errors="replace")[:60_000])
    finally:
        os._exit(0)


def _bound_child() -> None:
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages + RUN_BYTES if most < 0 else min(pages + RUN_BYTES, most), most))
    resource.setrlimit(resource.RLIMIT_CPU, (RUN_SECONDS, RUN_SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGBUS, signal.SIGILL, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)


# Memory of the process.


def _scratch() -> str:
    global _directory
    if _directory is None:
        _directory = tempfile.mkdtemp(prefix="programs-")
    return _directory


_directory: str | None = None


def reset_memory_peak() -> int:
    """Forgets the most memory that the process has had; what it has now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_peak()


def memory_peak() -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0]) << 10
