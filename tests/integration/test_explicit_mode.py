"""A whole server whose models are loaded by name only."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.servers.in_process import QUICK, ServerFixture, entry, serving
from tests.support.servers.models import TaggedArchives
from tests.support.servers.process import wait_until
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.server import Server


@pytest.fixture
def root(tmp_path: Path, archives: TaggedArchives) -> Path:
    """A repository of two models."""
    for model in ("m", "other"):
        archives.write_version(1, tmp_path / model)
    return tmp_path


def explicit(root: Path, *models: str) -> dict[str, object]:
    return {"model_repository": str(root), "model_control_mode": "explicit", "load_model": models}


def load(fixture: ServerFixture, model: str) -> None:
    lifecycle = fixture.server._lifecycle
    assert lifecycle is not None
    assert lifecycle.repository is not None
    lifecycle.repository.load(model, {})


def is_loaded(fixture: ServerFixture, model: str) -> bool:
    """False while the server is starting."""
    try:
        load(fixture, model)
    except ServingError as error:
        if error.code is not StatusCode.UNAVAILABLE:
            raise
        return False
    return True


def test_only_the_models_that_are_named_are_loaded(root: Path) -> None:
    with serving(root, **explicit(root, "m")) as fixture:
        assert fixture.version() == 1
        assert fixture.states("other") == {}
        load(fixture, "other")
        assert fixture.version("other") == 1


def test_star_names_every_model(root: Path) -> None:
    with serving(root, **explicit(root, "*")) as fixture:
        assert (fixture.version("m"), fixture.version("other")) == (1, 1)


def test_empty_server_is_ready(root: Path) -> None:
    with serving(root, **explicit(root)) as fixture:
        assert fixture.states() == {}


def test_disk_is_looked_at_by_a_load_only(root: Path, archives: TaggedArchives) -> None:
    with serving(root, **explicit(root, "m")) as fixture:
        archives.write_version(2, root / "m")
        load(fixture, "other")
        assert fixture.states() == {1: VersionState.AVAILABLE}
        load(fixture, "m")
        assert fixture.version() == 2
        fixture.wait_states({1: VersionState.END, 2: VersionState.AVAILABLE})


def test_requests_are_answered_without_a_gap_while_a_new_version_is_loaded(
    root: Path, archives: TaggedArchives
) -> None:
    with serving(root, **explicit(root, "m")) as fixture:
        archives.write_version(2, root / "m")
        loaded = threading.Thread(target=load, args=(fixture, "m"))
        loaded.start()
        seen = {fixture.version()}
        while loaded.is_alive() or fixture.version() != 2:
            seen.add(fixture.version())
        loaded.join()
        assert seen <= {1, 2}


def test_config_of_a_client_is_refused(root: Path) -> None:
    with serving(root, **explicit(root, "m")) as fixture:
        with pytest.raises(ServingError, match="model_control_mode explicit") as caught:
            fixture.reload(entry("other"))
        assert caught.value.code is StatusCode.FAILED_PRECONDITION
        assert fixture.version() == 1


def test_model_that_is_not_there_stops_no_start_unless_asked_to(root: Path) -> None:
    with serving(root, **explicit(root, "nobody", "m")) as fixture:
        assert fixture.version() == 1
    server = Server(**{**QUICK, **explicit(root, "nobody"), "exit_on_initial_load_failure": True})
    with server:
        assert server.wait(30)
        assert server.failure is not None
        assert "failed to load 'nobody'" in str(server.failure)


def test_server_that_needs_all_its_models_is_ready_when_they_are_loaded_in_the_end(
    root: Path, archives: TaggedArchives
) -> None:
    fields = {**explicit(root, "late"), "ready_requires_all_models": True}
    with serving(root, ready=False, **fields) as fixture:
        running = fixture.server._lifecycle
        assert running is not None
        assert not running.health.ready
        archives.write_version(1, root / "late")
        wait_until(lambda: is_loaded(fixture, "late"), "it has started, and takes the call", 30)
        fixture.server.wait_ready(30)


def test_repository_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ServingError, match="--model_repository"):
        Server(**QUICK, **explicit(tmp_path / "nothing")).start()
