"""Trace and log settings: what may be set, for whom, and what it does."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support.errors import refusal
from tfs_lite.core.status import StatusCode
from tfs_lite.serving.statistics.trace_config import read_trace_config
from tfs_lite.serving.statistics.trace_settings import DEFAULTS, LOG_DEFAULTS, V2Settings


@pytest.fixture
def settings() -> Iterator[V2Settings]:
    found = V2Settings(lambda name: name in ("m", "n"))
    yield found
    found.close()


def chosen(settings: V2Settings, times: int, model: str = "m") -> list[int]:
    """Which of so many requests are traced, from 1."""
    return [number for number in range(1, times + 1) if settings.traces_of(model).passed(1)]


def test_nothing_is_traced_by_default(settings):
    assert chosen(settings, 2000) == []
    assert not settings.traces_of("m").on


def test_every_nth_request_is_traced_until_the_count_is_used_up(settings):
    settings.update_trace_settings("m", {"trace_level": ("TIMESTAMPS",), "trace_rate": ("3",), "trace_count": ("2",)})
    assert chosen(settings, 20) == [3, 6]
    assert chosen(settings, 20, "n") == []
    assert (settings.traces_of("m").on, settings.traces_of("n").on) == (True, False)


def test_settings_begin_as_the_command_line_has_them_and_return_to_that():
    words = ("mode=opentelemetry", "level=TIMESTAMPS", "rate=2", "count=5")
    settings = V2Settings(lambda name: True, read_trace_config(words))
    begun = settings.trace_settings(None)
    assert (begun["trace_mode"], begun["trace_level"]) == (("opentelemetry",), ("TIMESTAMPS",))
    assert settings.update_trace_settings(None, {"trace_rate": ("0",)})["trace_rate"] == ("0",)
    assert chosen(settings, 10) == []
    assert settings.update_trace_settings(None, {"trace_rate": ()}) == begun
    assert chosen(settings, 4) == [2, 4]


def test_listeners_are_told_at_once_and_at_each_change_whether_anything_is_traced(settings):
    told: list[bool] = []
    settings.listen(told.append)
    settings.update_trace_settings("m", {"trace_level": ("TIMESTAMPS",)})
    settings.update_trace_settings("m", {"trace_level": ()})
    assert told == [False, True, False]


def test_models_keep_what_they_set_and_follow_the_server_in_the_rest(settings):
    settings.update_trace_settings("m", {"trace_rate": ("7",)})
    settings.update_trace_settings(None, {"trace_rate": ("5",), "trace_level": ("TIMESTAMPS", "TENSORS")})
    assert settings.trace_settings("m")["trace_rate"] == ("7",)
    assert settings.trace_settings("m")["trace_level"] == ("TIMESTAMPS", "TENSORS")
    assert settings.trace_settings("n")["trace_rate"] == ("5",)
    assert settings.update_trace_settings("m", {"trace_rate": ()})["trace_rate"] == ("5",)
    assert settings.update_trace_settings(None, {"trace_rate": ()})["trace_rate"] == DEFAULTS["trace_rate"]


@pytest.mark.parametrize(
    ("name", "values", "code"),
    [
        ("trace_file", ("x",), StatusCode.UNIMPLEMENTED),
        ("trace_mode", ("opentelemetry",), StatusCode.UNIMPLEMENTED),
        ("trace_level", ("ALL",), StatusCode.INVALID_ARGUMENT),
        ("trace_rate", ("0",), StatusCode.INVALID_ARGUMENT),
        ("trace_rate", ("1", "2"), StatusCode.INVALID_ARGUMENT),
        ("trace_count", ("-2",), StatusCode.INVALID_ARGUMENT),
        ("trace_count", ("many",), StatusCode.INVALID_ARGUMENT),
        ("unknown", ("1",), StatusCode.INVALID_ARGUMENT),
    ],
)
def test_wrong_trace_setting_changes_nothing(settings, name, values, code):
    refusal(settings.update_trace_settings, None, {"log_frequency": ("4",), name: values}, code=code)
    assert settings.trace_settings(None) == DEFAULTS


def test_trace_settings_of_an_unknown_model_are_refused(settings):
    assert "Request for unknown model : x" in refusal(settings.trace_settings, "x")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("log_file", "x", StatusCode.UNIMPLEMENTED),
        ("log_info", 1, StatusCode.INVALID_ARGUMENT),
        ("log_verbose_level", True, StatusCode.INVALID_ARGUMENT),
        ("log_verbose_level", -1, StatusCode.INVALID_ARGUMENT),
        ("log_format", "json", StatusCode.INVALID_ARGUMENT),
        ("unknown", 1, StatusCode.INVALID_ARGUMENT),
    ],
)
def test_wrong_log_setting_changes_nothing(settings, name, value, code):
    refusal(settings.update_log_settings, {"log_warning": False, name: value}, code=code)
    assert settings.log_settings() == LOG_DEFAULTS


def test_log_settings_silence_a_level_and_nothing_else(caplog, settings):
    caplog.set_level(logging.INFO)
    caplog.handler.setLevel(logging.NOTSET)
    settings.update_log_settings({"log_warning": False, "log_verbose_level": 1})
    logger = logging.getLogger("tfs_lite.some")
    for level in ("debug", "info", "warning", "error"):
        getattr(logger, level)(level)
    assert caplog.messages == ["debug", "info", "error"]
    settings.update_log_settings({"log_warning": True, "log_verbose_level": 0})
    logger.debug("debug")
    logger.warning("warning")
    assert caplog.messages == ["debug", "info", "error", "warning"]


@pytest.mark.parametrize(
    "change",
    [
        lambda settings, long: settings.trace_settings(long),
        lambda settings, long: settings.update_trace_settings(None, {long: ("1",)}),
        lambda settings, long: settings.update_trace_settings(None, {"trace_level": (long,)}),
        lambda settings, long: settings.update_trace_settings(None, {"trace_level": ("OFF",) * 100_000}),
        lambda settings, long: settings.update_log_settings({long: True}),
        lambda settings, long: settings.update_log_settings({"log_format": long}),
    ],
    ids=["model", "setting", "level", "many levels", "log setting", "log format"],
)
def test_what_is_too_long_is_neither_kept_nor_repeated(settings: V2Settings, change: object) -> None:
    assert len(refusal(change, settings, "x" * 100_000)) < 1000
    assert settings.trace_settings(None) == DEFAULTS


@pytest.mark.parametrize("text", ["1_0", " 5", "\u0663", "+5", "0x5", ""])
def test_numbers_of_settings_are_plain_decimals(settings: V2Settings, text: str) -> None:
    assert "no whole number" in refusal(settings.update_trace_settings, None, {"trace_rate": (text,)})
