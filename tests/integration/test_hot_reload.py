"""A version copied in is served in place of the old one, long before the next poll; taken away, the old one returns."""

from __future__ import annotations

import itertools
import shutil

import pytest

from tests.support.servers.probe import Probe
from tests.support.servers.process import ServerProcess
from tfs_lite.core.publish import publish

POLL_SECONDS = 60
SOON = 30.0
"""Seconds: well below the poll interval, so that only a woken source can be as fast."""


@pytest.fixture(scope="module")
def base(archives, tmp_path_factory):
    base = tmp_path_factory.mktemp("watched") / "digits"
    archives.write_version(1, base)
    return base


@pytest.fixture(scope="module")
def probe(base):
    flags = (
        "--model_name=digits",
        f"--model_base_path={base}",
        f"--file_system_poll_wait_seconds={POLL_SECONDS}",
        "--version_quiet_period_seconds=0.2",
    )
    with ServerProcess(*flags) as server, Probe(server) as probe:
        yield probe
    assert server.exit_code == 0


@pytest.fixture(scope="module")
def numbers():
    """Version numbers, each used once, upwards."""
    return itertools.count(2)


@pytest.fixture
def put(base, archives, tmp_path, numbers):
    """Publishes the next version and returns its number."""

    def put_next() -> int:
        version = next(numbers)
        publish(str(archives.write(version, tmp_path / f"{version}.pt2")), str(base), version)
        return version

    return put_next


def test_published_version_replaces_the_old_one_before_the_next_poll(probe, put):
    (old,) = [version for version, state in probe.states("digits").items() if state == "AVAILABLE"]
    assert probe.ask("digits") == old
    new = put()
    probe.wait_available("digits", new, SOON)
    assert probe.ask("digits") == new
    probe.wait_states("digits", {old: "END"}, SOON)
    assert probe.versions("digits")[old].status.ok


def test_version_renamed_into_place_without_a_manifest_is_served_before_the_next_poll(
    probe, base, archives, tmp_path, numbers
):
    version = next(numbers)
    archives.write_version(version, tmp_path).rename(base / str(version))
    probe.wait_available("digits", version, SOON)
    assert probe.ask("digits") == version


def test_deleting_the_newest_version_brings_the_previous_one_back(probe, base, put):
    old, new = put(), put()
    probe.wait_available("digits", new, SOON)
    shutil.rmtree(base / str(new))
    probe.wait_states("digits", {old: "AVAILABLE", new: "END"}, SOON)
    assert probe.ask("digits") == old


def test_status_lists_every_version_ever_served_the_highest_first(probe, put):
    first, second = put(), put()
    probe.wait_available("digits", second, SOON)
    probe.wait_states("digits", {first - 1: "END"}, SOON)
    listed = list(probe.states("digits"))
    assert listed == sorted(listed, reverse=True)
    assert second in listed


def test_names_that_are_no_versions_are_ignored(probe, base, archives, put):
    for name in ("latest", "1.5", "-7", ".99", "99.tmp", "9" * 30):
        archives.write_version(1, base / name)
    (base / "README").write_text("not a model")
    version = put()
    probe.wait_available("digits", version, SOON)
    assert max(probe.states("digits")) == version
