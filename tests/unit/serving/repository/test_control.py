"""Load and unload calls against a real core: real model files, no doors."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfs_lite.core.publish import publish
from tfs_lite.core.servable import ModelRef
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.server.v2.control import IndexEntry
from tfs_lite.serving.source_chain import NO_MODELS
from tfs_lite.testing.servers.process import wait_until
from tfs_lite.testing.servers.repository_fixture import BROKEN, SOURCE, RepositoryFixture, repository_house

TENSOR = {"data_type": "TYPE_FP32", "dims": [-1]}
JSON_CONFIG = {"platform": "python", "input": [{"name": "x", **TENSOR}], "output": [{"name": "y", **TENSOR}]}


def json_config(plus: float = 0, **more: object) -> str:
    return json.dumps({**JSON_CONFIG, "parameters": {"plus": {"string_value": str(plus)}}, **more})


@pytest.fixture
def house(tmp_path: Path) -> Iterator[RepositoryFixture]:
    with repository_house(tmp_path / "models") as found:
        found.configure("m")
        found.write("m", 1, plus=1)
        yield found


def test_nothing_is_loaded_before_it_is_asked_for(house: RepositoryFixture) -> None:
    assert house.versions("m") == set()
    assert house.index() == [IndexEntry("m")]


def test_load_returns_when_the_latest_version_answers(house: RepositoryFixture) -> None:
    house.write("m", 2, plus=2)
    house.load("m")
    assert house.versions("m") == {2}
    assert house.plus("m") == 2
    assert house.index() == [IndexEntry("m", "2", "READY")]


def test_second_load_of_an_unchanged_model_leaves_it_alone(house: RepositoryFixture) -> None:
    house.load("m")
    before = house.identity("m")
    house.load("m")
    assert house.identity("m") == before


def test_disk_is_looked_at_only_by_a_load_of_that_model(house: RepositoryFixture) -> None:
    house.configure("other")
    house.write("other", 1, plus=0)
    house.load("m")
    house.write("m", 2, plus=2)
    house.load("other")
    assert house.versions("m") == {1}
    house.load("m")
    assert house.versions("m") >= {2}
    wait_until(lambda: house.versions("m") == {2}, "only the latest version is left", 30)


def test_changed_files_of_a_version_are_loaded_anew(house: RepositoryFixture) -> None:
    house.load("m")
    house.write("m", 1, plus=10)
    house.load("m")
    assert house.plus("m") == 10


def test_changed_config_on_disk_is_loaded_anew(house: RepositoryFixture) -> None:
    house.load("m")
    house.configure("m", 'parameters { key: "plus" value { string_value: "5" } }')
    house.load("m")
    assert house.plus("m") == 6


def test_only_the_version_that_changed_is_loaded_anew(house: RepositoryFixture) -> None:
    house.configure("m", "version_policy { all { } }")
    house.write("m", 2, plus=2)
    house.load("m")
    before = house.identity("m", 1)
    house.write("m", 2, plus=20)
    house.load("m")
    assert house.identity("m", 1) == before
    assert house.plus("m", 2) == 20


def test_version_policy_changes_which_versions_serve_and_reloads_none(house: RepositoryFixture) -> None:
    house.write("m", 2, plus=2)
    house.write("m", 3, plus=3)
    house.configure("m", "version_policy { latest { num_versions: 2 } }")
    house.load("m")
    assert house.versions("m") == {2, 3}
    before = house.identity("m", 2)
    house.configure("m", "version_policy { specific { versions: [ 1, 2, 9 ] } }")
    house.load("m")
    assert house.versions("m") >= {1, 2}
    wait_until(lambda: house.versions("m") == {1, 2}, "version 3 is unloaded", 30)
    assert house.identity("m", 2) == before


def test_new_version_that_fails_leaves_the_old_one_serving(house: RepositoryFixture) -> None:
    house.load("m")
    before = house.identity("m")
    house.write("m", 2, 0, BROKEN)
    error = house.failure("m")
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert str(error).startswith("load failed for model 'm': version 2 is at UNAVAILABLE state: ")
    assert str(error).endswith(";")
    assert house.identity("m") == before
    wait_until(lambda: [entry.state for entry in house.index()] == ["READY", "UNAVAILABLE"], "the index tells", 30)


def test_changed_version_that_fails_leaves_its_old_state_serving(house: RepositoryFixture) -> None:
    house.load("m")
    before = house.identity("m")
    house.write("m", 1, 0, BROKEN)
    assert "version 1 is at UNAVAILABLE state: " in str(house.failure("m"))
    assert house.identity("m") == before
    assert house.plus("m") == 1


def test_one_bad_version_fails_the_first_load_as_a_whole(house: RepositoryFixture) -> None:
    house.configure("m", "version_policy { all { } }")
    house.write("m", 2, 0, BROKEN)
    assert "version 2 is at UNAVAILABLE state" in str(house.failure("m"))
    wait_until(lambda: house.versions("m") == set(), "version 1 is not served either", 30)
    house.write("m", 2, plus=2)
    house.load("m")
    assert house.versions("m") == {1, 2}


def test_version_that_failed_is_tried_again_by_the_next_load(house: RepositoryFixture, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    house.write("m", 1, 0, f"import os\nos.stat({str(weights)!r})\n" + SOURCE)
    assert house.failure("m").code is StatusCode.INVALID_ARGUMENT
    weights.touch()
    house.load("m")
    assert house.versions("m") == {1}


def test_published_version_that_is_not_whole_is_not_loaded(house: RepositoryFixture, tmp_path: Path) -> None:
    house.load("m")
    source = house.write("scratch", 2, plus=2)
    publish(str(source), str(house.root / "m"), 2)
    whole = (house.root / "m" / "2" / "model.py").read_text()
    (house.root / "m" / "2" / "model.py").write_text(whole.replace("2.0", "3.0").replace("+ 2", "+ 3"))
    assert "version 2 is at UNAVAILABLE state: Unavailable: " in str(house.failure("m"))
    assert house.plus("m") == 1
    (house.root / "m" / "2" / "model.py").write_text(whole)
    house.load("m")
    assert house.plus("m") == 2


@pytest.mark.parametrize("name", ["", "   "])
def test_load_needs_a_name(house: RepositoryFixture, name: str) -> None:
    error = house.failure(name)
    assert (error.code, str(error)) == (StatusCode.INVALID_ARGUMENT, "Model name cannot be empty")


@pytest.mark.parametrize("name", ["..", " .. ", "../m", "a/b", "a\\b", "m\0"])
def test_name_that_leads_out_of_the_repository_is_refused(house: RepositoryFixture, name: str) -> None:
    error = house.failure(name)
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert "must not contain path traversal characters" in str(error)


@pytest.mark.parametrize("name", ["nobody", "...", "..m"])
def test_unknown_name_is_an_internal_error(house: RepositoryFixture, name: str) -> None:
    error = house.failure(name)
    assert error.code is StatusCode.INTERNAL
    assert str(error) == f"failed to load '{name}', failed to poll from model repository"


def test_model_whose_directory_is_gone_goes_on_serving(house: RepositoryFixture) -> None:
    house.load("m")
    house.remove("m")
    assert house.failure("m").code is StatusCode.INTERNAL
    assert house.plus("m") == 1


def test_wrong_config_on_disk_is_told_and_changes_nothing(house: RepositoryFixture) -> None:
    house.load("m")
    house.configure("m", "max_batch: 3")
    error = house.failure("m")
    assert error.code is StatusCode.INTERNAL
    assert "failed to load 'm', failed to poll from model repository" in str(error)
    assert house.plus("m") == 1


def test_policy_that_wants_no_version_that_is_there_is_refused(house: RepositoryFixture) -> None:
    house.configure("m", "version_policy { specific { versions: [ 7 ] } }")
    error = house.failure("m")
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert "at least one version must be available under the version policy" in str(error)


def test_config_of_a_call_sticks_until_the_file_is_newer(house: RepositoryFixture) -> None:
    house.load("m")
    house.load("m", config=json_config(plus=7))
    assert house.plus("m") == 8
    before = house.identity("m")
    house.load("m")
    assert house.identity("m") == before
    later = time.time() + 10
    os.utime(house.root / "m" / "config.pbtxt", (later, later))
    house.load("m")
    assert house.plus("m") == 1


def test_unload_and_load_returns_to_the_config_on_disk(house: RepositoryFixture) -> None:
    house.load("m", config=json_config(plus=7))
    house.control.unload("m")
    house.load("m")
    assert house.plus("m") == 1


def test_config_of_a_call_decides_which_versions_serve(house: RepositoryFixture) -> None:
    house.write("m", 2, plus=2)
    house.load("m", config=json_config(version_policy={"specific": {"versions": [1]}}))
    assert house.versions("m") == {1}


@pytest.mark.parametrize("config", ["{", "[]", '{"max_batch": 3}', '{"name": "other"}', "[" * 100_000])
def test_config_that_is_none_is_refused_and_changes_nothing(house: RepositoryFixture, config: str) -> None:
    house.load("m")
    error = house.failure("m", config=config)
    assert error.code is StatusCode.INTERNAL
    assert "failed to load 'm', failed to poll from model repository" in str(error)
    house.load("m")
    assert house.plus("m") == 1


def test_config_that_cannot_be_loaded_with_leaves_the_old_one_in_force(house: RepositoryFixture) -> None:
    house.load("m")
    wrong = json.dumps({**JSON_CONFIG, "platform": "pytorch_libtorch"})
    assert house.failure("m", config=wrong).code is StatusCode.INVALID_ARGUMENT
    before = house.identity("m")
    house.load("m")
    assert house.identity("m") == before


# Only the number of instances changes.


def instances(count: int, **more: object) -> str:
    return json_config(instance_group=[{"count": count, "kind": "KIND_CPU"}], **more)  # type: ignore[arg-type]


def count_of(house: RepositoryFixture, version: int | None = None) -> int:
    with house.core.handle(ModelRef("m", version)) as handle:
        return len(handle.servable.models)


def told(house: RepositoryFixture) -> list[int]:
    """What the server says about its instances."""
    with house.core.handle(ModelRef("m")) as handle:
        return [group.count for group in house.core.settings_of(handle.servable).instance_group]


def test_number_of_instances_changes_without_a_reload(house: RepositoryFixture) -> None:
    house.load("m", config=instances(1))
    before = house.identity("m")
    for count in (3, 2, 1, 4):
        house.load("m", config=instances(count))
        assert (count_of(house), told(house), house.plus("m")) == (count, [count], 1)
    assert house.identity("m") == before
    assert house.core.last_attempts("m")[1].number == 1


def test_number_of_instances_on_disk_changes_without_a_reload(house: RepositoryFixture) -> None:
    house.load("m")
    before = house.identity("m")
    house.configure("m", "instance_group { count: 2 }")
    house.load("m")
    assert (count_of(house), told(house), house.identity("m")) == (2, [2], before)
    house.configure("m", 'instance_group [ { name: "a" }, { name: "b" } ]')
    house.load("m")
    assert (count_of(house), told(house), house.identity("m")) == (2, [1, 1], before)
    house.configure("m", "version_policy { all { } }")
    house.load("m")
    assert (count_of(house), told(house), house.identity("m")) == (1, [], before)


def test_change_of_more_than_the_instances_is_a_reload(house: RepositoryFixture) -> None:
    house.load("m", config=instances(1))
    before = house.identity("m")
    house.load("m", config=instances(2, plus=5))
    assert (count_of(house), house.plus("m")) == (2, 6)
    assert house.identity("m") != before
    before = house.identity("m")
    house.write("m", 1, plus=2)
    house.load("m", config=instances(1, plus=5))
    assert (count_of(house), house.plus("m")) == (1, 7)
    assert house.identity("m") != before


def test_instance_that_cannot_be_opened_leaves_the_old_ones_serving(house: RepositoryFixture, tmp_path: Path) -> None:
    mark = tmp_path / "full"
    house.write("m", 1, 1, f"import os\nif os.path.exists({str(mark)!r}): raise ValueError('no room')\n{SOURCE}")
    house.load("m", config=instances(2))
    before = house.identity("m")
    mark.touch()
    error = house.failure("m", config=instances(3))
    assert error.code is StatusCode.INVALID_ARGUMENT
    assert str(error).startswith("load failed for model 'm': version 1 is at UNAVAILABLE state: ")
    assert "no room" in str(error)
    assert (count_of(house), told(house), house.plus("m"), house.identity("m")) == (2, [2], 1, before)
    house.load("m", config=instances(1))
    mark.unlink()
    house.load("m", config=instances(3))
    assert (count_of(house), told(house), house.identity("m")) == (3, [3], before)


def test_failure_of_another_version_takes_the_new_instances_back(house: RepositoryFixture) -> None:
    house.load("m", config=instances(1, version_policy={"all": {}}))
    before = house.identity("m")
    house.write("m", 2, 0, BROKEN)
    house.failure("m", config=instances(3, version_policy={"all": {}}))
    assert (count_of(house), told(house), house.identity("m")) == (1, [1], before)


def test_instances_are_replaced_where_their_kind_changes(house: RepositoryFixture) -> None:
    house.load("m", config=instances(2))
    with house.core.handle(ModelRef("m")) as handle:
        servable, old = handle.servable, list(handle.servable.models)
    house.load("m", config=json_config(instance_group=[{"count": 1, "kind": "KIND_CPU"}, {"count": 1}]))  # type: ignore[arg-type]
    with house.core.handle(ModelRef("m")) as handle:
        assert handle.servable is servable
        assert handle.servable.models[0] is old[0]
        assert handle.servable.models[1] not in old
    assert house.plus("m") == 1


def test_sequences_are_loaded_anew_with_other_instances(house: RepositoryFixture) -> None:
    house.load("m", config=instances(1, sequence_batching={}))
    before = house.identity("m")
    house.load("m", config=instances(2, sequence_batching={}))
    assert (count_of(house), told(house)) == (2, [2])
    assert house.identity("m") != before


@pytest.mark.parametrize(
    ("key", "value"), [("config", b"{}"), ("file:1/model.py", "text"), ("other", "x"), ("config", 3)]
)
def test_unknown_parameter_or_type_is_refused(house: RepositoryFixture, key: str, value: bytes | str | int) -> None:
    with pytest.raises(ServingError, match=key) as caught:
        house.load_with("m", {key: value})
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_files_of_a_call_are_the_model_until_the_next_load(tmp_path: Path) -> None:
    with repository_house(tmp_path / "models", trusted_model_base_paths=("/**",)) as house:
        house.configure("m")
        house.write("m", 1, plus=1)
        house.load("m")
        source = house.write("scratch", 1, plus=40).joinpath("model.py").read_bytes()
        house.load_with("m", {"config": json_config(), "file:5/model.py": source})
        assert house.plus("m") == 40
        wait_until(lambda: house.versions("m") == {5}, "only the uploaded version is left", 30)
        house.load("m")
        assert house.plus("m", 1) == 1
        wait_until(lambda: house.versions("m") == {1}, "the model on disk is back", 30)


def test_files_of_a_call_need_no_directory_and_leave_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with repository_house(tmp_path / "models", trusted_model_base_paths=("/**",)) as house:
        source = house.write("scratch", 1, plus=3).joinpath("model.py").read_bytes()
        house.load_with("new", {"config": json_config(), "file:1/model.py": source})
        assert house.plus("new") == 3
        house.control.unload("new")
        with pytest.raises(ServingError, match="failed to load 'new'"):
            house.load("new")
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


@pytest.mark.parametrize("path", ["../x", "/etc/x", "1/../../x", "", "1\\x"])
def test_file_outside_the_model_is_refused(house: RepositoryFixture, path: str) -> None:
    house.load("m")
    with pytest.raises(ServingError, match="failed to load 'm', failed to poll") as caught:
        house.load_with("m", {"config": json_config(), f"file:{path}": b"x"})
    assert caught.value.code is StatusCode.INTERNAL
    assert house.plus("m") == 1


def test_files_without_a_config_are_refused(house: RepositoryFixture) -> None:
    with pytest.raises(ServingError, match="failed to load 'm', failed to poll") as caught:
        house.load_with("m", {"file:1/model.py": b"x"})
    assert caught.value.code is StatusCode.INTERNAL


def test_more_bytes_than_a_message_may_have_are_refused(tmp_path: Path) -> None:
    with repository_house(tmp_path / "models", max_message_bytes=1000) as house:
        with pytest.raises(ServingError, match="1000 bytes") as caught:
            house.load_with("m", {"config": json_config(), "file:1/a": b"x" * 600, "file:1/b": b"x" * 600})
        assert caught.value.code is StatusCode.INVALID_ARGUMENT


def test_uploaded_code_is_not_trusted_by_itself(house: RepositoryFixture) -> None:
    with pytest.raises(ServingError, match="version 1 is at UNAVAILABLE state") as caught:
        house.load_with("m", {"config": json_config(), "file:1/model.py": SOURCE.encode()})
    assert caught.value.code is StatusCode.INVALID_ARGUMENT
    assert house.versions("m") == set()


@pytest.mark.parametrize("name", ["nobody", "", "../x"])
def test_unload_of_what_is_not_loaded_succeeds(house: RepositoryFixture, name: str) -> None:
    house.control.unload(name)


def test_unload_takes_the_model_away_at_once_and_lets_requests_end(house: RepositoryFixture) -> None:
    house.load("m")
    with house.core.handle(ModelRef("m")) as handle:
        house.control.unload("m")
        assert house.versions("m") == set()
        assert handle.servable is not None
        assert house.index() == [IndexEntry("m", "1", "UNLOADING")]
    wait_until(lambda: house.index() == [IndexEntry("m", "1", "UNAVAILABLE", "unloaded")], "it has ended", 30)


def test_load_after_unload_serves_again(house: RepositoryFixture) -> None:
    house.load("m")
    house.control.unload("m")
    house.load("m")
    assert house.plus("m") == 1


def test_calls_at_the_same_time_come_one_after_the_other(house: RepositoryFixture) -> None:
    errors: list[ServingError] = []

    def call() -> None:
        try:
            house.load("m")
        except ServingError as error:
            errors.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert house.plus("m") == 1


def test_load_that_takes_too_long_gives_up_and_rolls_back(tmp_path: Path) -> None:
    with repository_house(tmp_path / "models", reload_timeout_seconds=0.0) as house:
        house.configure("m")
        house.write("m", 1, plus=1)
        with pytest.raises(ServingError, match="still loading") as caught:
            house.load("m")
        assert caught.value.code is StatusCode.DEADLINE_EXCEEDED
        wait_until(lambda: not house.core.live_versions("m"), "nothing is left of it", 30)


def test_resource_policy_frees_the_old_version_first_and_returns_to_it(tmp_path: Path) -> None:
    with repository_house(tmp_path / "models", aspired_version_policy="resource") as house:
        house.configure("m")
        house.write("m", 1, plus=1)
        house.load("m")
        house.write("m", 2, 0, BROKEN)
        assert "version 2 is at UNAVAILABLE" in str(house.failure("m"))
        wait_until(lambda: house.versions("m") == {1}, "the old version is back", 30)
        house.write("m", 2, plus=2)
        house.load("m")
        house.write("m", 2, plus=22)
        house.load("m")
        assert house.plus("m") == 22


def test_models_of_the_start_are_loaded_and_a_bad_one_stops_none(house: RepositoryFixture) -> None:
    house.configure("bad")
    house.write("bad", 1, 0, BROKEN)
    assert set(house.control.load_first(["*"])) == {"bad"}
    assert house.versions("m") == {1}
    assert set(house.control.load_first(["m", "nobody"])) == {"nobody"}


def test_models_of_a_config_file_are_loaded_by_name_with_its_policy_and_labels(tmp_path: Path) -> None:
    file = tmp_path / "models.pbtxt"
    fields = {"model_repository": "", "model_config_file": str(file)}
    base = tmp_path / "models" / "m"
    file.write_text(
        f'model_config_list {{ config {{ name: "named" base_path: "{base}" '
        'model_version_policy { all { } } version_labels { key: "stable" value: 1 } } }'
    )
    with repository_house(tmp_path / "models", **fields) as house:
        house.configure("m")
        house.write("m", 1, plus=1)
        house.write("m", 2, plus=2)
        house.load("named")
        assert house.versions("named") == {1, 2}
        with house.core.handle(ModelRef("named", label="stable")) as handle:
            assert handle.id.version == 1
        assert house.failure("m").code is StatusCode.INTERNAL


def test_reload_of_a_whole_config_is_refused(house: RepositoryFixture) -> None:
    with pytest.raises(ServingError, match="model_control_mode explicit") as caught:
        house.core.reload(NO_MODELS)
    assert caught.value.code is StatusCode.FAILED_PRECONDITION
