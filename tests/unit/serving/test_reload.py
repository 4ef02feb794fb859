"""Configs applied to a running server, as clients ask for it: real models, real gRPC, one process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.support.errors import refusal
from tests.support.servers.in_process import ServerFixture, config_text, entry, serving
from tests.support.servers.models import write_python_version
from tests.support.servers.process import wait_until
from tfs_lite.client import Client
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.publish import publish as publish_files
from tfs_lite.core.servable import ServableId, VersionState
from tfs_lite.core.state import ManagerState, ServableState, TimedState
from tfs_lite.core.status import Status, StatusCode
from tfs_lite.protocols import messages

AVAILABLE, END = VersionState.AVAILABLE, VersionState.END
Publish = Callable[[str, int], Path]
STABLE = 'version_labels {{ key: "stable" value: {} }}'
ALL = "model_version_policy { all {} }"
SPECIFIC = "model_version_policy { specific { versions: 1 versions: 2 } }"


@pytest.fixture
def fixture(tmp_path: Path, publish: Publish) -> Iterator[ServerFixture]:
    """Serves version 1 of ``a``; versions 1 of ``b`` and 2 of ``c`` are there to be asked for."""
    for name, version in (("a", 1), ("b", 1), ("c", 2)):
        publish(name, version)
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, entry("a")))
    with serving(tmp_path, model_config_file=str(file), max_num_load_retries=0) as fixture:
        yield fixture


def refused(fixture: ServerFixture, *models: str, code: StatusCode = StatusCode.UNKNOWN) -> str:
    return refusal(fixture.reload, *models, code=code)


def test_new_model_answers_when_the_call_returns_and_a_removed_one_is_unloaded_and_can_come_back(
    fixture: ServerFixture,
) -> None:
    fixture.reload(entry("b"))
    assert fixture.version("b") == 1
    fixture.wait_states({1: END}, "a")
    assert "Servable not found for request: Latest(a)" in refusal(fixture.version, "a", code=StatusCode.NOT_FOUND)
    fixture.reload(entry("a"), entry("b"))
    assert fixture.version("a") == 1
    fixture.reload()
    for name in ("a", "b"):
        fixture.wait_states({1: END}, name)


def test_model_that_is_removed_and_added_at_once_serves(fixture: ServerFixture) -> None:
    for _ in range(3):
        fixture.reload()
        fixture.reload(entry("a"))
        assert fixture.version("a") == 1


def test_same_config_again_in_any_order_is_accepted_and_touches_nothing(fixture: ServerFixture) -> None:
    for _ in range(3):
        fixture.reload(entry("a"))
    assert fixture.states("a") == {1: AVAILABLE}
    fixture.reload(entry("a"), entry("b"))
    fixture.reload(entry("b"), entry("a"))
    assert fixture.states("a") == fixture.states("b") == {1: AVAILABLE}


def test_changed_policy_and_base_path_are_followed(fixture: ServerFixture, publish: Publish) -> None:
    publish("a", 2)
    fixture.wait_states({2: AVAILABLE, 1: END}, "a")
    fixture.reload(entry("a", ALL))
    fixture.wait_states({2: AVAILABLE, 1: AVAILABLE}, "a")
    publish("elsewhere", 3)
    fixture.reload(entry("a", path="ROOT/elsewhere"))
    fixture.wait_states({3: AVAILABLE, 2: END, 1: END}, "a")


WRONG = [
    ([entry("a"), entry("a")], "Illegal to list model a multiple times"),
    ([entry("a", path="relative/path")], "to have an absolute path or URI"),
    ([entry("a", path="http://bucket/a")], "the URL has another scheme than s3://"),
    (
        [entry("a", 'model_platform: "caffe"')],
        'model a requests unsupported platform "caffe"; this server has: ensemble, onnxruntime_onnx, python, '
        "pytorch_aoti, pytorch_export, pytorch_libtorch, tensorflow_savedmodel, transformers",
    ),
    ([entry("a", 'model_platform: "pythom"')], 'unsupported platform "pythom"; did you mean "python"'),
    ([entry("a", 'model_platform: "python"')], "Illegal to change a model's platform"),
]


@pytest.mark.parametrize(("models", "words"), WRONG)
def test_wrong_config_is_refused_whole(fixture: ServerFixture, models: list[str], words: str) -> None:
    message = parse_model_server_config(config_text(fixture.root, entry("b")), "reload").to_proto()
    for text in models:
        name, _, rest = text.partition('base_path: "')
        path, _, rest = rest.partition('"')
        added = message.model_config_list.config.add(name=name.split('"')[1], base_path=path.replace("ROOT", "/models"))
        if "model_platform" in rest:
            added.model_platform = rest.split('"')[1]
            added.base_path = str(fixture.root / added.name)
    assert words in refusal(fixture.client.reload, message)
    assert fixture.version("a") == 1
    assert fixture.states("b") == {}


def test_model_that_fails_is_told_and_the_others_serve(fixture: ServerFixture) -> None:
    (fixture.root / "broken" / "1").mkdir(parents=True)
    (fixture.root / "broken" / "1" / "model.py").write_text("class Model: pass")
    message = refused(fixture, entry("a"), entry("broken"), entry("b"))
    assert message.startswith(
        "config applied; 1 model(s) did not become available: {{{name: broken version: 1} due to error: "
    )
    assert str(fixture.root) not in message
    assert fixture.version("a") == fixture.version("b") == 1
    fixture.reload(entry("a"), entry("broken"), entry("b"))


def test_log_tells_a_config_in_force_from_a_refused_one(
    fixture: ServerFixture, caplog: pytest.LogCaptureFixture
) -> None:
    refused(fixture, entry("a"), entry("missing"))
    refused(fixture, entry("a", STABLE.format(9)), code=StatusCode.FAILED_PRECONDITION)
    of_reloads = [record for record in caplog.records if record.name == "tfs_lite.serving.reload"]
    applied, no = [record.getMessage() for record in of_reloads if record.levelname == "WARNING"]
    assert applied.startswith("config applied; 1 model(s) did not become available: {{{name: missing} due to error: ")
    assert no.startswith("config refused, nothing changed: ")
    assert [report.name for report in fixture.server.core.states.reports()] == ["a", "missing"]


def test_missing_base_path_answers_soon_with_the_reason(fixture: ServerFixture, publish: Publish) -> None:
    assert "its base path does not exist" in refused(fixture, entry("a"), entry("late"))
    publish("late", 4)
    fixture.wait_states({4: AVAILABLE}, "late")


def test_version_that_never_becomes_whole_answers_with_the_reason(fixture: ServerFixture) -> None:
    incomplete(fixture.root, "half")
    message = refused(fixture, entry("a"), entry("half"))
    assert "{name: half version: 1} due to error: UNAVAILABLE: " in message


def incomplete(root: Path, model: str) -> None:
    """A version of which only the first bytes have arrived."""
    (root / model / "1").mkdir(parents=True)
    (root / model / "1" / "model.pt2").write_bytes(b"PK\x03\x04 and no more")


def broken(root: Path, model: str, version: int) -> None:
    """A whole version that no platform serves."""
    (root / model / str(version)).mkdir(parents=True)
    (root / model / str(version) / "notes.txt").write_text("nothing")


def test_label_needs_an_available_version(fixture: ServerFixture, publish: Publish) -> None:
    message = refused(fixture, entry("a", STABLE.format(2)), entry("b"), code=StatusCode.FAILED_PRECONDITION)
    assert "not currently available for inference" in message
    assert fixture.states("b") == {}
    fixture.reload(entry("a", STABLE.format(1)))
    assert fixture.version("a", label="stable") == 1
    publish("a", 2)
    fixture.wait_states({2: AVAILABLE, 1: END}, "a")
    message = refusal(fixture.version, "a", label="stable", code=StatusCode.NOT_FOUND)
    assert "Servable not found for request: Specific(a, 1)" in message
    fixture.reload(entry("a", STABLE.format(2)))
    assert fixture.version("a", label="stable") == 2
    fixture.reload(entry("a"))
    assert "Unrecognized servable version label: stable" in refusal(fixture.version, "a", label="stable")


def test_a_label_moves_with_the_version_that_the_same_config_names(fixture: ServerFixture, publish: Publish) -> None:
    only = "model_version_policy {{ specific {{ versions: {} }} }} " + STABLE
    fixture.reload(entry("a", only.format(1, 1)))
    publish("a", 2)
    wait_until(lambda: 2 in fixture.server.core.sources.found("a").versions, "version 2 is seen", 30)
    fixture.reload(entry("a", only.format(2, 2)))
    assert fixture.version("a", label="stable") == 2
    fixture.wait_states({2: AVAILABLE, 1: END}, "a")


def copied(publish: Publish, root: Path, version: int) -> Path:
    """Publishes a version and copies it to ``a``, so that its digests have to be checked."""
    with_manifest = publish_files(str(publish("made", version)), str(root / "whole"), version).path
    return shutil.copytree(with_manifest, root / "a" / str(version))


def test_a_label_moves_to_a_copied_version_whose_digests_nobody_has_checked_yet(
    fixture: ServerFixture, publish: Publish
) -> None:
    """The way back of docs/roll-back.md: with the policy ``latest 1`` nobody has looked into version 2."""
    for version in (2, 3):
        copied(publish, fixture.root, version)
    wait_until(lambda: fixture.version("a") == 3, "version 3 answers", 30)
    fixture.reload(entry("a", STABLE.format(3)))
    both = "model_version_policy { specific { versions: [2, 3] } }"
    fixture.reload(entry("a", f"{both} {STABLE.format(2)}"))
    assert fixture.version("a", label="stable") == 2


def test_a_label_stays_where_the_digests_of_its_version_are_wrong_and_the_reload_says_so(
    fixture: ServerFixture, publish: Publish
) -> None:
    only = "model_version_policy {{ specific {{ versions: {} }} }} "
    fixture.reload(entry("a", only.format(1) + STABLE.format(1)))
    bad = copied(publish, fixture.root, 3) / "model.pt2"
    content = bytearray(bad.read_bytes())
    content[len(content) // 2] ^= 1
    bad.write_bytes(content)
    wait_until(lambda: 3 in fixture.server.core.sources.found("a").versions, "version 3 is seen", 30)
    text = refused(fixture, entry("a", only.format("[1, 3]") + STABLE.format(3)))
    assert (
        'label "stable" of model a still means version 1: 3 does not come: DATA_LOSS: model.pt2 does not have the'
        in text
    )
    assert fixture.version("a", label="stable") == 1


def test_a_label_whose_version_fails_means_the_one_of_before_and_the_reload_says_so(
    fixture: ServerFixture, tmp_path: Path
) -> None:
    fixture.reload(entry("a", f"{SPECIFIC} {STABLE.format(1)}"))
    broken(tmp_path, "a", 2)
    wait_until(lambda: 2 in fixture.server.core.sources.found("a").versions, "version 2 is seen", 30)
    text = refused(fixture, entry("a", f"{SPECIFIC} {STABLE.format(2)}"))
    assert 'label "stable" of model a still means version 1: 2 does not come: ' in text
    assert fixture.version("a", label="stable") == 1
    (found,) = fixture.client.status("a", label="stable")
    assert (found.version, found.state) == (1, AVAILABLE)


def test_a_label_waits_for_a_version_whose_load_was_once_cancelled(
    fixture: ServerFixture, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback that was undone cancels loads. Its state stays until a config loads the version."""
    only = "model_version_policy {{ specific {{ versions: {} }} }} " + STABLE
    fixture.reload(entry("a", only.format(1, 1)))
    publish("a", 2)
    states = fixture.server.core.states
    wait_until(lambda: 2 in fixture.server.core.sources.found("a").versions, "version 2 is seen", 30)
    status = Status(StatusCode.CANCELLED, "Loading of {name: a version: 2} was cancelled")
    cancelled = TimedState(ServableState(ServableId("a", 2), ManagerState.END, status), 0.0)
    found = states.version_states
    monkeypatch.setattr(states, "version_states", lambda name: {2: cancelled, **found(name)})
    fixture.reload(entry("a", only.format(2, 2)))
    assert fixture.version("a", label="stable") == 2


