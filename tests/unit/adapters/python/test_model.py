import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import write_python
from tfs_lite.adapters.python.model import open_python
from tfs_lite.config.model import ModelSettings, ModelTensor
from tfs_lite.config.settings import Document, build
from tfs_lite.core.loader import LoadMeter, LoadPhase
from tfs_lite.core.signature import DEFAULT_SIGNATURE, DataType, TensorSpec
from tfs_lite.core.status import ServingError, StatusCode

ROW = np.arange(3, dtype=np.float32).reshape(1, 3)
X = ModelTensor(name="x", data_type=DataType.FLOAT, dims=(-1, 3))
TEXT = ModelTensor(name="text", data_type=DataType.STRING, dims=(-1,))

MODULE = """
import torch

class Model(torch.nn.Module):
    def __init__(self, width: int = 3, scale: float = 1.0, label="none", *, loud: bool = False):
        super().__init__()
        self.linear = torch.nn.Linear(width, width, bias=False)
        self.built_with = (width, scale, label, loud)
        self.scale = scale

    def forward(self, x, bias=None):
        assert not self.training
        assert torch.is_inference_mode_enabled()
        y = self.linear(x) * self.scale
        return y if bias is None else y + bias
"""

PLAIN = """
class Model:
    def __init__(self, context):
        self.context = context

    def predict(self, inputs):
        return {"y": inputs["x"] * int(self.context.config.parameters.get("factor", 2))}
"""


def plain(*body, inputs=(X,), outputs=(), **parameters):
    """Source and settings of a class whose predict has this body."""
    lines = "\n".join(f"        {line}" for line in body)
    source = f"class Model:\n    def __init__(self, context): pass\n    def predict(self, inputs):\n{lines}\n"
    return source, ModelSettings(input=inputs, output=outputs, parameters=parameters)


def test_module_takes_inputs_by_name_and_weights_from_the_file(opened):
    model = opened(MODULE, weights={"linear.weight": torch.eye(3) * 5})
    signature = model.signatures[DEFAULT_SIGNATURE]
    assert signature.inputs == (TensorSpec("x"),)
    assert signature.outputs == ()
    assert model.run("", {"x": ROW}, ())["output_0"].tolist() == [[0, 5, 10]]
    assert model.resident_bytes() == 36
    assert model.platform == "python"


def test_config_declares_inputs_and_outputs(opened):
    bias = ModelTensor(name="bias", data_type=DataType.FLOAT, dims=(3,))
    y = ModelTensor(name="y", data_type=DataType.FLOAT, dims=(-1, 3))
    model = opened(MODULE, ModelSettings(input=(X, bias), output=(y,)), {"linear.weight": torch.eye(3)})
    assert model.run("", {"x": ROW, "bias": np.ones(3, np.float32)}, ())["y"].tolist() == [[1, 2, 3]]


def test_parameters_of_the_config_go_to_the_constructor_that_names_them(opened):
    parameters = {"width": "4", "scale": "0.5", "loud": "true", "unrelated": "x"}
    model = opened(MODULE, ModelSettings(parameters=parameters))
    assert model._module.built_with == (4, 0.5, "none", True)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [({"other.weight": torch.eye(3)}, "Missing key"), ({"linear.weight": torch.eye(4)}, "size mismatch")],
)
def test_weights_that_do_not_fit_are_refused(opened, weights, reason):
    message = refusal(opened, MODULE, None, weights, code=StatusCode.FAILED_PRECONDITION)
    assert "model.safetensors does not fit class Model" in message
    assert reason in message


def test_damaged_weights_are_damage(opened, tmp_path):
    write_python(tmp_path, MODULE, {"linear.weight": torch.eye(3)})
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    refusal(opened, MODULE, code=StatusCode.DATA_LOSS)


TIED = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3, bias=False)
        self.second = torch.nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.lazy = torch.nn.LazyLinear(3, bias=False)
        self.small = torch.nn.Linear(3, 3, bias=False).half()
        self.turned = torch.nn.Parameter(torch.zeros(3, 2).T)
        self.register_buffer("shift", torch.zeros(()))

    def forward(self, x):
        weights = [self.first.weight, self.second.weight, self.lazy.weight, self.small.weight.float(), self.turned]
        return {str(place): x.sum() * 0 + each.detach().clone() for place, each in enumerate([*weights, self.shift])}
