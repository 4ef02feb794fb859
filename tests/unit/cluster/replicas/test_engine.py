"""Names and addresses of replicas."""

import pickle

import ormsgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tests.support.profiles import examples
from tfs_lite.cluster.replicas.engine import (
    GPU_BYTES_LABEL,
    ClusterNode,
    ReplicaAddress,
    ReplicaName,
    ReplicaSlot,
    Superseded,
)
from tfs_lite.core.status import ServingError, StatusCode

NUMBERS = st.integers(0, 10**12)
NAMES = st.builds(
    ReplicaName,
    st.builds(ReplicaSlot, st.text(min_size=1), NUMBERS, st.text("0123456789abcdef", min_size=1, max_size=8), NUMBERS),
    NUMBERS,
)

PIECES = st.sampled_from(["/", "#", "m", "1", "01", "0f", "+1", ""])


@given(NAMES)
def test_name_is_read_as_it_is_printed(name: ReplicaName) -> None:
    assert ReplicaName.parse(str(name)) == name


def test_name_of_a_model_with_slashes_and_hashes() -> None:
    name = ReplicaName(ReplicaSlot("team/a#1/3", 2, "0f3c9a1b", 0), 7)
    assert str(name) == "team/a#1/3/2/0f3c9a1b/0#7"
    assert ReplicaName.parse("team/a#1/3/2/0f3c9a1b/0#7") == name


@pytest.mark.parametrize(
    "text", ["", "m", "m/1/g/0", "m/1/g#0", "/1/g/0#0", "m/x/g/0#0", "m/1//0#0", "m/1/g/0#", "m/01/g/0#0", "m/1/g/0#+1"]
)
def test_text_that_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ServingError, match="is no replica's name") as refused:
        ReplicaName.parse(text)
    assert refused.value.code is StatusCode.INVALID_ARGUMENT


@examples(500)
@given(st.text() | st.lists(PIECES, max_size=9).map("".join) | NAMES.map(str))
def test_no_text_breaks_the_reader_of_names(text: str) -> None:
    try:
        assert str(ReplicaName.parse(text)) == text
    except ServingError:
        pass


@pytest.mark.parametrize(("label", "size"), [("17179869184", 2**34), ("", None), ("16 GiB", None)])
def test_node_says_how_much_memory_its_gpus_have(label: str, size: int | None) -> None:
    assert ClusterNode("n", "a", {"num_gpus": 1}, {}, {GPU_BYTES_LABEL: label}).gpu_bytes == size
    assert ClusterNode("n", "a", {"num_cpus": 1}, {}, {GPU_BYTES_LABEL: label}).gpu_bytes is None


def test_error_of_a_superseded_server_travels_between_processes() -> None:
    error = pickle.loads(pickle.dumps(Superseded(7)))
    assert isinstance(error, Superseded)
    assert (error.epoch, error.code) == (7, StatusCode.FAILED_PRECONDITION)


@pytest.mark.parametrize(
    "plain",
    [
        {},
        {"name": "x"},
        {"name": 1, "host": "h", "port": 1, "boot_id": "b", "unix": None, "pid": 1},
        {"name": "x", "host": "h", "port": -1},
        {"name": "x", "host": "h", "port": 1, "pid": "1"},
    ],
)
def test_address_that_is_none_is_refused(plain: dict[str, object]) -> None:
    refusal(ReplicaAddress.read, plain)


def test_address_arrives_as_it_was_sent() -> None:
    address = ReplicaAddress("m/1/00000000/0#1", "10.0.0.1", 20_000, "boot", "socket", 12)
    assert ReplicaAddress.read(ormsgpack.unpackb(ormsgpack.packb(address.plain))) == address
