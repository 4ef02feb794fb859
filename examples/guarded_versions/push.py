"""Publishes the next version of the model ``ranker``: a good one, or one that is broken on command.

    python examples/guarded_versions/push.py raises

good: as the first one; raises: every request fails; some: every fifth; nan: its answers are no numbers; renamed: its
input has another name; shuffled: its classes stand in another order; slow: it takes 50 ms.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

from tfs_lite.core.publish import publish

MODEL = Path(__file__).resolve().parent / "model"
KINDS = ("good", "raises", "some", "nan", "renamed", "shuffled", "slow")


def push(kind: str, base: Path) -> int:
    """The number of the new version."""
    config = (MODEL / "config.yaml").read_text(encoding="utf-8").replace("fault: none", f"fault: {kind}")
    if kind == "renamed":
        config = config.replace("name: x", "name: features")
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(MODEL / "model.py", directory)
        Path(directory, "config.yaml").write_text(config, encoding="utf-8")
        return publish(directory, str(base)).version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--base", type=Path, default=Path("models/ranker"), help="the base path (models/ranker)")
    arguments = parser.parse_args()
    print(f"{arguments.base / str(push(arguments.kind, arguments.base))}: {arguments.kind}")


if __name__ == "__main__":
    main()