"""


def test_weights_that_share_memory_have_another_type_or_order_or_no_shape_yet_are_those_of_the_file(opened):
    own, lazy, half = (torch.randn(3, 3) for _ in range(3))
    turned = torch.randn(2, 3)
    weights = {"first.weight": own, "second.weight": own.clone(), "lazy.weight": lazy, "small.weight": half}
    model = opened(TIED, None, {**weights, "turned": turned, "shift": torch.tensor(7.0)})
    found = model.run("", {"x": ROW}, ())
    expected = [own, own, lazy, half.half().float(), turned, torch.tensor(7.0)]
    for place, tensor in enumerate(expected):
        np.testing.assert_array_equal(found[str(place)], tensor.numpy())
    assert model._module.small.weight.dtype is torch.float16
    assert not model._module.turned.is_contiguous()


def test_weights_are_read_into_the_memory_that_the_module_has_and_counted(tmp_path, request_for):
    source = MODULE.replace("self.scale = scale", "self.scale = scale; self.place = self.linear.weight.data_ptr()")
    request = request_for(write_python(tmp_path, source, {"linear.weight": torch.eye(3)}), trusted=True)
    phases = []
    request = replace(request, meter=LoadMeter())
    request.meter.begin = lambda phase, size=None: phases.append((phase, size))
    model = open_python(request)
    assert model._module.place == model._module.linear.weight.data_ptr()
    assert phases == [(LoadPhase.READING, 36), (LoadPhase.OPENING, None)]
    model.close()


def test_weights_that_are_truncated_while_they_are_read_are_tried_again(tmp_path, request_for):
    """A mapped file would end the process."""

    class TruncatingMeter(LoadMeter):
        def begin(self, phase, expected_bytes=None):
            os.truncate(tmp_path / "model.safetensors", 100)

    directory = write_python(tmp_path, MODULE, {"linear.weight": torch.eye(3)})
    request = replace(request_for(directory, trusted=True), meter=TruncatingMeter())
    message = refusal(open_python, request, code=StatusCode.UNAVAILABLE)
    assert "its files changed while they were read (model.safetensors has become shorter)" in message


def test_module_without_weights_keeps_its_own_and_says_so(opened, caplog):
    opened(MODULE)
    assert "there is no model.safetensors" in caplog.text


def test_plain_class_gets_its_context(opened, tmp_path):
    model = opened(PLAIN, ModelSettings(input=(X,), parameters={"factor": "3"}))
    assert model.run("", {"x": ROW}, ())["y"].tolist() == [[0, 3, 6]]
    context = model._object.context
    assert (context.name, context.version, context.directory) == ("m", 1, str(tmp_path))
    assert context.device == torch.device("cpu")
    assert model.resident_bytes() is None


NEEDS_WIDTH = "import torch\nclass Model(torch.nn.Module):\n    def __init__(self, width): pass\n"
MISFITS = {
    "parameter of the wrong kind": (MODULE, {"parameters": {"width": "wide"}}, "width of the config is 'wide'"),
    "missing parameter": (NEEDS_WIDTH, {}, "class Model needs width"),
    "input that forward does not take": (
        MODULE,
        {"input": (TEXT,)},
        'input "text" of the config: forward() takes "x", "bias"',
    ),
    "plain class without declared inputs": (PLAIN, {}, "needs its inputs declared"),
}


@pytest.mark.parametrize(("source", "fields", "message"), MISFITS.values(), ids=MISFITS)
def test_config_that_does_not_fit_the_class_is_refused(opened, source, fields, message):
    assert message in refusal(opened, source, ModelSettings(**fields))


def test_texts_arrive_as_bytes_and_leave_as_bytes(opened):
    source, settings = plain("return {'upper': [text.upper() for text in inputs['text']], 'n': 3}", inputs=(TEXT,))
    answer = opened(source, settings).run("", {"text": np.array([b"a", b"b"], dtype=object)}, ())
    assert answer["upper"].tolist() == [b"A", b"B"]
    assert answer["n"].tolist() == 3


CLOSES = (
    "    def close(self):\n        import pathlib\n        pathlib.Path(self.context.directory, 'closed').touch()\n"
)


@pytest.fixture
def to_close(tmp_path, request_for):
    """Opens a source; the test closes the model."""
    return lambda source: open_python(
        request_for(write_python(tmp_path, source), ModelSettings(input=(X,)), trusted=True)
    )


def test_warmup_runs_at_load_and_close_at_the_end(to_close, tmp_path):
    warmup = "    def warmup(self):\n        self.context.config.parameters\n        self.warm = True\n"
    model = to_close(PLAIN + warmup + CLOSES)
    assert model._object.warm
    assert not (tmp_path / "closed").exists()
    model.close()
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize("body", ["raise RuntimeError('no')", "import sys; sys.exit(3)"])
def test_close_that_fails_is_logged_and_done_with(to_close, body, caplog):
    to_close(PLAIN + f"    def close(self):\n        {body}\n").close()
    assert "close() of {name: m version: 1} failed" in caplog.text


def test_failed_warmup_closes_what_was_made(opened, tmp_path):
    source = PLAIN + "    def warmup(self):\n        raise RuntimeError('cold')\n" + CLOSES
    with pytest.raises(ServingError, match=r"model\.py line 9: RuntimeError: cold"):
        opened(source, ModelSettings(input=(X,)))
    assert (tmp_path / "closed").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def f():\n    raise ValueError('bad')\nf()\n", "model.py line 2: ValueError: bad"),
        ("raise KeyboardInterrupt\n", "model.py line 1: KeyboardInterrupt: KeyboardInterrupt"),
        ("open('/no/such/file')\n", "model.py line 1: FileNotFoundError: [Errno 2] No such file or directory: 'file'"),
        (PLAIN.replace("self.context = context", "1 / 0"), "model.py line 4: ZeroDivisionError: division by zero"),
        (PLAIN.replace("self.context = context", "import nothing_like_this"), "model.py line 4: ModuleNotFoundError"),
        ("raise MemoryError\n", "model.py line 1: MemoryError"),
        ("from torch import nothing_like_this\n", "model.py line 1: ImportError: cannot import name"),
    ],
)
def test_source_that_fails_names_the_line_but_no_path(opened, tmp_path, source, message):
    code = StatusCode.RESOURCE_EXHAUSTED if "MemoryError" in message else StatusCode.FAILED_PRECONDITION
    found = refusal(opened, source, ModelSettings(input=(X,)), code=code)
    assert found.startswith(message)
    assert str(tmp_path) not in found


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (", "model.py line 1: SyntaxError: '(' was never closed"),
        ("\n\nimport nothing_like_this\n", "model.py line 3: ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("from .helper import x\n", "model.py line 1: ModuleNotFoundError"),
        ("x = undefined\n", "model.py line 1: NameError: name 'undefined' is not defined"),
        ("import sys\nsys.exit(3)\n", "model.py line 2: SystemExit: 3"),
        ("x = 1\n", "model.py defines no class Model"),
        ("Model = 1\n", "model.py defines no class Model"),
        ("class Model: pass\n", "class Model is no torch.nn.Module and has no method predict"),
    ],
)
def test_source_that_can_never_work_is_a_verdict_that_no_retry_changes(opened, tmp_path, source, message):
    found = refusal(opened, source, ModelSettings(input=(X,)))
    assert found.startswith(message)
    assert str(tmp_path) not in found


class ImportedMeanwhile(str):
    """The name of a module; looking at it closely takes so long that somebody else imports one."""

    def startswith(self, *args):
        sys.modules[f"{self}_another"] = sys
        return super().startswith(*args)


def test_modules_may_be_imported_while_a_version_is_closed(tmp_path, request_for):
    source, settings = plain("return {'y': inputs['x']}")
    model = open_python(request_for(write_python(tmp_path, source), settings, trusted=True))
    name = ImportedMeanwhile("somebody_elses_module")
    sys.modules[name] = sys
    try:
        model.close()
        assert f"{name}_another" in sys.modules
        assert model._source.__name__ not in sys.modules
    finally:
        sys.modules.pop(name)
        sys.modules.pop(f"{name}_another", None)


def test_a_result_that_is_a_list_is_checked_too(opened):
    y = ModelTensor(name="y", data_type=DataType.INT64, dims=(2,))
    model = opened(*plain("return {'y': [1, 2, 3]}", outputs=(y,)))
    with pytest.raises(ServingError, match=r"the model returned output y as int64\[3\], expected int64\[2\]"):
        model.run("", {"x": ROW}, ())


def test_what_is_logged_of_a_models_failure_is_bounded(opened, caplog):
    model = opened(*plain("raise ValueError('x' * 5_000_000)", outputs=(X.model_copy(update={"name": "y"}),)))
    with pytest.raises(ServingError):
        model.run("", {"x": ROW}, ())
    (record,) = [record for record in caplog.records if "failed on a request" in record.getMessage()]
    assert "in predict" in record.story
    assert len(record.getMessage()) + len(record.story) < 20_000


def test_an_exception_that_cannot_be_shown_is_named_by_its_type(opened, caplog):
    source, settings = plain("raise Unspeakable()")
    source = "class Unspeakable(Exception):\n    def __str__(self): raise SystemExit(1)\n" + source
    message = refusal(opened(source, settings).run, "", {"x": ROW}, (), code=StatusCode.INTERNAL)
    assert message == "model m version 1 failed: Unspeakable"


def test_files_beside_the_model_can_be_imported(opened, tmp_path):
    (tmp_path / "helper.py").write_text("FACTOR = 7\n")
    source, settings = plain("return {'y': inputs['x'] * FACTOR}")
    model = opened(f"from .helper import FACTOR\n{source}", settings)
    assert model.run("", {"x": ROW}, ())["y"].tolist() == [[0, 7, 14]]


def test_modules_of_two_versions_live_side_by_side_and_go_when_closed(tmp_path, request_for):
    def mine():
        return {name for name in sys.modules if name.startswith("tfs_lite_model_")}

    before = mine()
    (tmp_path / "helper.py").write_text("")
    source, settings = plain("return {'y': inputs['x']}")
    request = request_for(write_python(tmp_path, f"from . import helper\n{source}"), settings, trusted=True)
    first, second = open_python(request), open_python(request)
    assert len(mine() - before) == 4
    first.close()
    assert len(mine() - before) == 2
    assert second.run("", {"x": ROW}, ())["y"].tolist() == ROW.tolist()
    second.close()
    assert mine() == before


def test_source_is_read_anew_and_nothing_is_written_beside_it(tmp_path, request_for):
    for factor in (2, 3):
        source, settings = plain(f"return {{'y': inputs['x'] * {factor}}}")
        model = open_python(request_for(write_python(tmp_path, source), settings, trusted=True))
        assert model.run("", {"x": ROW}, ())["y"].tolist() == (ROW * factor).tolist()
        model.close()
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_output_that_predict_leaves_out_is_left_out_and_logged_once(opened, caplog):
    outputs = (X.model_copy(update={"name": "y"}), X.model_copy(update={"name": "z"}))
    model = opened(*plain("return {'z': inputs['x'], 'other': 1}", outputs=outputs))
    for wanted in ((), ("y",), ("z", "y")):
        assert list(model.run("", {"x": ROW}, wanted)) == [name for name in (wanted or ("y", "z")) if name != "y"]
    (record,) = [record for record in caplog.records if "did not return" in record.getMessage()]
    assert record.getMessage().endswith("did not return output y; it returned: other, z")


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        ("yield {'y': 1}", StatusCode.UNIMPLEMENTED, "decoupled: true"),
        ("return iter([])", StatusCode.UNIMPLEMENTED, "decoupled: true"),
        ("return [1]", StatusCode.INTERNAL, "predict() of model m returned list, expected a dict"),
        ("return {'y': inputs['x'].long()}", StatusCode.INTERNAL, "returned output y as int64[1,3], expected float"),
        ("return {'y': inputs['x'][:, :2]}", StatusCode.INTERNAL, "returned output y as float[1,2], expected float"),
        ("return {'y': inputs['x'][:1, :1].expand(2**40, 2**20)}", StatusCode.INTERNAL, "returned output y as float"),
        ("return {'y': object()}", StatusCode.INTERNAL, "output y is of type object"),
        ("raise ValueError('cannot')", StatusCode.INTERNAL, "failed: ValueError: cannot"),
        ("raise SystemExit(3)", StatusCode.INTERNAL, "raised SystemExit"),
        ("raise KeyboardInterrupt", StatusCode.INTERNAL, "raised KeyboardInterrupt"),
        ("raise MemoryError", StatusCode.RESOURCE_EXHAUSTED, "failed: MemoryError"),
        ("return self.predict(inputs)", StatusCode.INTERNAL, "maximum recursion depth exceeded"),
    ],
)
def test_predict_that_goes_wrong_fails_the_request(opened, body, code, message):
    y = ModelTensor(name="y", data_type=DataType.FLOAT, dims=(-1, 3))
    model = opened(*plain(body, outputs=(y,)))
    assert message in refusal(model.run, "", {"x": ROW}, (), code=code)


@pytest.mark.parametrize("body", ["raise SystemExit(3)", "raise KeyboardInterrupt"])
def test_the_log_shows_which_line_of_the_model_tried_to_end_the_process(opened, caplog, body):
    model = opened(*plain(body))
    refusal(model.run, "", {"x": ROW}, (), code=StatusCode.INTERNAL)
    (record,) = [record for record in caplog.records if "failed on a request" in record.getMessage()]
    assert body.split()[1].partition("(")[0] in record.story
    assert "model.py" in record.story
    assert "in predict" in record.story


def test_plain_class_may_hold_a_script(opened, tmp_path):
    source = """
