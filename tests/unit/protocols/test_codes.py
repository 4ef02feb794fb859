"""Canonical codes over HTTP."""

import pytest

from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.codes import http_status


@pytest.mark.parametrize("code", StatusCode)
def test_every_code_has_an_http_status(code: StatusCode) -> None:
    assert (http_status(code) == 200) is (code is StatusCode.OK)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (StatusCode.CANCELLED, 499),
        (StatusCode.INVALID_ARGUMENT, 400),
        (StatusCode.FAILED_PRECONDITION, 400),
        (StatusCode.NOT_FOUND, 404),
        (StatusCode.ALREADY_EXISTS, 409),
        (StatusCode.RESOURCE_EXHAUSTED, 429),
        (StatusCode.UNIMPLEMENTED, 501),
        (StatusCode.UNAVAILABLE, 503),
        (StatusCode.DEADLINE_EXCEEDED, 504),
        (StatusCode.UNKNOWN, 500),
    ],
)
def test_codes_map_as_tensorflow_serving_maps_them(code: StatusCode, status: int) -> None:
    assert http_status(code) == status
