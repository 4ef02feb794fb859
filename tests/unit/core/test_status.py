"""Codes, statuses, and the one error type."""

from __future__ import annotations

import pickle

import pytest

from tfs_lite.core.status import (
    OK,
    ServingError,
    Status,
    StatusCode,
    failed_precondition,
    invalid_argument,
    not_found,
    status_of,
)


def test_status_is_written_as_code_and_message() -> None:
    assert (OK.ok, str(OK)) == (True, "OK")
    assert str(Status(StatusCode.NOT_FOUND, "m")) == "NOT_FOUND: m"


@pytest.mark.parametrize(
    ("message", "shown"),
    [("caf\udce9", "caf\\xe9"), ("café", "café"), ("plain", "plain"), ("\ud800 \udce9", "\\ud800 \\udce9")],
)
def test_message_is_text_whatever_a_file_is_called(message: str, shown: str) -> None:
    assert Status(StatusCode.NOT_FOUND, message).message == shown
    assert str(ServingError(StatusCode.NOT_FOUND, message)) == shown


def test_error_cannot_have_the_code_ok() -> None:
    with pytest.raises(ValueError, match="code OK"):
        ServingError(StatusCode.OK, "fine")


def test_error_carries_its_status_through_processes() -> None:
    error = pickle.loads(pickle.dumps(ServingError(StatusCode.DATA_LOSS, "half")))
    assert (error.code, error.status, str(error)) == (
        StatusCode.DATA_LOSS,
        Status(StatusCode.DATA_LOSS, "half"),
        "half",
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (invalid_argument("x"), StatusCode.INVALID_ARGUMENT),
        (failed_precondition("x"), StatusCode.FAILED_PRECONDITION),
        (not_found("x"), StatusCode.NOT_FOUND),
    ],
)
def test_status_of_a_serving_error_is_its_own(error: ServingError, code: StatusCode) -> None:
    assert status_of(error) == Status(code, "x")


@pytest.mark.parametrize(
    ("error", "message"),
    [(KeyError("w"), "KeyError: 'w'"), (RuntimeError(), "RuntimeError"), (SystemExit(3), "SystemExit: 3")],
)
def test_status_of_any_other_exception_is_unknown_and_names_its_type(error: BaseException, message: str) -> None:
    assert status_of(error) == Status(StatusCode.UNKNOWN, message)
