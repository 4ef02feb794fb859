import json
import zipfile

import pytest

from tests.support.errors import refusal
from tfs_lite.adapters.exported import document
from tfs_lite.adapters.exported.document import check_payloads, read_program
from tfs_lite.core.status import StatusCode
from tfs_lite.transport.remembered import Remembered


@pytest.fixture
def program(exported_once):
    """The graph of a healthy archive, to be tampered with."""
    with zipfile.ZipFile(exported_once / "model.pt2") as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        return json.loads(archive.read(name))


def set_operator(target):
    def edit(program):
        program["graph_module"]["graph"]["nodes"][-1]["target"] = target

    return edit


def set_tree(key, node):
    def edit(program):
        signature = program["graph_module"]["module_call_graph"][0]["signature"]
        signature[key] = json.dumps([1, node])

    return edit


def leaf():
    return {"type": None, "context": None, "children_spec": []}


def rename_value(program):
    graph = program["graph_module"]["graph"]
    graph["nodes"][-1]["name"] = "y = __import__('os').system('id') #"


def rename_parameter(program):
    signature = program["graph_module"]["module_call_graph"][0]["signature"]
    signature["forward_arg_names"] = ["x=__import__('os').system('id')"]


def rename_weight(program):
    (spec, *_) = program["graph_module"]["signature"]["input_specs"]
    spec["parameter"]["parameter_name"] = 'offset"),__import__("os").system("id"),("'


def evaluate_a_size(program):
    values = program["graph_module"]["graph"]["tensor_values"]
    values["x"]["sizes"][0] = {"as_expr": {"expr_str": "__import__('os').system('id')", "hint": None}}


def hide_a_size_behind_a_name(name, field):
    def edit(program):
        values = program["graph_module"]["graph"]["sym_int_values"]
        values[name] = {field: {"expr_str": "__import__('os').system('id')", "hint": None}}

    return edit


def hide_an_operator_behind_a_name(program):
    argument = {"as_string_to_argument": {"metadata": {"as_operator": "torch.os.system"}}}
    program["graph_module"]["graph"]["nodes"][-1]["inputs"].append({"name": "f", "arg": argument, "kind": 1})


def count_to_a_trillion(program):
    program["range_constraints"] = {"u999999999999": {"min_val": 0, "max_val": 1}}


def add_a_custom_object(program):
    program["graph_module"]["graph"]["custom_obj_values"] = {"obj": {"name": "obj", "class_fqn": "x"}}


def nest_deeply(program):
    inner = {}
    for _ in range(300):
        inner = {"graph": inner}
    program["graph_module"]["graph"]["nested"] = inner


ATTACKS = {
    "os.system as an operator": set_operator("torch.os.system"),
    "operator that reads files": set_operator("torch.ops.aten.from_file.default"),
    "operator that writes files": set_operator("torch.ops.aten.save.default"),
    "operator of a library": set_operator("torch.ops.mylib.run.default"),
    "operator that reads pictures": set_operator("torch.ops.torchvision.read_file.default"),
    "attribute of a namespace": set_operator("torch.ops.aten.__class__.mro"),
    "attribute of an operator": set_operator("torch.ops.aten.add.__init__"),
    "higher-order operator that calls out": set_operator("torch.ops.higher_order.call_torchbind"),
    "attribute getter": set_operator("_operator.attrgetter"),
    "endless arithmetic": set_operator("math.factorial"),
    "extension": set_operator("#shell:run"),
    "loader of libraries": set_operator("torch.ops.load_library"),
    "value that is source code": rename_value,
    "parameter that is source code": rename_parameter,
    "weight that is source code": rename_weight,
    "size that is source code": evaluate_a_size,
    "size of a value called metadata": hide_a_size_behind_a_name("metadata", "as_expr"),
    "size of a value called guards_code": hide_a_size_behind_a_name("guards_code", "as_expr"),
    "operator of an argument called metadata": hide_an_operator_behind_a_name,
    "symbol that is counted to": count_to_a_trillion,
    "custom object": add_a_custom_object,
    "deep nesting": nest_deeply,
    "factory of any module": set_tree(
        "out_spec", {"type": "collections.defaultdict", "context": '{"a": 1}', "children_spec": []}
    ),
    "enumeration of any module": set_tree(
        "out_spec", {"type": "builtins.dict", "context": '[{"__enum__": true, "fqn": "os:x"}]', "children_spec": []}
    ),
    "class of somebody": set_tree("out_spec", {"type": "mylib.Result", "context": "null", "children_spec": []}),
    "keyword that is source code": set_tree(
        "in_spec", {"type": "builtins.dict", "context": '["x=print()"]', "children_spec": [leaf()]}
    ),
}


