"""Whether and where the metrics page is: the file of ``--monitoring_config_file``.

The shape is that of the message ``tensorflow.serving.MonitoringConfig``.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, StrictBool, StrictStr

from tfs_lite.config.settings import Settings, problem

DEFAULT_PATH = "/monitoring/prometheus/metrics"
_TAKEN = re.compile(r"/$|/(?:v1|v2|openai|livez|readyz|startupz|openapi\.json)(?:/|$)", re.IGNORECASE)
_PLAIN = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*")


def _path(path: str) -> str:
    if not path:
        return DEFAULT_PATH
    if not path.startswith("/"):
        raise problem(f'must start with "/"; got "{path:.80}"')
    if not _PLAIN.fullmatch(path):
        raise problem(f'"{path:.80}" has characters that the path of a URL cannot hold as they are')
    if _TAKEN.match(path):
        raise problem(f'"{path:.80}" is where the server answers something else')
    return path


class PrometheusConfig(Settings):
    """The page in Prometheus' text format."""

    enable: StrictBool = False
    path: Annotated[StrictStr, AfterValidator(_path)] = DEFAULT_PATH
    """Of the URL, on the HTTP port. Empty: the default."""


class MonitoringConfig(Settings):
    """The whole file."""

    prometheus_config: PrometheusConfig = PrometheusConfig()

    @property
    def prometheus_path(self) -> str | None:
        """Where the page is; None if there is to be none."""
        return self.prometheus_config.path if self.prometheus_config.enable else None
