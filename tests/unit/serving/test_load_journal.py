"""Every attempt to load a version, and what is in memory."""

from __future__ import annotations

import sys

import pytest

from tests.support.errors import refusal
from tfs_lite.core.loader import Loader
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode
from tfs_lite.serving.load_journal import JournaledLoader, LoadAttempt, LoadJournal
from tfs_lite.testing.lifecycle.loader import FakeLoader

M1 = ServableId("m", 1)


def make(inner: Loader) -> tuple[JournaledLoader, LoadJournal, list[LoadAttempt]]:
    attempts: list[LoadAttempt] = []
    journal = LoadJournal(attempts.append)
    return JournaledLoader(M1, inner, journal), journal, attempts


def test_every_attempt_is_written_down_until_the_version_ends() -> None:
    loader, journal, attempts = make(FakeLoader(failures=1))
    refusal(loader.load, M1, code=StatusCode.UNAVAILABLE)
    failed = journal.last(M1)
    assert failed is not None
    assert (failed.number, failed.status.code) == (1, StatusCode.UNAVAILABLE)
    loader.load(M1)
    assert [(attempt.number, attempt.status.ok) for attempt in attempts] == [(1, False), (2, True)]
    journal.forget(M1)
    assert journal.last(M1) is None


def test_model_that_exits_is_an_attempt_too() -> None:
    loader, _, attempts = make(FakeLoader(while_loading=lambda: sys.exit(3)))
    with pytest.raises(SystemExit):
        loader.load(M1)
    assert not attempts[0].status.ok


def test_failed_estimate_is_written_down_and_a_good_one_is_not() -> None:
    loader, _, attempts = make(FakeLoader(estimate_failures=1, estimate=main_ram(5)))
    refusal(loader.estimate_resources, code=StatusCode.UNAVAILABLE)
    assert loader.estimate_resources() == main_ram(5)
    assert len(attempts) == 1


def test_journal_knows_what_is_in_memory() -> None:
    loader, journal, _ = make(FakeLoader(estimate=main_ram(5)))
    assert journal.held() == []
    loader.load(M1)
    assert loader.servable is not None
    assert journal.held() == [main_ram(5)]
    loader.unload()
    assert journal.held() == []
