"""The machine's devices, their memory, and how many threads torch may use.

``auto`` means a GPU when there is one, else the CPU. Which of several GPUs a version goes to is decided in
:mod:`tfs_lite.adapters.gpu_placement`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import torch

from tfs_lite.core.resources import GPU, MAIN, RAM, GroupMemory, Resource, ResourceAllocation
from tfs_lite.core.status import failed_precondition, invalid_argument

_SETTING = re.compile(r"auto|cpu|cuda(:\d+)?", re.ASCII)
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_CGROUP_OF_PROCESS = Path("/proc/self/cgroup")
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
logger = logging.getLogger(__name__)


def check_device(setting: str) -> None:
    """Raises INVALID_ARGUMENT unless ``setting`` is ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; FAILED_PRECONDITION if
    this machine has no such device."""
    if not _SETTING.fullmatch(setting):
        raise invalid_argument(f'device "{setting}": expected auto, cpu, cuda or cuda:N')
    count = gpu_count()
    if setting.startswith("cuda") and not count:
        raise failed_precondition(f'device "{setting}": torch finds no GPU on this machine')
    number = setting.partition(":")[2]
    if number and int(number) >= count:
        raise failed_precondition(f'device "{setting}": this machine has GPUs 0 to {count - 1}')


def gpu_count() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def uses_gpu(setting: str) -> bool:
    """Whether versions go to a GPU under this setting."""
    return setting.startswith("cuda") or (setting == "auto" and gpu_count() > 0)


def usable_gpus(setting: str) -> tuple[int, ...]:
    """The numbers of the GPUs that versions may go to under this setting."""
    number = setting.partition(":")[2]
    if number:
        return (int(number),)
    return tuple(range(gpu_count())) if uses_gpu(setting) else ()


def gpu_bytes(fraction: float = 0.0) -> dict[int, int]:
    """The memory of each GPU, of which this fraction counts (0: all of it)."""
    totals = {index: torch.cuda.get_device_properties(index).total_memory for index in range(gpu_count())}
    return {index: int(total * (fraction or 1.0)) for index, total in totals.items()}


def machine_resources(
    limit_bytes: int | None = None, gpu_fraction: float = 0.0
) -> tuple[Mapping[str, int], ResourceAllocation]:
    """The number of devices of each type and the total memory of each device, for a resource tracker.

    Main memory is the machine's, or ``limit_bytes`` if that is less; :func:`group_memory` may leave less of it. Of a
    GPU's memory ``gpu_fraction`` counts (0: all of it).
    """
    main = min(limit for limit in (_physical_bytes(), limit_bytes) if limit is not None)
    gpus = {Resource(GPU, RAM, index): total for index, total in gpu_bytes(gpu_fraction).items()}
    return {MAIN: 1, GPU: len(gpus)}, ResourceAllocation({Resource(MAIN, RAM, 0): main, **gpus})


def limit_gpu_memory(fraction: float) -> None:
    """Lets torch take at most this share of each GPU's memory in this process; 0 means all of it. Allocations beyond it
    fail with an out-of-memory error. Does nothing without a GPU."""
    for index in range(gpu_count() if fraction else 0):
        torch.cuda.set_per_process_memory_fraction(fraction, index)


def gpu_use() -> tuple[tuple[int, int], ...]:
    """The bytes of each GPU that torch has allocated in this process, and those that are free. Empty while torch has
    not begun to use GPUs, which this does not make it do."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    return tuple((torch.cuda.memory_allocated(i), torch.cuda.mem_get_info(i)[0]) for i in range(gpu_count()))


def configure_torch_threads(intra: int = 0, inter: int = 0) -> None:
    """Sets torch's threads inside an operator and between operators; 0: torch's choice. Call it before the first model
    runs: the second number cannot be changed later."""
    if intra > 0:
        torch.set_num_threads(intra)
    if inter > 0 and inter != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(inter)
        except RuntimeError:
            logger.warning("threads between operators stay at %d: torch is at work", torch.get_num_interop_threads())


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def group_memory(root: Path = _CGROUP_ROOT, process: Path = _CGROUP_OF_PROCESS) -> GroupMemory | None:
    """The control group around this process that has the least room left; None if none of them has a limit.

    A limit of at least the machine's memory is none. Swap is not counted as room. Reads some small files of the kernel.
    """
    groups = [found for folder in _memory_groups(root, process) if (found := _read_group(folder)) is not None]
    return min(groups, key=lambda group: group.limit - group.held, default=None)


def _memory_groups(root: Path, process: Path) -> tuple[Path, ...]:
    """The folders of the process's group and its parents: in version 1 those of the memory controller. Inside a
    container the group's path may be one of the host, of which only the top is there."""
    try:
        return _folders_of(root, process.read_text())
    except OSError:
        return ()


@lru_cache(maxsize=1)
def _folders_of(root: Path, groups: str) -> tuple[Path, ...]:
    """The folders of the groups in a text of ``/proc/PID/cgroup``, which is the same at each load."""
    found = list[Path]()
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        group = top / path.lstrip("/")
        found += (folder for folder in (group, *group.parents) if folder.is_relative_to(top))
    return tuple(found)


def _read_group(folder: Path) -> GroupMemory | None:
    """Reads the memory limits of a control group. ``memory.high`` counts as a limit: beyond it the kernel slows the
    processes down until they stand still. The older version has other names. None for a group without a limit, or one
    whose use cannot be read."""
    limits = [found for name in _LIMITS if (found := _read_number(folder / name)) is not None]
    used = [found for name in _USED if (found := _read_number(folder / name)) is not None]
    if not limits or min(limits) >= _physical_bytes() or not used:
        return None
    return GroupMemory(min(limits), max(0, used[0] - _droppable(folder / "memory.stat")))


def _droppable(statistics: Path) -> int:
    """Bytes of the group that the system drops when it needs room: cached files that are not mapped, and the kernel's
    own caches. Files in memory (tmpfs, shared memory) are none of them."""
    try:
        words = (line.split() for line in statistics.read_text().splitlines())
        found = {name.removeprefix("total_"): int(value) for name, value in words}  # the totals come last
    except (OSError, ValueError):
        return 0
    cached = found.get("active_file", 0) + found.get("inactive_file", 0)
    mapped = found.get("file_mapped", found.get("mapped_file", 0)) - found.get("shmem", 0)
    return max(0, cached - max(0, mapped)) + found.get("slab_reclaimable", 0)


def _read_number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None
