"""gRPC's arguments: their text, and what they mean as bounds of our transport."""

from __future__ import annotations

from dataclasses import fields
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.grpc.channel_arguments import (
    LARGEST,
    LARGEST_MESSAGE,
    parse_grpc_arguments,
    read_limits,
    shares_port,
    without_effect,
)
from tfs_lite.transport.limits import KIB, MIB, Limits


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("", ()),
        ("a=1", (("a", 1),)),
        ("grpc.a=8,grpc.b=me", (("grpc.a", 8), ("grpc.b", "me"))),
        ("b=2, a = x ", (("b", 2), ("a", "x"))),
        ("a=-2147483648,b=2147483647,c=+7,d=007", (("a", -(2**31)), ("b", 2**31 - 1), ("c", 7), ("d", 7))),
        ("a=2147483648,b=-2147483649", (("a", "2147483648"), ("b", "-2147483649"))),
        ("a=", (("a", ""),)),
        ("a=1.5,b=0x1,c=1_0", (("a", "1.5"), ("b", "0x1"), ("c", "1_0"))),
        ("d=true,e=-,f=١", (("d", "true"), ("e", "-"), ("f", "١"))),
        ("a=" + "1" * 5000, (("a", "1" * 5000),)),
    ],
)
def test_whole_numbers_of_32_bits_are_ints_and_everything_else_is_text(
    text: str, arguments: tuple[tuple[str, int | str], ...]
) -> None:
    assert parse_grpc_arguments(text) == arguments


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
    assert refusal(parse_grpc_arguments, text).startswith(message)


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


SIZE = 1000


def differences(*arguments: tuple[str, int | str], size: int = SIZE) -> dict[str, Any]:
    """What the arguments change, by field."""
    limits, usual = read_limits(arguments, size), read_limits((), size)
    names = [field.name for field in fields(Limits) if field.name != "receive_flag"]
    return {name: getattr(limits, name) for name in names if getattr(limits, name) != getattr(usual, name)}


def test_the_text_about_a_message_that_is_too_large_names_what_bounds_it() -> None:
    limits = read_limits((("grpc.max_receive_message_length", 7),), SIZE)
    assert limits.receive_flag == "grpc.max_receive_message_length of --grpc_channel_arguments"


def test_without_arguments_only_messages_have_another_bound() -> None:
    assert read_limits((), SIZE) == Limits(max_receive_message=SIZE, receive_flag="--max_message_bytes")
    assert read_limits((), -1).max_receive_message == LARGEST_MESSAGE


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("grpc.max_receive_message_length", 10, "max_receive_message", 10),
        ("grpc.max_send_message_length", 10, "max_send_message", 10),
        ("grpc.absolute_max_metadata_size", 20_000, "max_header_list", 20_000),
        ("grpc.absolute_max_metadata_size", 2_000, "max_header_list", 2_000),
        ("grpc.max_metadata_size", 20_000, "max_header_list", 25_000),
        ("grpc.max_concurrent_streams", 8, "max_streams", 8),
        ("grpc.max_concurrent_streams", -1, "max_streams", LARGEST),
        ("grpc.http2.max_frame_size", 2**24 - 1, "max_frame", 2**24 - 1),
        ("grpc.http2.lookahead_bytes", MIB, "stream_window", MIB),
        ("grpc.server_handshake_timeout_ms", 500, "handshake_timeout", 0.5),
        ("grpc.max_connection_idle_ms", 500, "max_connection_idle", 0.5),
        ("grpc.max_connection_age_ms", 1, "max_connection_age", 0.001),
        ("grpc.max_connection_age_grace_ms", 0, "max_connection_age_grace", 0.0),
        ("grpc.keepalive_time_ms", 30_000, "keepalive_time", 30.0),
        ("grpc.keepalive_time_ms", LARGEST, "keepalive_time", inf),
        ("grpc.keepalive_time_ms", -1, "keepalive_time", inf),
        ("grpc.keepalive_timeout_ms", 5000, "keepalive_timeout", 5.0),
        ("grpc.keepalive_permit_without_calls", 1, "ping_without_calls", True),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000, "min_ping_interval", 10.0),
        ("grpc.http2.min_ping_interval_without_data_ms", 0, "min_ping_interval", 0.0),
        ("grpc.http2.max_ping_strikes", 0, "max_ping_strikes", 0),
    ],
)
def test_an_argument_changes_its_bound_and_no_other(name: str, value: int, field: str, expected: object) -> None:
    assert differences((name, value)) == {field: expected}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", 1024),
        ("grpc.max_connection_idle_ms", LARGEST),
        ("grpc.max_connection_age_ms", -1),
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.so_reuseport", 1),
        ("grpc.primary_user_agent", "me"),
    ],
)
def test_an_argument_that_says_what_holds_anyway_changes_nothing(name: str, value: int | str) -> None:
    assert differences((name, value)) == {}


