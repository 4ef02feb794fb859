from typing import Any

import numpy as np


class Model:
    """Any class with `predict`: here a lookup, without torch. See docs/python-models.md."""

    def __init__(self, context: Any) -> None:
        self.names = context.config.parameters["names"].split(",")

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"name": np.array([self.names[index % len(self.names)] for index in inputs["index"]], dtype=object)}
