import logging
import shutil
import sys

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import SETTINGS, add_to_archive, write_plain
from tfs_lite.adapters import memory
from tfs_lite.adapters.loaded_model import LoadedModel
from tfs_lite.adapters.loader import AdapterSettings, ArtifactLoader
from tfs_lite.adapters.opening import Platform
from tfs_lite.adapters.platforms import PLATFORMS
from tfs_lite.config.model import ModelSettings
from tfs_lite.core.resources import GPU, MAIN, RAM, Resource, main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.signature import DataType, Signature, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode, invalid_argument
from tfs_lite.core.yielding import SWITCH_SECONDS

ID = ServableId("m", 1)


def bare(models, request):
    """A factory whose servable is the bare model."""
    (model,) = models
    return model


def failure_of(loader, code=StatusCode.FAILED_PRECONDITION):
    message = refusal(loader.load, ID, code=code)
    assert loader.servable is None
    return message


def test_servable_comes_from_the_factory(exported_once):
    made = []

    def factory(models, request):
        made.append(([model.platform for model in models], request.id))
        return bare(models, request)

    loader = ArtifactLoader(str(exported_once), "", AdapterSettings(factory, "cpu"), PLATFORMS)
    loader.load(ID)
    assert made == [(["pytorch_export"], ID)]
    loader.unload()
    assert loader.servable is None


def test_threads_that_wait_for_the_interpreter_lock_ask_for_it_often_during_a_load(exported_once):
    found, before = [], sys.getswitchinterval()

    def factory(models, request):
        found.append(sys.getswitchinterval())
        return bare(models, request)

    loader = ArtifactLoader(str(exported_once), "", AdapterSettings(factory, "cpu"), PLATFORMS)
    loader.load(ID)
    assert found == pytest.approx([SWITCH_SECONDS])
    assert sys.getswitchinterval() == before
    loader.unload()


def test_estimate_is_the_files_before_and_the_tensors_after(exported_once, loader_for):
    loader = loader_for(exported_once)
    size = (exported_once / "model.pt2").stat().st_size
    assert loader.estimate_resources() == main_ram(memory.bytes_to_reserve(size))
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(16)
    loader.unload()


def test_estimate_does_not_grow_with_the_directory(exported, loader_for):
    loader = loader_for(exported)
    before = loader.estimate_resources()
    (exported / "more.bin").write_bytes(b"x" * 10_000)
    assert loader.estimate_resources() == before


def test_estimate_for_a_gpu_leaves_the_instance_open(exported_once, monkeypatch):
    monkeypatch.setattr("tfs_lite.adapters.device.gpu_count", lambda: 2)
    for device, instance in (("auto", None), ("cuda", None), ("cuda:1", 1)):
        loader = ArtifactLoader(str(exported_once), "", AdapterSettings(bare, device), PLATFORMS)
        assert set(loader.estimate_resources().entries) == {Resource(MAIN, RAM, 0), Resource(GPU, RAM, instance)}


def test_device_that_is_not_there_fails_the_estimate_and_the_load(exported_once):
    loader = ArtifactLoader(str(exported_once), "", AdapterSettings(bare, "cuda:99"), PLATFORMS)
    with pytest.raises(ServingError):
        loader.estimate_resources()
    failure_of(loader)


def test_version_that_is_gone_is_not_found(tmp_path, loader_for):
    loader = loader_for(tmp_path / "1")
    with pytest.raises(ServingError):
        loader.estimate_resources()
    failure_of(loader, StatusCode.NOT_FOUND)


def test_code_needs_trust_and_the_message_names_the_flag(tmp_path, loader_for):
    write_plain(tmp_path)
    message = failure_of(loader_for(tmp_path, SETTINGS), StatusCode.PERMISSION_DENIED)
    assert "platform python runs code" in message
    assert "--trusted_model_base_paths" in message
    assert str(tmp_path) not in message
    loader = loader_for(tmp_path, SETTINGS, trusted=str(tmp_path))
    loader.load(ID)
    loader.unload()


def test_link_out_of_a_trusted_directory_is_not_trusted(tmp_path, loader_for):
    write_plain(tmp_path / "elsewhere")
    inside = tmp_path / "trusted" / "1"
    inside.mkdir(parents=True)
    for file in (tmp_path / "elsewhere").iterdir():
        (inside / file.name).symlink_to(file)
    failure_of(loader_for(inside, SETTINGS, trusted=str(tmp_path / "trusted")), StatusCode.PERMISSION_DENIED)


@pytest.fixture
def add(exported):
    """Adds a member to the archive of the exported version."""

    def add_member(name):
        add_to_archive(exported / "model.pt2", exported / "new", {name: b"x"})
        (exported / "new").replace(exported / "model.pt2")

    return add_member


def test_trust_allows_an_archive_with_more_in_it(exported, loader_for, add):
    add("notes.txt")
    failure_of(loader_for(exported), StatusCode.PERMISSION_DENIED)
    loader = loader_for(exported, trusted=str(exported))
    loader.load(ID)
    loader.unload()


