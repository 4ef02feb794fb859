"""BentoML: JSON over HTTP with adaptive batching, one worker process. Started by ``bentoml serve bentoml_peer:Net``.

Its ``max_latency_ms`` is not a wait but a promise: requests that would take longer are refused. It is set far above
what can happen here, and the batching adapts by itself.
"""

from __future__ import annotations

import bentoml
import common
import numpy as np


@bentoml.service(workers=1, traffic={"timeout": 60, "max_concurrency": 1024}, logging={"access": {"enabled": False}})
class Net:
    def __init__(self) -> None:
        self.run = common.load()

    @bentoml.api(route="/predict", batchable=True, batch_dim=0, max_batch_size=common.ROWS, max_latency_ms=10_000)  # type: ignore[untyped-decorator]
    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.run(np.asarray(x, np.float32))
