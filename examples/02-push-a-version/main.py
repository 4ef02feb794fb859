"""Pushes version 2 while a caller asks without a pause: the answers change, and no request fails.

python main.py
"""

import collections
import tempfile

import torch

import tfs_lite


class Constant(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0 + self.value


with tempfile.TemporaryDirectory() as base:
    tfs_lite.save(Constant(1.0), base, example_inputs=(torch.zeros(2, 1),))
    with tfs_lite.Server(model_name="m", model_base_path=base, port=0, rest_api_port=0) as server:
        server.wait_ready()
        answers = collections.Counter[int]()
        with tfs_lite.Client(f"127.0.0.1:{server.port}") as client:
            while answers[2] < 100:
                answers[client.predict("m", {"x": [[0.0]]}).version] += 1  # raises if a request fails
                if answers.total() == 100:
                    tfs_lite.save(Constant(2.0), base, example_inputs=(torch.zeros(2, 1),))  # noticed within a second
        print(f"version 1 answered {answers[1]} requests, then version 2 answered {answers[2]}; none failed")
