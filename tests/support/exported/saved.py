"""Keeps the archives of a whole zoo in one small file: ``python -m tests.support.exported.saved FILE.tar.xz``.

The command exports the zoo with the torch it runs on, so that other releases read what this one wrote.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

from tests.support.exported.zoo import ZOO


def save_zoo(folder: Path) -> None:
    """Exports every program of the zoo to ``folder/<name>.pt2``."""
    for program in ZOO.values():
        program.save(folder / f"{program.name}.pt2")


def pack(folder: Path, target: Path) -> None:
    """Writes the files of ``folder`` to ``target``, without what belongs to this machine."""
    with tarfile.open(target, "w:xz", preset=9, format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            info = tarfile.TarInfo(path.name)
            info.size = path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(info, file)


def unpack(source: Path, folder: Path) -> list[Path]:
    """Writes the files of ``source`` to ``folder`` and returns their paths."""
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return sorted(folder.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        save_zoo(Path(folder))
        pack(Path(folder), parser.parse_args().file)


if __name__ == "__main__":
    main()
