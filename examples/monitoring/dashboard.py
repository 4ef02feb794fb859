"""The Grafana dashboard: one table of rows and panels, and what turns it into Grafana's JSON.

    python examples/monitoring/dashboard.py          # or: make dashboards

writes ``grafana-dashboard.json`` beside this file. In the expressions SERVER stands for the labels of the chosen
servers, MODEL for those and the chosen models, RATE for the interval that Grafana chooses. Prometheus calls the server
``instance``, and an ``instance`` that our metrics have (of a device, of a model) ``exported_instance``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("grafana-dashboard.json")
SCHEMA = 39
WIDTH = 24
HEIGHT = 7
_SERVER = 'job=~"$job",instance=~"$instance"'
_MODEL = f'{_SERVER},model=~"$model"'
VERSION = "model, version"
"""The labels of a version."""


@dataclass(frozen=True)
class Panel:
    """``lines``: an expression and its legend, for each line. ``unit`` in Grafana's words. ``kind``: ``timeseries`` or
    ``stat``. ``columns``: its width, of 24. ``what`` explains it behind the panel's i."""

    title: str
    unit: str
    lines: Sequence[tuple[str, str]]
    what: str = ""
    kind: str = "timeseries"
    columns: int = 8
    most: float | None = None
    stacked: bool = False


def rate(metric: str, labels: str = "MODEL") -> str:
    """What a counter gains in a second."""
    return f"rate({metric}{{{labels}}}[RATE])"


def increase(metric: str, labels: str = "MODEL") -> str:
    """What a counter gains in an interval."""
    return f"increase({metric}{{{labels}}}[RATE])"


def line(measure: str, by: str, words: str = "", function: str = "sum") -> tuple[str, str]:
    """A measure by these labels; the legend is their values, and then the words."""
    return f"{function} by ({by}) ({measure})", f"{_legend(by)} {words}".rstrip()


def share(by: str, part: str, *whole: str, words: str = "") -> tuple[str, str]:
    """One measure in relation to another one, or to the sum of some, by these labels."""
    sums = [f"sum by ({by}) ({measure})" for measure in whole]
    below = sums[0] if len(sums) == 1 else f"({' + '.join(sums)})"
    return f"sum by ({by}) ({part}) / {below}", f"{_legend(by)} {words}".rstrip()


def _legend(by: str) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by.split(", "))


def quantiles(histogram: str, by: str = VERSION) -> tuple[tuple[str, str], ...]:
    """The median and the 99th percentile of a histogram, by these labels."""
    buckets = f"sum by ({by}, le) ({rate(histogram + '_bucket')})"
    return tuple(
        (f"histogram_quantile({part}, {buckets})", f"{_legend(by)} {name}")
        for part, name in ((0.5, "p50"), (0.99, "p99"))
    )


def mean(histogram: str) -> tuple[tuple[str, str], ...]:
    """The mean of a histogram, by model and version."""
    return (share(VERSION, rate(f"{histogram}_sum"), rate(f"{histogram}_count")),)


def by_version(metric: str) -> tuple[tuple[str, str], ...]:
    """A gauge, by model and version."""
    return (line(f"{metric}{{MODEL}}", VERSION),)


def rate_by(metric: str, by: str, labels: str = "MODEL") -> tuple[tuple[str, str], ...]:
    """A counter's rate, by these labels."""
    return (line(rate(metric, labels), by),)


FAILED = 'MODEL,code!="OK"'

