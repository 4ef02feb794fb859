"""Ray Serve: JSON over HTTP with ``serve.batch``, one replica. Its daemons share the server's core with it."""

from __future__ import annotations

import threading
from typing import Any

import common
import numpy as np
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 1})
class Net:
    def __init__(self) -> None:
        self.run = common.load()

    @serve.batch(max_batch_size=common.ROWS, batch_wait_timeout_s=common.WAIT)  # type: ignore[untyped-decorator]
    async def rows(self, requests: list[np.ndarray]) -> list[np.ndarray]:
        return list(self.run(np.concatenate(requests)))

    async def __call__(self, request: Request) -> Any:
        body = await request.json()
        row = await self.rows(np.asarray(body["x"], np.float32))
        return JSONResponse({"y": [row.tolist()]})


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    serve.start(http_options={"host": "127.0.0.1", "port": common.PORT}, logging_config={"enable_access_log": False})
    deployment: Any = Net  # as the decorator makes it
    serve.run(deployment.bind(), route_prefix="/")
    threading.Event().wait()