def check(program):
    read_program(json.dumps(program).encode(), "model.pt2", trusted=False)


def test_healthy_program_passes(program):
    check(program)


@pytest.mark.parametrize("edit", ATTACKS.values(), ids=ATTACKS)
def test_program_that_could_do_more_than_compute_is_unsafe(program, edit):
    edit(program)
    refusal(check, program, code=StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    "target",
    [
        "torch.ops.aten.add.Tensor",
        "torch.ops.aten._softmax.default",
        "torch.ops.aten.__and__.Tensor",
        "torch.ops.prims.convert_element_type.default",
        "torch.ops.quantized_decomposed.quantize_per_tensor.default",
        "torch.ops.torchvision.nms.default",
        "torch.ops.higher_order.cond",
        "torch.ops.higher_order.wrap_with_set_grad_enabled",
        "torch.sym_max",
        "_operator.floordiv",
        "math.trunc",
    ],
)
def test_operators_of_pytorch_pass(program, target):
    set_operator(target)(program)
    check(program)


@pytest.mark.parametrize("text", ["a.py", "line\nbreak", "'; import os", "\u2603"])
def test_texts_that_nobody_evaluates_may_be_anything(program, text):
    node = program["graph_module"]["graph"]["nodes"][-1]
    node["metadata"]["stack_trace"] = text
    node["inputs"].append({"name": "mode", "arg": {"as_string": text}, "kind": 1})
    program["guards_code"] = [text]
    check(program)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"null", b"7", b'{"graph_module": 3}', b"\xff", b"[" * 5000])
def test_text_that_is_no_program_is_damage(text):
    refusal(read_program, text, "model.pt2", False, code=StatusCode.DATA_LOSS)


@pytest.mark.parametrize("tree", ["", "7", "[1]", '[1, {"type": "builtins.tuple"}]', "[1, 7]", "[1, null]"])
def test_tree_that_cannot_be_read_is_damage(program, tree):
    program["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = tree
    refusal(check, program, code=StatusCode.DATA_LOSS)


def entry(path="weight_0", pickled=False, sizes=(2, 3)):
    meta = {"dtype": 7, "sizes": [{"as_int": size} for size in sizes], "device": {"type": "cpu", "index": None}}
    return {"path_name": path, "use_pickle": pickled, "tensor_meta": meta}


def payload(name="layer.0.weight", **details):
    return json.dumps({"config": {name: entry(**details)}}).encode()


def test_weights_stored_as_bytes_pass():
    check_payloads(payload(), "model.pt2", "weight_", {"weight_0": 24})
    check_payloads(payload(sizes=(0, 3)), "model.pt2", "weight_", {"weight_0": 0})


@pytest.mark.parametrize(
    "text",
    [
        payload(pickled=True),
        payload(pickled=1),
        payload(path="../models/model.json"),
        payload(path="custom_obj_0"),
        payload(name='a"),print(),("'),
    ],
)
def test_weights_stored_otherwise_are_unsafe(text):
    refusal(check_payloads, text, "model.pt2", "weight_", {"weight_0": 24}, code=StatusCode.PERMISSION_DENIED)


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"config": 7}', b'{"config": {"a": {}}}', payload(path="weight_1"), payload(sizes=(10**12,))]
)
def test_list_of_weights_that_does_not_fit_is_damage(text):
    refusal(check_payloads, text, "model.pt2", "weight_", {"weight_0": 0}, code=StatusCode.DATA_LOSS)


def test_program_that_passed_is_not_checked_again_and_every_other_one_is(program, monkeypatch):
    checked = []
    whole = document._Check.program

    def note(self, found):
        checked.append(found)
        whole(self, found)

    monkeypatch.setattr(document._Check, "program", note)
    monkeypatch.setattr(document, "_HARMLESS", Remembered(2))
    text = json.dumps(program).encode()
    assert read_program(text, "a", False) == read_program(text, "b", False) == program
    assert len(checked) == 1
    rename_value(program)
    tampered = json.dumps(program).encode()
    for _ in range(2):  # what is refused is not remembered
        assert "has a value called" in refusal(read_program, tampered, "m", False, code=StatusCode.PERMISSION_DENIED)
    assert len(checked) == 3
    assert read_program(tampered, "m", True) == program
    refusal(read_program, tampered, "m", False, code=StatusCode.PERMISSION_DENIED)
