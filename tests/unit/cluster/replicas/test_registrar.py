"""The lock of a cluster name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tfs_lite.cluster.replicas.registrar import LEASE_SECONDS, SECRET_BYTES, Leader, Registrar

CLOCK = 1_700_000_000_000
FIRST = Leader("first", "10.0.0.1", 4000, "boot")
SECOND = Leader("second", "10.0.0.2", 4000, "boot")


class Time:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def registrar(time: Time) -> Registrar:
    return Registrar(False, now=time)


def claim(registrar: Registrar, server: Leader, **fields: Any) -> Leader:
    """Who leads afterwards."""
    found, _ = registrar.claim(server.plain, CLOCK, **fields)
    assert found is not None
    return Leader.read(found)


def test_the_first_to_ask_leads_with_the_time_as_its_epoch_and_a_new_secret(registrar: Registrar) -> None:
    leader = claim(registrar, FIRST)
    assert (leader.id, leader.host, leader.port, leader.epoch) == ("first", "10.0.0.1", 4000, CLOCK)
    assert len(leader.secret) == SECRET_BYTES
    assert leader.secret.hex() not in repr(leader)


def test_another_one_is_told_who_leads_and_not_the_secret(registrar: Registrar, time: Time) -> None:
    claim(registrar, FIRST)
    time.seconds += 3
    found, seconds = registrar.claim(SECOND.plain, CLOCK)
    assert found is not None
    assert (found["id"], found["host"], found["port"], found["secret"]) == ("first", "10.0.0.1", 4000, b"")
    assert seconds == LEASE_SECONDS - 3


def test_a_lease_that_is_over_frees_the_lead_and_renewals_keep_it(registrar: Registrar, time: Time) -> None:
    first = claim(registrar, FIRST)
    for _ in range(5):
        time.seconds += LEASE_SECONDS - 1
        assert registrar.renew(first.plain) == first.epoch
        assert claim(registrar, SECOND).id == "first"
    time.seconds += LEASE_SECONDS
    second = claim(registrar, SECOND)
    assert (second.id, second.epoch, second.secret) == ("second", CLOCK + 1, first.secret)
    assert registrar.renew(first.plain) == second.epoch


def test_a_renewal_that_comes_late_is_in_time_if_no_other_server_has_asked(registrar: Registrar, time: Time) -> None:
    first = claim(registrar, FIRST)
    time.seconds += 10 * LEASE_SECONDS
    assert registrar.renew(first.plain) == first.epoch
    assert claim(registrar, SECOND).id == "first"


def test_a_loser_cannot_renew_the_lease_of_the_one_that_leads(registrar: Registrar, time: Time) -> None:
    first = claim(registrar, FIRST)
    second = claim(registrar, SECOND, over="first")
    assert second.id == "second"
    time.seconds += LEASE_SECONDS - 1
    assert registrar.renew(first.plain) == second.epoch
    time.seconds += 1
    assert claim(registrar, FIRST).id == "first"


def test_a_claim_over_a_server_that_does_not_lead_any_more_is_none(registrar: Registrar) -> None:
    """Two servers have both seen the first one's port refuse."""
    claim(registrar, FIRST)
    assert claim(registrar, SECOND, over="first").id == "second"
    assert claim(registrar, replace(FIRST, id="third"), over="first").id == "second"


def test_the_server_that_leads_gives_the_lead_back_and_no_other_one_can(registrar: Registrar) -> None:
    claim(registrar, FIRST)
    registrar.release("second")
    assert claim(registrar, SECOND).id == "first"
    registrar.release("first")
    assert claim(registrar, SECOND).id == "second"


def test_the_same_server_may_claim_again_because_the_answer_may_have_been_lost(registrar: Registrar) -> None:
    first = claim(registrar, FIRST)
    assert claim(registrar, FIRST).epoch == first.epoch + 1


def test_epochs_grow_although_the_clock_goes_back(registrar: Registrar) -> None:
    first = claim(registrar, FIRST)
    found, _ = registrar.claim(SECOND.plain, 5, "first")
    assert found is not None
    assert found["epoch"] == first.epoch + 1


def test_one_that_has_forgotten_everything_gives_no_server_the_lead_for_the_time_of_a_lease(time: Time) -> None:
    registrar = Registrar(True, now=time)
    assert registrar.claim(SECOND.plain, CLOCK) == (None, LEASE_SECONDS)
    late = replace(FIRST, epoch=CLOCK, secret=b"late" * 8)
    leads = replace(SECOND, epoch=CLOCK + 1, secret=b"kept" * 8)
    assert registrar.renew(late.plain) == 0  # the highest epoch is not known yet
    assert registrar.renew(leads.plain) == 0
    time.seconds += LEASE_SECONDS - 1
    assert registrar.renew(leads.plain) == 0
    assert registrar.claim(FIRST.plain, CLOCK) == (None, 1)
    time.seconds += 1
    assert registrar.renew(late.plain) == leads.epoch
    assert registrar.renew(leads.plain) == leads.epoch
    assert claim(registrar, FIRST).id == "second"
    assert claim(registrar, FIRST, over="second").secret == leads.secret


def test_one_that_has_forgotten_everything_and_hears_nothing_begins_anew(time: Time) -> None:
    registrar = Registrar(True, now=time)
    time.seconds += LEASE_SECONDS
    assert claim(registrar, FIRST).id == "first"
