"""Programs out of real archives, some of them tampered with."""

from __future__ import annotations

import gc
import json
import weakref

import pytest
import torch

from tests.support.errors import refusal
from tests.support.servers.platforms import rewrite_archive
from tfs_lite.adapters.exported.document import read_document
from tfs_lite.adapters.exported.operators import UnsupportedProgram
from tfs_lite.adapters.exported.program import build_program
from tfs_lite.adapters.exported.torch_loader import load_program
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.core.status import StatusCode

CPU = torch.device("cpu")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.second(self.first(x)) + self.calls


@pytest.fixture
def archive(tmp_path):
    torch.manual_seed(1)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Net(), (torch.zeros(2, 3),)), path)
    return path


def edited(path, member, change):
    """The archive with one of its JSON members changed."""

    def edit(name, data):
        if name != member:
            return data
        document = json.loads(data)
        change(document)
        return json.dumps(document).encode()

    return rewrite_archive(path, path.with_suffix(".new"), edit)


def opened(path, trusted=False):
    with open_archive(str(path), "model.pt2") as found:
        return build_program(found, read_document(found, trusted), CPU)


def opened_by_torch(path):
    with open_archive(str(path), "model.pt2") as found:
        return load_program(found, read_document(found, False), CPU)


def test_weights_that_share_bytes_share_memory(archive):
    program = opened(archive)
    storages = {weight.untyped_storage().data_ptr() for weight in program.weights if weight.shape == (3, 3)}
    assert len(storages) == 1


def test_a_buffer_that_the_program_changes_is_kept_from_run_to_run(archive):
    program = opened(archive)
    x = torch.ones(2, 3)
    with torch.inference_mode():
        (first,) = program.forward(x)
        first = first.clone()
        (second,) = program.forward(x)
    assert program.writes
    assert not program.reentrant
    assert torch.equal(second, first + 1)


def test_parameters_stay_parameters(archive):
    kinds = {type(weight) for weight in opened(archive).weights if weight.shape == (3, 3)}
    assert kinds == {torch.nn.Parameter}


def retrained(path, seed):
    """The archive of the same program with other weights."""
    torch.manual_seed(seed)
    other = path.with_name(f"retrained{seed}.pt2")
    torch.export.save(torch.export.export(Net(), (torch.zeros(2, 3),)), other)
    return other


def build(path):
    """The program, and the document that it was built from."""
    with open_archive(str(path), "model.pt2") as found:
        document = read_document(found, trusted=False)
        return build_program(found, document, CPU), document


def test_a_retrained_version_runs_the_graph_of_the_one_that_is_open_with_its_own_weights(archive):
    first, document = build(archive)
    second, other = build(retrained(archive, 2))
    assert "program" in vars(document)
    assert "program" not in vars(other)  # nobody has read its text
    x = torch.randn(2, 3)
    with torch.inference_mode():
        for program, path in ((first, archive), (second, retrained(archive, 2)), (first, None)):
            alone = opened_by_torch(path) if path is not None else None
            (found,) = program.forward(x)
            assert alone is None or torch.allclose(found, alone.forward(x)[0])
        assert float(first.forward(x)[0].sum() - found.sum()) == pytest.approx(found.numel())  # its own count of calls
    assert not {weight.data_ptr() for weight in first.weights} & {weight.data_ptr() for weight in second.weights}


def test_what_is_known_of_a_program_goes_with_its_last_version(archive):
    first, document = build(archive)
    second, other = build(retrained(archive, 2))
    known = weakref.ref(first.known)
    del first, document
    gc.collect()
    assert second.known is known()
    del second, other
    gc.collect()
    assert known() is None
    _, document = build(archive)
    assert "program" in vars(document)


def test_a_graph_that_was_read_as_trusted_is_checked_for_who_is_not(archive):
    path = edited(archive, "models/model.json", refer_to_a_file)
    with open_archive(str(path), "model.pt2") as found:
        trusted = read_document(found, trusted=True)
        refusal(read_document, found, False, code=StatusCode.PERMISSION_DENIED)
        assert read_document(found, trusted=True).known is trusted.known


