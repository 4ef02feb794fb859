"""The networks of ``models.py`` and ``hot_reload.py``, apart from them so that only building imports torch."""

from __future__ import annotations

from typing import Any

import torch
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


class Bert(nn.Module):
    """Four layers of a BERT, hidden size 512: 220 nodes as an exported program, 50 MB."""

    def __init__(self) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        sizes: dict[str, Any] = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024}
        settings: dict[str, Any] = {"num_attention_heads": 8, "vocab_size": 8000, "attn_implementation": "eager"}
        self.model = BertModel(BertConfig(**sizes, **settings))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        found = self.model(input_ids=input_ids, attention_mask=attention_mask)
        return {"last": found.last_hidden_state, "pooled": found.pooler_output}

    @staticmethod
    def examples() -> dict[str, Tensor]:
        ids = torch.ones(2, 32, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": ids}


class ResNet(nn.Module):
    """A ResNet-18: 193 nodes, 47 MB."""

    def __init__(self) -> None:
        from transformers import ResNetConfig, ResNetForImageClassification

        super().__init__()
        sizes: dict[str, Any] = {"depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}
        self.model = ResNetForImageClassification(ResNetConfig(layer_type="basic", **sizes))

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        return {"logits": self.model(pixels).logits}

    @staticmethod
    def examples() -> dict[str, Tensor]:
        return {"pixels": torch.zeros(2, 3, 64, 64)}


class Wide(nn.Module):
    """Eight matrices, 500 MB in all."""

    WIDTH = 3953

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(self.WIDTH, self.WIDTH, bias=False) for _ in range(8)))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": self.layers(x)}

    @staticmethod
    def examples() -> dict[str, Tensor]:
        return {"x": torch.zeros(2, Wide.WIDTH)}


class Blocks(nn.Module):
    """Residual blocks around square matrices, as TorchScript takes them."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(blocks))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            x = x + torch.relu(layer(self.norm(x)))
        return {"y": x}


NETWORKS: dict[str, type[nn.Module]] = {"mlp": Mlp, "convnet": Convnet}
PUSHED: dict[str, type[Bert | ResNet | Wide]] = {"bert": Bert, "resnet": ResNet, "wide": Wide}
