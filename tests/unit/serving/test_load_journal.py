from __future__ import annotations

import pytest

from tfs_lite.core.loader import Loader, SimpleLoader
from tfs_lite.core.resources import main_ram
from tfs_lite.core.servable import ServableId
from tfs_lite.core.status import StatusCode, failed_precondition, not_found
from tfs_lite.serving.load_journal import JournaledLoader, LoadAttempt, LoadJournal

M1 = ServableId("m", 1)


def make(inner: Loader) -> tuple[JournaledLoader, LoadJournal, list[LoadAttempt]]:
    attempts: list[LoadAttempt] = []
    journal = LoadJournal(attempts.append)
    return JournaledLoader(M1, inner, journal), journal, attempts


def test_every_attempt_is_written_down_until_the_version_ends() -> None:
    outcomes = iter([failed_precondition("not yet"), None])

    def create(servable_id: ServableId) -> object:
        if (error := next(outcomes)) is not None:
            raise error
        return object()

    loader, journal, attempts = make(SimpleLoader(create))
    with pytest.raises(Exception, match="not yet"):
        loader.load(M1)
    failed = journal.last(M1)
    assert failed is not None
    assert (failed.number, failed.status.code) == (1, StatusCode.FAILED_PRECONDITION)
    loader.load(M1)
    assert [(attempt.number, attempt.status.ok) for attempt in attempts] == [(1, False), (2, True)]
    journal.forget(M1)
    assert journal.last(M1) is None


def test_model_that_exits_is_an_attempt_too() -> None:
    def create(servable_id: ServableId) -> object:
        raise SystemExit(3)

    loader, _, attempts = make(SimpleLoader(create))
    with pytest.raises(SystemExit):
        loader.load(M1)
    assert not attempts[0].status.ok


def test_failed_estimate_is_written_down_and_a_good_one_is_not() -> None:
    outcomes = iter([not_found("no files"), None])

    def estimate() -> object:
        if (error := next(outcomes)) is not None:
            raise error
        return main_ram(5)

    loader, _, attempts = make(SimpleLoader(lambda _: object(), estimate))  # type: ignore[arg-type]
    with pytest.raises(Exception, match="no files"):
        loader.estimate_resources()
    assert loader.estimate_resources() == main_ram(5)
    assert len(attempts) == 1


def test_journal_knows_what_is_in_memory() -> None:
    loader, journal, _ = make(SimpleLoader(lambda _: object(), lambda: main_ram(5)))
    assert journal.held() == []
    loader.load(M1)
    assert loader.servable is not None
    assert journal.held() == [main_ram(5)]
    loader.unload()
    assert journal.held() == []
