import pytest

from tests.support.servers.platforms import add_to_archive, rewrite_archive
from tfs_lite.adapters.exported.document import inspect_exported
from tfs_lite.core.status import ServingError, StatusCode


def refused(inspect, path, trusted=False):
    """The code with which the artefact is refused, by a message that does not tell where it lies."""
    with pytest.raises(ServingError) as caught:
        inspect(str(path), path.name, trusted)
    assert str(path.parent) not in str(caught.value)
    return caught.value.code


def test_archive_of_torch_export_passes(exported_once):
    inspect_exported(str(exported_once / "model.pt2"), "model.pt2", trusted=False)


def test_extra_files_do_no_harm(exported_once, tmp_path):
    path = add_to_archive(exported_once / "model.pt2", tmp_path / "model.pt2", {"extra/notes.txt": b"hello"})
    inspect_exported(str(path), "model.pt2", trusted=False)


@pytest.mark.parametrize(
    "member",
    [
        "data/weights/model.pt",
        "data/weights/weight_0.so",
        "data/constants/custom_obj_0",
        "data/constants/opaque_obj_0",
        "data/aotinductor/model/run.so",
        "data/sample_inputs/other.pt",
        "models/other.json",
        "run.py",
    ],
)
def test_unexpected_member_needs_trust(exported_once, tmp_path, member):
    path = add_to_archive(exported_once / "model.pt2", tmp_path / "model.pt2", {member: b"x"})
    assert refused(inspect_exported, path) is StatusCode.PERMISSION_DENIED
    inspect_exported(str(path), "model.pt2", trusted=True)


@pytest.mark.parametrize("missing", ["models/model.json", "data/weights/model_weights_config.json", "archive_format"])
def test_incomplete_archive_is_damage(exported_once, tmp_path, missing):
    def edit(name, data):
        return None if name == missing else data

    path = rewrite_archive(exported_once / "model.pt2", tmp_path / "model.pt2", edit)
    assert refused(inspect_exported, path) is StatusCode.DATA_LOSS


def test_weight_whose_bytes_changed_is_damage_even_when_trusted(exported):
    path = exported / "model.pt2"
    data = bytearray(path.read_bytes())
    at = data.index(b"weight_0") + 100
    data[at : at + 4] = bytes(byte ^ 0xFF for byte in data[at : at + 4])
    path.write_bytes(data)
    assert refused(inspect_exported, path, trusted=True) is StatusCode.DATA_LOSS


def test_archive_of_an_old_torch_says_what_to_do(exported_once, tmp_path):
    path = add_to_archive(
        exported_once / "model.pt2", tmp_path / "model.pt2", {"serialized_exported_program.json": b"{}"}
    )
    with pytest.raises(ServingError, match="export the model again"):
        inspect_exported(str(path), "model.pt2", trusted=False)
