"""Which signatures ``tfs-lite check`` finds, and which mistakes in them, without running anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.signature import DataType, Signature, SymbolicDim, TensorSpec
from tfs_lite.core.status import ServingError
from tfs_lite.operations.what_if.check_models import SignatureCheck, check_signatures

OWN = Signature(
    inputs=(TensorSpec("x", DataType.FLOAT, (SymbolicDim("s0"), 4)), TensorSpec("any")),
    outputs=(TensorSpec("y", DataType.INVALID, (SymbolicDim("s0"), 2)),),
)
CONFIG = """
signatures:
  c: {method_name: classify, label_filename: labels.txt, defaults: {x: [1, 2, 3, 4], any: 0}}
"""


def config(text: str = CONFIG) -> ModelSettings:
    return parse_model_settings(text, "config.yaml")


def test_a_known_model_shows_every_signature_with_its_tensors(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert check_signatures({"serving_default": OWN}, config(), str(tmp_path)) == (
        SignatureCheck("serving_default", "predict", {"x": "float[-1,4]", "any": ""}, {"y": "any[-1,2]"}),
        SignatureCheck(
            "c",
            "classify",
            {"x": "float[-1,4] or its default", "any": "or its default"},
            {"scores": "any[-1,2]", "classes": "string[-1,2]"},
        ),
    )


def test_an_unknown_model_shows_names_and_methods(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    assert check_signatures(None, config(), str(tmp_path)) == (
        SignatureCheck("serving_default", "predict"),
        SignatureCheck("c", "classify"),
    )
    assert check_signatures(None, ModelSettings(), str(tmp_path)) == (SignatureCheck("serving_default", "predict"),)


@pytest.mark.parametrize("own", [OWN, None])
def test_a_missing_file_of_labels_is_noticed_either_way(tmp_path: Path, own: Signature | None) -> None:
    with pytest.raises(ServingError, match=r"signatures\.c\.label_filename: there is no file labels\.txt"):
        check_signatures(own and {"serving_default": own}, config(), str(tmp_path))


def test_a_signature_that_does_not_fit_the_model_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match='the model has no output "z"'):
        check_signatures({"serving_default": OWN}, config("signatures: {s: {outputs: {a: z}}}"), str(tmp_path))
