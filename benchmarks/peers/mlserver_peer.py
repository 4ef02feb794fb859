"""MLServer: KServe V2 over gRPC with adaptive batching, the model in the server's own process."""

from __future__ import annotations

import asyncio
import logging

import common
from mlserver import MLModel, MLServer
from mlserver.codecs import NumpyCodec
from mlserver.settings import ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse


class Net(MLModel):  # type: ignore[misc]
    async def load(self) -> bool:
        self.run = common.load()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("y", self.run(rows))
        return InferenceResponse(model_name=self.name, outputs=[output])


async def main() -> None:
    settings = Settings(
        host="127.0.0.1",
        http_port=common.other_port(),
        grpc_port=common.PORT,
        metrics_port=common.other_port(),
        parallel_workers=0,
        debug=False,
        load_models_at_startup=False,
    )
    model = ModelSettings(name=common.NAME, implementation=Net, max_batch_size=common.ROWS, max_batch_time=common.WAIT)
    server = MLServer(settings)
    logging.disable(logging.INFO)  # a line for every request otherwise
    await server.start([model])


if __name__ == "__main__":
    asyncio.run(main())
