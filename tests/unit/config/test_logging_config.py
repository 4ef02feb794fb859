"""What may be said about logging requests, and what not."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.errors import refusal
from tfs_lite.config.logging_config import LoggingSettings, PerTaskSamplingConfig, SamplingConfig
from tfs_lite.config.model_server import from_proto
from tfs_lite.config.settings import Document, build
from tfs_lite.config.text import parse_model_server_config
from tfs_lite.core.status import ServingError, StatusCode
from tfs_lite.protocols import messages

PREFIX = {"filename_prefix": "/logs/m"}

TEXT = """model_config_list { config { name: "m" base_path: "/m"
  logging_config {
    log_collector_config { type: "file" filename_prefix: "logs/m" }
    sampling_config {
      sampling_rate: 0.25 attributes: 3
      per_task_sampling_configs { dc: "east" task_index: 0 sampling_rate: 1 }
    }
  }
} }"""

YAML = """
model_config_list:
  config:
    - name: m
      base_path: /m
      logging_config:
        log_collector_config: {type: file, filename_prefix: logs/m}
        sampling_config:
          sampling_rate: 0.25
          attributes: 3
          per_task_sampling_configs: [{dc: east, task_index: 0, sampling_rate: 1}]
"""


def settings(collector: dict[str, Any] = PREFIX, directory: Path | None = None, **fields: Any) -> LoggingSettings:
    return build(LoggingSettings, Document({"log_collector_config": collector, **fields}), directory)


def message_of(**fields: Any) -> str:
    return refusal(settings, **fields)


def test_only_a_prefix_is_needed_and_then_nothing_is_logged() -> None:
    found = settings()
    assert (found.filename_prefix, found.sampling_config.rate()) == ("/logs/m", 0.0)


def test_text_format_and_yaml_say_the_same() -> None:
    expected = parse_model_server_config(TEXT, "models.config", Path("/srv"))
    assert parse_model_server_config(YAML, "models.yaml", Path("/srv")) == expected
    logging = expected.models[0].logging_config
    assert logging is not None
    assert logging.filename_prefix == "/srv/logs/m"
    assert logging.sampling_config.attributes == 3
    assert logging.sampling_config.per_task_sampling_configs[0].task_index == 0


@pytest.mark.parametrize("name", ["", "file", "tfrecord"])
def test_every_name_of_the_file_collector_is_taken(name: str) -> None:
    assert settings({**PREFIX, "type": name}).log_collector_config.type == name


@pytest.mark.parametrize(
    ("collector", "message"),
    [
        ({}, "log_collector_config.filename_prefix: is required"),
        ({"filename_prefix": ""}, "log_collector_config.filename_prefix: must not be empty"),
        ({"filename_prefix": "logs/m"}, 'expected an absolute path, got "logs/m"'),
        ({"filename_prefix": "/logs/"}, '"/logs/" names a directory; add the beginning of a file name'),
        ({"filename_prefix": "/logs/.."}, '"/logs/.." names a directory'),
        ({"filename_prefix": "/logs/a\0b"}, "'/logs/a\\x00b' has characters that cannot be printed"),
        ({"filename_prefix": "/logs/\ud800"}, "has characters that cannot be printed"),
        ({"filename_prefix": "gs://bucket/m"}, '"gs://bucket/m" is a URI'),
        ({"filename_prefix": "/logs/" + "ü" * 101}, "the file name is longer than 200 bytes: üüü"),
        ({"filename_prefix": 3}, "should be a valid string, got 3"),
        (
            {**PREFIX, "type": "fille"},
            'log_collector_config.type: there is no log collector "fille"; did you mean "file"',
        ),
        ({**PREFIX, "type": "kafka"}, 'there is no log collector "kafka"; known: file, tfrecord'),
        ({**PREFIX, "filename_prefixes": "x"}, 'filename_prefixes: unknown field; did you mean "filename_prefix"?'),
    ],
)
def test_a_mistake_in_the_collector_names_the_field_and_what_came(collector: dict[str, Any], message: str) -> None:
    assert message in message_of(collector=collector)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"sampling_rate": 1.5}, "sampling_config.sampling_rate: Input should be less than or equal to 1, got 1.5"),
        ({"sampling_rate": -0.1}, "greater than or equal to 0, got -0.1"),
        ({"sampling_rate": float("nan")}, "got nan"),
        ({"sampling_rate": True}, "got True"),
        ({"attributes": 4}, "sampling_config.attributes: Input should be less than or equal to 3, got 4"),
        ({"attributes": -1}, "got -1"),
        ({"per_task_sampling_configs": [{}, {"sampling_rate": 2}]}, "per_task_sampling_configs[1].sampling_rate: "),
        ({"per_task_sampling_configs": [{"task_index": -1}]}, "per_task_sampling_configs[0].task_index: "),
        ({"sample_rate": 1}, 'sampling_config.sample_rate: unknown field; did you mean "sampling_rate"?'),
    ],
)
def test_a_mistake_in_the_sampling_names_the_field_and_what_came(sampling: dict[str, Any], message: str) -> None:
    assert message in message_of(sampling_config=sampling)


def test_a_custom_logging_config_is_refused_with_its_place() -> None:
    text = TEXT.replace(
        "    sampling_config {",
        '    custom_logging_config { [type.googleapis.com/tensorflow.serving.LogCollectorConfig] { type: "x" } }\n'
        "    sampling_config {",
    )
    with pytest.raises(ServingError, match=r"m\.config:4:5: .*custom_logging_config: is not supported") as raised:
        parse_model_server_config(text, "m.config", Path("/srv"))
    assert raised.value.code is StatusCode.INVALID_ARGUMENT


def test_a_relative_prefix_is_below_the_working_directory() -> None:
    assert settings({"filename_prefix": "logs/m"}, Path("/srv")).filename_prefix == "/srv/logs/m"


def test_over_the_wire_a_relative_prefix_is_refused() -> None:
    reload = messages.ModelServerConfig()
    model = reload.model_config_list.config.add(name="m", base_path="/m")
    model.logging_config.log_collector_config.filename_prefix = "logs/m"
    assert "config[0].logging_config.log_collector_config.filename_prefix: " in refusal(from_proto, reload)


@pytest.mark.parametrize(
    ("entries", "server", "rate"),
    [
        ([], {}, 0.5),
        ([{"sampling_rate": 1.0}], {}, 1.0),
        ([{"sampling_rate": 0.0}], {}, 0.0),
        ([{"dc": "east", "sampling_rate": 1.0}], {}, 0.5),
        ([{"task_index": 0, "sampling_rate": 1.0}], {}, 0.5),
        ([{"dc": "east", "sampling_rate": 1.0}, {"sampling_rate": 0.1}, {"sampling_rate": 0.2}], {}, 0.1),
        ([{"dc": "east", "sampling_rate": 1.0}], {"dc": "east"}, 1.0),
        ([{"dc": "east", "task_index": 2, "sampling_rate": 1.0}], {"dc": "east", "task_index": 1}, 0.5),
        ([{"dc": "east", "task_index": 2, "sampling_rate": 1.0}], {"dc": "east", "task_index": 2}, 1.0),
        ([{"task_index": 2, "sampling_rate": 1.0}], {"dc": "west", "task_index": 2}, 1.0),
    ],
)
def test_the_first_entry_that_means_this_server_sets_the_rate(
    entries: list[dict[str, Any]], server: dict[str, Any], rate: float
) -> None:
    sampling = SamplingConfig(
        sampling_rate=0.5, per_task_sampling_configs=tuple(PerTaskSamplingConfig(**entry) for entry in entries)
    )
    assert sampling.rate(**server) == rate


RATES = st.floats(0, 1)
ENTRIES = st.builds(
    PerTaskSamplingConfig,
    dc=st.sampled_from(["", "east"]),
    task_index=st.none() | st.integers(0, 2**31 - 1),
    sampling_rate=RATES,
)
SETTINGS = st.builds(
    LoggingSettings,
    log_collector_config=st.sampled_from([{"type": name, **PREFIX} for name in ("", "file")]),
    sampling_config=st.builds(
        SamplingConfig,
        sampling_rate=RATES,
        attributes=st.integers(0, 3),
        per_task_sampling_configs=st.lists(ENTRIES, max_size=3).map(tuple),
    ),
)


@given(SETTINGS)
def test_settings_survive_the_way_over_the_wire(logging: LoggingSettings) -> None:
    reload = messages.ModelServerConfig()
    reload.model_config_list.config.add(name="m", base_path="/m", logging_config=logging.to_proto())
    found = from_proto(messages.ModelServerConfig.FromString(reload.SerializeToString()))
    assert found.models[0].logging_config == logging
    assert from_proto(found.to_proto()).models[0].logging_config == logging
    assert hash(found.models[0].logging_config) == hash(logging)
