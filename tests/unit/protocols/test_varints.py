"""Varints, checked against protobuf itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tfs_lite.protocols.messages import TensorProto
from tfs_lite.protocols.varints import decode_varint, encode_varints


@given(npst.arrays(np.int64, st.integers(1, 20)))
def test_protobuf_reads_what_is_encoded(values: np.ndarray) -> None:
    payload = encode_varints(values)
    tag_and_length = encode_varints(np.array([10 << 3 | 2])) + encode_varints(np.array([len(payload)]))
    tensor = TensorProto.FromString(tag_and_length + payload)
    assert list(tensor.int64_val) == values.tolist()
    assert TensorProto(int64_val=values.tolist()).SerializeToString() == tensor.SerializeToString()


@given(st.integers(0, 2**32 - 1), st.binary(max_size=3))
def test_decoding_is_the_inverse_of_encoding(value: int, rest: bytes) -> None:
    encoded = encode_varints(np.array([value]))
    assert decode_varint(encoded + rest, 0) == (value, len(encoded))


@pytest.mark.parametrize(("data", "reason"), [(b"", "cut off"), (b"\x80", "cut off"), (b"\xff" * 6, "32 bits")])
def test_a_broken_varint_is_a_value_error(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_varint(data, 0)
