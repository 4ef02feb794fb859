"""A disk that hangs for one process and its children: calls on paths below a marked one wait until the mark is gone.

disk = HangingDisk(tmp_path)            # compiles hang.c; None-like where there is no gcc: see HangingDisk.lacks
subprocess.Popen(..., env={**os.environ, **disk.env})
disk.hang("/models/sick")
disk.free()
"""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from pathlib import Path

SIZE = 4096
SOURCE = Path(__file__).with_name("hang.c")


class HangingDisk:
    """``env`` is for the process that is to hang. Nothing hangs before ``hang``; one path at a time."""

    def __init__(self, directory: Path) -> None:
        """Compiles into ``directory``. RuntimeError where that cannot be done."""
        if problem := self.lacks():
            raise RuntimeError(problem)
        library, self._file = directory / "hang.so", directory / "hang.mark"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self._file.write_bytes(bytes(SIZE))
        with self._file.open("r+b") as file:
            self._mark = mmap.mmap(file.fileno(), SIZE)
        self.env = {"LD_PRELOAD": str(library), "TFS_LITE_TEST_HANG": str(self._file)}

    @staticmethod
    def lacks() -> str:
        """What is missing here; empty if nothing is."""
        return "" if shutil.which("gcc") and os.name == "posix" else "there is no gcc"

    def hang(self, path: str | os.PathLike[str]) -> None:
        self._mark[1:SIZE] = os.fsencode(path)[1:].ljust(SIZE - 1, b"\0")
        self._mark[:1] = b"/"  # last, so that no shorter path is ever marked

    def free(self) -> None:
        self._mark[:1] = b"\0"