def refer_to_a_file(program):
    program["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.aten.from_file.default"


def set_version(program):
    program["schema_version"]["major"] = 9


def set_device_of_a_node(program):
    (node, *_) = program["graph_module"]["graph"]["nodes"]
    node["inputs"][0]["arg"] = {"as_device": {"type": "xla", "index": None}}


def forget_the_nodes(program):
    del program["graph_module"]["graph"]["nodes"]


def turn_nodes_to_numbers(program):
    program["graph_module"]["graph"]["nodes"] = [1, 2]


def forget_an_input(program):
    program["graph_module"]["graph"]["inputs"].pop()


def train(program):
    (*_, spec) = program["graph_module"]["signature"]["output_specs"]
    spec["loss_output"] = {"arg": spec.pop("user_output")["arg"]["as_tensor"]}


UNSUPPORTED = [set_version, set_device_of_a_node, forget_the_nodes, turn_nodes_to_numbers, forget_an_input, train]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("change", UNSUPPORTED)
def test_a_program_of_another_kind_is_for_torchs_own_loader(archive, change, trusted):
    with pytest.raises(UnsupportedProgram):
        opened(edited(archive, "models/model.json", change), trusted)


def weight(change):
    def edit(document):
        entry = next(entry for entry in document["config"].values() if len(entry["tensor_meta"]["sizes"]) == 2)
        change(entry)

    return edit


def enlarge(entry):
    entry["tensor_meta"]["sizes"][0] = {"as_int": 4}


def shift(entry):
    entry["tensor_meta"]["storage_offset"] = {"as_int": 1}


def stretch(entry):
    entry["tensor_meta"]["strides"] = [{"as_int": 2**62}, {"as_int": 2**62}]


def forget(document):
    document["config"].popitem()


@pytest.mark.parametrize("change", [weight(enlarge), weight(shift), weight(stretch), forget])
def test_a_weight_that_its_bytes_do_not_hold_is_damage(archive, change):
    path = edited(archive, "data/weights/model_weights_config.json", change)
    refusal(opened, path, code=StatusCode.DATA_LOSS)


def shrink(entry):
    entry["tensor_meta"]["sizes"][0] = {"as_int": -1}


def pickle(entry):
    entry["use_pickle"] = True


def sparse(entry):
    entry["tensor_meta"]["layout"] = 1


def retype(entry):
    entry["tensor_meta"]["dtype"] = 99


@pytest.mark.parametrize("change", [shrink, pickle, sparse, retype])
def test_a_weight_of_another_kind_is_for_torchs_own_loader_if_it_is_trusted(archive, change):
    with pytest.raises(UnsupportedProgram):
        opened(edited(archive, "data/weights/model_weights_config.json", weight(change)), trusted=True)


def test_weights_that_share_bytes_under_two_types_are_for_torchs_own_loader(archive):
    path = edited(
        archive, "data/weights/model_weights_config.json", weight(lambda entry: entry["tensor_meta"].update(dtype=4))
    )
    with pytest.raises(UnsupportedProgram, match="another type"):
        opened(path)


def lie_about_a_weight(program):
    values = program["graph_module"]["graph"]["tensor_values"]
    values["p_first_bias"]["sizes"] = [{"as_int": 1}]


def test_a_weight_of_another_shape_than_the_graph_says_is_damage(archive):
    refusal(opened, edited(archive, "models/model.json", lie_about_a_weight), code=StatusCode.DATA_LOSS)


class Normalised(torch.nn.Module):
    def __init__(self, training):
        super().__init__()
        self.training_mode = training
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    def forward(self, x):
        return torch.nn.functional.batch_norm(x, self.mean, self.variance, training=self.training_mode)


@pytest.mark.parametrize("training", [True, False])
def test_a_normalisation_that_keeps_statistics_is_run_by_one_thread(tmp_path, training):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Normalised(training), (torch.randn(4, 3),)), path)
    programs = [opened(path), opened_by_torch(path)]
    assert [(program.writes, program.reentrant) for program in programs] == [(training, not training)] * 2
