"""The platform of SavedModels, as far as it goes without TensorFlow."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.errors import refuses
from tests.support.saved_models import SIMPLE, MetaGraphFile, SavedModelFile, node
from tfs_lite.adapters.detect import choose_platform, read_version
from tfs_lite.adapters.opening import OpenRequest
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.adapters.tensorflow.platform import NAME, PLATFORM, PROCESS_BYTES, inspect_saved_model, not_installed
from tfs_lite.adapters.trust import NO_TRUST
from tfs_lite.config.model import ModelSettings
from tfs_lite.config.text import parse_model_settings
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import ShapeContract, Signature
from tfs_lite.core.status import Reason, StatusCode
from tfs_lite.operations.what_if.check_models import SignatureCheck, VersionVerdict, check_version
from tfs_lite.serving.opening.model_opener import ModelOpener


def version(directory: Path, file: SavedModelFile | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "saved_model.pb").write_bytes((file or SavedModelFile()).encode())
    return directory


def inspect(directory: Path, config: str = "") -> Mapping[str, Signature]:
    settings = parse_model_settings(config, "config.yaml") if config else ModelSettings()
    return inspect_saved_model(str(directory), "serve", False, settings)


def test_the_file_decides(tmp_path: Path) -> None:
    assert choose_platform(read_version(str(version(tmp_path / "1"))), "", PLATFORMS) is PLATFORM


def test_room_is_reserved_for_a_process_with_tensorflow_and_the_weights(tmp_path: Path) -> None:
    directory = version(tmp_path / "1")
    (directory / "variables").mkdir()
    (directory / "variables" / "variables.data-00000-of-00001").write_bytes(bytes(1000))
    assert PLATFORM.reserve is not None
    assert PLATFORM.reserve(read_version(str(directory)), ModelSettings(), False) == PROCESS_BYTES + 1200


def test_a_check_shows_all_signatures_without_tensorflow(tmp_path: Path) -> None:
    directory = version(tmp_path / "1", SavedModelFile([MetaGraphFile({"serving_default": SIMPLE, "other": SIMPLE})]))
    found = check_version(ServableId("m", 1), str(directory), "", NO_TRUST)
    assert (found.verdict, found.platform) == (VersionVerdict.SERVED, NAME)
    tensors = {"x": "float[-1,2]"}, {"y": "float[-1,3]"}
    assert found.signatures == (
        SignatureCheck("serving_default", "predict", *tensors),
        SignatureCheck("other", "predict", *tensors),
    )


def test_a_check_names_the_operator_that_needs_trust(tmp_path: Path) -> None:
    directory = version(tmp_path / "1", SavedModelFile([MetaGraphFile(nodes=[node("y", "ReadFile")])]))
    found = check_version(ServableId("m", 1), str(directory), "", NO_TRUST)
    assert found.verdict is VersionVerdict.REFUSED
    assert "uses ReadFile" in found.reason


def test_a_model_without_signatures_says_how_to_save_them(tmp_path: Path) -> None:
    with refuses(StatusCode.FAILED_PRECONDITION, "no signatures: save the model with signatures="):
        inspect(version(tmp_path / "1", SavedModelFile([MetaGraphFile({})])))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("input: [{name: z, data_type: TYPE_FP32, dims: [2]}]", 'input "z" of the config: the model has "x"'),
        ("max_batch_size: 8\ninput: [{name: x, data_type: TYPE_FP64, dims: [2]}]", "is double, the model's is float"),
        ("max_batch_size: 8\ninput: [{name: x, data_type: TYPE_FP32, dims: [3]}]", r"dimensions \[2\], not \[3\]"),
        ("max_batch_size: 8\noutput: [{name: y, data_type: TYPE_FP32, dims: [-1, 3]}]", r"\[3\], not \[-1, 3\]"),
    ],
)
def test_a_config_that_contradicts_the_model_is_refused(tmp_path: Path, config: str, words: str) -> None:
    with refuses(StatusCode.INVALID_ARGUMENT, words):
        inspect(version(tmp_path / "1"), config)


def test_a_config_that_fits_is_taken(tmp_path: Path) -> None:
    inspect(version(tmp_path / "1"), "max_batch_size: 8\ninput: [{name: x, data_type: TYPE_FP32, dims: [2]}]")


@pytest.mark.parametrize(
    ("config", "strict"),
    [
        ("", set()),
        ("max_batch_size: 8", set()),
        ("max_batch_size: 8\ninput: [{name: x, data_type: TYPE_FP32, dims: [2]}]", {"serving_default"}),
        ("max_batch_size: 8\nsequence_batching: {}", {"serving_default", "other"}),
    ],
)
def test_shapes_are_no_contract_but_where_the_config_declares_inputs_or_sequences(
    tmp_path: Path, config: str, strict: set[str]
) -> None:
    file = SavedModelFile([MetaGraphFile({"serving_default": SIMPLE, "other": SIMPLE})])
    found = inspect(version(tmp_path / "1", file), config)
    assert {key for key, signature in found.items() if signature.contract is ShapeContract.ALL} == strict


def test_its_process_imports_neither_torch_nor_tensorflow() -> None:
    code = (
        "import sys, tfs_lite.workers.fork_server, tfs_lite.adapters.tensorflow.program; "
        "print([name for name in ('torch', 'tensorflow') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"


def test_without_tensorflow_the_refusal_says_what_to_install(tmp_path: Path) -> None:
    """A real process, in an environment that need not have TensorFlow: where it has, the model is refused later."""
    request = OpenRequest(ServableId("m", 1), read_version(str(version(tmp_path / "1"))), "cpu", False)
    opener = ModelOpener("thread")
    try:
        if _has_tensorflow():
            pytest.skip("TensorFlow is installed here")
        with refuses(StatusCode.UNIMPLEMENTED, r"pip install 'tfs-lite\[tensorflow\]'"):
            opener(PLATFORM, request)
    finally:
        opener.close()


def _has_tensorflow() -> bool:
    import importlib.util

    return importlib.util.find_spec("tensorflow") is not None


def test_without_tensorflow_the_error_says_which_extra_to_install() -> None:
    status = not_installed().status
    assert (status.code, status.reason) == (StatusCode.UNIMPLEMENTED, Reason.NEEDS_EXTRA)
    assert "pip install 'tfs-lite[tensorflow]'" in status.message