def test_a_label_whose_version_has_gone_refuses_no_later_change(fixture: ServerFixture, publish: Publish) -> None:
    publish("a", 2)
    labelled = entry("a", f"{SPECIFIC} {STABLE.format(1)}")
    fixture.reload(entry("a", SPECIFIC))
    fixture.wait_states({1: AVAILABLE, 2: AVAILABLE}, "a")
    fixture.reload(labelled)
    shutil.rmtree(fixture.root / "a" / "1")
    fixture.wait_states({1: VersionState.START, 2: AVAILABLE}, "a")
    fixture.reload(labelled, entry("b"))
    assert fixture.version("b") == 1
    refusal(fixture.version, "a", label="stable", code=StatusCode.NOT_FOUND)
    moved = entry("a", f"{SPECIFIC} {STABLE.format(7)}")
    assert "not currently available" in refused(fixture, moved, entry("c"), code=StatusCode.FAILED_PRECONDITION)
    second = entry("b", 'version_labels { key: "old" value: 9 }')
    assert "not currently available" in refused(fixture, labelled, second, code=StatusCode.FAILED_PRECONDITION)
    assert fixture.states("c") == {}
    publish("a", 1)
    fixture.wait_states({1: AVAILABLE, 2: AVAILABLE}, "a")
    assert fixture.version("a", label="stable") == 1


