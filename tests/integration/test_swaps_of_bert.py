"""A BERT is swapped many times while eight clients call it: every answer is that of the version it names."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import BertConfig, BertModel

from tests.support.profiles import scaled
from tests.support.servers.probe import Probe, Traffic
from tests.support.servers.process import ServerProcess
from tfs_lite.client import Prediction
from tfs_lite.core.publish import publish
from tfs_lite.core.status import StatusCode

SWAPS = scaled(300)
CLIENTS = 8
WORDS = 16
MEMORY_TOLERANCE = 1.1


class Bert(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = {"num_hidden_layers": 4, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
        self.model = BertModel(BertConfig(**sizes, vocab_size=1000, attn_implementation="eager"))

    def forward(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"pooled": self.model(input_ids=ids).pooler_output}


class Berts:
    """Versions of one program; all weights of a version are drawn anew. ``expected`` has the answer of each version
    to each client's question."""

    def __init__(self, folder: Path, base: Path) -> None:
        self._module = Bert().eval()
        dynamic = {"ids": {0: torch.export.Dim.DYNAMIC}}
        self._program = torch.export.export(self._module, (self.question(0).repeat(2, 1),), dynamic_shapes=dynamic)
        self._file, self.base = folder / "model.pt2", base
        self.expected: dict[tuple[int, int], np.ndarray] = {}

    def question(self, client: int) -> torch.Tensor:
        return torch.arange(WORDS)[None] + client

    def publish(self, version: int) -> None:
        torch.manual_seed(version)
        with torch.no_grad():
            for name, weight in self._module.named_parameters():
                weight.normal_(std=0.1)
                self._program.state_dict[name] = weight
            for client in range(CLIENTS):
                self.expected[version, client] = self._module(self.question(client))["pooled"].numpy()
        torch.export.save(self._program, self._file)
        publish(str(self._file), str(self.base), version)

    def withdraw(self, version: int) -> None:
        shutil.rmtree(self.base / str(version))

    def is_true(self, inputs: Mapping[str, Any], answer: Prediction) -> bool:
        right = self.expected[answer.version, int(inputs["ids"][0, 0])]
        return np.allclose(answer.outputs["pooled"], right, rtol=1e-3, atol=1e-4)


@pytest.mark.load
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["availability", "resource"])
def test_every_answer_during_swaps_is_that_of_the_version_it_names(tmp_path: Path, policy: str) -> None:
    berts = Berts(tmp_path, tmp_path / "bert")
    berts.publish(1)
    flags = ("--model_name=bert", f"--model_base_path={berts.base}", f"--aspired_version_policy={policy}")
    with ServerProcess(*flags, "--file_system_poll_wait_seconds=60") as server, Probe(server) as probe:
        probe.wait_available("bert", 1)
        process, sizes = psutil.Process(server.pid), list[int]()

        def inputs(client: int) -> Mapping[str, Any]:
            return {"ids": berts.question(client).numpy()}

        with Traffic(server.target, "bert", CLIENTS, inputs=inputs, is_true=berts.is_true) as traffic:
            for version in range(2, SWAPS + 2):
                berts.publish(version)
                probe.wait_states("bert", {version - 1: "END", version: "AVAILABLE"})
                berts.withdraw(version - 1)
                sizes.append(process.memory_info().rss >> 20)
    assert traffic.wrong == []
    gap = set() if policy == "availability" else {StatusCode.NOT_FOUND, StatusCode.UNAVAILABLE}
    assert {failure.code for failure in traffic.failures} <= gap
    assert len(traffic.answers) > SWAPS / 2, "the clients saw too few of the versions to prove anything"
    fifth = max(SWAPS // 5, 1)
    early, late = statistics.median(sizes[fifth : 2 * fifth]), statistics.median(sizes[-fifth:])
    assert late <= early * MEMORY_TOLERANCE, f"MiB after each swap: {sizes}"
    print(f"{policy}: {traffic.total} answers, {len(traffic.failures)} in gaps, {early:.0f} MiB early, {late:.0f} late")
