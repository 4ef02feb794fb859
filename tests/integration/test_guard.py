"""A bad version takes itself back, and a person takes one back: real servers, their default flags, and a bake."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.servers.in_process import TIMEOUT, ServerFixture, config_text, entry, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import VersionState
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.operations.guard.feature import Guard
from tfs_lite.operations.guard.stage import GuardView
from tfs_lite.operations.guard.trial import Command, Outcome, Verb
from tfs_lite.operations.what_if.feature import Forecasts
from tfs_lite.operations.what_if.forecast import Fate

AVAILABLE, END = VersionState.AVAILABLE, VersionState.END
GOOD = """
class Model:
    def __init__(self, context):
        self.version = {}

    def predict(self, inputs):
        return {{"y": inputs["x"] + self.version}}
"""
RAISES = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        raise RuntimeError("it is broken")
"""


class Guarded:
    """A server with a guard, and a model ``m`` whose versions answer ``x + version``."""

    def __init__(self, served: ServerFixture) -> None:
        self.served = served
        found = served.server.core.find(Guard)
        assert found is not None
        self.guard = found

    def view(self) -> GuardView:
        found = self.guard.view("m")
        assert found is not None
        return found

    def say(self, verb: Verb, version: int | None = None) -> None:
        self.guard.command("m", Command(verb, version, "a test"))

    def trial(self) -> tuple[int, int] | None:
        """The new and the old version of the trial that runs."""
        trial = self.view().trial
        return (trial.new, trial.old) if trial is not None else None

    def wait_trial(self, new: int, old: int) -> None:
        wait_until(lambda: self.trial() == (new, old) and self.view().since is not None, f"{new} is on trial", TIMEOUT)

    def wait_answer(self, version: int) -> None:
        wait_until(lambda: self.served.version() == version, f"version {version} answers", TIMEOUT)

    def wait_states(self, **states: VersionState) -> None:
        expected = {int(name[1:]): state for name, state in states.items()}
        wait_until(lambda: self.served.states() == expected, f"{expected}, not {self.served.states()}", TIMEOUT)


def put(root: Path, version: int, source: str = GOOD, config: str = "") -> None:
    """Publishes a version in one step, as ``tfs-lite publish`` does. ``config``: more of its config."""
    staged = root / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    directory = write_python_version(staged, version, source.format(version) if source is GOOD else source)
    with (directory / "config.pbtxt").open("a") as file:
        file.write(config)
    publish(str(directory), str(root / "m"), version)


@contextlib.contextmanager
def guarded(root: Path, **fields: object) -> Iterator[Guarded]:
    trusted = {"trusted_model_base_paths": (str(root / "**"),)}
    options = {"model_name": "m", "model_base_path": str(root / "m"), "bake_seconds": 60, **trusted, **fields}
    with serving(root, **{name: value for name, value in options.items() if value is not None}) as served:
        yield Guarded(served)


def test_push_is_on_trial_beside_the_old_version_until_it_is_accepted(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path) as found:
        assert (found.trial(), found.served.version()) == (None, 1)
        put(tmp_path, 2)
        found.wait_trial(2, 1)
        assert found.served.version() == 2
        assert found.served.states() == {1: AVAILABLE, 2: AVAILABLE}
        found.say(Verb.ACCEPT)
        found.wait_states(v1=END, v2=AVAILABLE)
        ended = found.view().ended
        assert ended is not None
        assert (ended.version, ended.outcome) == (2, Outcome.ACCEPTED)


def test_version_that_always_fails_is_taken_back_and_no_client_meets_it(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path) as found:
        put(tmp_path, 2, RAISES)
        found.wait_trial(2, 1)
        answers = list[int]()

        def is_taken_back() -> bool:
            answers.append(found.served.version())
            return bool(found.view().rejected)

        wait_until(is_taken_back, "version 2 is taken back", TIMEOUT)
        assert set(answers) == {1}
        found.wait_states(v1=AVAILABLE, v2=END)
        (rejection,) = found.view().rejected
        assert "version 1 answered all" in rejection.why
        assert found.served.status()[2].status.code is StatusCode.ABORTED
        assert found.served.status()[2].status.message.startswith("taken back after 1")
        put(tmp_path, 3)
        found.wait_trial(3, 1)
        assert found.served.version() == 3


BAKE = 'parameters {{ key: "guard.bake_seconds" value {{ string_value: "{}" }} }}'


