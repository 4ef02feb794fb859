"""mosec: raw float32 bytes over HTTP, one worker process."""

from __future__ import annotations

import os
import sys

import common
import numpy as np
from mosec import Server, Worker


class Net(Worker):  # type: ignore[misc]
    def __init__(self) -> None:
        self.run = common.load()

    def deserialize(self, data: bytes) -> np.ndarray:
        return np.frombuffer(data, np.float32)

    def serialize(self, data: np.ndarray) -> bytes:
        return data.tobytes()

    def forward(self, data: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.run(np.stack(data)))


if __name__ == "__main__":
    sys.argv = [sys.argv[0], "--address", "127.0.0.1", "--port", str(common.PORT), "--log-level", "warning"]
    os.environ.setdefault("MOSEC_CAPACITY", "1024")
    server = Server()
    server.append_worker(Net, num=1, max_batch_size=common.ROWS, max_wait_time=max(1, round(common.WAIT * 1000)))
    server.run()
