"""Triton's client asks what the server is, what models it has and what they have done."""

import numpy as np
import pytest

from tests.support.servers.process import wait_until

EXTENSIONS = {
    *("classification", "sequence", "model_repository", "model_repository(unload_dependents)", "schedule_policy"),
    *("model_configuration", "system_shared_memory", "binary_tensor_data", "parameters", "statistics"),
    *("trace", "logging"),
}
MODELS = {"sums", "types", "typed", "plain", "repeat", "gate", "running", "chat", "fails", "echo", "words", "chain"}


def test_server_is_live_and_ready(api):
    assert api.client.is_server_live() is True
    assert api.client.is_server_ready() is True


def test_server_tells_its_name_and_what_it_can_do(api):
    found = api.plain(api.client.get_server_metadata())
    assert found["name"] == "tfs_lite"
    assert found["version"]
    assert set(found["extensions"]) >= EXTENSIONS
    assert "cuda_shared_memory" not in found["extensions"]


def test_metadata_as_json_is_what_the_message_says(grpc_api):
    client = grpc_api.client
    assert client.get_server_metadata(as_json=True)["name"] == client.get_server_metadata().name
    assert client.get_model_metadata("sums", as_json=True)["versions"] == ["1", "3"]
    assert client.get_model_config("sums", as_json=True)["config"]["max_batch_size"] == 8


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [
        ("sums", "", True),
        ("sums", "1", True),
        ("sums", "3", True),
        ("sums", "2", False),
        ("chain", "", True),
        ("none_such", "", False),
    ],
    ids=range(6),
)
def test_model_is_ready_if_it_is_served(api, model, version, ready):
    assert api.client.is_model_ready(model, version) is ready


def test_metadata_has_all_versions_and_the_batch_dimension(api):
    found = api.plain(api.client.get_model_metadata("sums"))
    assert (found["name"], found["versions"], found["platform"]) == ("sums", ["1", "3"], "pytorch_export")
    tensors = [(item["name"], item["datatype"], [int(size) for size in item["shape"]]) for item in found["inputs"]]
    assert tensors == [("a", "FP32", [-1, 4]), ("b", "FP32", [-1, 4])]
    assert {item["name"] for item in found["outputs"]} == {"sum", "difference"}


def test_metadata_of_one_version_names_that_one(api):
    assert api.plain(api.client.get_model_metadata("sums", "1"))["versions"] == ["1"]


def test_metadata_does_not_show_the_controls_of_sequences(api):
    found = api.plain(api.client.get_model_metadata("running"))
    assert [item["name"] for item in found["inputs"]] == ["INPUT"]


def test_metadata_names_every_datatype(api):
    found = api.plain(api.client.get_model_metadata("types"))
    names = ["BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"]
    names += ["FP16", "BF16", "FP32", "FP64", "BYTES"]
    assert [item["datatype"] for item in found["inputs"]] == names


def config_of(api, model):
    found = api.plain(api.client.get_model_config(model))
    return found["config"] if api.is_grpc else found


def test_config_is_the_file_and_what_was_found_out(api):
    found = config_of(api, "sums")
    assert (found["name"], found["platform"], found["max_batch_size"]) == ("sums", "pytorch_export", 8)
    assert [item["data_type"] for item in found["input"]] == ["TYPE_FP32", "TYPE_FP32"]
    assert found["output"][0]["label_filename"] == "labels.txt"
    assert found["version_policy"] == {"all": {}}
    assert found["dynamic_batching"]["preferred_batch_size"] == [8]
    assert found["instance_group"][0]["count"] == 1


def test_config_of_special_models(api):
    assert config_of(api, "repeat")["model_transaction_policy"] == {"decoupled": True}
    assert len(config_of(api, "running")["sequence_batching"]["control_input"]) == 4
    assert [step["model_name"] for step in config_of(api, "chain")["ensemble_scheduling"]["step"]] == ["sums", "sums"]


def test_numbers_in_the_json_of_a_config_are_numbers(http_api):
    found = http_api.client.get_model_config("running")
    assert found["sequence_batching"]["max_sequence_idle_microseconds"] == 60_000_000
    assert found["input"][0]["dims"] == [1]


def test_index_has_every_version(api):
    found = api.client.get_model_repository_index()
    entries = api.plain(found)["models"] if api.is_grpc else found
    assert {entry["name"] for entry in entries} == MODELS
    assert {(entry["version"], entry["state"]) for entry in entries if entry["name"] == "sums"} == {
        ("1", "READY"),
        ("3", "READY"),
    }


def test_unknown_models_have_no_metadata_config_or_statistics(api):
    unknown = "Request for unknown model: 'none_such' is not found"
    api.refused("NOT_FOUND", unknown, api.client.get_model_metadata, "none_such")
    api.refused("NOT_FOUND", unknown, api.client.get_model_config, "none_such")
    not_there = "requested model 'none_such' is not available"
    api.refused("INVALID_ARGUMENT", not_there, api.client.get_inference_statistics, "none_such")
    no_version = "requested model version is not available for model 'sums'"
    api.refused("INVALID_ARGUMENT", no_version, api.client.get_inference_statistics, "sums", "9")
    other = "Request for unknown model: 'sums' version 9 is not found"
    api.refused("NOT_FOUND", other, api.client.get_model_metadata, "sums", "9")


@pytest.mark.parametrize("version", ["one", "-1"])
def test_a_version_that_is_no_number_is_refused(api, version):
    api.refused("INVALID_ARGUMENT", "", api.client.get_model_metadata, "sums", version)


