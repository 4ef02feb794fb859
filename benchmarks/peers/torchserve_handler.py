"""What TorchServe calls: bodies of float32 bytes in, bodies out."""

from __future__ import annotations

from typing import Any

import common
import numpy as np


class Net:
    def initialize(self, context: Any) -> None:
        self.run = common.load()

    def handle(self, data: list[dict[str, Any]], context: Any) -> list[bytes]:
        rows = np.stack([np.frombuffer(bytes(one["body"]), np.float32) for one in data])
        return [row.tobytes() for row in self.run(rows)]
