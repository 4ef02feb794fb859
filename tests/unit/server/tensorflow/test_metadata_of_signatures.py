"""GetModelMetadata over gRPC: a model shows all its signatures, with their methods and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from tfs_lite.core.signature import CLASSIFY_METHOD, PREDICT_METHOD, REGRESS_METHOD
from tfs_lite.protocols import messages
from tfs_lite.testing.servers.in_process import ServerFixture, serving
from tfs_lite.testing.servers.models import TaggedArchives

PATH = "/tensorflow.serving.PredictionService/GetModelMetadata"
FLOAT, STRING = 1, 7
CONFIG = """
signatures:
  classify: {method_name: classify, outputs: {scores: y}, label_filename: labels.txt}
  regress: {method_name: regress, inputs: {pixels: x}, outputs: {outputs: version}, defaults: {pixels: [1, 2, 3]}}
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerFixture]:
    root = tmp_path_factory.mktemp("signatures")
    directory = TaggedArchives().write_version(1, root / "m")
    (directory / "labels.txt").write_text("cat\ndog\nbird\n")
    (root / "m" / "config.yaml").write_text(CONFIG)
    with serving(root, model_name="m", model_base_path=str(root / "m"), ready_requires_all_models=True) as house:
        yield house


def test_all_signatures_are_shown_with_method_names_and_defaults(house: ServerFixture) -> None:
    request = messages.GetModelMetadataRequest(model_spec={"name": "m"}, metadata_field=["signature_def"])
    with grpc.insecure_channel(house.target) as channel:
        answer = messages.GetModelMetadataResponse.FromString(
            channel.unary_unary(PATH)(request.SerializeToString(), timeout=30)
        )
    found = messages.SignatureDefMap.FromString(answer.metadata["signature_def"].value).signature_def
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


def tensors(infos: Any) -> dict[str, tuple[int, list[int]]]:
    return {name: (info.dtype, [dim.size for dim in info.tensor_shape.dim]) for name, info in infos.items()}


def test_the_client_reads_them_and_predict_answers_all_of_them(house: ServerFixture) -> None:
    signatures = house.client.metadata("m").signatures
    assert np.asarray(signatures["regress"].defaults["pixels"]).tolist() == [1, 2, 3]
    rows = np.ones((2, 3), np.float32)
    classes = house.client.predict("m", {"x": rows}, signature="classify").outputs["classes"]
    assert classes.tolist() == [[b"cat", b"dog", b"bird"]] * 2
    assert house.client.predict("m", {"pixels": rows}, signature="regress").outputs["outputs"].tolist() == [1, 1]
    assert house.client.predict("m", {}, signature="regress").outputs["outputs"].tolist() == [1]