import warnings
import torch

class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

class Model:
    def __init__(self, context):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.script = torch.jit.script(Scale())

    def predict(self, inputs):
        return {"y": self.script(inputs["x"])}
"""
    model = opened(source, ModelSettings(input=(X,)))
    for _ in range(4):
        assert model.run("", {"x": ROW}, ())["y"].tolist() == [[0, 2, 4]]


def test_callers_array_is_never_written_to(opened):
    array = ROW.copy()
    model = opened(*plain("return {'y': inputs['x'].add_(1)}"))
    assert model.run("", {"x": array}, ())["y"].tolist() == [[1, 2, 3]]
    assert array.tolist() == ROW.tolist()


def test_model_may_yield_several_answers_of_which_each_has_the_outputs_that_are_wanted(opened):
    model = opened(*plain("for n in range(3): yield {'y': inputs['x'] + n, 'n': torch.tensor([n])}"))
    vars(sys.modules[type(model._object).__module__])["torch"] = torch
    both = list(model.parts("", {"x": ROW}, ()))
    assert [sorted(part) for part in both] == [["n", "y"]] * 3
    np.testing.assert_array_equal(both[2]["y"], ROW + 2)
    assert [part["n"].tolist() for part in model.parts("", {"x": ROW}, ("n",))] == [[0], [1], [2]]


def test_model_that_returns_a_dict_has_one_answer(opened):
    model = opened(*plain("return {'y': inputs['x']}"))
    (part,) = model.parts("", {"x": ROW}, ())
    np.testing.assert_array_equal(part["y"], ROW)


@pytest.mark.parametrize("body", ["yield {'y': inputs['x']}; raise ValueError('broken')", "yield {'y': object()}"])
def test_answer_that_goes_wrong_ends_the_request(opened, body):
    model = opened(*plain(body))
    refusal(list, model.parts("", {"x": ROW}, ()), code=StatusCode.INTERNAL)


def test_generator_that_nobody_reads_on_is_closed(opened):
    model = opened(*plain("try:", "    while True: yield {'y': inputs['x']}", "finally:", "    Model.closed = True"))
    parts = model.parts("", {"x": ROW}, ())
    next(parts)
    parts.close()
    assert type(model._object).closed


def test_state_that_the_model_does_not_write_stays_as_it_was(opened):
    batching = {"state": [{"input_name": "s", "output_name": "s", "data_type": "TYPE_FP32", "dims": [2]}]}
    config = {
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [3]}],
        "sequence_batching": batching,
    }
    source, _ = plain("return {'y': inputs['x']}")
    model = opened(source, build(ModelSettings, Document(config)))
    state = np.array([[7, 8]], np.float32)
    np.testing.assert_array_equal(model.run("", {"x": ROW, "s": state}, ())["s"], state)
