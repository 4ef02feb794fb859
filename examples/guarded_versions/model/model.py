"""Scores for three classes, from four numbers between 0 and 1. The parameter ``fault`` says what is wrong with it."""

import time
from typing import Any

import torch
from torch import Tensor

WEIGHTS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.5, -0.5], [-1.0, 0.5, 2.0], [1.0, 1.0, -1.0]])


class Model:
    def __init__(self, context: Any) -> None:
        self.fault = context.config.parameters["fault"]

    def predict(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        (x,) = inputs.values()
        if self.fault == "raises" or (self.fault == "some" and bool((x[:, 0] > 0.8).any())):
            raise RuntimeError("the vocabulary of this version is not there")
        if self.fault == "slow":
            time.sleep(0.05)
        scores = (x @ WEIGHTS).softmax(1)
        if self.fault == "nan":
            scores = scores * float("nan")
        return {"scores": scores.flip(1) if self.fault == "shuffled" else scores}
