"""Compiles an exported program and writes one archive with its code, the program itself and the weights.

The weights stay outside of the code: those inside a library are never given back when it is unloaded. The compiler gets
the instruction set that is recorded and not everything that the author's own processor can do, so that a comparison
with the recorded one says whether the code runs.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
from torch.export import ExportedProgram

from tfs_lite.adapters.aoti.machine import CPU_FLAGS, TORCH, flags_of_compiler
from tfs_lite.adapters.failures import sentence
from tfs_lite.adapters.saving.examples import Example
from tfs_lite.core.status import failed_precondition, invalid_argument

_BITS = {"": None, "avx2": 256, "avx512": 512}
MODEL = "model"
"""The name of the only model in the archive."""


def check_compiler(isa: str, device: torch.device) -> None:
    """Raises INVALID_ARGUMENT for another ``isa``, FAILED_PRECONDITION without a compiler."""
    if isa not in _BITS:
        raise invalid_argument(f'isa is "{isa}", expected {", ".join(name for name in _BITS if name)}, or nothing')
    if device.type == "cpu" and shutil.which(os.environ.get("CXX", "g++")) is None:
        raise failed_precondition(
            'compile="aoti" needs a C++ compiler, and there is no g++: apt-get install g++, or set CXX. '
            "Servers need none"
        )


def write_compiled(program: ExportedProgram, example: Example, path: str, isa: str) -> None:
    """Compiles ``program`` (seconds to minutes) and writes the archive ``path``. FAILED_PRECONDITION if that fails."""
    from torch._inductor import aot_compile, config, cpu_vec_isa
    from torch.export.pt2_archive._package import package_pt2

    options: dict[str, Any] = {
        "aot_inductor.package": True,
        "aot_inductor.package_constants_in_so": False,
        "cpp.march": "",
        "cpp.simdlen": _BITS[isa],
    }
    with config.patch({"cpp.simdlen": _BITS[isa]}):
        flags = flags_of_compiler(cpu_vec_isa.pick_vec_isa().build_arch_flags())
    options["aot_inductor.metadata"] = {TORCH: torch.__version__, CPU_FLAGS: flags}
    try:
        code: Any = aot_compile(program.module(check_guards=False), example.args, dict(example.kwargs), options=options)
    except Exception as error:
        raise failed_precondition(f"AOTInductor cannot compile the program: {sentence(error)}") from error
    package_pt2(path, exported_programs={MODEL: program}, aoti_files={MODEL: code})