def test_trial_has_the_settings_of_the_load_of_the_new_version(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path, bake_seconds=None) as found:
        put(tmp_path, 2)
        found.wait_states(v1=END, v2=AVAILABLE)
        put(tmp_path, 3, config=f"{BAKE.format(70)}\nretry_lost_batches: false")
        found.wait_trial(3, 2)
        trial = found.view().trial
        assert trial is not None
        assert (trial.settings.bake_seconds, trial.settings.repeats) == (70, False)
        assert found.served.server.core.features.trials["m"][3].may_shield is False
        put(tmp_path, 4, config=BAKE.format(0))
        found.wait_states(v1=END, v2=END, v3=END, v4=AVAILABLE)
        assert (found.trial(), dict(found.served.server.core.features.trials)) == (None, {})


def test_where_the_old_version_goes_first_there_is_no_trial_and_the_log_says_so(tmp_path: Path, caplog) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path, bake_seconds=None, aspired_version_policy="resource") as found:
        put(tmp_path, 2, config=BAKE.format(70))
        found.wait_states(v1=END, v2=AVAILABLE)
        assert found.trial() is None
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        found.wait_states(v1=AVAILABLE, v2=END)
    assert "its guard.bake_seconds is ignored" in caplog.text


def test_rollback_outlasts_a_restart_and_the_next_push_undoes_it(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    for version in (1, 2, 3):
        put(tmp_path, version)
    with guarded(tmp_path, bake_seconds=None, state_directory=state) as found:
        found.say(Verb.ROLLBACK, 2)
        found.wait_answer(2)
        found.wait_states(v2=AVAILABLE, v3=END)
        assert found.served.status()[3].status.message.startswith("rolled back to version 2 by a test")
        assert os.stat(f"{state}/guard.json").st_mode & 0o777 == 0o600
    with guarded(tmp_path, bake_seconds=None, state_directory=state) as found:
        assert found.served.version() == 2
        assert found.served.states() == {2: AVAILABLE, 3: END}
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        found.say(Verb.UNDO_ROLLBACK)
        found.wait_answer(3)
        found.say(Verb.ROLLBACK, 2)
        found.wait_answer(2)
        put(tmp_path, 4)
        found.wait_answer(4)


def test_rollback_to_a_copied_version_whose_digests_nobody_has_checked(tmp_path: Path) -> None:
    for version in (1, 2):
        put(tmp_path / "elsewhere", version)
    shutil.copytree(tmp_path / "elsewhere" / "m" / "2", tmp_path / "m" / "2")
    with guarded(tmp_path, bake_seconds=None) as found:
        assert found.served.version() == 2
        shutil.copytree(tmp_path / "elsewhere" / "m" / "1", tmp_path / "m" / "1")
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        found.wait_states(v1=AVAILABLE, v2=END)


def test_rollback_below_a_corrupt_newest_version(tmp_path: Path) -> None:
    for version in (1, 2):
        put(tmp_path, version)
    put(tmp_path, 3, "raise ValueError('corrupt')")
    two = "model_version_policy { latest { num_versions: 2 } }"
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("m", two)))
    fields = {"model_name": None, "model_base_path": None, "model_config_file": str(file), "max_num_load_retries": 0}
    with guarded(tmp_path, **fields) as found:
        found.wait_states(v1=AVAILABLE, v2=AVAILABLE, v3=END)
        found.say(Verb.ROLLBACK)
        assert found.served.version() == 2
        assert found.served.status()[3].status.message.startswith("rolled back to version 2")
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        found.wait_states(v1=AVAILABLE, v2=END, v3=END)