ROWS: Sequence[tuple[str, Sequence[Panel]]] = (
    (
        "Overview",
        (
            Panel(
                "Servers ready",
                "none",
                (("sum(tfs_lite_ready{SERVER})", "ready"), ("count(tfs_lite_ready{SERVER})", "of")),
                kind="stat",
                columns=4,
            ),
            Panel(
                "Models available",
                "none",
                (
                    ("sum(max by (model) (tfs_lite_model_available{MODEL}))", "available"),
                    ("count(count by (model) (tfs_lite_model_available{MODEL}))", "configured"),
                ),
                "A model counts as available if a server has a version of it that answers.",
                kind="stat",
                columns=4,
            ),
            Panel(
                "Requests",
                "reqps",
                (("sum(rate(tfs_lite_requests_total{MODEL}[RATE]))", "requests/s"),),
                kind="stat",
                columns=4,
            ),
            Panel(
                "Failed",
                "percentunit",
                (
                    (
                        'sum(rate(tfs_lite_requests_total{MODEL,code!="OK"}[RATE])) '
                        "/ sum(rate(tfs_lite_requests_total{MODEL}[RATE]))",
                        "failed",
                    ),
                ),
                "Of all requests, also those that were the client's mistake.",
                kind="stat",
                columns=4,
            ),
            Panel(
                "In flight", "none", (("sum(tfs_lite_requests_in_flight{MODEL})", "requests"),), kind="stat", columns=4
            ),
            Panel(
                "Builds",
                "none",
                (("count by (version, torch) (tfs_lite_build_info{SERVER})", "{{version}}, torch {{torch}}"),),
                kind="stat",
                columns=4,
            ),
            Panel("Requests by model", "reqps", rate_by("tfs_lite_requests_total", "model"), columns=12),
            Panel(
                "Failed requests by model",
                "percentunit",
                (share("model", rate("tfs_lite_requests_total", FAILED), rate("tfs_lite_requests_total")),),
                columns=12,
            ),
        ),
    ),
    (
        "Model",
        (
            Panel("Requests by version", "reqps", rate_by("tfs_lite_requests_total", VERSION)),
            Panel(
                "Latency",
                "s",
                quantiles("tfs_lite_request_seconds"),
                "From the arrival of a prediction to its answer; failures are left out.",
            ),
            Panel(
                "Failures by code", "reqps", (line(rate("tfs_lite_requests_total", FAILED), "model, version, code"),)
            ),
            Panel("In flight", "none", by_version("tfs_lite_requests_in_flight")),
            Panel("Refused: a queue was full", "reqps", rate_by("tfs_lite_requests_rejected_total", "model")),
            Panel("Requests by method", "reqps", rate_by("tfs_lite_requests_total", "model, method")),
        ),
    ),
    (
        "Batching",
        (
            Panel("Rows in a run", "none", mean("tfs_lite_batch_size")),
            Panel("Calls in a run", "none", mean("tfs_lite_batch_calls")),
            Panel(
                "Padding",
                "percentunit",
                (
                    share(
                        VERSION,
                        rate("tfs_lite_batch_padding_rows_sum"),
                        rate("tfs_lite_batch_size_sum"),
                        rate("tfs_lite_batch_padding_rows_sum"),
                    ),
                ),
                "The share of rows that were added to reach an allowed size.",
            ),
            Panel("Wait for a run", "s", quantiles("tfs_lite_batch_queue_seconds")),
            Panel("Time in the model", "s", quantiles("tfs_lite_batch_run_seconds")),
            Panel("Failed runs", "ops", rate_by("tfs_lite_batch_failures_total", VERSION)),
            Panel("Waiting calls", "none", by_version("tfs_lite_queue_depth")),
            Panel("Waiting rows", "none", by_version("tfs_lite_queue_rows")),
            Panel(
                "Answered from the cache",
                "percentunit",
                (
                    share(
                        "model",
                        rate("tfs_lite_response_cache_hits_total"),
                        rate("tfs_lite_response_cache_hits_total"),
                        rate("tfs_lite_response_cache_misses_total"),
                    ),
                ),
                "Only of models with a response cache.",
            ),
        ),
    ),
    (
        "Lifecycle",
        (
            Panel(
                "Versions by state",
                "none",
                (line("tfs_lite_model_version_state{MODEL}", "model, state"),),
                stacked=True,
            ),
            Panel(
                "Not settled, for how long",
                "s",
                (
                    line(
                        'tfs_lite_version_state_seconds{MODEL,state!="AVAILABLE"}',
                        "model, version, state",
                        function="max",
                    ),
                ),
                "Versions that wait for their files or for room, are being loaded, or unloaded.",
            ),
            Panel(
                "Loads, failures, unloads",
                "none",
                (
                    line(increase("tfs_lite_model_loads_total"), "model", "loaded"),
                    line(increase("tfs_lite_model_load_failures_total"), "model", "failed"),
                    line(increase("tfs_lite_model_unloads_total"), "model", "unloaded"),
                ),
            ),
            Panel("Duration of loads", "s", quantiles("tfs_lite_model_load_seconds", "model")),
            Panel(
                "Memory of models",
                "bytes",
                (
                    line("tfs_lite_memory_used_bytes{SERVER}", "instance, device, exported_instance", "used"),
                    line("tfs_lite_memory_total_bytes{SERVER}", "instance, device, exported_instance", "limit"),
                ),
            ),
            Panel(
                "Memory of versions",
                "bytes",
                (line("tfs_lite_version_memory_bytes{MODEL}", "model, version, device, kind"),),
                "What was reserved before the load, measured in tensors afterwards, and taken by the load.",
            ),
            Panel(
                "Memory that unloads left behind",
                "bytes",
                (line("tfs_lite_memory_leaked_bytes_total{MODEL}", "instance, model"),),
            ),
            Panel("Memory of the server", "bytes", (line("process_resident_memory_bytes{SERVER}", "instance"),)),
            Panel(
                "CPU of the server", "none", (line(rate("process_cpu_seconds_total", "SERVER"), "instance", "cores"),)
            ),
            Panel("Events", "none", (line(increase("tfs_lite_events_total", "SERVER"), "kind"),)),
            Panel("Configs applied", "none", (line(increase("tfs_lite_config_reloads_total", "SERVER"), "result"),)),
            Panel(
                "Workers up",
                "none",
                (
                    line("tfs_lite_worker_up{MODEL}", VERSION, "up"),
                    line("tfs_lite_worker_up{MODEL}", VERSION, "of", function="count"),
                ),
            ),
            Panel("Worker restarts", "none", (line(increase("tfs_lite_worker_restarts_total"), VERSION),)),
            Panel("Load attempts", "none", (line(increase("tfs_lite_model_load_attempts_total"), "model, result"),)),
        ),
    ),
    (
        "Language models",
        (
            Panel("Tokens written", "none", rate_by("tfs_lite_generation_output_tokens_total", VERSION)),
            Panel("Prompt tokens", "none", rate_by("tfs_lite_generation_prompt_tokens_total", VERSION)),
            Panel(
                "Texts",
                "none",
                (
                    line("tfs_lite_generation_running{MODEL}", "model", "running"),
                    line("tfs_lite_generation_waiting{MODEL}", "model", "waiting"),
                ),
            ),
            Panel("Time to the first token", "s", quantiles("tfs_lite_generation_time_to_first_token_seconds")),
            Panel("Between tokens", "s", quantiles("tfs_lite_generation_inter_token_seconds")),
            Panel("Wait for a place", "s", quantiles("tfs_lite_generation_queue_seconds")),
            Panel(
                "Cache",
                "percentunit",
                (
                    share(
                        VERSION,
                        "tfs_lite_generation_cache_tokens_reserved{MODEL}",
                        "tfs_lite_generation_cache_tokens{MODEL}",
                        words="reserved",
                    ),
                    share(
                        VERSION,
                        "tfs_lite_generation_cache_tokens_written{MODEL}",
                        "tfs_lite_generation_cache_tokens{MODEL}",
                        words="written",
                    ),
                ),
                most=1,
            ),
            Panel(
                "Prompt tokens found with other texts",
                "percentunit",
                (
                    share(
                        "model",
                        rate("tfs_lite_generation_prefix_hit_tokens_total"),
                        rate("tfs_lite_generation_prefix_queried_tokens_total"),
                    ),
                ),
                most=1,
            ),
            Panel("Texts in a step", "none", mean("tfs_lite_generation_step_texts")),
        ),
    ),
    (
        "Transport",
        (
            Panel("gRPC connections", "none", (line("tfs_lite_grpc_connections{SERVER}", "instance"),)),
            Panel("gRPC calls by code", "reqps", rate_by("tfs_lite_grpc_calls_total", "code", "SERVER")),
            Panel(
                "gRPC bytes",
                "Bps",
                (
                    line(rate("tfs_lite_grpc_received_bytes_total", "SERVER"), "instance", "received"),
                    line(rate("tfs_lite_grpc_sent_bytes_total", "SERVER"), "instance", "sent"),
                ),
            ),
            Panel(
                "gRPC bytes waiting",
                "bytes",
                (
                    line("tfs_lite_grpc_unread_bytes{SERVER}", "instance", "for the server"),
                    line("tfs_lite_grpc_unsent_bytes{SERVER}", "instance", "for clients"),
                ),
            ),
            Panel(
                "HTTP bodies in memory",
                "bytes",
                (
                    line("tfs_lite_http_body_bytes{SERVER}", "instance", "used"),
                    line("tfs_lite_http_body_room_bytes{SERVER}", "instance", "limit"),
                ),
            ),
            Panel(
                "Calls and bodies refused",
                "reqps",
                (
                    line(rate("tfs_lite_grpc_refused_streams_total", "SERVER"), "instance", "calls"),
                    (
                        "sum by (instance, reason) (rate(tfs_lite_http_bodies_refused_total{SERVER}[RATE]))",
                        "{{instance}} bodies: {{reason}}",
                    ),
                ),
            ),
        ),
    ),
)