def statistics(api, model, version=""):
    (found,) = api.plain(api.client.get_inference_statistics(model, version))["model_stats"]
    return found


def test_statistics_count_requests_rows_and_executions(api, sums_inputs):
    def counts():
        found = statistics(api, "sums", "1")
        stats = found["inference_stats"]
        return [int(found[key]) for key in ("inference_count", "execution_count")] + [
            int(stats[key]["count"]) for key in ("success", "queue", "compute_infer", "fail")
        ]

    before = np.array(counts())
    for rows in (1, 3):
        api.client.infer("sums", sums_inputs(api, rows), model_version="1")
    wait_until(lambda: (counts() - before).tolist() == [4, 2, 2, 2, 2, 0], "two requests are counted")
    found = statistics(api, "sums", "1")
    assert int(found["last_inference"]) > 1_600_000_000_000
    assert {int(entry["batch_size"]) for entry in found["batch_stats"]} >= {1, 3}
    assert int(found["inference_stats"]["success"]["ns"]) > 0


def test_failures_of_a_model_are_counted(api):
    def failures():
        return int(statistics(api, "fails")["inference_stats"]["fail"]["count"])

    before = failures()
    inputs = [api.input("x", np.ones((1, 2), np.float32))]
    api.refused("INTERNAL", "", api.client.infer, "fails", inputs)
    wait_until(lambda: failures() == before + 1, "one failure is counted")


def test_answers_of_a_decoupled_model_are_counted_by_their_place(grpc_api):
    def counts():
        found = statistics(grpc_api, "repeat")["response_stats"]
        return [int(found.get(str(place), {}).get("success", {}).get("count", 0)) for place in range(3)]

    before = np.array(counts())
    for values in ([1], [1, 2, 3]):
        grpc_api.client.start_stream(lambda result, error: None)
        grpc_api.client.async_stream_infer("repeat", [grpc_api.input("IN", np.array(values, np.int32))])
        grpc_api.client.stop_stream()
    wait_until(lambda: (counts() - before).tolist() == [2, 1, 1], "four answers are counted", timeout=10)


def test_steps_of_an_ensemble_are_counted_too(api):
    def counts():
        both = statistics(api, "chain"), statistics(api, "sums", "1")
        return [int(found["inference_stats"]["success"]["count"]) for found in both]

    before = np.array(counts())
    api.client.infer("chain", [api.input("IN", np.ones((1, 4), np.float32))])
    wait_until(lambda: (counts() - before).tolist() == [1, 2], "the request and its two steps are counted")


def test_statistics_without_a_name_are_of_every_version(api):
    found = api.plain(api.client.get_inference_statistics())["model_stats"]
    assert len(found) == len(MODELS) + 1
    assert {entry["name"] for entry in found} == MODELS


def trace_settings(api, found):
    return {key: value["value"] for key, value in api.plain(found)["settings"].items()} if api.is_grpc else found


def test_trace_settings_of_a_model_stand_above_those_of_the_server(api):
    client = api.client
    rate = ["1000"] if api.is_grpc else "1000"
    assert trace_settings(api, client.get_trace_settings())["trace_rate"] == rate
    changed = client.update_trace_settings("sums", {"trace_rate": "7", "trace_level": ["TIMESTAMPS"]})
    assert trace_settings(api, changed)["trace_rate"] == (["7"] if api.is_grpc else "7")
    assert trace_settings(api, client.get_trace_settings("sums"))["trace_level"] == ["TIMESTAMPS"]
    assert trace_settings(api, client.get_trace_settings())["trace_level"] == ["OFF"]
    cleared = client.update_trace_settings("sums", {"trace_rate": None, "trace_level": None})
    assert trace_settings(api, cleared) == trace_settings(api, client.get_trace_settings())


def test_trace_settings_that_cannot_be_are_refused(api):
    client = api.client
    unknown = "Request for unknown model : none_such"
    api.refused("INVALID_ARGUMENT", unknown, client.get_trace_settings, "none_such")
    file = "trace file location can not be updated through network protocol"
    api.refused("UNIMPLEMENTED", file, client.update_trace_settings, settings={"trace_file": "/tmp/x"})
    api.refused("INVALID_ARGUMENT", "", client.update_trace_settings, settings={"trace_rate": "often"})
    api.refused("INVALID_ARGUMENT", "", client.update_trace_settings, settings={"no_such": "1"})


def log_settings(api, found):
    if not api.is_grpc:
        return found
    return {key: next(iter(value.values())) for key, value in api.plain(found)["settings"].items()}


def test_log_settings_change_and_change_back(api):
    before = log_settings(api, api.client.get_log_settings())
    assert before == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }
    wanted = {"log_info": False, "log_verbose_level": 1, "log_format": "ISO8601"}
    assert log_settings(api, api.client.update_log_settings(wanted)) == {**before, **wanted}
    assert log_settings(api, api.client.get_log_settings()) == {**before, **wanted}
    back = {name: before[name] for name in wanted}
    assert log_settings(api, api.client.update_log_settings(back)) == before


def test_log_settings_that_cannot_be_change_nothing(api):
    before = log_settings(api, api.client.get_log_settings())
    file = "log file location can not be updated through network protocol"
    with_file = {"log_info": False, "log_file": "/tmp/log"}
    api.refused("UNIMPLEMENTED", file, api.client.update_log_settings, with_file)
    api.refused("INVALID_ARGUMENT", "", api.client.update_log_settings, {"no_such": True})
    api.refused("INVALID_ARGUMENT", "", api.client.update_log_settings, {"log_format": "pretty"})
    assert log_settings(api, api.client.get_log_settings()) == before
