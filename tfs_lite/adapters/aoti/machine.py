"""The demands of compiled code on a machine, compared with this one before a byte of it is loaded.

Code for another processor ends the process at its first unknown instruction, and no library of torch compares them.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping

import orjson

from tfs_lite.adapters.exported.document import COMPILED
from tfs_lite.adapters.inspect.archive import Archive, damaged
from tfs_lite.core.status import ServingError, failed_precondition

TORCH, CPU_FLAGS = "torch", "cpu_flags"
"""Keys that ``tfs_lite.save`` adds to torch's own."""
_MAX_METADATA = 1 << 16
_FLAGS_OF_ISA = {
    "AVX2": "avx2 fma f16c",
    "AVX512": "avx512f avx512dq avx512vl avx512bw fma",
    "AVX512_VNNI": "avx512_vnni",
    "AMX_TILE": "amx_tile amx_bf16 amx_int8",
    "AMX": "amx_tile amx_bf16 amx_int8",
    "NEON": "asimd",
    "ASIMD": "asimd",
    "SVE": "sve",
    "SVE256": "sve",
}
_FLAG_OF_COMPILER = {"avx512vnni": "avx512_vnni", "avx512bf16": "avx512_bf16"}


def read_metadata(archive: Archive) -> dict[str, str]:
    """Reads what torch wrote about the code. DATA_LOSS if it says nothing, or two things."""
    found: dict[str, str] = {}
    for member in sorted(archive.members):
        if not (member.startswith(COMPILED) and member.endswith("_metadata.json")):
            continue
        try:
            entries = orjson.loads(archive.read(member, _MAX_METADATA))
            texts = {str(key): str(value) for key, value in entries.items()}
        except (ValueError, AttributeError):
            raise damaged(f"{archive.name} has a {member} that cannot be read") from None
        if any(found.setdefault(key, value) != value for key, value in texts.items()):
            raise damaged(f"{archive.name} holds code for two machines")
    if not found.get("AOTI_MACHINE"):
        raise damaged(f"{archive.name} does not say for which machine it was compiled")
    return found


def check_machine(metadata: Mapping[str, str], device: str) -> None:
    """Raises FAILED_PRECONDITION, with both sides, unless the code runs here on ``device`` (``cpu`` or ``cuda:N``)."""
    import torch

    _compare("operating system", metadata.get("AOTI_PLATFORM", ""), sys.platform)
    _compare("processor", metadata["AOTI_MACHINE"], platform.machine())
    _compare("device", metadata.get("AOTI_DEVICE_KEY", ""), device.partition(":")[0])
    newest = metadata.get(TORCH, "")
    if _release(newest) > _release(torch.__version__):
        raise _mismatch("torch", newest, torch.__version__)
    if device == "cpu":
        missing = sorted(needed_flags(metadata) - cpu_flags())
        if missing:
            raise _mismatch(
                "instructions", metadata.get("AOTI_CPU_ISA", ""), f"a processor without {', '.join(missing)}"
            )
    else:
        major, minor = torch.cuda.get_device_capability(device)
        _compare("compute capability", metadata.get("AOTI_COMPUTE_CAPABILITY", ""), f"{major}{minor}")


def needed_flags(metadata: Mapping[str, str]) -> set[str]:
    """The processor flags that the code needs, as in ``/proc/cpuinfo``. FAILED_PRECONDITION for instructions that are
    not known here."""
    recorded = metadata.get(CPU_FLAGS)
    if recorded is not None:
        return set(recorded.split())
    names = metadata.get("AOTI_CPU_ISA", "").upper().split()
    if unknown := [name for name in names if name not in _FLAGS_OF_ISA]:
        raise failed_precondition(f"the model was compiled for unknown instructions: {' '.join(unknown)}")
    return {flag for name in names for flag in _FLAGS_OF_ISA[name].split()}


def flags_of_compiler(options: str) -> str:
    """The compiler's options, such as ``-mavx2 -mamx-tile``, as flags of ``/proc/cpuinfo``."""
    names = [option.removeprefix("-m") for option in options.split() if re.fullmatch(r"-m[a-z0-9-]+", option)]
    return " ".join(_FLAG_OF_COMPILER.get(name, name.replace("-", "_")) for name in names)


def cpu_flags() -> set[str]:
    """The flags of this machine's first processor; empty if the system does not tell."""
    try:
        with open("/proc/cpuinfo") as file:
            found = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.MULTILINE)
    except OSError:
        return set()
    return set(found[1].split()) if found is not None else set()


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


def _compare(what: str, compiled_for: str, here: str) -> None:
    if compiled_for != here:
        raise _mismatch(what, compiled_for, here)


def _mismatch(what: str, compiled_for: str, here: str) -> ServingError:
    return failed_precondition(
        f"the model was compiled for another machine: {what} {compiled_for or 'unknown'}, here is {here}. Compile it "
        'on a machine like this one (tfs_lite.save with compile="aoti"; isa="avx2" for older ones), or run its '
        "program: aoti_fallback: export in its parameters"
    )