def test_label_on_a_version_that_was_taken_back_means_the_one_below_it(tmp_path: Path) -> None:
    def reload(found: Guarded, *versions: int, stable: int) -> None:
        policy = " ".join(f"versions: {version}" for version in versions)
        label = f'version_labels {{ key: "stable" value: {stable} }}'
        found.served.reload(entry("m", f"model_version_policy {{ specific {{ {policy} }} }} {label}"))

    put(tmp_path, 1)
    with guarded(tmp_path) as found:
        reload(found, 1, stable=1)
        put(tmp_path, 2)
        wait_until(lambda: 2 in found.served.server.core.sources.found("m").versions, "2 is seen", TIMEOUT)
        reload(found, 1, 2, stable=2)
        assert found.served.version(label="stable") == 2
        found.wait_trial(2, 1)
        found.say(Verb.UNDO)
        wait_until(lambda: found.served.version(label="stable") == 1, "the label means version 1", TIMEOUT)
        (status,) = found.served.client.status("m", label="stable")
        assert (status.version, status.state) == (1, AVAILABLE)
        put(tmp_path, 3)
        wait_until(lambda: 3 in found.served.server.core.sources.found("m").versions, "3 is seen", TIMEOUT)
        reload(found, 1, 2, 3, stable=2)
        found.wait_answer(3)
        assert found.served.version(label="stable") == 1, "the next push is not for those who ask for stable"
        (status,) = found.served.client.status("m", label="stable")
        assert status.version == 1
        reload(found, 1, 2, stable=1)
        with pytest.raises(ServingError, match="tfs-lite guard retry m@2"):
            reload(found, 1, 2, stable=2)
        found.say(Verb.RETRY, 2)
        wait_until(lambda: found.served.version() == 2, "version 2 answers again", TIMEOUT)
        reload(found, 1, 2, stable=2)


def test_rollback_does_not_wait_for_a_load_that_hangs(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    for version in (1, 2):
        put(tmp_path, version)
    with guarded(tmp_path, bake_seconds=None) as found:
        assert found.served.version() == 2
        blocked.touch()
        hangs = f"import os, time\nwhile os.path.exists({str(blocked)!r}): time.sleep(0.01)\n"
        put(tmp_path, 3, hangs + GOOD.format(3))
        wait_until(lambda: found.served.states().get(3) is VersionState.LOADING, "version 3 is loaded", TIMEOUT)
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        assert found.served.states()[3] is VersionState.LOADING
        blocked.unlink()
        found.wait_states(v1=AVAILABLE, v2=END, v3=END)


def test_label_on_a_version_whose_rollback_is_undone_has_an_answer_while_that_is_loaded(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    waits = (
        "import os, time\nwhile os.path.exists({0!r}): time.sleep(0.01)\n"
        "class Model:\n    def __init__(self, context): pass\n"
        "    def predict(self, inputs): return {{'y': inputs['x'] + {1}}}\n"
    )
    for version in (1, 2, 3):
        put(tmp_path, version, waits.format(str(blocked), version))
    policy = "model_version_policy { latest { num_versions: 2 } }"
    labels = " ".join(f'version_labels {{ key: "v{version}" value: {version} }}' for version in (2, 3))
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("m", f"{policy} {labels}")))
    fields = {"model_name": None, "model_base_path": None, "model_config_file": str(file), "bake_seconds": None}
    with guarded(tmp_path, **fields) as found:

        def versions() -> list[int]:
            return [found.served.version(label=label) for label in ("v2", "v3")]

        found.wait_states(v2=AVAILABLE, v3=AVAILABLE)  # the model is ready with one of them
        assert versions() == [2, 3]
        found.say(Verb.ROLLBACK, 1)
        wait_until(lambda: versions() == [1, 1], "both labels mean version 1", TIMEOUT)
        found.wait_states(v1=AVAILABLE, v2=END, v3=END)
        blocked.touch()
        found.say(Verb.UNDO_ROLLBACK)
        wait_until(lambda: found.served.states().get(3) is VersionState.LOADING, "version 3 is loaded", TIMEOUT)
        assert versions() == [1, 1]
        (status,) = found.served.client.status("m", label="v3")
        assert (status.version, status.state) == (1, AVAILABLE)
        blocked.unlink()
        wait_until(lambda: versions() == [2, 3], "both labels mean their versions", TIMEOUT)


