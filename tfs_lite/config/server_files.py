"""The small files that flags of the server name: TLS, monitoring, batching.

Each is text format or YAML, decided by its name. ``parse_*`` take a text and the name for messages. ``read_*`` take a
file below ``working_directory`` and show its path as given. Mistakes raise INVALID_ARGUMENT with file, line, column
and field; a file that is not there NOT_FOUND; one that cannot be read FAILED_PRECONDITION.
"""

from __future__ import annotations

import re
from pathlib import Path

from tfs_lite.config.batching import BatchingParameters
from tfs_lite.config.monitoring import MonitoringConfig
from tfs_lite.config.settings import build
from tfs_lite.config.ssl import SSLConfig
from tfs_lite.config.text import read_document, read_text
from tfs_lite.core.status import ServingError
from tfs_lite.protocols import messages

_RUN = re.compile(r"[A-Za-z0-9+/=_-]{6,}")
"""Encoded keys are long runs of these."""
_WORD = re.compile(r"[A-Za-z]?[a-z_]{5,29}")


def parse_batching_parameters(text: str, name: str) -> BatchingParameters:
    return build(BatchingParameters, read_document(text, name, messages.BatchingParameters))


def read_batching_parameters(path: str, working_directory: Path | None = None) -> BatchingParameters:
    return parse_batching_parameters(_text(path, working_directory), path)


def parse_monitoring_config(text: str, name: str) -> MonitoringConfig:
    return build(MonitoringConfig, read_document(text, name, messages.MonitoringConfig))


def read_monitoring_config(path: str, working_directory: Path | None = None) -> MonitoringConfig:
    return parse_monitoring_config(_text(path, working_directory), path)


def parse_ssl_config(text: str, name: str) -> SSLConfig:
    """No message holds any part of a key, whatever is wrong with the text."""
    try:
        return build(SSLConfig, read_document(text, name, messages.SSLConfig))
    except ServingError as error:
        raise ServingError(error.code, _without_secrets(str(error), name)) from None


def read_ssl_config(path: str, working_directory: Path | None = None) -> SSLConfig:
    return parse_ssl_config(_text(path, working_directory), path)


def _text(path: str, working_directory: Path | None) -> str:
    return read_text((working_directory or Path()) / path, path)


def _without_secrets(message: str, name: str) -> str:
    """``message`` with everything but plain words and the file's name left out."""
    places = rf"(?:^|(?<=; )){re.escape(name)}(?=:)"
    return name.join(_RUN.sub(_keep_word, piece) for piece in re.split(places, message))


def _keep_word(run: re.Match[str]) -> str:
    return run[0] if _WORD.fullmatch(run[0]) else "[hidden]"
