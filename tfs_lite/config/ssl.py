"""Who the gRPC server is and which clients it lets in: the file of ``--ssl_config_file``.

The shape is that of the message ``tensorflow.serving.SSLConfig``. Keys and certificates are the PEM texts themselves,
not names of files, and are tried out here: settings that exist can be served with.
"""

from __future__ import annotations

from pydantic import ConfigDict, SecretStr, StrictBool, StrictStr, field_validator, model_validator

from tfs_lite.config.settings import Settings, problem
from tfs_lite.core.pem import certificate_problem, key_problem


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
    def _somebody_to_trust(self) -> SSLConfig:
        if self.client_verify and not self.custom_ca:
            raise problem("needs custom_ca, the authorities whose clients are let in", "client_verify")
        return self
