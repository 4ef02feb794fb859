"""The networks of ``models.py``, apart from it so that only building them imports torch."""

from __future__ import annotations

from torch import Tensor, nn


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.layers(x)}


class Convnet(nn.Module):
    """A few convolutions before two wide layers, as in the older networks for pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 8 * 8, 8256),
            nn.ReLU(),
            nn.Linear(8256, 10),
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.layers(x)}


class Wide(nn.Module):
    """One matrix of 500 MB, for loads that take their time."""

    WIDTH = 11_180

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(self.WIDTH, self.WIDTH, bias=False)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.layer(x)}


NETWORKS: dict[str, type[nn.Module]] = {"mlp": Mlp, "convnet": Convnet}
