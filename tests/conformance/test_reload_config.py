"""HandleReloadConfigRequest: the whole served set is replaced, labels move, and what cannot be is refused."""

from __future__ import annotations

import grpc
import numpy as np
import pytest
from tensorflow_serving.apis import model_management_pb2

from tests.support.servers.process import wait_until

X = {"x": np.array([[0.0, 0.0, 0.0]], np.float32)}
INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
END, AVAILABLE = 50, 30


def config(root, *models: str) -> str:
    return "model_config_list { %s }" % " ".join(models).replace("ROOT", str(root))  # noqa: UP031 - braces


HALF = 'config { name: "half_plus" base_path: "ROOT/half_plus" model_platform: "tensorflow" %s }'
LATEST = HALF % ""
TWO = HALF % "model_version_policy { specific { versions: [1, 2] } } %s"
OTHER = 'config { name: "other" base_path: "ROOT/other" model_platform: "tensorflow" }'


@pytest.fixture(scope="module")
def fresh(serve, connect, model_root, tmp_path_factory):
    """A server that these tests may reconfigure as they like."""
    file = tmp_path_factory.mktemp("reload") / "models.config"
    file.write_text(config(model_root, LATEST))
    with serve(f"--model_config_file={file}") as server:
        client = connect(server.target)
        yield client
        client.channel.close()


@pytest.fixture(autouse=True)
def reset(fresh, model_root):
    """Every test starts with version 3 of half_plus alone."""
    assert fresh.reload(config(model_root, LATEST)).status.error_code == 0
    wait_until(lambda: states(fresh, "half_plus").get(3) == AVAILABLE, "version 3 is available")


def states(stock, model: str) -> dict[int, int]:
    try:
        return {entry.version: entry.state for entry in stock.status(model)}
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return {}
        raise


def wait_two(stock):
    expected = {1: AVAILABLE, 2: AVAILABLE, 3: END}
    wait_until(lambda: states(stock, "half_plus") == expected, "1 and 2 are available, 3 is gone")


def test_added_model_serves_when_the_call_returns(fresh, model_root):
    answer = fresh.reload(config(model_root, LATEST, OTHER))
    assert (answer.status.error_code, answer.status.error_message) == (0, "")
    assert fresh.predict("other", X).outputs["y"].float_val[0] == 7.0
    assert fresh.predict("half_plus", X).model_spec.version.value == 3


def test_removed_model_is_unloaded(fresh, model_root, refused):
    fresh.reload(config(model_root, LATEST, OTHER))
    fresh.reload(config(model_root, LATEST))
    wait_until(lambda: states(fresh, "other").get(7) == END, "other is unloaded")
    refused(grpc.StatusCode.NOT_FOUND, "Servable not found for request: Latest(other)", fresh.predict, "other", X)


def test_empty_list_unloads_everything(fresh, model_root):
    assert fresh.reload("model_config_list {}").status.error_code == 0
    wait_until(lambda: states(fresh, "half_plus").get(3) == END, "half_plus is unloaded")


def test_same_config_again_is_accepted(fresh, model_root):
    for _ in range(3):
        assert fresh.reload(config(model_root, LATEST)).status.error_code == 0


def test_version_policy_change_brings_versions_in(fresh, model_root):
    fresh.reload(config(model_root, TWO % ""))
    wait_two(fresh)


def test_labels_come_move_and_go(fresh, model_root, refused):
    fresh.reload(config(model_root, TWO % ""))
    wait_two(fresh)
    for version in (1, 2):
        label = f'version_labels {{ key: "stable" value: {version} }}'
        fresh.reload(config(model_root, TWO % label))
        assert fresh.predict("half_plus", X, version_label="stable").model_spec.version.value == version
    fresh.reload(config(model_root, TWO % ""))
    words = "Unrecognized servable version label: stable"
    refused(INVALID, words, fresh.predict, "half_plus", X, version_label="stable")


def test_label_of_a_version_that_is_not_available_is_refused_and_changes_nothing(fresh, model_root, refused):
    label = 'version_labels { key: "stable" value: 1 }'
    wanted = config(model_root, HALF % label, OTHER)
    refused(PRECONDITION, "not currently available for inference", fresh.reload, wanted)
    assert states(fresh, "half_plus")[3] == AVAILABLE
    assert states(fresh, "other").get(7) != AVAILABLE


PLATFORM = 'model_platform: "tensorflow"'
BAD = {
    "twice": ("Illegal to list model half_plus multiple times", LATEST, LATEST),
    "type_and_platform": ("Illegal setting both", LATEST.replace("}", "model_type: TENSORFLOW }")),
    "other_type": ("not supported", LATEST.replace(PLATFORM, "model_type: OTHER")),
    "platform": ("requests unsupported platform", LATEST.replace("tensorflow", "caffe")),
    "platform_change": ("Illegal to change a model's platform", LATEST.replace("tensorflow", "python")),
    "no_name": ("name", LATEST.replace('"half_plus"', '""', 1)),
    "relative_path": ("to have an absolute path or URI", LATEST.replace("ROOT/", "")),
    "no_path": ("base_path", LATEST.replace("ROOT/half_plus", "")),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_config_is_refused_and_changes_nothing(fresh, model_root, refused, name):
    words, *models = BAD[name]
    refused(INVALID, words, fresh.reload, config(model_root, *models, OTHER))
    assert fresh.predict("half_plus", X).model_spec.version.value == 3
    assert states(fresh, "other").get(7) != AVAILABLE


@pytest.mark.parametrize("custom", [False, True], ids=["unset", "custom"])
def test_only_a_model_config_list_is_accepted(fresh, refused, custom):
    request = model_management_pb2.ReloadConfigRequest()
    if custom:
        request.config.custom_model_config.type_url = "type.googleapis.com/some.Config"
    words = "Only ModelConfigList is currently supported"
    refused(INVALID, words, fresh.models.HandleReloadConfigRequest, request, timeout=30)


def test_new_model_that_cannot_load_fails_the_call_and_the_rest_serves(fresh, model_root, refused):
    corrupt = 'config { name: "corrupt" base_path: "ROOT/corrupt" model_platform: "tensorflow" }'
    words = ("1 model(s) did not become available", "corrupt")
    refused(grpc.StatusCode.UNKNOWN, words, fresh.reload, config(model_root, LATEST, corrupt))
    assert fresh.predict("half_plus", X).model_spec.version.value == 3
    assert fresh.reload(config(model_root, LATEST, OTHER)).status.error_code == 0
    assert fresh.predict("other", X).outputs["y"].float_val[0] == 7.0


def test_metrics_asked_for_are_reported(fresh, model_root):
    answer = fresh.reload(config(model_root, LATEST, OTHER), metric_names=[":tensorflow/serving/request_count"])
    assert [metric.name for metric in answer.metric] == [":tensorflow/serving/request_count"]
    assert answer.metric[0].WhichOneof("value_increase") == "int64_value_increase"
