from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.grpc.channel_arguments import parse_grpc_arguments


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ()),
        ("a=1", (("a", 1),)),
        ("grpc.max_concurrent_streams=8,grpc.primary_user_agent=me", None),
        ("b=2, a = x ", (("b", 2), ("a", "x"))),
        ("a=-2147483648,b=2147483647,c=+7,d=007", (("a", -(2**31)), ("b", 2**31 - 1), ("c", 7), ("d", 7))),
        ("a=2147483648,b=-2147483649", (("a", "2147483648"), ("b", "-2147483649"))),
        ("a=", (("a", ""),)),
        ("a=1.5,b=0x1,c=1_0,d=true,e=-,f=١", None),
        ("a=" + "1" * 5000, (("a", "1" * 5000),)),
    ],
)
def test_whole_numbers_of_32_bits_are_ints_and_everything_else_is_text(
    text: str, arguments: tuple[tuple[str, int | str], ...] | None
) -> None:
    expected = arguments
    if expected is None:
        expected = tuple((name, int(value) if value == "8" else value) for name, value in _pairs(text))
    assert parse_grpc_arguments(text) == expected


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (item.partition("=") for item in text.split(","))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "'a' of --grpc_channel_arguments: expected name=value"),
        ("a=1,b", "'b' of --grpc_channel_arguments: expected name=value"),
        ("a=1,", "'' of --grpc_channel_arguments: expected name=value"),
        (" ", "'' of --grpc_channel_arguments: expected name=value"),
        ("a=1=2", "'a=1=2' of --grpc_channel_arguments: a value cannot hold a second \"=\""),
        ("=1", "'=1' of --grpc_channel_arguments: the name is missing"),
        ("a=1,b=2,a=3", "'a=3' of --grpc_channel_arguments: a is given twice"),
        ("a=\0", "'a=\\x00' of --grpc_channel_arguments: it has characters that cannot be printed"),
        ("a=\udc80", "'a=\\udc80' of --grpc_channel_arguments: it has characters"),
    ],
)
def test_a_wrong_item_is_named(text: str, message: str) -> None:
    with pytest.raises(ServingError) as raised:
        parse_grpc_arguments(text)
    assert raised.value.code is StatusCode.INVALID_ARGUMENT
    assert str(raised.value).startswith(message)


NAMES = st.from_regex(r"[a-z_.]{1,9}", fullmatch=True)
VALUES = st.one_of(st.integers(-(2**31), 2**31 - 1), st.from_regex(r"[a-z:/.]{0,9}", fullmatch=True))


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_what_is_written_down_comes_back(arguments: dict[str, int | str]) -> None:
    text = ",".join(f"{name}={value}" for name, value in arguments.items())
    assert parse_grpc_arguments(text) == tuple(arguments.items())


@given(st.text(max_size=20))
def test_no_text_raises_anything_but_invalid_argument(text: str) -> None:
    try:
        assert all(name and isinstance(value, int | str) for name, value in parse_grpc_arguments(text))
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017
