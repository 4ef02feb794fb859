"""Loading SavedModels: what is refused, what is taken over from TensorFlow Serving, how versions follow one another."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tensorflow_serving.apis")

from tensorflow_serving.apis import predict_pb2, prediction_log_pb2  # noqa: E402

from tests.support.errors import refuses  # noqa: E402
from tests.support.saved_models import SIMPLE, MetaGraphFile, SavedModelFile, node  # noqa: E402
from tests.support.servers.process import wait_until  # noqa: E402
from tfs_lite.adapters.tensorflow.graph import MAX_OPERATIONS  # noqa: E402
from tfs_lite.core.servable import ModelRef, VersionState  # noqa: E402
from tfs_lite.core.status import ServingError, StatusCode  # noqa: E402

if TYPE_CHECKING:
    from conftest import Serve

    from tests.support.servers.in_process import ServerFixture

    Publish = Callable[..., Path]

ROW = {"x": np.array([[1.0, 2.0]], np.float32)}
LOAD_SECONDS = 120.0
"""TensorFlow's import takes 5 seconds on a quiet machine."""
AVAILABLE, END = VersionState.AVAILABLE, VersionState.END


def wait_available(served: ServerFixture, version: int = 1, model: str = "three") -> None:
    wait_until(lambda: served.states(model).get(version) is AVAILABLE, f"{model}/{version} is available", LOAD_SECONDS)


def wait_failed(served: ServerFixture, model: str, version: int = 1) -> ServingError:
    """Why the version could not be loaded."""
    wait_until(lambda: served.states(model).get(version) is END, f"{model}/{version} has failed", LOAD_SECONDS)
    status = served.status(model)[version].status
    return ServingError(status.code, status.message)


def process_of(served: ServerFixture, model: str = "three") -> psutil.Process:
    """The process of the model's only version."""
    with served.server.core.handle(ModelRef(model)) as handle:
        (instance,) = handle.servable.models
        return psutil.Process(instance.worker.pid)


def test_thief_without_trust_is_refused_and_disturbs_nobody(publish: Publish, serve: Serve) -> None:
    publish("thief")
    publish("torch")
    with serve(ready=False) as served:
        error = wait_failed(served, "thief")
        assert error.code is StatusCode.PERMISSION_DENIED
        assert "uses ReadFile" in str(error)
        wait_available(served, model="torch")


@pytest.mark.parametrize("sandbox", ["auto", "off"])
def test_thief_with_trust_is_served_and_still_steals_nothing_from_within_a_sandbox(
    publish: Publish, serve: Serve, tmp_path: Path, sandbox: str
) -> None:
    base = publish("thief").parent
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    with serve(trusted_model_base_paths=(str(base),), worker_sandbox=sandbox, ready=False) as served:
        wait_available(served, model="thief")
        path = {"path": np.array(str(secret).encode(), object)}
        if sandbox == "off":
            assert served.client.predict("thief", path).outputs["content"].item() == b"secret"
            return
        with refuses(StatusCode.INTERNAL, "thief"):
            served.client.predict("thief", path)
        own = {"path": np.array(str(base / "1" / "fingerprint.pb").encode(), object)}
        assert served.client.predict("thief", own).outputs["content"].item()


def test_without_a_sandbox_a_model_needs_trust(publish: Publish, serve: Serve) -> None:
    publish("three")
    with serve(worker_sandbox="off", ready=False) as served:
        error = wait_failed(served, "three")
        assert error.code is StatusCode.PERMISSION_DENIED
        assert "needs a sandbox" in str(error)


def overwrite(content: bytes) -> Callable[[Path], object]:
    return lambda version: (version / "saved_model.pb").write_bytes(content)