def test_a_label_whose_version_never_loaded_lets_the_polled_file_be_edited(tmp_path: Path, publish: Publish) -> None:
    """A restart beside a corrupt newest version."""
    publish("a", 1)
    publish("b", 1)
    broken(tmp_path, "a", 2)
    labelled = entry("a", f"{SPECIFIC} {STABLE.format(2)}")
    file = tmp_path / "models.config"
    file.write_text(config_text(tmp_path, labelled))
    options = {"model_config_file": str(file), "model_config_file_poll_wait_seconds": 0.05}
    with serving(tmp_path, max_num_load_retries=0, ready=False, **options) as served:
        wait_until(lambda: served.states("a").get(1) is AVAILABLE, "version 1 is there", 30)
        wait_until(lambda: served.states("a").get(2) is END, "version 2 has failed", 30)
        file.write_text(config_text(tmp_path, labelled, entry("b")))
        wait_until(lambda: served.states("b") == {1: AVAILABLE}, "the edit is applied", 30)
        assert served.server.core.labels.table == {"a": {"stable": 2}}


def test_only_one_config_is_applied_at_a_time_and_all_are(fixture: ServerFixture) -> None:
    def reload(name: str) -> None:
        with Client(fixture.target) as client:
            client.reload(parse_model_server_config(config_text(fixture.root, entry("a"), entry(name)), "reload"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reload, ("b", "c", "b", "c")))
    assert fixture.version("a") == 1
    served = [report.name for report in fixture.server.core.states.reports()]
    assert served in (["a", "b"], ["a", "c"])


