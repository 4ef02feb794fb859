"""Members of an archive as torch's loading code asks for them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch

from tfs_lite.adapters.exported.torch_loader import ArchiveReader
from tfs_lite.adapters.inspect.archive import open_archive
from tfs_lite.core.status import ServingError, StatusCode

LARGE = torch.arange(600_000, dtype=torch.int32)
SMALL = torch.arange(5, dtype=torch.float64)


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "model.pt2"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("model/models/model.json", "{}" + " " * (2 << 20))
        archive.writestr("model/data/weights/weight_0", LARGE.numpy().tobytes())
        archive.writestr("model/data/weights/weight_1", SMALL.numpy().tobytes())
        archive.writestr("model/data/sample_inputs/model.pt", b"a pickle")
    return str(file)


@pytest.mark.parametrize(("name", "tensor"), [("weight_0", LARGE), ("weight_1", SMALL)])
def test_tensors_of_any_size_come_back_as_they_were_and_may_be_written_to(
    path: str, name: str, tensor: torch.Tensor
) -> None:
    with open_archive(path, "model.pt2") as archive:
        reader = ArchiveReader(archive)
        size = reader.get_record_size(f"data/weights/{name}")
        found = reader.get_storage_from_record(f"data/weights/{name}", size // tensor.element_size(), tensor.dtype)
        content = reader.read_bytes(f"data/weights/{name}")
    assert torch.equal(found, tensor)
    assert bytes(content) == tensor.numpy().tobytes()
    found.add_(1)
    assert torch.equal(found, tensor + 1)


def test_text_of_any_size_can_be_decoded(path: str) -> None:
    with open_archive(path, "model.pt2") as archive:
        reader = ArchiveReader(archive)
        content = reader.read_bytes("models/model.json")
        assert isinstance(content, bytes)
        assert content.decode() == reader.read_string("models/model.json")


def test_tensor_that_differs_from_its_checksum_is_data_loss(path: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[content.index(LARGE.numpy().tobytes()[:64]) + 1000] ^= 0xFF
    Path(path).write_bytes(content)
    with open_archive(path, "model.pt2") as archive, pytest.raises(ServingError) as failure:
        ArchiveReader(archive).read_bytes("data/weights/weight_0")
    assert failure.value.code is StatusCode.DATA_LOSS


def test_sample_inputs_are_hidden_from_torch(path: str) -> None:
    with open_archive(path, "model.pt2") as archive:
        assert ArchiveReader(archive).read_bytes("data/sample_inputs/model.pt") == b""
