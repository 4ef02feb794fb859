"""Builds the distributions of a release, and shows that they are what they should be.

    python release/build.py DIRECTORY

Builds sdist and wheel of `tfs-lite` and of `tfs-lite-client` twice, compares the two builds byte for byte, looks into
them, and leaves one of them in the directory. What the client has is what `tfs_lite.client` imports, found by reading
its imports. Needs `build` and `twine`; torch is not needed.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfs_lite"
CLIENT = "tfs_lite.client"
DATA = ("py.typed", "protocols/descriptors.binpb")
"""Files of the client that nothing imports."""
FORBIDDEN_ENDINGS = (".pkl", ".pickle", ".pt", ".pt2", ".pth", ".pyc", ".so")
FORBIDDEN_PARTS = ("tests", "support", "benchmarks")


def modules_of_client() -> list[Path]:
    """The files of the client's module and of every module of this package that it imports, however late."""
    found: dict[str, Path] = {}
    waiting = [CLIENT]
    while waiting:
        name = waiting.pop()
        path = _file_of(name)
        if path is None or name in found:
            continue
        found[name] = path
        parent = name.rpartition(".")[0]
        waiting += [parent] if parent else []
        waiting += _imports_of(path) if name != PACKAGE.name else []
    return sorted(found.values())


def _file_of(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split("."))
    candidates = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


def _imports_of(path: Path) -> Iterator[str]:
    """The names of modules of this package that a file imports; those that only type checkers import are left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stage_client(place: Path) -> None:
    """Writes a project of the client alone."""
    for path in (*modules_of_client(), *(PACKAGE / name for name in DATA)):
        target = place / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    for name in ("pyproject.toml", "README.md"):
        shutil.copyfile(ROOT / "release" / "client" / name, place / name)
    shutil.copyfile(ROOT / "LICENSE", place / "LICENSE")


def build(project: Path, target: Path) -> None:
    """Builds sdist and wheel. The times in them are those of the last commit."""
    epoch = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(target), str(project)],
        check=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def build_all(target: Path) -> dict[str, str]:
    """The digests of what was built, by file name."""
    build(ROOT, target)
    with tempfile.TemporaryDirectory() as place:
        stage_client(Path(place))
        build(Path(place), target)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.iterdir())}


def contents(path: Path) -> dict[str, bytes]:
    """The files of an sdist or a wheel."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(path) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: archive.extractfile(member).read() for member in members}  # type: ignore[union-attr]


def problems_of(path: Path) -> list[str]:
    """What must not be in a distribution: compiled files and pickles, paths of this machine, and in a wheel the
    tests."""
    found = []
    for name, data in contents(path).items():
        if name.endswith(FORBIDDEN_ENDINGS):
            found.append(f"{path.name}: {name} is a binary that nobody can read")
        if path.suffix == ".whl" and any(part in FORBIDDEN_PARTS for part in name.split("/")[:2]):
            found.append(f"{path.name}: {name} belongs to the tests")
        if str(ROOT).encode() in data:
            found.append(f"{path.name}: {name} has a path of this machine in it")
    return found


def main(directory: str) -> int:
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        print(f"{target} is not empty", file=sys.stderr)
        return 2
    first = build_all(target)
    with tempfile.TemporaryDirectory() as again:
        second = build_all(Path(again))
    differ = sorted(name for name in first if first[name] != second.get(name))
    if differ:
        print(f"two builds differ: {', '.join(differ)}", file=sys.stderr)
        return 1
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *map(str, target.iterdir())], check=True)
    problems = [problem for name in first for problem in problems_of(target / name)]
    print(*problems, sep="\n", file=sys.stderr)
    for name, digest in first.items():
        files = contents(target / name)
        size = (target / name).stat().st_size
        print(f"{digest[:16]}  {name}: {size:,} bytes, {len(files)} files, {sum(map(len, files.values())):,} unpacked")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "dist"))