def test_requests_are_answered_while_a_reload_waits(fixture: ServerFixture) -> None:
    answered = 0
    with ThreadPoolExecutor(1) as pool:
        reload = pool.submit(refused, fixture, entry("a"), entry("missing"))
        while not reload.done():
            assert fixture.version("a") == 1
            answered += 1
        reload.result()
    assert answered > 10


def test_followed_config_is_carried_out_while_a_reload_waits_for_its_model(fixture: ServerFixture) -> None:
    core = fixture.server.core
    followed = config_text(fixture.root, entry("a"), entry("missing"), entry("b"))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(refused, fixture, entry("a"), entry("missing"))
        wait_until(lambda: any(report.name == "missing" for report in core.states.reports()), "the reload waits")
        core.reloader.follow(parse_model_server_config(followed, "followed"))
        fixture.wait_states({1: AVAILABLE}, "b")
        waiting.result()
    assert fixture.version("b") == 1


def test_stop_ends_a_reload_that_waits(tmp_path: Path, publish: Publish) -> None:
    publish("a", 1)
    incomplete(tmp_path, "slow")
    fields = {"model_base_path": str(tmp_path / "a"), "version_quiet_period_seconds": 100.0}
    with serving(tmp_path, ready=False, model_name="a", **fields) as fixture, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: fixture.status("a"), "a is seen", 30)
        reload = pool.submit(refused, fixture, entry("a"), entry("slow"), code=StatusCode.UNAVAILABLE)
        wait_until(lambda: fixture.status("slow"), "slow is seen", 30)
        fixture.server.stop()
        reload.result()


