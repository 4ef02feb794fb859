"""A platform for versions that hold a `words.txt`: it answers how often a word is in them.

See docs/platforms.md.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.opening import Platform
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec

ROWS = SymbolicDim("rows")


class Words(LoadedModel):
    def __init__(self, request: Any) -> None:
        self.counts = Counter(Path(request.files.directory, "words.txt").read_text().split())
        inputs, outputs = TensorSpec("word", DataType.STRING, (ROWS,)), TensorSpec("count", DataType.INT64, (ROWS,))
        super().__init__(request.id, "word_counts", {"serving_default": Signature((inputs,), (outputs,))})

    def compute(self, signature: str, inputs: Any, outputs: Any) -> dict[str, Any]:
        return {"count": np.array([self.counts[word.decode()] for word in inputs["word"]], np.int64)}

    def resident_bytes(self) -> int | None:
        return None  # not known: later loads are admitted by the size of their files

    def close(self) -> None:
        self.counts.clear()


PLATFORM = Platform(
    name="word_counts", artefact="words.txt", recognises=lambda files: "words.txt" in files.names, open=Words
)
