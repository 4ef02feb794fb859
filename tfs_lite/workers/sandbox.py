"""The sandbox of a model's process: what it may still open, and how it gives everything else up.

    plan(directory)  ->  Sandbox, a value that travels  ->  enter(sandbox, own) in the process, while it has one thread

Inside, a process reads its version, the interpreter, libraries, and facts about itself and the processors; it writes
to a directory of its own. It makes no connections and starts no programs. What the server gave it before stays open:
its connection, and the memory that it shares with the server. See docs/sandbox.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tfs_lite.core.model import SandboxStatus
from tfs_lite.core.status import failed_precondition
from tfs_lite.workers.landlock import (
    DEVICE,
    OWN,
    READ,
    WRITE,
    Kernel,
    PathRights,
    allow_paths_only,
    give_up_privileges,
    probe_kernel,
    refuse_calls,
)

_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64")
_SYSTEM_FACTS = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/usr/share/zoneinfo",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/vm/overcommit_memory",
    "/sys/bus/pci",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_SINKS = ("/dev/null",)
_GPU_FACTS = ("/proc/driver/nvidia", "/proc/devices", "/proc/modules", "/sys/module")
_GPU_LIBRARIES = ("/usr/local/cuda", "/usr/local/nvidia", "/etc/OpenCL", "/usr/share/nvidia")
_GPU_DEVICES = ("/dev/nvidia-caps", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_MAX_GPUS = 16
_CACHES = ("HOME", "XDG_CACHE_HOME", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Environment variables that name directories to write to, besides TMPDIR."""


class Interpreter(NamedTuple):
    """The paths at which the interpreter finds what it runs. ``packages`` are the directories of those that a process
    needs in any case, wherever they are."""

    prefixes: tuple[str, ...]
    path: tuple[str, ...]
    packages: tuple[str, ...]
    working_directory: str


@dataclass(frozen=True, slots=True)
class Sandbox:
    """The rights that a process keeps. ``paths`` are pairs of a path and an :class:`PathRights`; ``landlock`` and
    ``filters`` are those of :class:`Kernel` that are used."""

    paths: tuple[tuple[str, int], ...]
    landlock: int
    filters: bool

    @property
    def status(self) -> SandboxStatus:
        return status_of(Kernel(self.landlock, self.filters))

    def to_message(self, own: str) -> dict[str, object]:
        """The fields for :func:`enter_by_message` in the process."""
        return {"paths": self.paths, "landlock": self.landlock, "filters": self.filters, "own": own}


def status_of(kernel: Kernel) -> SandboxStatus:
    """The report of what a sandbox holds on this kernel. Landlock's first versions know no truncating, and without
    filters there are sockets that it does not see."""
    held = {
        "files": kernel.landlock >= 3 or (kernel.landlock >= 1 and kernel.filters),
        "programs": kernel.landlock >= 1 or kernel.filters,
        "network": kernel.filters,
        "signals": kernel.landlock >= 6,
    }
    return SandboxStatus(
        tuple(name for name, holds in held.items() if holds), tuple(name for name, holds in held.items() if not holds)
    )


def this_interpreter(*modules: str) -> Interpreter:
    """The paths of this process's interpreter, with the packages of ``modules``, which are imported here already."""
    tops = {module.partition(".")[0] for module in ("tfs_lite", *modules)}
    packages = [str(place) for name in sorted(tops) for place in getattr(sys.modules.get(name), "__path__", ())]
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    return Interpreter(prefixes, tuple(sys.path), tuple(packages), os.getcwd())


def plan(
    directory: str,
    *,
    links: Iterable[str] = (),
    gpu: bool = False,
    interpreter: Interpreter | None = None,
    kernel: Kernel | None = None,
) -> Sandbox:
    """The sandbox for a process with the version in ``directory``. ``links`` are files elsewhere that it may read as
    well. Changes nothing, and opens nothing."""
    interpreter = interpreter or this_interpreter()
    kernel = kernel or probe_kernel()
    version = os.path.realpath(directory)
    readable = [version, *links, *interpreter.prefixes, *_import_path(interpreter, version), *interpreter.packages]
    rules: list[tuple[str, PathRights]] = [(path, READ) for path in (*readable, *_LIBRARIES, *_SYSTEM_FACTS)]
    rules += [(path, WRITE) for path in _SINKS]
    if gpu:
        devices = (*_GPU_DEVICES, *(f"/dev/nvidia{number}" for number in range(_MAX_GPUS)))
        rules += [(path, READ) for path in (*_GPU_FACTS, *_GPU_LIBRARIES)]
        rules += [(path, DEVICE) for path in devices]
    paths = dict.fromkeys((path, int(access)) for path, access in rules)
    return Sandbox(tuple(paths), kernel.landlock, kernel.filters)


def linked_files(directory: str) -> tuple[str, ...]:
    """The files and directories elsewhere that links in a version's directory lead to."""
    top = os.path.realpath(directory)
    found = set[str]()
    for folder, folders, names in os.walk(top):
        for name in (*folders, *names):
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found.add(os.path.realpath(path))
    return tuple(sorted(path for path in found if not path.startswith(top + os.sep)))


def enter(sandbox: Sandbox, own: str) -> None:
    """Gives up everything else, for this process and those that it starts. ``own`` is a directory that the process may
    write to, and becomes its temporary one. Call it once, before the framework is imported. Raises OSError, and
    RuntimeError if the process has more than one thread: the others would keep their rights."""
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"a sandbox is entered by a process with one thread; this one has {threads}")
    _work_in(own)
    give_up_privileges()
    if sandbox.landlock:
        paths = ((path, PathRights(access)) for path, access in sandbox.paths)
        allow_paths_only([*paths, (own, OWN)], sandbox.landlock)
    if sandbox.filters:
        refuse_calls()


def enter_by_message(fields: Mapping[str, Any]) -> None:
    """Enters the sandbox that :meth:`Sandbox.to_message` described, as :func:`enter` does. FAILED_PRECONDITION if the
    system refuses it."""
    paths = tuple((str(path), int(access)) for path, access in fields["paths"])
    try:
        enter(Sandbox(paths, fields["landlock"], fields["filters"]), fields["own"])
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    else:
        return
    raise failed_precondition(f"cannot be loaded: the system refuses its process the sandbox ({reason})")


def _work_in(own: str) -> None:
    """Makes libraries write there what they write."""
    os.environ["TMPDIR"] = own
    os.environ.update(dict.fromkeys(_CACHES, own))
    tempfile.tempdir = None


def _import_path(interpreter: Interpreter, version: str) -> list[str]:
    """The directories that modules are imported from, without the working directory, which ``python -m`` puts there,
    and without directories that hold the version: other models may lie next to it."""
    entries = [os.path.realpath(entry) for entry in interpreter.path if entry]
    here = os.path.realpath(interpreter.working_directory)
    return [entry for entry in entries if entry != here and not version.startswith(entry.rstrip(os.sep) + os.sep)]
