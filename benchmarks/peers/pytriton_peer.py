"""PyTriton (NVIDIA's Triton server around a Python function): KServe V2 over gRPC with the dynamic batcher."""

from __future__ import annotations

import common
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

run = common.load()


@batch  # type: ignore[untyped-decorator]
def infer(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": run(x)}


if __name__ == "__main__":
    config = TritonConfig(
        http_port=common.other_port(),
        grpc_port=common.PORT,
        metrics_port=common.other_port(),
        allow_metrics=False,
        log_verbose=0,
    )
    batcher = DynamicBatcher(max_queue_delay_microseconds=round(common.WAIT * 1e6))
    with Triton(config=config) as triton:
        triton.bind(
            model_name=common.NAME,
            infer_func=infer,
            inputs=[Tensor(name="x", dtype=np.float32, shape=common.SHAPE)],
            outputs=[Tensor(name="y", dtype=np.float32, shape=(common.WIDTH,))],
            config=ModelConfig(max_batch_size=common.ROWS, batcher=batcher),
        )
        triton.serve()