def test_reload_counts_what_happened_meanwhile(fixture: ServerFixture) -> None:
    before = fixture.server.core.metrics.value("tfs_lite_config_reloads")
    config = parse_model_server_config(config_text(fixture.root, entry("a"), entry("b")), "reload")
    names = ["tfs_lite_config_reloads", ":tensorflow/serving/request_count"]
    request = messages.ReloadConfigRequest(metric_names=names)
    request.config.MergeFromString(config.to_proto().SerializeToString())
    with grpc.insecure_channel(fixture.target) as channel:
        call = channel.unary_unary("/tensorflow.serving.ModelService/HandleReloadConfigRequest")
        response = messages.ReloadConfigResponse.FromString(call(request.SerializeToString(), timeout=30))
    counted = [(metric.name, metric.int64_value_increase) for metric in response.metric]
    assert counted == [(names[0], 1), (names[1], 0)]
    assert fixture.server.core.metrics.value("tfs_lite_config_reloads") == before + 1


def test_a_reload_whose_caller_gave_up_before_it_began_is_never_carried_out(
    fixture: ServerFixture, publish: Publish
) -> None:
    incomplete(fixture.root, "half")
    empty = messages.ModelServerConfig(model_config_list={})
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fixture.reload, entry("a"), entry("half"))
        wait_until(lambda: fixture.status("half"), "the first reload is in force and waits", 30)
        refusal(fixture.client.reload, empty, timeout=0.5, code=StatusCode.DEADLINE_EXCEEDED)
        before = fixture.server.core.metrics.value("tfs_lite_config_reloads")
        publish("half", 2)
        first.result()
    fixture.reload(entry("a"), entry("half"), entry("b"))
    assert (fixture.version("a"), fixture.version("half"), fixture.version("b")) == (1, 2, 1)
    assert fixture.server.core.metrics.value("tfs_lite_config_reloads") == before + 2


def test_a_reload_says_what_it_applied(fixture: ServerFixture) -> None:
    message = parse_model_server_config(config_text(fixture.root, entry("a"), entry("b")), "reload").to_proto()
    message.model_config_list.config[0].base_path = str(fixture.root / "nowhere")
    assert fixture.client.reload(message) == (
        "added [b], removed [], changed [a: base_path (it does not exist; the model keeps the versions that it has)], "
        "0 unchanged"
    )


def test_a_published_version_that_failed_and_was_changed_in_place_says_why_it_is_not_tried(tmp_path: Path) -> None:
    source = write_python_version(tmp_path / "source", 1, "class Model: pass")
    base = tmp_path / "m"
    publish_files(str(source), str(base), 1)
    options = {"model_name": "m", "model_base_path": str(base), "trusted_model_base_paths": (str(tmp_path / "**"),)}
    with serving(tmp_path, **options) as fixture:
        wait_until(lambda: fixture.states().get(1) is VersionState.END, "it has failed", 30)
        (base / "1" / "model.py").write_text("class Model:  # repaired")
        wait_until(lambda: "manifest lists model.py" in fixture.status()[1].status.message, "the reason is told", 30)
        assert fixture.states()[1] is VersionState.START
