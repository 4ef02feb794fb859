"""Files of safetensors, read in pieces: equal to what the library reads, and safe beside those who write to them."""

from __future__ import annotations

import json
import os
import struct
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support.errors import refusal
from tfs_lite.adapters.pytorch.weight_file import open_weights
from tfs_lite.core.loader import LoadMeter
from tfs_lite.core.status import StatusCode

NAME = "model.safetensors"
DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.bool),
]


class TruncatingMeter(LoadMeter):
    """Truncates a file as soon as the first bytes of it were read, and notes whether it was mapped then."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.was_mapped = False

    def add(self, nbytes: int) -> None:
        super().add(nbytes)
        self.was_mapped = self.was_mapped or str(self._path) in Path("/proc/self/maps").read_text()
        os.truncate(self._path, 100)


def write(directory: Path, **tensors: torch.Tensor) -> Path:
    save_file(tensors, directory / NAME, metadata={"format": "pt"})
    return directory / NAME


def test_tensors_are_those_that_the_library_reads(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.arange(12).reshape(3, 4).to(dtype) for dtype in DTYPES}
    large = torch.arange(700_000, dtype=torch.float32).reshape(7, -1)
    path = write(tmp_path, large=large, number=torch.tensor(3), none=torch.zeros(0, 5), **tensors)
    with open_weights(str(tmp_path), NAME) as file:
        found = {name: file.read(name) for name in file.headers}
        assert file.nbytes == sum(tensor.nbytes for tensor in found.values())
    expected = load_file(path)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype is tensor.dtype
        assert found[name].shape == tensor.shape
        assert torch.equal(found[name].reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def test_a_file_that_is_truncated_while_it_is_read_says_so(tmp_path: Path) -> None:
    meter = TruncatingMeter(write(tmp_path, first=torch.zeros(1 << 20), second=torch.zeros(1 << 20)))
    with open_weights(str(tmp_path), NAME, meter) as file:
        message = refusal(file.read, "second", code=StatusCode.UNAVAILABLE)
    assert message == f"its files changed while they were read ({NAME} has become shorter)"
    assert not meter.was_mapped


def test_a_file_stays_open_until_the_threads_that_read_it_have_ended_their_piece(tmp_path: Path) -> None:
    write(tmp_path, w=torch.zeros(1 << 20))
    begun, go_on = threading.Event(), threading.Event()

    class WaitingMeter(LoadMeter):
        def add(self, nbytes: int) -> None:
            begun.set()
            assert go_on.wait(30)

    messages = []
    with open_weights(str(tmp_path), NAME, WaitingMeter()) as file:
        reader = threading.Thread(target=lambda: messages.append(refusal(file.read, "w", code=StatusCode.CANCELLED)))
        reader.start()
        assert begun.wait(30)
    go_on.set()
    reader.join(30)
    assert messages == [f"{NAME} is closed"]


def header(**tensors: object) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DAMAGE = {
    "empty": b"",
    "a header that is cut": header(w=entry())[:20],
    "a header without an end": struct.pack("<Q", 1 << 62) + b"{}",
    "no JSON": struct.pack("<Q", 3) + b"{x}",
    "no object": struct.pack("<Q", 2) + b"[]",
    "an entry without a type": header(w={"shape": [2], "data_offsets": [0, 8]}) + bytes(8),
    "a type that is not known": header(w=entry("F99")) + bytes(8),
    "a shape that is none": header(w=entry(shape=[2.0])) + bytes(8),
    "a negative shape": header(w=entry(shape=[-2])) + bytes(8),
    "an empty tensor beyond all memory": header(w=entry(shape=[0, 2**62, 4], offsets=[0, 0])),
    "a shape of other bytes": header(w=entry(shape=[3])) + bytes(8),
    "tensors that overlap": header(v=entry(), w=entry(offsets=(4, 12))) + bytes(12),
    "a hole": header(v=entry(), w=entry(offsets=(12, 20))) + bytes(20),
    "a byte too few": header(w=entry()) + bytes(7),
    "a byte too many": header(w=entry()) + bytes(9),
}


@pytest.mark.parametrize("content", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_a_loss_of_data(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    message = refusal(lambda: open_weights(str(tmp_path), NAME).__enter__(), code=StatusCode.DATA_LOSS)
    assert message.startswith(f"{NAME} is truncated or damaged: ")


def test_a_missing_file_is_a_loss_of_data(tmp_path: Path) -> None:
    message = refusal(lambda: open_weights(str(tmp_path), NAME).__enter__(), code=StatusCode.DATA_LOSS)
    assert message == f"{NAME} cannot be read: No such file or directory"
