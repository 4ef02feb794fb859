import collections
import io
import pickle
import zipfile

import pytest
import torch

from tfs_lite.adapters.inspect_pickle import check_pickle, check_tensor_pickle
from tfs_lite.core.status import ServingError, StatusCode


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "value",
    [
        ((torch.zeros(2, 3),), {}),
        ((torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2).to(torch.float8_e5m2)), {"mask": torch.ones(2).bool()}),
        ((torch.nn.Parameter(torch.zeros(2)), [1, 2.5, "text", None, True]), {}),
        ((torch.Size([2]), torch.float16, torch.device("cpu"), torch.zeros(3, dtype=torch.uint16)), {}),
        (collections.OrderedDict(a=torch.zeros(1, dtype=torch.complex64)), {}),
    ],
)
def test_tensors_and_plain_values_pass(value):
    check_tensor_pickle(saved(value), "samples")


class Evil:
    def __reduce__(self):
        return (print, ("you have been had",))


def test_class_of_ones_own_is_unsafe(capsys):
    with pytest.raises(ServingError, match=r"__builtin__\.print") as caught:
        check_tensor_pickle(saved(((Evil(),), {})), "samples")
    assert caught.value.code is StatusCode.PERMISSION_DENIED
    assert "--trusted_model_base_paths" in str(caught.value)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(X\x02\x00\x00\x00idtR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.",
        b"(S'id'\nios\nsystem\n.",
        b"\x82\x01.",
        b"ctorch\nload\n.",
        b"ctorch\nfloat_power\n.",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"}(X\x01\x00\x00\x00ab.",
        pickle.dumps(Evil(), protocol=5),
    ],
)
def test_pickles_that_could_do_something_are_unsafe(data):
    with pytest.raises(ServingError) as caught:
        check_pickle(data, "samples")
    assert caught.value.code is StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize("data", [b"", b"\x80", b"K", b"N", b"\xff.", pickle.dumps(1) + b"x", pickle.dumps("x")[:-3]])
def test_damaged_pickles_are_damage(data):
    with pytest.raises(ServingError) as caught:
        check_pickle(data, "samples")
    assert caught.value.code is StatusCode.DATA_LOSS


def test_other_members_beside_the_tensors_are_unsafe():
    buffer = io.BytesIO(saved(torch.zeros(1)))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("archive/run.so", b"")
    with pytest.raises(ServingError, match=r"run\.so"):
        check_tensor_pickle(buffer.getvalue(), "samples")


def test_old_format_without_archive_is_refused():
    buffer = io.BytesIO()
    torch.save(torch.zeros(1), buffer, _use_new_zipfile_serialization=False)
    with pytest.raises(ServingError):
        check_tensor_pickle(buffer.getvalue(), "samples")