def cut_weights(version: Path) -> None:
    weights = version / "variables" / "variables.data-00000-of-00001"
    os.truncate(weights, weights.stat().st_size // 2)


def link_weights_out(version: Path) -> None:
    """The weights are good ones, in a directory that is not the version's."""
    weights = version / "variables" / "variables.data-00000-of-00001"
    outside = version.parents[2] / "outside"
    weights.rename(outside)
    weights.symlink_to(outside)


CUSTOM = SavedModelFile([MetaGraphFile(signatures={"serving_default": SIMPLE}, nodes=[node("y", "Steal", "x")])])
MANY_NODES = SavedModelFile([MetaGraphFile(nodes=[b""] * (MAX_OPERATIONS + 1))])
"""4 MB, which would become an object for each node."""


@pytest.mark.parametrize(
    ("damage", "code", "words"),
    [
        (overwrite(b"cut"), StatusCode.DATA_LOSS, "damaged"),
        (overwrite(b"\xff" * 5000), StatusCode.DATA_LOSS, "damaged"),
        (overwrite(SavedModelFile(schema_version=7).encode()), StatusCode.FAILED_PRECONDITION, "schema has version 7"),
        (
            overwrite(SavedModelFile([MetaGraphFile(tags=["train"])]).encode()),
            StatusCode.FAILED_PRECONDITION,
            "tags serve",
        ),
        (overwrite(SavedModelFile().encode()), StatusCode.FAILED_PRECONDITION, 'the graph has no tensor "x:0"'),
        (overwrite(CUSTOM.encode()), StatusCode.PERMISSION_DENIED, "uses Steal"),
        (overwrite(MANY_NODES.encode()), StatusCode.RESOURCE_EXHAUSTED, "more than 2000000 operations"),
        (cut_weights, StatusCode.FAILED_PRECONDITION, "TensorFlow cannot load it"),
        (link_weights_out, StatusCode.FAILED_PRECONDITION, "TensorFlow cannot load it"),
    ],
    ids=[
        "damaged",
        "garbage",
        "future",
        "other tags",
        "no graph",
        "custom operator",
        "bomb",
        "cut weights",
        "link out",
    ],
)
def test_version_that_cannot_be_served_is_refused_and_disturbs_nobody(
    publish: Publish, serve: Serve, damage: Callable[[Path], object], code: StatusCode, words: str
) -> None:
    damage(publish("three"))
    publish("torch")
    with serve(ready=False) as served:
        error = wait_failed(served, "three")
        assert error.code is code, error
        assert words in str(error)
        assert "/" not in str(error).replace("three/1", "")
        wait_available(served, model="torch")
        assert served.client.predict("torch", ROW).outputs["y"].shape == (1, 3)


def test_a_request_that_fills_memory_fails_in_its_own_process_and_disturbs_nobody(
    publish: Publish, serve: Serve
) -> None:
    publish("filler")
    publish("torch")
    with serve(ready=False) as served:
        wait_available(served, model="filler")
        wait_available(served, model="torch")
        with refuses(StatusCode.RESOURCE_EXHAUSTED, "filler"):
            served.client.predict("filler", ROW, signature="fill")
        assert served.client.predict("torch", ROW).outputs["y"].shape == (1, 3)
        np.testing.assert_array_equal(served.client.predict("filler", ROW).outputs["y"], ROW["x"])


def test_table_that_is_filled_with_terabytes_is_refused_and_disturbs_nobody(publish: Publish, serve: Serve) -> None:
    publish("bomb")
    publish("torch")
    with serve(ready=False) as served:
        error = wait_failed(served, "bomb")
        assert error.code is StatusCode.RESOURCE_EXHAUSTED, error
        assert "OOM when allocating tensor" in str(error)
        assert "\n" not in str(error)
        wait_available(served, model="torch")
        assert served.client.predict("torch", ROW).outputs["y"].shape == (1, 3)


def test_the_graph_with_the_tags_of_the_flag_is_served(publish: Publish, serve: Serve) -> None:
    publish("old")
    with serve(saved_model_tags="serve,gpu", enable_signature_method_name_check=True, ready=False) as served:
        wait_available(served, model="old")
        signatures = served.client.metadata("old").signatures
        assert set(signatures) == {"serving_default"}
        assert signatures["serving_default"].method_name == "tensorflow/serving/regress"


def write_warmup(version: Path, name: str) -> None:
    """As TensorFlow Serving's users write it: a predict request whose input is called ``name``."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "three"
    request.inputs[name].CopyFrom(tf.make_tensor_proto(ROW["x"]))
    log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
    (version / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(version / "assets.extra" / "tf_serving_warmup_requests")) as writer:
        writer.write(log.SerializeToString())


def test_config_tree_and_warmup_of_tensorflow_serving_are_taken_over_unchanged(
    publish: Publish, serve: Serve, tmp_path: Path
) -> None:
    write_warmup(publish("three"), "x")
    write_warmup(publish("newer", 2, name="three"), "x")
    write_warmup(publish("three", 1, to=1, name="wrong"), "nothing")
    config = tmp_path / "models.config"
    config.write_text(
        """
        model_config_list {
          config {
            name: "three"
            base_path: "ROOT/three"
            model_platform: "tensorflow"
            model_version_policy { specific { versions: 1 versions: 2 } }
            version_labels { key: "stable" value: 1 }
            version_labels { key: "canary" value: 2 }
          }
          config { name: "wrong" base_path: "ROOT/wrong" model_platform: "tensorflow" }
        }
        """.replace("ROOT", str(tmp_path / "models"))
    )
    with serve(model_repository="", model_config_file=str(config), enable_batching=True, ready=False) as served:
        for number in (1, 2):
            wait_available(served, number)
        stable, canary = (served.client.predict("three", ROW, label=label) for label in ("stable", "canary"))
        assert (stable.version, canary.version) == (1, 2)
        assert not np.allclose(stable.outputs["y"], canary.outputs["y"])
        assert "nothing" in str(wait_failed(served, "wrong"))  # the warm-up file was read


def test_process_has_tensorflow_and_no_torch_and_is_started_again(publish: Publish, serve: Serve) -> None:
    publish("three")
    with serve(ready=False) as served:
        wait_available(served)
        before = served.client.predict("three", ROW).outputs["y"]
        process = process_of(served)
        libraries = {Path(each.path).name for each in process.memory_maps()}
        assert any("tensorflow" in name for name in libraries)
        assert not [name for name in libraries if name.startswith("libtorch")]
        os.kill(process.pid, signal.SIGKILL)

        def answers() -> bool:
            try:
                return bool(np.array_equal(served.client.predict("three", ROW).outputs["y"], before))
            except ServingError:
                return False

        wait_until(answers, "the model answers again", LOAD_SECONDS)
        assert process_of(served).pid != process.pid


def test_batches_of_concurrent_requests_are_put_together_and_taken_apart(publish: Publish, serve: Serve) -> None:
    base = publish("three").parent
    (base / "config.pbtxt").write_text(
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 2 } '
        "dynamic_batching { max_queue_delay_microseconds: 50000 }"
    )
    with serve(ready=False) as served:
        wait_available(served)
        answers: dict[int, np.ndarray] = {}

        def ask(number: int) -> None:
            answers[number] = served.client.predict("three", {"x": ROW["x"] * number}).outputs["y"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number in range(16):
            alone = served.client.predict("three", {"x": ROW["x"] * number}).outputs["y"]
            np.testing.assert_allclose(answers[number], alone, rtol=1e-5)


def test_requests_share_no_run_of_a_signature_whose_rows_depend_on_one_another(
    publish: Publish, serve: Serve, tmp_path: Path
) -> None:
    """Each is the mean of itself, whatever others there are; and what the load has tried leaves no traces."""
    publish("company")
    (tmp_path / "batching.pbtxt").write_text("batch_timeout_micros { value: 50000 }")
    asked = {
        "": [{"x": ROW["x"] * number} for number in range(16)],
        "places": [{"place": np.array([number % 8])} for number in range(16)],
    }
    with serve(enable_batching=True, batching_parameters_file=str(tmp_path / "batching.pbtxt"), ready=False) as served:
        wait_available(served, model="company")
        for key, requests in asked.items():
            served.client.predict("company", requests[1], signature=key)  # shows that each row has its own
            with ThreadPoolExecutor(len(requests)) as pool:
                calls = [pool.submit(served.client.predict, "company", each, signature=key) for each in requests]
            assert [call.result().outputs["y"].tolist() for call in calls] == [
                (0 * next(iter(each.values()))).tolist() for each in requests
            ]
        assert (
            served.client.predict("company", {"add": np.ones(1, np.float32)}, signature="tally").outputs["total"] == 1
        )


def test_requests_of_every_shape_are_answered_apart_from_the_batches_of_others(publish: Publish, serve: Serve) -> None:
    publish("half")
    with serve(enable_batching=True, ready=False) as served:
        wait_available(served, model="half")
        answers: dict[int, np.ndarray] = {}
        shapes = [(1, 1), (3,), (2, 1), (), (1, 2), (40, 1), (40,), (0,)]
        sent = [np.full(shape, number, np.float32) for number, shape in enumerate(shapes * 4)]

        def ask(number: int) -> None:
            answers[number] = served.client.predict("half", {"x": sent[number]}).outputs["y"]

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(sent))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for number, x in enumerate(sent):
            assert answers[number].shape == x.shape
            np.testing.assert_array_equal(answers[number], x / 2 + 2)


def test_input_that_the_config_declares_is_checked(publish: Publish, serve: Serve) -> None:
    base = publish("half").parent
    (base / "config.pbtxt").write_text('input { name: "x" data_type: TYPE_FP32 dims: [-1, 1] }')
    with serve(ready=False) as served:
        wait_available(served, model="half")
        with refuses(StatusCode.INVALID_ARGUMENT, r"input x has rank 1, expected 2: got shape \[3\]"):
            served.client.predict("half", {"x": np.ones(3, np.float32)})


@pytest.mark.parametrize("swaps", [1, pytest.param(5, marks=pytest.mark.load)])
def test_versions_replace_one_another_under_load_without_a_failed_request(
    publish: Publish, serve: Serve, swaps: int
) -> None:
    publish("three", 1)
    with serve(ready=False) as served:
        wait_available(served)
        seen, failures, stop = set[int](), list[Exception](), threading.Event()

        def ask() -> None:
            while not stop.is_set():
                try:
                    seen.add(served.client.predict("three", ROW).version)
                except Exception as error:
                    failures.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for new in range(2, swaps + 2):
                publish("newer", 2, to=new, name="three")
                wait_until(lambda new=new: new in seen, f"version {new} answers", LOAD_SECONDS)
                old = new - 1
                wait_until(lambda old=old: served.states("three").get(old) is END, f"{old} has gone", LOAD_SECONDS)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures
        assert seen == set(range(1, swaps + 2))


@pytest.mark.load
def test_twenty_loads_leave_no_memory_behind(publish: Publish, serve: Serve) -> None:
    publish("three", 1)
    with serve(ready=False) as served:
        wait_available(served)
        sizes = list[int]()
        for number in range(2, 22):
            publish("newer", 2, to=number, name="three")
            wait_available(served, number)
            gone = number - 1
            wait_until(lambda gone=gone: served.states("three").get(gone) is END, f"{gone} has gone", LOAD_SECONDS)
            sizes.append(psutil.Process().memory_info().rss)
            children = [
                child for child in psutil.Process().children(recursive=True) if child.name() == "tfs-lite-model"
            ]
            assert len(children) == 1
        assert sizes[-1] - sizes[1] < 10 << 20, sizes
