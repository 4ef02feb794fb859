"""The metrics page counts what clients and versions did, by model and version."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from tests.support.servers.probe import ROW
from tfs_lite.core.status import ServingError


def samples(served) -> dict[tuple, float]:
    """(name, sorted labels) -> value."""
    status, body = served.server.get("/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def total(served, name: str, **labels: str) -> float:
    wanted = set(labels.items())
    return sum(value for (found, has), value in samples(served).items() if found == name and wanted <= set(has))


def test_requests_and_loads_are_counted_by_model_and_version(served, model):
    for version, asks in ((1, 3), (2, 2)):
        served.publish(model, version)
        served.probe.wait_available(model, version)
        for _ in range(asks):
            served.probe.ask(model)
    served.probe.wait_states(model, {1: "END"})
    with pytest.raises(ServingError):
        served.probe.client.predict(model, {"wrong": ROW})
    count = "tfs_lite_requests_total"
    assert total(served, count, model=model, version="1", method="Predict", code="OK") == 3
    assert total(served, count, model=model, version="2", method="Predict", code="OK") == 2
    assert total(served, count, model=model, version="2", method="Predict", code="INVALID_ARGUMENT") == 1
    assert total(served, "tfs_lite_request_seconds_count", model=model) == 5
    assert total(served, "tfs_lite_requests_in_flight", model=model) == 0
    assert total(served, "tfs_lite_model_loads_total", model=model) == 2
    assert total(served, "tfs_lite_model_unloads_total", model=model) == 1
    assert total(served, "tfs_lite_model_version_state", model=model, version="2", state="AVAILABLE") == 1


def test_names_that_clients_make_up_do_not_grow_the_page(served):
    def call(name: str) -> None:
        with pytest.raises(ServingError):
            served.probe.client.predict(name, {"x": ROW})

    call("first")
    size = len(samples(served))
    for number in range(50):
        call(f"made_up_{number}")
    assert total(served, "tfs_lite_requests_total", model="unknown", code="NOT_FOUND") >= 50
    assert len(samples(served)) == size


def test_page_has_upstreams_address_too(served):
    assert served.server.get("/monitoring/prometheus/metrics")[0] == 200


def test_openmetrics_has_the_series_of_the_text_page(served, model):
    served.publish(model, 1)
    served.probe.wait_available(model, 1)
    served.probe.ask(model)
    url = f"http://127.0.0.1:{served.server.http_port}/metrics"
    text = httpx.get(url, timeout=60)
    page = httpx.get(url, headers={"accept": "application/openmetrics-text; version=1.0.0"}, timeout=60)
    assert page.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert page.text.endswith("# EOF\n")

    def series(lines: str) -> set[str]:
        """Names and labels."""
        return {line.split("# {")[0].rpartition(" ")[0] for line in lines.splitlines() if not line.startswith("#")}

    families = list(openmetrics_families(page.text))
    assert {family.type for family in families if family.name.startswith("nv_")} == {"unknown"}
    assert any(name.startswith("nv_inference_count{") for name in series(page.text))
    assert series(page.text) == series(text.text)
