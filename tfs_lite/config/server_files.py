"""The small files that flags of the server name: TLS, monitoring, batching.

Each is text format or YAML, decided by its name. ``parse_*`` take a text and the name for messages. ``read_*`` take a
file below ``working_directory`` and show its path as given. Mistakes raise INVALID_ARGUMENT with file, line, column
and field; a file that is not there NOT_FOUND; one that cannot be read FAILED_PRECONDITION.

The shapes are those of TensorFlow Serving's messages: ``MonitoringConfig`` says whether and where the metrics page is;
``SSLConfig`` says with which key and certificate the gRPC server identifies itself and which clients it lets in. Keys
and certificates are the PEM texts themselves, not names of files, and are tried out here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ConfigDict, SecretStr, StrictBool, StrictStr, field_validator, model_validator

from tfs_lite.config.batching import BatchingParameters
from tfs_lite.config.settings import Settings, build, problem
from tfs_lite.config.text import read_document, read_text
from tfs_lite.core.status import ServingError
from tfs_lite.protocols import messages
from tfs_lite.transport.pem import certificate_problem, key_problem

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
    """The text of a file that is read at the start, and so may be a pipe: ``--ssl_config_file=<(...)``."""
    return read_text((working_directory or Path()) / path, path, takes_pipe=True)


def _without_secrets(message: str, name: str) -> str:
    """``message`` with everything but plain words and the file's name left out."""
    places = rf"(?:^|(?<=; )){re.escape(name)}(?=:)"
    return name.join(_RUN.sub(_keep_word, piece) for piece in re.split(places, message))


def _keep_word(run: re.Match[str]) -> str:
    return run[0] if _WORD.fullmatch(run[0]) else "[hidden]"


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
    """The path of the URL, on the HTTP port. Empty: the default."""


class MonitoringConfig(Settings):
    """The whole file."""

    prometheus_config: PrometheusConfig = PrometheusConfig()

    @property
    def prometheus_path(self) -> str | None:
        """The path of the page; None if there is to be none."""
        return self.prometheus_config.path if self.prometheus_config.enable else None


class SSLConfig(Settings):
    """The key is hidden wherever the settings are printed."""

    model_config = ConfigDict(hide_input_in_errors=True)

    server_key: SecretStr
    server_cert: StrictStr
    """The server's certificate, then those that lead to an authority that clients know."""
    custom_ca: StrictStr = ""
    """The authorities whose certificates clients must have; only used with ``client_verify``."""
    client_verify: StrictBool = False
    """Clients without a certificate of ``custom_ca`` are refused."""

    @field_validator("server_cert", "custom_ca")
    @classmethod
    def _certificates(cls, pem: str) -> str:
        if wrong := certificate_problem(pem.encode()):
            raise problem(wrong)
        return pem

    @model_validator(mode="after")
    def _key_of_the_certificate(self) -> SSLConfig:
        if wrong := key_problem(self.server_key.get_secret_value().encode(), self.server_cert.encode()):
            raise problem(wrong, "server_key")
        return self

    @model_validator(mode="after")
    def _trusts_a_client_authority(self) -> SSLConfig:
        if self.client_verify and not self.custom_ca:
            raise problem("needs custom_ca, the authorities whose clients are let in", "client_verify")
        return self
