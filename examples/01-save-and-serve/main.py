"""Saves a module, serves it in this process, and asks for a prediction.

python main.py
"""

import tempfile

import torch

import tfs_lite


class Scores(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, features: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"probabilities": self.linear(features).softmax(-1)}


with tempfile.TemporaryDirectory() as base:
    # Two rows in the example; the first dimension becomes a batch of any size.
    tfs_lite.save(Scores(), base, example_inputs={"features": torch.randn(2, 4)})
    with tfs_lite.Server(model_name="scores", model_base_path=base, port=0, rest_api_port=0) as server:
        server.wait_ready()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client:
            answer = client.predict("scores", {"features": [[1.0, 2.0, 3.0, 4.0]]})
            print(f"version {answer.version}: {answer.outputs['probabilities']}")
