"""Traces of requests: lines of Triton's form, or spans to a collector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfs_lite.operations.traces.exemplars import Exemplars
from tfs_lite.operations.traces.exporter import TraceCollector, TraceExporter, make_exporter
from tfs_lite.operations.traces.otlp import message_of_an_export
from tfs_lite.operations.traces.tracer import Tracer
from tfs_lite.server.feature import ServerFeature
from tfs_lite.serving.options import ServerOptions
from tfs_lite.serving.statistics.trace_config import OPENTELEMETRY, TraceConfig, read_trace_config

if TYPE_CHECKING:
    from tfs_lite.server.feature import Doors
    from tfs_lite.serving.server_core import ServerCore


def read_traces(options: ServerOptions) -> TraceConfig:
    """``--trace_config``. Raises ServingError for what is wrong with it, or where a library is not there."""
    config = read_trace_config(options.trace_config)
    if config.mode == OPENTELEMETRY:
        message_of_an_export()  # only to see whether it is there
    return config


class Traces(ServerFeature):
    """``exporter`` None: no spans are sent. The last spans leave when no request comes any more."""

    def __init__(self, core: ServerCore) -> None:
        self._core = core
        self._config = read_traces(core.options)
        self.exporter: TraceExporter | None = None
        self._tracer: Tracer | None = None

    def attach(self, doors: Doors) -> None:
        core, config = self._core, self._config
        if config.mode == OPENTELEMETRY:
            exemplars = Exemplars(core.metrics.requests, core.metrics.batches)
            self.exporter = make_exporter(config, on_exported=exemplars.add)
            if self.exporter is None:
                return
            core.registry.register(TraceCollector(self.exporter))
            self.exporter.start()
        self._tracer = Tracer(core.metrics.requests, core.statistics.settings, self.exporter, config.file)

    def close_doors(self) -> None:
        if self._tracer is not None:
            self._tracer.close()
        if self.exporter is not None:
            self.exporter.close()
