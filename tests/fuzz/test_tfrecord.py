"""Hostile TFRecord files: whatever bytes come, reading ends with records within bounds or with a clear verdict."""

import io
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols.tfrecord import frame, read_records

BOUND = 100
SLACK = 1 << 18
VERDICTS = (None, StatusCode.DATA_LOSS, StatusCode.INVALID_ARGUMENT)


def check(data: bytes) -> list[bytes]:
    """Reads the file; holds what was found and the memory it took against the bounds."""
    found: list[bytes] = []
    verdict = None
    tracemalloc.start()
    try:
        found.extend(read_records(io.BufferedReader(io.BytesIO(data)), BOUND))
    except ServingError as error:
        verdict = error.code
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert verdict in VERDICTS
    assert peak <= 4 * len(data) + SLACK
    assert all(len(record) <= BOUND for record in found)
    assert sum(len(frame(record)) for record in found) <= len(data)
    return found


@given(st.binary(max_size=200))
@examples(400)
def test_random_bytes_never_break_the_reader(data: bytes) -> None:
    check(data)


@given(st.lists(st.binary(max_size=BOUND + 20), max_size=4), st.data())
@examples(400)
def test_damage_is_never_taken_for_a_record(records: list[bytes], data: st.DataObject) -> None:
    """A flipped byte anywhere: what comes out is a beginning of what was written."""
    file = bytearray(b"".join(map(frame, records)))
    if file:
        file[data.draw(st.integers(0, len(file) - 1))] ^= data.draw(st.integers(1, 255))
    found = check(bytes(file))
    assert found == records[: len(found)]


@given(st.lists(st.binary(max_size=BOUND), max_size=4), st.integers(0, 500), st.binary(max_size=30))
@examples(200)
def test_a_file_cut_anywhere_gives_its_whole_records(records: list[bytes], cut: int, stray: bytes) -> None:
    file = b"".join(map(frame, records))[:cut]
    found = check(file)
    assert found == records[: len(found)]
    check(file + stray)