def test_compiled_archive_needs_trust(exported, loader_for, add):
    add("data/aotinductor/model/run.so")
    assert "platform pytorch_aoti runs code" in failure_of(loader_for(exported), StatusCode.PERMISSION_DENIED)


def test_platform_of_the_server_goes_before_that_of_the_config(exported_once, loader_for):
    settings = ModelSettings(platform="python")
    loader = loader_for(exported_once, settings, platform="pytorch_export")
    loader.load(ID)
    loader.unload()
    assert "platform python needs model.py" in failure_of(loader_for(exported_once, settings))


def test_config_of_another_model_is_noticed(exported_once, loader_for):
    loader = loader_for(exported_once, ModelSettings(name="other"))
    assert 'the config is for model "other"' in failure_of(loader, StatusCode.INVALID_ARGUMENT)


def test_config_that_cannot_be_read_fails_the_load(exported_once):
    def broken(path, model):
        raise invalid_argument("config.pbtxt:3:1: unknown field")

    settings = AdapterSettings(bare, "cpu", model_settings=broken)
    message = failure_of(ArtifactLoader(str(exported_once), "", settings, PLATFORMS), StatusCode.INVALID_ARGUMENT)
    assert message == "model m version 1: config.pbtxt:3:1: unknown field"


def test_damaged_archive_is_named_and_its_repair_loads_with_the_same_loader(exported, exported_once, loader_for):
    path = exported / "model.pt2"
    path.write_bytes(path.read_bytes()[:-100])
    loader = loader_for(exported)
    assert failure_of(loader, StatusCode.DATA_LOSS).startswith("model m version 1: model.pt2 is truncated")
    shutil.copy(exported_once / "model.pt2", path)
    loader.load(ID)
    assert loader.servable.run("", {"x": np.ones((1, 4), np.float32)}, ("y",))["y"].tolist() == [[2, 2, 2, 2]]
    loader.unload()


def failing_loader(directory, error):
    """Its platform recognises everything and cannot open anything."""

    def fail(request):
        raise error

    platform = Platform("failing", "anything", lambda files: True, fail)
    return ArtifactLoader(str(directory), "", AdapterSettings(bare, "cpu"), {"failing": platform})


def test_failure_inside_torch_has_one_sentence_and_no_path(exported):
    loader = failing_loader(exported, RuntimeError(f"cannot read {exported}/model.pt2\nstack"))
    assert failure_of(loader) == "model m version 1 cannot be loaded: RuntimeError: cannot read model.pt2"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_version_whose_code_wants_to_end_the_process_cannot_be_loaded_and_holds_no_place(exported, error):
    loader = failing_loader(exported, error)
    assert failure_of(loader).startswith(f"model m version 1 cannot be loaded: {type(error).__name__}")
    assert loader._placed is None


def test_unforeseen_failure_brings_its_story_for_the_log_and_logs_nothing_itself(exported, caplog):
    with pytest.raises(ServingError) as failed:
        failing_loader(exported, RuntimeError("no")).load(ID)
    assert failed.value.detail.startswith("Traceback")
    assert "raise error" in failed.value.detail
    assert [record for record in caplog.records if record.name.startswith("tfs_lite.adapters")] == []


def test_failing_factory_leaves_nothing_behind(exported_once):
    closed = []

    def factory(models, request):
        closed.extend(models)
        raise RuntimeError("no thread left")

    loader = ArtifactLoader(str(exported_once), "", AdapterSettings(factory, "cpu"), PLATFORMS)
    assert "no thread left" in failure_of(loader)
    (model,) = closed
    assert not hasattr(model, "_forward")


class Own(LoadedModel):
    """A model of a platform of somebody's own."""

    size: object = 16

    def __init__(self, request):
        inputs, outputs = (TensorSpec("x", DataType.FLOAT, (2,)),), (TensorSpec("y", DataType.FLOAT, (2,)),)
        super().__init__(request.id, "own", {"serving_default": Signature(inputs, outputs)})
        self.closed = False

    def compute(self, signature, inputs, outputs):
        return {"y": inputs["x"]}

    def resident_bytes(self):
        return self.size

    def close(self):
        self.closed = True


def own_loader(directory, model):
    own = Platform("own", "model.pt2", lambda files: True, model)
    return ArtifactLoader(str(directory), "", AdapterSettings(bare, "cpu"), {"own": own})


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_every_instance_is_closed_though_the_close_of_one_raises(exported, error, caplog):
    def close(self):
        Own.close(self)
        raise error

    opened = []

    def opens(platform, request):
        opened.extend([type("Stuck", (Own,), {"close": close})(request), Own(request)])
        return opened

    def factory(models, request):
        raise ValueError("no thread left")

    own = Platform("own", "model.pt2", lambda files: True, Own)
    loader = ArtifactLoader(str(exported), "", AdapterSettings(factory, "cpu", opens=opens), {"own": own})
    assert failure_of(loader) == "model m version 1 cannot be loaded: ValueError: no thread left"
    assert [model.closed for model in opened] == [True, True]
    assert "closing an instance of model m version 1 failed" in caplog.text


