from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.errors import refusal
from tfs_lite.config.server_files import DEFAULT_PATH, parse_monitoring_config, read_monitoring_config


@pytest.mark.parametrize(
    ("text", "name", "path"),
    [
        ("", "m.pbtxt", None),
        ("", "m.yaml", None),
        ("prometheus_config {}", "m.pbtxt", None),
        ('prometheus_config { path: "/metrics" }', "m.pbtxt", None),
        ("prometheus_config { enable: true }", "m.pbtxt", DEFAULT_PATH),
        ('prometheus_config { enable: true path: "" }', "m.pbtxt", DEFAULT_PATH),
        ('prometheus_config: { enable: true, path: "/metrics" }', "m.pbtxt", "/metrics"),
        ('prometheus_config {\n  enable: true\n  path: "/a-b/c_d.e"\n}', "m.pbtxt", "/a-b/c_d.e"),
        ("prometheus_config: {enable: true, path: /metrics}", "m.yaml", "/metrics"),
        ("prometheus_config: {enable: true}", "m.yaml", DEFAULT_PATH),
        ("prometheus_config: {enable: false}", "m.yml", None),
    ],
)
def test_the_page_is_where_the_file_says_and_only_if_enabled(text: str, name: str, path: str | None) -> None:
    assert parse_monitoring_config(text, name).prometheus_path == path


def test_the_default_path_is_that_of_tensorflow_serving() -> None:
    assert DEFAULT_PATH == "/monitoring/prometheus/metrics"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (
            'prometheus_config { enable: true\n  path: "metrics" }',
            "m.pbtxt",
            'm.pbtxt:2:3: prometheus_config.path: must start with "/"; got "metrics"',
        ),
        ("prometheus_config:\n  path: metrics", "m.yaml", 'm.yaml:2:3: prometheus_config.path: must start with "/"'),
        ('prometheus_config { path: "/m?x=1" }', "m.pbtxt", "m.pbtxt:1:21: prometheus_config.path: .* cannot hold"),
        ('prometheus_config { path: "/{x}" }', "m.pbtxt", "m.pbtxt:1:21: prometheus_config.path: .* cannot hold"),
        ('prometheus_config { path: "/a\\n" }', "m.pbtxt", "m.pbtxt:1:21: prometheus_config.path: .* cannot hold"),
        ('prometheus_config { pth: "/m" }', "m.pbtxt", 'm.pbtxt:1:21: unknown field "pth"; did you mean "path"?'),
        ("prometheus_config: {enable: 1}", "m.yaml", "m.yaml:1:21: prometheus_config.enable: .*valid boolean, got 1"),
        ("prometheus: {}", "m.yaml", 'm.yaml:1:1: prometheus: unknown field; did you mean "prometheus_config"?'),
        ("prometheus_config { enable: true", "m.pbtxt", "m.pbtxt:1:"),
    ],
)
def test_a_mistake_names_file_place_and_field(text: str, name: str, message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split(".*"))
    assert re.match(pattern, refusal(parse_monitoring_config, text, name), re.DOTALL)


def test_a_file_is_read_below_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("prometheus_config: {enable: true}")
    assert read_monitoring_config("m.yaml", tmp_path).prometheus_path == DEFAULT_PATH


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/models", "/V1/x", "/v2/health", "/livez", "/readyz", "/openapi.json"]
)
def test_a_path_where_something_else_is_answered_is_refused(path: str) -> None:
    assert "is where the server answers something else" in refusal(
        parse_monitoring_config, f'prometheus_config {{ enable: true path: "{path}" }}', "monitoring.pbtxt"
    )


@pytest.mark.parametrize("path", ["/metrics", "/v1metrics", "/mon/v1/prom"])
def test_other_paths_are_fine(path: str) -> None:
    config = parse_monitoring_config(f'prometheus_config {{ enable: true path: "{path}" }}', "monitoring.pbtxt")
    assert config.prometheus_path == path
