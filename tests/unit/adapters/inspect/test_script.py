import io
import pickle

import pytest
import torch

from tests.support.servers.platforms import Doubler, add_to_archive, rewrite_archive, write_script
from tfs_lite.adapters.exported.document import inspect_exported
from tfs_lite.adapters.inspect.script import inspect_script
from tfs_lite.core.status import ServingError, StatusCode


class Evil:
    def __reduce__(self):
        return (print, ("you have been had",))


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def refused(inspect, path, trusted=False):
    """The code with which the artefact is refused, by a message that does not tell where it lies."""
    with pytest.raises(ServingError) as caught:
        inspect(str(path), path.name, trusted)
    assert str(path.parent) not in str(caught.value)
    return caught.value.code


class Writer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, "/tmp/never-written")
        return x


class Reader(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.from_file("/etc/hostname", False, 1)


class Stacked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.save_path = "somewhere"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.mark.parametrize("module", [Doubler, Stacked])
def test_archive_of_torch_jit_passes(tmp_path, module):
    inspect_script(str(write_script(tmp_path, module()) / "model.pt"), "model.pt", trusted=False)


def test_artefact_under_the_name_of_another_kind_is_told_its_name(tmp_path):
    script = write_script(tmp_path, Doubler()) / "model.pt"
    program = tmp_path / "program.pt"
    torch.export.save(torch.export.export(Doubler(), (torch.zeros(2, 4),)), program)
    for inspect, path, told in (
        (inspect_script, program, "program.pt is an exported program: call it model.pt2"),
        (inspect_exported, script, "model.pt is TorchScript: call it model.pt, or export the model anew"),
    ):
        with pytest.raises(ServingError) as refusal:
            inspect(str(path), path.name, trusted=False)
        assert str(refusal.value).startswith(told)
        assert refusal.value.code is StatusCode.DATA_LOSS


@pytest.mark.parametrize("member", ["archive_version", "data/weights/model_weights_config.json"])
def test_program_without_one_of_its_members_is_told_what_it_lacks(tmp_path, member):
    whole, path = tmp_path / "whole.pt2", tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Doubler(), (torch.zeros(2, 4),)), whole)
    rewrite_archive(whole, path, lambda name, data: None if name == member else data)
    with pytest.raises(ServingError) as refusal:
        inspect_exported(str(path), path.name, trusted=False)
    assert str(refusal.value).startswith(f"model.pt2 has no {member}: it is incomplete")


@pytest.mark.parametrize("module", [Writer, Reader])
def test_script_that_touches_files_needs_trust(tmp_path, module):
    path = write_script(tmp_path, module()) / "model.pt"
    assert refused(inspect_script, path) is StatusCode.PERMISSION_DENIED
    inspect_script(str(path), "model.pt", trusted=True)


@pytest.mark.parametrize(
    "code",
    [
        b'    torch.save(x, "f")\n',
        b'    t = torch\n    t.save(x, "f")\n',
        b'    (torch.\n      save)(x, "f")\n',
        b'    (torch. # comment\n      save)(x, "f")\n',
        b'    getattr(torch, "save")(x, "f")\n',
        b'    getattr(torch, "sa" "ve")(x, "f")\n',
        b'    getattr(torch, "s\\x61ve")(x, "f")\n',
        b'    ops.image.write_file("f", x)\n',
    ],
)
def test_no_spelling_hides_a_function_that_touches_files(scripted_once, tmp_path, code):
    def edit(name, data):
        return data + code if name.endswith(".py") else data

    path = rewrite_archive(scripted_once / "model.pt", tmp_path / "model.pt", edit)
    assert refused(inspect_script, path) is StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("data", [saved({"weight": torch.zeros(2)}), pickle.dumps(Evil())], ids=["weights", "pickle"])
def test_weights_or_a_pickle_alone_are_no_script(tmp_path, data):
    (tmp_path / "model.pt").write_bytes(data)
    assert refused(inspect_script, tmp_path / "model.pt") is StatusCode.DATA_LOSS


def test_unexpected_member_of_a_script_needs_trust(scripted_once, tmp_path):
    path = add_to_archive(scripted_once / "model.pt", tmp_path / "model.pt", {"run.so": b"x"})
    assert refused(inspect_script, path) is StatusCode.PERMISSION_DENIED