@pytest.mark.parametrize("error", [RuntimeError("stuck"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_unload_of_a_servable_whose_close_raises_gives_its_place_back(exported, error):
    def close(self):
        raise error

    loader = own_loader(exported, type("Stuck", (Own,), {"close": close}))
    loader.load(ID)
    loader.unload()
    assert (loader.servable, loader._placed) == (None, None)


@pytest.mark.parametrize("size", [1.5, 2**70, -1, "many"])
def test_size_that_is_no_number_of_bytes_fails_the_load_and_closes_the_model(exported, size):
    opened = []

    def open_own(request):
        opened.append(Own(request))
        opened[0].size = size
        return opened[0]

    told = failure_of(own_loader(exported, open_own))
    assert told == (
        f"model m version 1: platform own: resident_bytes returned {size!r}, expected a number of bytes or None"
    )
    assert opened[0].closed


def test_size_may_be_a_number_of_numpy(exported):
    loader = own_loader(exported, type("Sized", (Own,), {"size": np.int64(16)}))
    loader.load(ID)
    assert loader.estimate_resources() == main_ram(16)
    loader.unload()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"y": [1.0, 2.0]}, "output y is of type list; expected a numpy array of numbers or texts"),
        ({"y": 1.0}, "output y is of type float; expected a numpy array of numbers or texts"),
        ({"y": torch.zeros(2)}, "output y is of type Tensor; expected a numpy array of numbers or texts"),
        ({"y": np.zeros(2, "M8[D]")}, "output y is of dtype datetime64[D]; expected a numpy array of numbers or texts"),
        ({"y": np.zeros(2, object)}, "output y is of dtype object; expected a numpy array of numbers or texts"),
        ({"y": np.zeros(2)}, "the model returned output y as double[2], expected float[2]"),
        ({"z": np.zeros(2, np.float32)}, "model m version 1 did not return output y; it returned: z"),
        (None, "model m version 1 returned NoneType, expected a dict of the outputs by name"),
        (np.zeros(2, np.float32), "model m version 1 returned ndarray, expected a dict of the outputs by name"),
        (SystemExit(3), "model m version 1 failed: SystemExit: 3"),
        (KeyboardInterrupt(), "model m version 1 failed: KeyboardInterrupt"),
        (RecursionError("deep"), "model m version 1 failed: RecursionError: deep"),
        (RuntimeError("boom"), "model m version 1 failed: boom"),
    ],
    ids=repr,
)
def test_answer_that_breaks_the_contract_is_told_by_name(exported, answer, told):
    def compute(self, signature, inputs, outputs):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    loader = own_loader(exported, type("Answers", (Own,), {"compute": compute}))
    loader.load(ID)
    x = {"x": np.zeros(2, np.float32)}
    assert refusal(loader.servable.run, "serving_default", x, ("y",), code=StatusCode.INTERNAL) == told
    loader.unload()


@pytest.mark.parametrize("texts", [np.array(["a", "ü"]), np.array(["a", b"\xc3\xbc"], object)], ids=repr)
def test_texts_of_any_kind_are_sent_as_bytes(exported, texts):
    def compute(self, signature, inputs, outputs):
        return {"y": texts}

    def open_own(request):
        model = type("Texts", (Own,), {"compute": compute})(request)
        model._signatures = {"serving_default": Signature((), (TensorSpec("y", DataType.STRING, (2,)),))}
        return model

    loader = own_loader(exported, open_own)
    loader.load(ID)
    found = loader.servable.run("serving_default", {}, ("y",))["y"]
    assert (found.dtype, found.tolist()) == (object, [b"a", b"\xc3\xbc"])
    loader.unload()


def test_failed_load_holds_no_tensors(exported, loader_for):
    class Weights(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1_000_000))

        def forward(self, x):
            return x + self.weight.sum(), 3

    program = torch.export.export(Weights().eval(), (torch.zeros(2),))
    torch.export.save(program, exported / "model.pt2")
    del program
    loader = loader_for(exported)
    assert "result output_1 is the constant 3" in failure_of(loader)
    assert [tensor for tensor in _tensors() if tensor.numel() == 1_000_000] == []


def _tensors():
    import gc

    gc.collect()
    return [found for found in gc.get_objects() if type(found) in (torch.Tensor, torch.nn.Parameter)]


def test_unload_survives_a_servable_that_cannot_be_closed(exported_once, caplog):
    class Stubborn:
        def close(self):
            raise RuntimeError("no")

    loader = ArtifactLoader(str(exported_once), "", AdapterSettings(lambda *_: Stubborn(), "cpu"), PLATFORMS)
    loader.load(ID)
    with caplog.at_level(logging.ERROR):
        loader.unload()
    assert "its unload goes on, though closing it failed" in caplog.text
    assert loader.servable is None


def test_files_that_nobody_read_are_named_in_the_log(exported, loader_for, caplog):
    (exported / "steer.json").write_text("{}")
    (exported / "README.md").write_text("about the model")
    loader = loader_for(exported)
    loader.load(ID)
    loader.unload()
    assert "files of the version that are not read, and so have no effect: steer.json" in caplog.text
