import re

import pytest

from tests.support.errors import refusal
from tests.support.servers.platforms import add_to_archive
from tfs_lite.adapters.detect import choose_platform, read_version, unread_files
from tfs_lite.adapters.opening import Platform, VersionFiles
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.status import StatusCode


def files(*names, members=()):
    return VersionFiles("/models/m/1", frozenset(names), 0, frozenset(members))


@pytest.mark.parametrize(
    ("found", "platform"),
    [
        (files("model.pt2"), "pytorch_export"),
        (files("model.pt2", "config.pbtxt", "tfs_lite.manifest.json"), "pytorch_export"),
        (files("model.pt2", members=["data/aotinductor/model/x.so"]), "pytorch_aoti"),
        (files("model.pt"), "pytorch_libtorch"),
        (files("model.py"), "python"),
        (files("model.py", "model.safetensors", "config.json"), "python"),
        (files("model.onnx"), "onnxruntime_onnx"),
        (files("config.json", "model-00001.safetensors"), "transformers"),
    ],
)
def test_files_say_which_platform_they_are_for(found, platform):
    assert choose_platform(found, "", PLATFORMS).name == platform


def test_ensemble_has_no_artefact():
    assert choose_platform(files(), "ensemble", PLATFORMS).name == "ensemble"


def test_several_artefacts_need_a_word_of_the_config():
    both = files("model.pt2", "model.py")
    assert "several platforms (python, pytorch_export): set platform" in refusal(
        choose_platform, both, "", PLATFORMS, code=StatusCode.FAILED_PRECONDITION
    )
    assert choose_platform(both, "python", PLATFORMS).name == "python"


PRECONDITION = StatusCode.FAILED_PRECONDITION
UNFIT = {
    "no artefact": (files("readme.txt"), "", PRECONDITION, r"\(readme\.txt\); expected .*model\.pt2"),
    "an archive of TorchServe": (files("resnet.mar"), "", PRECONDITION, r"resnet\.mar is an archive of TorchServe"),
    "an engine": (files("MODEL.PLAN", "notes.txt"), "", PRECONDITION, r"; MODEL\.PLAN is an engine of TensorRT: save"),
    "OpenVINO's two files": (files("a.bin", "a.xml"), "", PRECONDITION, r"; a\.xml is a model of OpenVINO: docs/"),
    "a name of its own": (files("iris.onnx"), "", PRECONDITION, r"; iris\.onnx is an ONNX model under another name"),
    "no files": (files(), "", PRECONDITION, "no files"),
    "many files": (files(*(f"{number:02}.txt" for number in range(20))), "", PRECONDITION, "and 12 more"),
    "artefact of another platform": (
        files("model.pt"),
        "pytorch_export",
        PRECONDITION,
        r"platform pytorch_export needs model\.pt2; the version holds model\.pt",
    ),
    "unknown platform": (
        files("model.pt2"),
        "caffe",
        StatusCode.INVALID_ARGUMENT,
        "known: ensemble, onnxruntime_onnx, python",
    ),
}


@pytest.mark.parametrize(("found", "platform", "code", "message"), UNFIT.values(), ids=UNFIT)
def test_files_that_do_not_fit_a_platform_are_refused_with_what_was_expected(found, platform, code, message):
    assert re.search(message, refusal(choose_platform, found, platform, PLATFORMS, code=code))


def test_version_is_read_with_its_archives(exported, tmp_path):
    (exported / "assets").mkdir()
    (exported / "assets" / "words.txt").write_bytes(b"12345")
    found = read_version(str(exported))
    assert found.names == {"model.pt2"}
    assert "models/model.json" in found.members
    size = (exported / "model.pt2").stat().st_size
    assert found.unpacked_bytes == size + 5


def test_compiled_archive_is_told_from_an_exported_one(exported):
    add_to_archive(exported / "model.pt2", exported / "new.pt2", {"data/aotinductor/model/run.so": b"x"})
    (exported / "new.pt2").replace(exported / "model.pt2")
    assert choose_platform(read_version(str(exported)), "", PLATFORMS).name == "pytorch_aoti"


