"""LitServe: JSON over HTTP, one worker process and one process of the API."""

from typing import Any

import common
import litserve
import numpy as np


class Net(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:
        self.run_rows = common.load()

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # an annotation would change how it is parsed
        return np.asarray(request["x"], np.float32)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.concatenate(inputs)

    def predict(self, x: np.ndarray) -> np.ndarray:
        return self.run_rows(x)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"y": [output.tolist()]}


if __name__ == "__main__":
    api = Net(max_batch_size=common.ROWS, batch_timeout=common.WAIT)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=common.PORT, num_api_servers=1, generate_client_file=False, log_level="warning")
