"""GetModelMetadata over gRPC: the same words for models of every platform; all signatures with methods and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tests.support.servers.in_process import ServerFixture, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.platforms import MAX_ROWS, WIDTH, WRITERS
from tfs_lite.core.signature import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD
from tfs_lite.protocols import messages

FLOAT, STRING = 1, 7
PLATFORM_CONFIG = f"""
max_batch_size: {MAX_ROWS}
input {{ name: "x" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "y" data_type: TYPE_FP32 dims: {WIDTH} }}
output {{ name: "total" data_type: TYPE_FP32 dims: 1 }}
"""
SIGNATURES_CONFIG = """
signatures:
  classify: {method_name: classify, outputs: {scores: y}, label_filename: labels.txt}
  regress: {method_name: regress, inputs: {pixels: x}, outputs: {outputs: version}, defaults: {pixels: [1, 2, 3]}}
"""


def model_of(platform: str) -> str:
    return platform.replace(" ", "_")


@pytest.fixture(scope="module")
def served(archives: TaggedArchives, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("metadata")
    for platform, write in WRITERS.items():
        write(root / model_of(platform) / "1", 1.0)
        (root / model_of(platform) / "config.pbtxt").write_text(PLATFORM_CONFIG)
    (archives.write_version(1, root / "m") / "labels.txt").write_text("cat\ndog\nbird\n")
    (root / "m" / "config.yaml").write_text(SIGNATURES_CONFIG)
    trusted = (f"{root}/python_*",)
    with serving(
        root, model_repository=str(root), trusted_model_base_paths=trusted, ready_requires_all_models=True
    ) as served:
        yield served


def signatures_of(served: ServerFixture, model: str) -> Any:
    request = messages.GetModelMetadataRequest(model_spec={"name": model}, metadata_field=["signature_def"])
    with grpc.insecure_channel(served.target) as channel:
        method = channel.unary_unary("/tensorflow.serving.PredictionService/GetModelMetadata")
        answer = messages.GetModelMetadataResponse.FromString(method(request.SerializeToString(), timeout=30))
    assert (answer.model_spec.name, answer.model_spec.version.value) == (model, 1)
    return messages.SignatureDefMap.FromString(answer.metadata["signature_def"].value).signature_def


def tensors(infos: Any) -> dict[str, tuple[int, list[int]]]:
    return {name: (info.dtype, [dim.size for dim in info.tensor_shape.dim]) for name, info in infos.items()}


@pytest.mark.parametrize("platform", WRITERS)
def test_metadata_tells_the_signature_of_every_platform(served: ServerFixture, platform: str) -> None:
    signatures = signatures_of(served, model_of(platform))
    assert set(signatures) == {"serving_default"}
    found = signatures["serving_default"]
    assert found.method_name == "tensorflow/serving/predict"
    assert tensors(found.inputs) == {"x": (FLOAT, [-1, WIDTH])}
    assert tensors(found.outputs) == {"y": (FLOAT, [-1, WIDTH]), "total": (FLOAT, [-1, 1])}


def test_all_signatures_are_shown_with_method_names_and_defaults(served: ServerFixture) -> None:
    found = signatures_of(served, "m")
    assert {key: value.method_name for key, value in found.items()} == {
        "serving_default": PREDICT_METHOD,
        "classify": CLASSIFY_METHOD,
        "regress": REGRESS_METHOD,
    }
    assert tensors(found["classify"].outputs) == {"scores": (FLOAT, [-1, 3]), "classes": (STRING, [-1, 3])}
    assert tensors(found["regress"].inputs) == {"pixels": (FLOAT, [-1, 3])}
    assert tensors(found["regress"].outputs) == {"outputs": (FLOAT, [-1])}
    assert tensors(found["regress"].defaults) == {"pixels": (FLOAT, [1, 3])}
    assert list(found["regress"].defaults["pixels"].float_val) == [1, 2, 3]
    assert not found["classify"].defaults


def test_the_client_reads_them_and_predict_answers_all_of_them(served: ServerFixture) -> None:
    signatures = served.client.metadata("m").signatures
    assert np.asarray(signatures["regress"].defaults["pixels"]).tolist() == [1, 2, 3]
    rows = np.ones((2, 3), np.float32)
    classes = served.client.predict("m", {"x": rows}, signature="classify").outputs["classes"]
    assert classes.tolist() == [[b"cat", b"dog", b"bird"]] * 2
    assert served.client.predict("m", {"pixels": rows}, signature="regress").outputs["outputs"].tolist() == [1, 1]
    assert served.client.predict("m", {}, signature="regress").outputs["outputs"].tolist() == [1]