def expressions() -> Iterator[str]:
    """Every expression, as Grafana gets it."""
    for _, panels in ROWS:
        for panel in panels:
            yield from (_filled(expression) for expression, _ in panel.lines)


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    return {
        "__inputs": [],
        "uid": "tfs-lite",
        "title": "tfs_lite",
        "tags": ["tfs_lite"],
        "schemaVersion": SCHEMA,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "panels": list(_panels()),
    }


def _variables() -> list[dict[str, Any]]:
    source: dict[str, Any] = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }
    queries = (
        ("job", "Job", "label_values(tfs_lite_ready, job)"),
        ("instance", "Server", 'label_values(tfs_lite_ready{job=~"$job"}, instance)'),
        ("model", "Model", f"label_values(tfs_lite_model_available{{{_SERVER}}}, model)"),
    )
    return [source, *(_variable(*query) for query in queries)]


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels() -> Iterator[dict[str, Any]]:
    top, number = 0, 0
    for title, panels in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": {"x": 0, "y": top, "w": WIDTH, "h": 1},
            "panels": [],
        }
        top, left, tall = top + 1, 0, 0
        for panel in panels:
            height = 4 if panel.kind == "stat" else HEIGHT
            if left + panel.columns > WIDTH:
                top, left, tall = top + tall, 0, 0
            number += 1
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.columns, "h": height})
            left, tall = left + panel.columns, max(tall, height)
        top += tall


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    options: dict[str, Any]
    if panel.kind == "stat":
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none", "textMode": "auto"}
    else:
        stacking = {"mode": "normal" if panel.stacked else "none"}
        defaults["custom"] = {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never", "stacking": stacking}
        options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.what,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": _filled(expression), "legendFormat": legend}
            for index, (expression, legend) in enumerate(panel.lines)
        ],
    }


def _filled(expression: str) -> str:
    for word, text in (("SERVER", _SERVER), ("MODEL", _MODEL), ("RATE", "$__rate_interval")):
        expression = expression.replace(word, text)
    return expression


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2) + "\n"


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

if __name__ == "__main__":
    TARGET.write_text(text())
