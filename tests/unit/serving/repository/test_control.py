"""Load and unload calls against a real core: real model files, no doors."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tests.support.servers.process import wait_until
from tests.support.servers.repository_fixture import BROKEN, SOURCE, RepositoryFixture, serving_repository
from tfs_lite.core.publish import publish
from tfs_lite.core.servable import ModelRef, ServableData, ServableId
from tfs_lite.core.source import AspiredVersionsCallback
from tfs_lite.core.status import StatusCode
from tfs_lite.protocols.v2 import messages as v2
from tfs_lite.serving.feature import Feature
from tfs_lite.serving.source_chain import NO_MODELS

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
JSON_CONFIG = {"platform": "python", "input": [{"name": "x", **TENSOR}], "output": [{"name": "y", **TENSOR}]}


def json_config(plus: float = 0, **more: object) -> str:
    return json.dumps({**JSON_CONFIG, "parameters": {"plus": {"string_value": str(plus)}}, **more})


@pytest.fixture
def fixture(tmp_path: Path) -> Iterator[RepositoryFixture]:
    with serving_repository(tmp_path / "models") as found:
        found.configure("m")
        found.write("m", 1, plus=1)
        yield found


def test_first_load_returns_when_the_latest_version_answers_and_the_second_changes_nothing(
    fixture: RepositoryFixture,
) -> None:
    fixture.write("m", 2, plus=2)
    assert (fixture.versions("m"), fixture.index()) == (set(), [v2.ModelIndex(name="m")])
    fixture.load("m")
    assert (fixture.versions("m"), fixture.index()) == ({2}, [v2.ModelIndex(name="m", version="2", state="READY")])
    assert fixture.plus("m") == 2
    before = fixture.identity("m")
    fixture.load("m")
    assert fixture.identity("m") == before


def test_disk_is_looked_at_only_by_a_load_of_that_model(fixture: RepositoryFixture) -> None:
    fixture.configure("other")
    fixture.write("other", 1, plus=0)
    fixture.load("m")
    fixture.write("m", 2, plus=2)
    fixture.load("other")
    assert fixture.versions("m") == {1}
    fixture.load("m")
    assert fixture.versions("m") >= {2}
    wait_until(lambda: fixture.versions("m") == {2}, "only the latest version is left", 30)


def test_changed_files_and_a_changed_config_on_disk_are_loaded_anew(fixture: RepositoryFixture) -> None:
    fixture.load("m")
    fixture.write("m", 1, plus=10)
    fixture.load("m")
    assert fixture.plus("m") == 10
    fixture.configure("m", 'parameters { key: "plus" value { string_value: "5" } }')
    fixture.load("m")
    assert fixture.plus("m") == 15


def test_only_the_version_that_changed_is_loaded_anew(fixture: RepositoryFixture) -> None:
    fixture.configure("m", "version_policy { all { } }")
    fixture.write("m", 2, plus=2)
    fixture.load("m")
    before = fixture.identity("m", 1)
    fixture.write("m", 2, plus=20)
    fixture.load("m")
    assert fixture.identity("m", 1) == before
    assert fixture.plus("m", 2) == 20


def test_version_policy_changes_which_versions_serve_and_reloads_none(fixture: RepositoryFixture) -> None:
    fixture.write("m", 2, plus=2)
    fixture.write("m", 3, plus=3)
    fixture.configure("m", "version_policy { latest { num_versions: 2 } }")
    fixture.load("m")
    assert fixture.versions("m") == {2, 3}
    before = fixture.identity("m", 2)
    fixture.configure("m", "version_policy { specific { versions: [ 1, 2, 9 ] } }")
    fixture.load("m")
    assert fixture.versions("m") >= {1, 2}
    wait_until(lambda: fixture.versions("m") == {1, 2}, "version 3 is unloaded", 30)
    assert fixture.identity("m", 2) == before


@pytest.mark.parametrize("version", [1, 2], ids=["changed", "new"])
def test_version_that_fails_leaves_the_old_state_serving(fixture: RepositoryFixture, version: int) -> None:
    fixture.load("m")
    before = fixture.identity("m")
    fixture.write("m", version, 0, BROKEN)
    message = refusal(fixture.load, "m")
    assert message.startswith(f"load failed for model 'm': version {version} is at UNAVAILABLE state: ")
    assert message.endswith(";")
    assert (fixture.identity("m"), fixture.plus("m")) == (before, 1)
    states = ["READY", "UNAVAILABLE"][:version]
    wait_until(lambda: [entry.state for entry in fixture.index()] == states, "the index tells", 30)


def test_one_bad_version_fails_the_first_load_as_a_whole(fixture: RepositoryFixture) -> None:
    fixture.configure("m", "version_policy { all { } }")
    fixture.write("m", 2, 0, BROKEN)
    assert "version 2 is at UNAVAILABLE state" in refusal(fixture.load, "m")
    wait_until(lambda: fixture.versions("m") == set(), "version 1 is not served either", 30)
    fixture.write("m", 2, plus=2)
    fixture.load("m")
    assert fixture.versions("m") == {1, 2}


def test_version_that_failed_is_tried_again_by_the_next_load(fixture: RepositoryFixture, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    fixture.write("m", 1, 0, f"import os\nos.stat({str(weights)!r})\n" + SOURCE)
    refusal(fixture.load, "m")
    weights.touch()
    fixture.load("m")
    assert fixture.versions("m") == {1}


def test_published_version_that_is_not_whole_is_not_loaded(fixture: RepositoryFixture, tmp_path: Path) -> None:
    fixture.load("m")
    source = fixture.write("scratch", 2, plus=2)
    publish(str(source), str(fixture.root / "m"), 2)
    whole = (fixture.root / "m" / "2" / "model.py").read_text()
    (fixture.root / "m" / "2" / "model.py").write_text(whole.replace("2.0", "3.0").replace("+ 2", "+ 3"))
    assert "version 2 is at UNAVAILABLE state: Unavailable: " in refusal(fixture.load, "m")
    assert fixture.plus("m") == 1
    (fixture.root / "m" / "2" / "model.py").write_text(whole)
    fixture.load("m")
    assert fixture.plus("m") == 2


NAMES = {
    "": "Model name cannot be empty",
    "   ": "Model name cannot be empty",
    **dict.fromkeys(["..", " .. ", "../m", "a/b", "a\\b", "m\0"], ".*must not contain path traversal characters.*"),
}


@pytest.mark.parametrize("name", NAMES)
def test_name_that_is_empty_or_leads_out_of_the_repository_is_refused(fixture: RepositoryFixture, name: str) -> None:
    assert re.fullmatch(NAMES[name], refusal(fixture.load, name), re.DOTALL)


@pytest.mark.parametrize("name", ["missing", "...", "..m"])
def test_unknown_name_is_an_internal_error(fixture: RepositoryFixture, name: str) -> None:
    message = refusal(fixture.load, name, code=StatusCode.INTERNAL)
    assert message == f"failed to load '{name}', failed to poll from model repository"


def test_model_goes_on_serving_when_its_config_on_disk_is_wrong_or_its_directory_is_gone(
    fixture: RepositoryFixture,
) -> None:
    fixture.load("m")
    fixture.configure("m", "max_batch: 3")
    message = refusal(fixture.load, "m", code=StatusCode.INTERNAL)
    assert "failed to load 'm', failed to poll from model repository" in message
    assert fixture.plus("m") == 1
    fixture.remove("m")
    refusal(fixture.load, "m", code=StatusCode.INTERNAL)
    assert fixture.plus("m") == 1


def test_policy_that_wants_no_version_that_is_there_is_refused(fixture: RepositoryFixture) -> None:
    fixture.configure("m", "version_policy { specific { versions: [ 7 ] } }")
    assert "at least one version must be available under the version policy" in refusal(fixture.load, "m")


def test_config_of_a_call_sticks_until_the_file_is_newer(fixture: RepositoryFixture) -> None:
    fixture.load("m")
    fixture.load("m", config=json_config(plus=7))
    assert fixture.plus("m") == 8
    before = fixture.identity("m")
    fixture.load("m")
    assert fixture.identity("m") == before
    later = time.time() + 10
    os.utime(fixture.root / "m" / "config.pbtxt", (later, later))
    fixture.load("m")
    assert fixture.plus("m") == 1


def test_unload_and_load_returns_to_the_config_on_disk(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=json_config(plus=7))
    fixture.control.unload("m")
    fixture.load("m")
    assert fixture.plus("m") == 1


def test_config_of_a_call_decides_which_versions_serve(fixture: RepositoryFixture) -> None:
    fixture.write("m", 2, plus=2)
    fixture.load("m", config=json_config(version_policy={"specific": {"versions": [1]}}))
    assert fixture.versions("m") == {1}


@pytest.mark.parametrize("config", ["{", "[]", '{"max_batch": 3}', '{"name": "other"}', "[" * 100_000])
def test_config_that_is_none_is_refused_and_changes_nothing(fixture: RepositoryFixture, config: str) -> None:
    fixture.load("m")
    message = refusal(fixture.load, "m", config=config, code=StatusCode.INTERNAL)
    assert "failed to load 'm', failed to poll from model repository" in message
    fixture.load("m")
    assert fixture.plus("m") == 1


def test_config_that_cannot_be_loaded_with_leaves_the_old_one_in_force(fixture: RepositoryFixture) -> None:
    fixture.load("m")
    refusal(fixture.load, "m", config=json.dumps({**JSON_CONFIG, "platform": "pytorch_libtorch"}))
    before = fixture.identity("m")
    fixture.load("m")
    assert fixture.identity("m") == before


# Only the number of instances changes.


def instances(count: int, **more: object) -> str:
    return json_config(instance_group=[{"count": count, "kind": "KIND_CPU"}], **more)  # type: ignore[arg-type]


def count_of(fixture: RepositoryFixture, version: int | None = None) -> int:
    with fixture.core.handle(ModelRef("m", version)) as handle:
        return len(handle.servable.models)


def told(fixture: RepositoryFixture) -> list[int]:
    """What the server says about its instances."""
    with fixture.core.handle(ModelRef("m")) as handle:
        return [group.count for group in fixture.core.renewal.settings_of(handle.servable).instance_group]


def test_number_of_instances_changes_without_a_reload(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=instances(1))
    before = fixture.identity("m")
    for count in (3, 2, 1, 4):
        fixture.load("m", config=instances(count))
        assert (count_of(fixture), told(fixture), fixture.plus("m")) == (count, [count], 1)
    assert fixture.identity("m") == before
    assert fixture.core.view.last_attempts("m")[1].number == 1


def test_number_of_instances_on_disk_changes_without_a_reload(fixture: RepositoryFixture) -> None:
    fixture.load("m")
    before = fixture.identity("m")
    for text, count, groups in (
        ("instance_group { count: 2 }", 2, [2]),
        ('instance_group [ { name: "a" }, { name: "b" } ]', 2, [1, 1]),
        ("version_policy { all { } }", 1, []),
    ):
        fixture.configure("m", text)
        fixture.load("m")
        assert (count_of(fixture), told(fixture), fixture.identity("m")) == (count, groups, before)


@pytest.mark.parametrize("changes", ["files", "config"])
def test_changed_state_of_a_version_takes_over_while_requests_are_inside(
    fixture: RepositoryFixture, changes: str
) -> None:
    fixture.load("m", config=instances(1))
    with fixture.core.handle(ModelRef("m", 1)) as handle:
        before = handle.servable
        if changes == "files":
            fixture.write("m", 1, plus=7)
        fixture.load("m", config=instances(1, plus=0 if changes == "files" else 6))
        assert fixture.versions("m") == {1}
        assert fixture.plus("m") == 7
        assert handle.servable is before
    assert fixture.identity("m") != id(before)
    fixture.load("m", config=instances(1))
    assert fixture.plus("m") == (7 if changes == "files" else 1)


def test_change_of_more_than_the_instances_is_a_reload(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=instances(1))
    before = fixture.identity("m")
    fixture.load("m", config=instances(2, plus=5))
    assert (count_of(fixture), fixture.plus("m")) == (2, 6)
    assert fixture.identity("m") != before
    before = fixture.identity("m")
    fixture.write("m", 1, plus=2)
    fixture.load("m", config=instances(1, plus=5))
    assert (count_of(fixture), fixture.plus("m")) == (1, 7)
    assert fixture.identity("m") != before


def test_instance_that_cannot_be_opened_leaves_the_old_ones_serving(fixture: RepositoryFixture, tmp_path: Path) -> None:
    mark = tmp_path / "full"
    fixture.write("m", 1, 1, f"import os\nif os.path.exists({str(mark)!r}): raise ValueError('no room')\n{SOURCE}")
    fixture.load("m", config=instances(2))
    before = fixture.identity("m")
    mark.touch()
    message = refusal(fixture.load, "m", config=instances(3))
    assert message.startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: ")
    assert "no room" in message
    assert (count_of(fixture), told(fixture), fixture.plus("m"), fixture.identity("m")) == (2, [2], 1, before)
    fixture.load("m", config=instances(1))
    mark.unlink()
    fixture.load("m", config=instances(3))
    assert (count_of(fixture), told(fixture), fixture.identity("m")) == (3, [3], before)


def test_failure_of_another_version_takes_the_new_instances_back(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=instances(1, version_policy={"all": {}}))
    before = fixture.identity("m")
    fixture.write("m", 2, 0, BROKEN)
    refusal(fixture.load, "m", config=instances(3, version_policy={"all": {}}))
    assert (count_of(fixture), told(fixture), fixture.identity("m")) == (1, [1], before)


def test_instances_are_replaced_where_their_kind_changes(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=instances(2))
    with fixture.core.handle(ModelRef("m")) as handle:
        servable, old = handle.servable, list(handle.servable.models)
    fixture.load("m", config=json_config(instance_group=[{"count": 1, "kind": "KIND_CPU"}, {"count": 1}]))  # type: ignore[arg-type]
    with fixture.core.handle(ModelRef("m")) as handle:
        assert handle.servable is servable
        assert handle.servable.models[0] is old[0]
        assert handle.servable.models[1] not in old
    assert fixture.plus("m") == 1


def test_sequences_are_loaded_anew_with_other_instances(fixture: RepositoryFixture) -> None:
    fixture.load("m", config=instances(1, sequence_batching={}))
    before = fixture.identity("m")
    fixture.load("m", config=instances(2, sequence_batching={}))
    assert (count_of(fixture), told(fixture)) == (2, [2])
    assert fixture.identity("m") != before


@pytest.mark.parametrize(
    ("key", "value"), [("config", b"{}"), ("file:1/model.py", "text"), ("other", "x"), ("config", 3)]
)
def test_unknown_parameter_or_type_is_refused(fixture: RepositoryFixture, key: str, value: bytes | str | int) -> None:
    assert key in refusal(fixture.load_with, "m", {key: value})


def test_files_of_a_call_are_the_model_until_the_next_load(tmp_path: Path) -> None:
    with serving_repository(tmp_path / "models", trusted_model_base_paths=("/**",)) as fixture:
        fixture.configure("m")
        fixture.write("m", 1, plus=1)
        fixture.load("m")
        source = fixture.write("scratch", 1, plus=40).joinpath("model.py").read_bytes()
        fixture.load_with("m", {"config": json_config(), "file:5/model.py": source})
        assert fixture.plus("m") == 40
        wait_until(lambda: fixture.versions("m") == {5}, "only the uploaded version is left", 30)
        fixture.load("m")
        assert fixture.plus("m", 1) == 1
        wait_until(lambda: fixture.versions("m") == {1}, "the model on disk is back", 30)


def test_files_of_a_call_need_no_directory_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with serving_repository(tmp_path / "models", trusted_model_base_paths=("/**",)) as fixture:
        source = fixture.write("scratch", 1, plus=3).joinpath("model.py").read_bytes()
        fixture.load_with("new", {"config": json_config(), "file:1/model.py": source})
        assert fixture.plus("new") == 3
        fixture.control.unload("new")
        assert "failed to load 'new'" in refusal(fixture.load, "new", code=StatusCode.INTERNAL)
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


CONFIG_OF_CALL = {"config": json_config()}
UPLOADS = [{**CONFIG_OF_CALL, f"file:{path}": b"x"} for path in ("../x", "/etc/x", "1/../../x", "", "1\\x")]


@pytest.mark.parametrize("parameters", [*UPLOADS, {"file:1/model.py": b"x"}], ids=lambda found: [*found][-1])
def test_file_outside_the_model_or_without_a_config_is_refused(
    fixture: RepositoryFixture, parameters: dict[str, bytes | str]
) -> None:
    fixture.load("m")
    message = refusal(fixture.load_with, "m", parameters, code=StatusCode.INTERNAL)
    assert "failed to load 'm', failed to poll" in message
    assert fixture.plus("m") == 1


def test_more_bytes_than_a_message_may_have_are_refused(tmp_path: Path) -> None:
    with serving_repository(tmp_path / "models", max_message_bytes=1000) as fixture:
        assert "1000 bytes" in refusal(
            fixture.load_with, "m", {"config": json_config(), "file:1/a": b"x" * 600, "file:1/b": b"x" * 600}
        )


def test_uploaded_code_is_not_trusted_by_itself(fixture: RepositoryFixture) -> None:
    assert "version 1 is at UNAVAILABLE state" in refusal(
        fixture.load_with, "m", {"config": json_config(), "file:1/model.py": SOURCE.encode()}
    )
    assert fixture.versions("m") == set()


@pytest.mark.parametrize("name", ["missing", "", "../x"])
def test_unload_of_what_is_not_loaded_succeeds(fixture: RepositoryFixture, name: str) -> None:
    fixture.control.unload(name)


def test_unload_takes_the_model_away_at_once_and_lets_requests_end(fixture: RepositoryFixture) -> None:
    fixture.load("m")
    with fixture.core.handle(ModelRef("m")) as handle:
        fixture.control.unload("m")
        assert fixture.versions("m") == set()
        assert handle.servable is not None
        assert fixture.index() == [v2.ModelIndex(name="m", version="1", state="UNLOADING")]
    wait_until(
        lambda: fixture.index() == [v2.ModelIndex(name="m", version="1", state="UNAVAILABLE", reason="unloaded")],
        "it has ended",
        30,
    )


def test_calls_at_the_same_time_come_one_after_the_other(fixture: RepositoryFixture) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(fixture.load, ["m"] * 4))
    assert fixture.plus("m") == 1


def test_load_that_takes_too_long_gives_up_and_rolls_back(tmp_path: Path) -> None:
    with serving_repository(tmp_path / "models", reload_timeout_seconds=0.0) as fixture:
        fixture.configure("m")
        fixture.write("m", 1, plus=1)
        assert "still loading" in refusal(fixture.load, "m", code=StatusCode.DEADLINE_EXCEEDED)
        wait_until(lambda: not fixture.core.view.live_versions("m"), "nothing is left of it", 30)


def test_resource_policy_frees_the_old_version_first_and_returns_to_it(tmp_path: Path) -> None:
    with serving_repository(tmp_path / "models", aspired_version_policy="resource") as fixture:
        fixture.configure("m")
        fixture.write("m", 1, plus=1)
        fixture.load("m")
        fixture.write("m", 2, 0, BROKEN)
        assert "version 2 is at UNAVAILABLE" in refusal(fixture.load, "m")
        wait_until(lambda: fixture.versions("m") == {1}, "the old version is back", 30)
        fixture.write("m", 2, plus=2)
        fixture.load("m")
        fixture.write("m", 2, plus=22)
        fixture.load("m")
        assert fixture.plus("m") == 22


def test_models_of_the_start_are_loaded_and_a_bad_one_stops_none(fixture: RepositoryFixture) -> None:
    fixture.configure("bad")
    fixture.write("bad", 1, 0, BROKEN)
    assert set(fixture.control.load_first(["*"])) == {"bad"}
    assert fixture.versions("m") == {1}
    assert set(fixture.control.load_first(["m", "missing"])) == {"missing"}


def test_models_of_a_config_file_are_loaded_by_name_with_its_policy_and_labels(tmp_path: Path) -> None:
    file = tmp_path / "models.pbtxt"
    fields = {"model_repository": "", "model_config_file": str(file)}
    base = tmp_path / "models" / "m"
    file.write_text(
        f'model_config_list {{ config {{ name: "named" base_path: "{base}" '
        'model_version_policy { all { } } version_labels { key: "stable" value: 1 } } }'
    )
    with serving_repository(tmp_path / "models", **fields) as fixture:
        fixture.configure("m")
        fixture.write("m", 1, plus=1)
        fixture.write("m", 2, plus=2)
        fixture.load("named")
        assert fixture.versions("named") == {1, 2}
        with fixture.core.handle(ModelRef("named", label="stable")) as handle:
            assert handle.id.version == 1
        refusal(fixture.load, "m", code=StatusCode.INTERNAL)


def test_reload_of_a_whole_config_is_refused(fixture: RepositoryFixture) -> None:
    assert "model_control_mode explicit" in refusal(
        fixture.core.reloader.reload, NO_MODELS, code=StatusCode.FAILED_PRECONDITION
    )


class Keeper(Feature):
    """Keeps every version that was offered once, and ``besides``, in the list."""

    def __init__(self) -> None:
        self.items: dict[int, ServableData[str]] = {}

    def observe(self, callback: AspiredVersionsCallback[str]) -> AspiredVersionsCallback[str]:
        def keep(name: str, versions: Sequence[ServableData[str]]) -> None:
            self.items.update({item.id.version: item for item in versions})
            callback(name, list(self.items.values()) if versions else ())

        return keep


def test_load_does_not_wait_for_the_end_of_a_version_that_a_feature_keeps(tmp_path: Path) -> None:
    keeper = Keeper()
    with serving_repository(tmp_path / "models", features=[lambda core: keeper], reload_timeout_seconds=20.0) as found:
        found.configure("m")
        for version in (1, 2):
            found.write("m", version, plus=version)
            found.load("m")
        assert (found.versions("m"), found.plus("m")) == ({1, 2}, 2)
        before = found.identity("m", 1)
        found.configure("m", "version_policy { specific { versions: [ 1 ] } }")
        found.load("m")
        assert (found.versions("m"), found.identity("m", 1)) == ({1, 2}, before)
        found.write("m", 1, plus=10)
        found.load("m")
        assert found.plus("m", 1) == 10
        found.control.unload("m")
        assert found.versions("m") == set()


def test_load_of_a_version_that_a_feature_has_brought_takes_it_as_it_is(tmp_path: Path) -> None:
    keeper = Keeper()
    with serving_repository(tmp_path / "models", features=[lambda core: keeper], reload_timeout_seconds=20.0) as found:
        found.configure("m")
        for version in (1, 2):
            found.write("m", version, plus=version)
        brought = ServableId("m", 1)
        keeper.items[1] = ServableData.ok(brought, str(found.root / "m" / "1"), "brought")
        found.load("m")
        wait_until(lambda: found.versions("m") == {1, 2}, "both answer", 30)
        found.configure("m", "version_policy { all { } }")
        found.load("m")
        assert found.versions("m") == {1, 2}
