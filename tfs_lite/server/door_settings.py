"""What the doors need to know before they open: the files and texts that options name, read and checked once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfs_lite.config.monitoring import DEFAULT_PATH
from tfs_lite.config.server_files import read_monitoring_config
from tfs_lite.server.grpc_arguments import parse_grpc_arguments
from tfs_lite.server.grpc_choice import settled
from tfs_lite.server.options import ServerOptions
from tfs_lite.server.tls import TlsFile


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """``metrics_path`` is that of the page with TensorFlow Serving's names; None: there is none."""

    grpc_arguments: tuple[tuple[str, int | str], ...]
    tls: TlsFile | None
    metrics_path: str | None

    @classmethod
    def read(cls, options: ServerOptions) -> DoorSettings:
        """Raises ServingError that names flag or file and what is wrong."""
        return cls(
            settled(options.grpc_server, parse_grpc_arguments(options.grpc_channel_arguments)),
            TlsFile(options.ssl_config_file) if options.ssl_config_file else None,
            _metrics_path(options.monitoring_config_file),
        )


def _metrics_path(monitoring_config_file: str) -> str | None:
    """The page is on unless a file moves it or turns it off."""
    if not monitoring_config_file:
        return DEFAULT_PATH
    return read_monitoring_config(monitoring_config_file, Path.cwd()).prometheus_path
