"""``examples/monitoring``: its expressions ask for what a live server has, and promtool finds the rules sound."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import httpx
import numpy as np
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support.language.tiny_version import BYTES_OF_TEXT, write_version
from tests.support.remote.moto import Moto
from tests.support.remote.served import environment
from tests.support.servers.in_process import serving
from tfs_lite.core.status import ServingError

EXAMPLE = Path(__file__).parents[2] / "examples" / "monitoring"
ALERTS = EXAMPLE / "alerts.yaml"
OF_LANGUAGE = "tfs_lite_generation_"
MODEL = """
class Model:
    def __init__(self, context):
        pass

    def predict(self, inputs):
        return {"y": inputs["x"] + 1}
"""
CONFIG = """
platform: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }
dynamic_batching { }
response_cache { enable: true }
"""
NAMES = re.compile(r"\b((?:tfs_lite|process)_\w+)(?:\{([^}]*)\})?")
MATCHERS = re.compile(r"(\w+)\s*(?:=~|!=|=|!~)")
GROUPED = re.compile(r"\bby\s*\(([^)]*)\)")
FROM_PROMETHEUS = {"job", "instance"}
"""Labels that the scrape adds; our ``instance`` then is called ``exported_instance``."""
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed; Debian's package prometheus has it"
)


def load_dashboard() -> ModuleType:
    spec = importlib.util.spec_from_file_location("monitoring_dashboard", EXAMPLE / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["monitoring_dashboard"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


DASHBOARD = load_dashboard()
ALERT_EXPRESSIONS = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory, moto: Moto) -> dict[str, set[str]]:
    """Name -> labels of every series of a server after a little traffic, and of one with an empty bucket, as Prometheus
    keeps them."""
    repository = tmp_path_factory.mktemp("monitoring")
    version = repository / "adds" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (repository / "adds" / "config.pbtxt").write_text(CONFIG)
    with_language = importlib.util.find_spec("transformers") is not None
    if with_language:
        write_version(repository / "writes" / "1", BYTES_OF_TEXT)
    with serving(
        repository,
        model_repository=str(repository),
        trusted_model_base_paths=(f"{repository}/*",),
        cache_config="local,size=1048576",
        rest_api_port=0,
        device="cpu",
        ready_requires_all_models=True,
    ) as served:
        served.client.predict("adds", {"x": np.zeros((1, 3), np.float32)})
        with pytest.raises(ServingError):
            served.client.predict("adds", {"wrong": np.zeros((1, 3), np.float32)})
        if with_language:
            body = {"model": "writes", "prompt": "x", "max_tokens": 4}
            assert httpx.post(f"{served.url}/openai/v1/completions", json=body, timeout=60).status_code == 200
        page = httpx.get(f"{served.url}/metrics", timeout=60).text
    found = dict(_series_of(page))
    bucket, file = moto.make_bucket(), repository / "models.config"
    file.write_text(f'model_config_list {{ config {{ name: "m" base_path: "{bucket.url}" }} }}')
    fields = {"model_config_file": str(file), "model_cache_dir": str(repository / "cache"), "rest_api_port": 0}
    with environment(moto), serving(repository, **fields) as served:
        return found | dict(_series_of(httpx.get(f"{served.url}/metrics", timeout=60).text))


def _series_of(page: str) -> Iterator[tuple[str, set[str]]]:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = {f"exported_{label}" if label in FROM_PROMETHEUS else label for label in sample.labels}
            yield sample.name, labels | FROM_PROMETHEUS


@pytest.mark.parametrize("expression", [*ALERT_EXPRESSIONS, *DASHBOARD.expressions()])
def test_expression_names_series_and_labels_that_a_live_server_has(
    expression: str, series: dict[str, set[str]]
) -> None:
    wanted = NAMES.findall(expression)
    if OF_LANGUAGE in expression and not any(name.startswith(OF_LANGUAGE) for name in series):
        pytest.skip("language models need the extra `generate`")
    assert [name for name, _ in wanted if name not in series] == []
    grouped = {label.strip() for labels in GROUPED.findall(expression) for label in labels.split(",")}
    for name, matchers in wanted:
        assert set(MATCHERS.findall(matchers)) | grouped <= series[name]
    assert wanted or expression.startswith(("up{", "absent(up{"))


def test_dashboard_is_what_the_table_makes() -> None:
    assert (EXAMPLE / "grafana-dashboard.json").read_text() == DASHBOARD.text(), "run: make dashboards"


def test_panels_have_places_of_their_own_and_numbers() -> None:
    made = json.loads(DASHBOARD.text())
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    assert made["schemaVersion"] == 39


def test_each_alert_has_a_test_its_severity_and_its_words() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    tests = yaml.safe_load((EXAMPLE / "alerts_test.yaml").read_text())["tests"]
    fired = {test["alertname"] for each in tests for test in each.get("alert_rule_test", ()) if test["exp_alerts"]}
    silent = {test["alertname"] for each in tests for test in each.get("alert_rule_test", ()) if not test["exp_alerts"]}
    names = {rule["alert"] for rule in rules}
    assert fired == names
    assert silent == names
    assert {rule["labels"]["severity"] for rule in rules} == {"page", "warn"}
    assert all(rule["annotations"].keys() == {"summary", "description"} for rule in rules)


@needs_promtool
def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool("check", "rules", str(ALERTS))
    promtool("check", "config", "--syntax-only", str(EXAMPLE / "prometheus.yaml"))
    promtool("test", "rules", str(EXAMPLE / "alerts_test.yaml"))


@needs_promtool
def test_promtool_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "5m")}
        for number, expression in enumerate(DASHBOARD.expressions())
    ]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(file))


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