def test_the_hard_size_of_metadata_wins_whatever_comes_first() -> None:
    soft, hard = ("grpc.max_metadata_size", 100_000), ("grpc.absolute_max_metadata_size", 4096)
    assert differences(soft, hard) == differences(hard, soft) == {"max_header_list": 4096}


def test_room_for_one_message_of_the_largest_size_is_left() -> None:
    assert read_limits((), 2**31).max_unread == 2**31
    assert read_limits((), SIZE).max_unread == Limits().max_unread


def test_a_stream_never_has_more_room_than_its_connection() -> None:
    changed = differences(("grpc.http2.lookahead_bytes", 64 * MIB))
    assert changed == dict.fromkeys(("stream_window", "large_window", "connection_window"), 64 * MIB)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("grpc.max_concurrent_streams", 0, "from 1 to 2147483647, or -1 for no bound"),
        ("grpc.max_concurrent_streams", "many", "from 1 to 2147483647, or -1 for no bound"),
        ("grpc.max_receive_message_length", -2, "from 0 to 2147483647, or -1 for no bound"),
        ("grpc.max_metadata_size", 0, f"from 1024 to {MIB}"),
        ("grpc.absolute_max_metadata_size", -1, f"from 1024 to {MIB}"),
        ("grpc.http2.max_frame_size", 16 * KIB - 1, "from 16384 to 16777215"),
        ("grpc.http2.max_frame_size", 16 * MIB, "from 16384 to 16777215"),
        ("grpc.keepalive_time_ms", 0, "from 1 to 2147483647, or -1 for no bound"),
        ("grpc.keepalive_timeout_ms", 0, "from 1 to 2147483647, or -1 for no bound"),
        ("grpc.server_handshake_timeout_ms", LARGEST, "from 1 to 3600000"),
        ("grpc.keepalive_permit_without_calls", 2, "from 0 to 1"),
        ("grpc.http2.max_ping_strikes", -1, "from 0 to 2147483647"),
        ("grpc.so_reuseport", "yes", "from 0 to 1"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name: str, value: int | str, expected: str) -> None:
    message = f"{name} of --grpc_channel_arguments is {value!r}, expected a whole number {expected}"
    assert refusal(read_limits, [(name, value)], SIZE) == message


def test_a_port_is_shared_only_when_an_argument_says_so() -> None:
    assert not shares_port(())
    assert not shares_port([("grpc.so_reuseport", 0)])
    assert shares_port([("grpc.so_reuseport", 1)])


def test_arguments_that_steer_nothing_here_are_named() -> None:
    arguments = [("grpc.primary_user_agent", "me"), ("grpc.max_concurrent_streams", 1), ("grpc.so_reuseport", 1)]
    assert without_effect([*arguments, ("made.up", 2)]) == ("grpc.primary_user_agent", "made.up")


BOUNDS = st.sampled_from(
    ["grpc.max_concurrent_streams", "grpc.http2.max_frame_size", "grpc.keepalive_time_ms", "other"]
)


@given(st.dictionaries(BOUNDS, st.one_of(st.integers(-(2**31), 2**31 - 1), st.text(max_size=5))))
def test_any_values_make_bounds_that_hold_or_an_invalid_argument(values: dict[str, int | str]) -> None:
    try:
        limits = read_limits(tuple(values.items()), SIZE)
    except ServingError as error:
        assert error.code is StatusCode.INVALID_ARGUMENT  # noqa: PT017
        return
    assert limits.max_streams >= 1
    assert 2**14 <= limits.max_frame < 2**24
    assert limits.keepalive_time > 0