def test_policy_specific_has_a_stand_in_for_what_was_taken_back(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        put(tmp_path, version)
    with guarded(tmp_path) as found:
        found.served.reload(entry("m", "model_version_policy { specific { versions: 3 } }"))
        found.wait_answer(3)
        found.say(Verb.ROLLBACK)
        found.wait_answer(2)
        found.wait_states(v2=AVAILABLE, v3=END)


def test_trial_goes_on_after_a_restart(tmp_path: Path) -> None:
    state = str(tmp_path / "state")
    put(tmp_path, 1)
    with guarded(tmp_path, state_directory=state) as found:
        put(tmp_path, 2)
        found.wait_trial(2, 1)
    assert json.loads(Path(state, "guard.json").read_text())["clean"] is True
    with guarded(tmp_path, state_directory=state) as found:
        found.wait_trial(2, 1)
        found.wait_states(v1=AVAILABLE, v2=AVAILABLE)
        assert found.served.version() == 2


def test_version_during_whose_trial_two_servers_died_is_left_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    put(tmp_path, 1)
    with guarded(tmp_path, state_directory=str(state)) as found:
        put(tmp_path, 2)
        found.wait_trial(2, 1)
    file = state / "guard.json"
    document = json.loads(file.read_text())
    document["clean"], document["models"]["m"]["trials"][0]["unclean"] = False, 1
    file.write_text(json.dumps(document))
    with guarded(tmp_path, state_directory=str(state)) as found:
        assert found.served.version() == 1
        assert "ended uncleanly during its trial" in found.served.status()[2].status.message


def explicit(root: Path, **more: object) -> dict[str, object]:
    return {
        "model_name": None,
        "model_base_path": None,
        "model_repository": str(root),
        "model_control_mode": "explicit",
        "reload_timeout_seconds": 20.0,
        "load_model": ("m",),
        **more,
    }


def load(found: Guarded) -> None:
    answer = httpx.post(f"{found.served.url}/v2/repository/models/m/load", timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text


def test_load_call_returns_when_the_new_version_answers_and_the_old_one_stays_for_the_trial(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path, **explicit(tmp_path)) as found:
        put(tmp_path, 2)
        load(found)
        assert found.served.version() == 2
        found.wait_trial(2, 1)
        assert found.served.states() == {1: AVAILABLE, 2: AVAILABLE}
        found.say(Verb.UNDO)
        found.wait_answer(1)
        found.wait_states(v1=AVAILABLE, v2=END)
        load(found)
        assert found.served.version() == 2


def test_model_that_is_unloaded_and_loaded_in_a_trial_is_on_trial_again(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path, **explicit(tmp_path)) as found:
        put(tmp_path, 2)
        load(found)
        found.wait_trial(2, 1)
        answer = httpx.post(f"{found.served.url}/v2/repository/models/m/unload", timeout=TIMEOUT)
        assert answer.status_code == 200, answer.text
        assert found.guard.view("m") is None
        load(found)
        found.wait_trial(2, 1)
        assert found.served.states() == {1: AVAILABLE, 2: AVAILABLE}
        found.say(Verb.UNDO)
        found.wait_answer(1)


def test_model_that_leaves_the_config_in_a_trial_and_comes_back_is_on_trial_again(tmp_path: Path) -> None:
    put(tmp_path, 1)
    with guarded(tmp_path) as found:
        put(tmp_path, 2)
        found.wait_trial(2, 1)
        found.served.reload()
        found.wait_states(v1=END, v2=END)
        found.served.reload(entry("m"))
        found.wait_trial(2, 1)
        assert found.served.states() == {1: AVAILABLE, 2: AVAILABLE}


def test_rollback_in_the_mode_explicit_outlasts_a_restart_and_a_load_call_undoes_it(tmp_path: Path) -> None:
    more = {"bake_seconds": None, "state_directory": str(tmp_path / "state")}
    models = tmp_path / "models"
    for version in (1, 2):
        put(models, version)
    shutil.rmtree(models / "staged")
    with guarded(models, **explicit(models, **more)) as found:
        assert found.served.version() == 2
        found.say(Verb.ROLLBACK)
        found.wait_answer(1)
        found.wait_states(v1=AVAILABLE, v2=END)
    with guarded(models, **explicit(models, **more)) as found:
        assert found.served.version() == 1
        load(found)
        assert found.served.version() == 2


def test_forecast_of_a_reload_knows_what_was_taken_back_and_what_is_kept(tmp_path: Path) -> None:
    put(tmp_path, 1)
    two = "model_version_policy { latest { num_versions: 2 } }"
    with guarded(tmp_path) as found:
        put(tmp_path, 2)
        found.wait_trial(2, 1)
        config = parse_model_server_config(config_text(tmp_path, entry("m", two)), "two")
        forecasts = found.served.server.core.find(Forecasts)
        assert forecasts is not None

        def fates() -> dict[int, Fate]:
            (model,) = forecasts.config(config).models
            return {version.version: version.fate for version in model.versions}

        assert fates() == {2: Fate.STAY, 1: Fate.STAY}
        found.say(Verb.UNDO)
        found.wait_states(v1=AVAILABLE, v2=END)
        assert fates() == {1: Fate.STAY}