def test_damaged_archive_counts_as_what_it_weighs(exported):
    path = exported / "model.pt2"
    path.write_bytes(path.read_bytes()[:1000])
    found = read_version(str(exported))
    assert (found.unpacked_bytes, found.members) == (1000, frozenset())


def test_directory_that_is_gone_is_not_found(tmp_path):
    assert str(tmp_path) not in refusal(read_version, str(tmp_path / "7"), code=StatusCode.NOT_FOUND)


UNREAD = {
    "program": (
        files("model.pt2"),
        ["model.pt2", "extra.json", "adapter/adapter_config.json"],
        ["adapter/adapter_config.json", "extra.json"],
    ),
    "documents": (files("model.pt2"), ["model.pt2", "README.md", "LICENSE", "docs/how.pdf", "training_args.bin"], []),
    "of every platform": (
        files("model.pt"),
        ["model.pt", "tfs_lite.manifest.json", "batching_params.pbtxt", "assets.extra/tf_serving_warmup_requests"],
        [],
    ),
    "code of its own": (files("model.py"), ["model.py", "table.json"], []),
    "SavedModel": (
        files("saved_model.pb"),
        ["saved_model.pb", "variables/variables.index", "assets/words.txt", "words.txt"],
        ["words.txt"],
    ),
    "language model": (
        files("config.json", "model.safetensors"),
        ["config.json", "model.safetensors", "tokenizer.json", "lora.safetensors", "pytorch_model.bin", "steer.json"],
        ["lora.safetensors", "steer.json"],
    ),
    "sentences": (
        files("config.json", "model.safetensors", "modules.json"),
        ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "2_Dense/model.safetensors"],
        ["2_Dense/model.safetensors"],
    ),
}


@pytest.mark.parametrize("case", UNREAD)
def test_files_that_nobody_reads_are_found(case):
    found, paths, unread = UNREAD[case]
    platform = choose_platform(found, "", PLATFORMS)
    assert unread_files(found, paths, platform, ModelSettings()) == unread


def test_files_that_the_config_names_are_read():
    settings = ModelSettings(parameters={"custom_ops": "ops.so"})
    platform, paths = PLATFORMS["pytorch_export"], ["model.pt2", "ops.so", "other.so"]
    assert unread_files(files("model.pt2"), paths, platform, settings) == ["other.so"]


@pytest.mark.parametrize("folder", ["", "model.onnx/"])
def test_weights_that_an_onnx_file_names_are_read(tmp_path, folder):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "model.onnx").write_bytes(b"..location..weights.data..")
    found = read_version(str(tmp_path))
    paths = [f"{folder}model.onnx", f"{folder}weights.data", f"{folder}others.data"]
    assert unread_files(found, paths, PLATFORMS["onnxruntime_onnx"], ModelSettings()) == [f"{folder}others.data"]


def broken(files):
    raise RuntimeError("boom")


WITH_BROKEN = {"broken": Platform("broken", "other.bin", broken, None), **PLATFORMS}


def test_platform_that_cannot_tell_is_passed_over_with_a_warning_that_names_it(caplog):
    assert choose_platform(files("model.pt2"), "", WITH_BROKEN).name == "pytorch_export"
    assert "platform broken is passed over for /models/m/1: its recognises raised RuntimeError: boom" in caplog.text


def test_files_of_a_platform_that_cannot_tell_are_refused_with_what_it_raised():
    told = refusal(choose_platform, files("other.bin"), "", WITH_BROKEN, code=PRECONDITION)
    assert told.endswith("; platform broken was passed over: RuntimeError: boom")
    with pytest.raises(RuntimeError, match="boom"):
        choose_platform(files("other.bin"), "broken", WITH_BROKEN)


def test_platform_of_the_config_asks_no_other(caplog):
    assert choose_platform(files("model.pt2"), "pytorch_export", WITH_BROKEN).name == "pytorch_export"
    assert caplog.text == ""
