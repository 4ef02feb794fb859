"""Compiles ``protos/*.proto`` into ``descriptors.binpb``, the descriptors that the package loads at run time.

Run ``python -m tfs_lite.protocols.build`` after every change of a ``.proto`` file; it needs grpcio-tools, the rest
of the package does not. Generated Python modules are not used: they always register in protobuf's default pool,
where they would clash with TensorFlow's own (see ``descriptors``).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
"""Proto files import one another by their path below this directory."""


def compile_protos() -> bytes:
    """A serialized FileDescriptorSet of our files, in order of dependency; google's own files are not in it."""
    sources = [str(path.relative_to(ROOT)) for path in sorted((HERE / "protos").glob("*.proto"))]
    with TemporaryDirectory() as directory:
        out = Path(directory) / "descriptors.binpb"
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--descriptor_set_out={out}", *sources]
        subprocess.run(command, check=True, cwd=ROOT)
        return out.read_bytes()


def main() -> None:
    (HERE / "descriptors.binpb").write_bytes(compile_protos())


if __name__ == "__main__":
    main()
