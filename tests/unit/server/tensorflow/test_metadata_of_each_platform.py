"""GetModelMetadata over gRPC: whatever platform a model is of, clients see its signature in the same words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from tfs_lite.protocols import messages
from tfs_lite.testing.servers.in_process import ServerFixture, serving
from tfs_lite.testing.servers.platforms import MAX_ROWS, WIDTH, WRITERS

PATH = "/tensorflow.serving.PredictionService/GetModelMetadata"
FLOAT = 1
CONFIG = f"""
max_batch_size: {MAX_ROWS}
input {{ name: "x" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "y" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "total" data_type: TYPE_FP32 dims: 1 }}
"""


def model_of(platform: str) -> str:
    return platform.replace(" ", "_")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("platforms")
    for platform, write in WRITERS.items():
        write(root / model_of(platform) / "1", 1.0)
        (root / model_of(platform) / "config.pbtxt").write_text(CONFIG)
    trusted = (f"{root}/python_*",)
    with serving(
        root, model_repository=str(root), trusted_model_base_paths=trusted, ready_requires_all_models=True
    ) as house:
        yield house


@pytest.mark.parametrize("platform", WRITERS)
def test_metadata_tells_the_signature_of_every_platform(house: ServerFixture, platform: str) -> None:
    request = messages.GetModelMetadataRequest(
        model_spec={"name": model_of(platform)}, metadata_field=["signature_def"]
    )
    with grpc.insecure_channel(house.target) as channel:
        answer = messages.GetModelMetadataResponse.FromString(
            channel.unary_unary(PATH)(request.SerializeToString(), timeout=30)
        )
    assert (answer.model_spec.name, answer.model_spec.version.value) == (model_of(platform), 1)
    signatures = messages.SignatureDefMap.FromString(answer.metadata["signature_def"].value).signature_def
    assert set(signatures) == {"serving_default"}
    found = signatures["serving_default"]
    assert found.method_name == "tensorflow/serving/predict"
    assert tensors(found.inputs) == {"x": (FLOAT, [-1, WIDTH])}
    assert tensors(found.outputs) == {"y": (FLOAT, [-1, WIDTH]), "total": (FLOAT, [-1, 1])}


def tensors(infos: Any) -> dict[str, tuple[int, list[int]]]:
    return {name: (info.dtype, [dim.size for dim in info.tensor_shape.dim]) for name, info in infos.items()}
