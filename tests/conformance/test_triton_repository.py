"""Triton's client loads and unloads models of a server that waits for that."""

import json

import numpy as np
import pytest

from tests.conformance.servers import running
from tests.conformance.triton_fixtures import connected


def config(batch, names, dims):
    """Of a model with these inputs and outputs."""
    inputs, outputs = ([{"name": n, "data_type": "TYPE_FP32", "dims": dims} for n in kind] for kind in names)
    return json.dumps({"max_batch_size": batch, "input": inputs, "output": outputs})


CONFIG, VECTORS = config(4, ("x", "y"), [2]), config(8, ("ab", ("sum", "difference")), [4])


@pytest.fixture(scope="module")
def server(serve_triton):
    yield from running(serve_triton("loadable", "--model_control_mode=explicit"))


@pytest.fixture(params=["grpc", "http"])
def api(request, server):
    with connected(request.param, server) as api:
        yield api
        for name in ("first", "second", "sent"):
            api.client.unload_model(name)


def ask(api, model, rows=1):
    return api.client.infer(model, [api.input("x", np.zeros((rows, 2), np.float32))]).as_numpy("y").tolist()


def entries(api):
    found = api.client.get_model_repository_index()
    return {entry["name"]: entry for entry in (api.plain(found)["models"] if api.is_grpc else found)}


def batch_limit(api, model):
    found = api.plain(api.client.get_model_config(model))
    return (found["config"] if api.is_grpc else found)["max_batch_size"]


def test_nothing_is_loaded_before_it_is_asked_for(api):
    assert api.client.is_server_ready()
    assert set(entries(api)) >= {"first", "second", "broken"}
    assert not api.client.is_model_ready("second")


def test_model_serves_from_load_to_unload(api):
    api.client.load_model("first")
    assert api.client.is_model_ready("first")
    assert ask(api, "first") == [[1, 1]]
    assert (entries(api)["first"]["state"], entries(api)["first"]["version"]) == ("READY", "1")
    api.client.load_model("first")
    assert ask(api, "first") == [[1, 1]]
    api.client.unload_model("first")
    assert not api.client.is_model_ready("first")
    api.refused("NOT_FOUND", "Request for unknown model: 'first' has no available versions", ask, api, "first")
    api.client.load_model("first")
    assert ask(api, "first") == [[1, 1]]


def test_version_that_is_unloaded_is_unavailable(api):
    api.client.load_model("first")
    api.client.unload_model("first")
    inputs = [api.input("x", np.zeros((1, 2), np.float32))]
    words = "version 1 is not at ready state"
    api.refused("UNAVAILABLE", words, api.client.infer, "first", inputs, model_version="1")


def test_statistics_begin_again_with_a_fresh_load(api):
    def count():
        (found,) = api.plain(api.client.get_inference_statistics("first"))["model_stats"]
        return int(found["inference_count"])

    api.client.load_model("first")
    ask(api, "first")
    api.client.unload_model("first")
    api.client.load_model("first")
    assert count() == 0


def test_config_of_a_call_replaces_that_of_the_file(api):
    api.client.load_model("first", config=config(2, ("x", "y"), [2]))
    assert batch_limit(api, "first") == 2
    words = "inference request batch-size must be <= 2 for 'first'"
    api.refused("INVALID_ARGUMENT", words, ask, api, "first", rows=3)
    api.client.load_model("first")
    assert batch_limit(api, "first") == 2
    api.client.unload_model("first")
    api.client.load_model("first")
    assert batch_limit(api, "first") == 4


@pytest.fixture
def archive(triton_models):
    """The bytes of a model of :data:`VECTORS`, which adds 3."""
    return (triton_models / "served/sums/3/model.pt2").read_bytes()


def total(api, model):
    inputs = [api.input(name, np.ones((1, 4), np.float32)) for name in ("a", "b")]
    return api.client.infer(model, inputs).as_numpy("sum").tolist()


def test_files_of_a_call_replace_the_directory(api, archive):
    api.client.load_model("first", config=VECTORS, files={"file:5/model.pt2": archive})
    assert total(api, "first") == [[5] * 4]
    assert api.plain(api.client.get_model_metadata("first"))["versions"] == ["5"]
    api.client.load_model("first")
    assert ask(api, "first") == [[1, 1]]


def test_model_that_has_no_directory_comes_from_a_call(api, archive):
    api.client.load_model("sent", config=VECTORS, files={"file:7/model.pt2": archive})
    assert total(api, "sent") == [[5] * 4]
    assert api.plain(api.client.get_model_metadata("sent"))["versions"] == ["7"]


def test_code_is_not_taken_from_a_call(api):
    """Only the operator says whose code runs."""
    api.client.load_model("first")
    how = {"config": CONFIG, "files": {"file:1/model.py": b"raise SystemExit"}}
    api.refused("INVALID_ARGUMENT", "Permission denied", api.client.load_model, "first", **how)
    assert ask(api, "first") == [[1, 1]]


def test_models_that_cannot_be_loaded(api):
    words = "failed to load 'none_such', failed to poll from model repository"
    api.refused("INTERNAL", words, api.client.load_model, "none_such")
    words = "load failed for model 'broken': version 1 is at UNAVAILABLE state: "
    api.refused("INVALID_ARGUMENT", words, api.client.load_model, "broken")
    assert not api.client.is_model_ready("broken")
    assert entries(api)["broken"]["state"] == "UNAVAILABLE"
    assert entries(api)["broken"]["reason"]


@pytest.mark.parametrize("config", ["{", '{"no_such_field": 1}', "[]"])
def test_configs_that_cannot_be_leave_the_model_as_it_was(api, config):
    api.client.load_model("first")
    words = "failed to load 'first', failed to poll from model repository"
    api.refused("INTERNAL", words, api.client.load_model, "first", config=config)
    assert ask(api, "first") == [[1, 1]]


@pytest.mark.parametrize("path", ["file:../1/model.py", "file:1/../../model.py", "file:/model.py"])
def test_files_that_leave_the_directory_are_refused(api, path):
    api.client.load_model("first")
    how = {"config": CONFIG, "files": {path: b"x"}}
    api.refused("INTERNAL", "failed to load 'first'", api.client.load_model, "first", **how)
    assert ask(api, "first") == [[1, 1]]


def test_files_without_a_config_are_refused(api):
    api.refused("INTERNAL", "failed to load 'first'", api.client.load_model, "first", files={"file:1/model.py": b"x"})


def test_broken_replacement_leaves_the_old_one_serving(api, archive):
    api.client.load_model("first")
    how = {"config": CONFIG, "files": {"file:2/model.pt2": archive[: len(archive) // 2]}}
    words = "load failed for model 'first': version 2 is at UNAVAILABLE state: "
    api.refused("INVALID_ARGUMENT", words, api.client.load_model, "first", **how)
    assert ask(api, "first") == [[1, 1]]


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_names_that_are_paths_are_refused(api, name):
    if not api.is_grpc:
        return  # a name is one part of the path there
    words = "must not contain path traversal characters"
    api.refused("INVALID_ARGUMENT", words, api.client.load_model, name)


def test_unknown_models_may_be_unloaded(api):
    api.client.unload_model("none_such")
    api.client.unload_model("first", unload_dependents=True)


def test_two_models_at_once(api):
    with api.beside(lambda other: other.client.load_model("second")) as second:
        api.client.load_model("first")
        second.result(timeout=60)
    assert (ask(api, "first"), ask(api, "second")) == ([[1, 1]], [[2, 2]])
