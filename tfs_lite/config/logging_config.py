"""The settings for which requests of a model are logged, and where: ``ModelConfig.logging_config``.

The shape is that of the message ``tensorflow.serving.LoggingConfig``. A model without it is not logged.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StrictFloat, StrictInt, StrictStr, ValidationInfo, field_validator

from tfs_lite.config.settings import URI, Settings, nearest, problem
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message

FILE_COLLECTORS = ("", "file", "tfrecord")
"""Values of ``type`` that mean files of TFRecords; there is no other collector."""
MAX_ATTRIBUTES = 3
"""All bits of ``SamplingConfig.Attributes``: request origin and request criticality."""
MAX_NAME_BYTES = 200
"""The most bytes of the prefix's last part. A time, a process and a number follow, and file systems end at 255."""


def _known_collector(name: str) -> str:
    if name not in FILE_COLLECTORS:
        raise problem(f'there is no log collector "{name}"{nearest(name, FILE_COLLECTORS[1:])}')
    return name


Rate = Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)]
"""The share of requests that is logged."""


class LogCollectorConfig(Settings):
    """The place of the records: files whose names begin with ``filename_prefix``, an absolute path."""

    type: Annotated[StrictStr, AfterValidator(_known_collector)] = ""
    filename_prefix: StrictStr

    @field_validator("filename_prefix")
    @classmethod
    def _beginning_of_a_file_name(cls, prefix: str, info: ValidationInfo) -> str:
        if not prefix:
            raise problem("must not be empty")
        if not prefix.isprintable():
            raise problem(f"{prefix!r:.80} has characters that cannot be printed")
        if URI.match(prefix):
            raise problem(f'"{prefix}" is a URI; request logs are written to local files')
        name = os.path.basename(prefix)
        if name in ("", ".", ".."):
            raise problem(f'"{prefix}" names a directory; add the beginning of a file name')
        if len(name.encode()) > MAX_NAME_BYTES:
            raise problem(f"the file name is longer than {MAX_NAME_BYTES} bytes: {name:.40}...")
        return _absolute(prefix, (info.context or {}).get("working_directory"))


class PerTaskSamplingConfig(Settings):
    """Another rate for some servers: those of data centre ``dc`` (empty for any) with this ``task_index`` (None for
    any)."""

    dc: StrictStr = ""
    task_index: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None
    sampling_rate: Rate = 0.0

    def matches(self, dc: str, task_index: int | None) -> bool:
        return self.dc in ("", dc) and self.task_index in (None, task_index)


class SamplingConfig(Settings):
    """The share of the requests that are logged. ``attributes`` is a bit mask that is noted in the records."""

    sampling_rate: Rate = 0.0
    attributes: Annotated[StrictInt, Field(ge=0, le=MAX_ATTRIBUTES)] = 0
    per_task_sampling_configs: tuple[PerTaskSamplingConfig, ...] = ()

    def rate(self, dc: str = "", task_index: int | None = None) -> float:
        """The rate of one server. One that has neither data centre nor number is meant by entries for any only."""
        own = (entry for entry in self.per_task_sampling_configs if entry.matches(dc, task_index))
        return next((entry.sampling_rate for entry in own), self.sampling_rate)


class LoggingSettings(Settings):
    """All of ``logging_config``. Equal settings of several models mean one log."""

    log_collector_config: LogCollectorConfig
    sampling_config: SamplingConfig = SamplingConfig()
    custom_logging_config: Any = None

    @field_validator("custom_logging_config")
    @classmethod
    def _none(cls, value: object) -> object:
        if value is not None:
            raise problem("is not supported; use log_collector_config and sampling_config")
        return value

    @property
    def filename_prefix(self) -> str:
        return self.log_collector_config.filename_prefix

    def to_proto(self) -> Message:
        """The LoggingConfig with these settings."""
        collector = self.log_collector_config
        message = messages.LoggingConfig()
        message.log_collector_config.type = collector.type
        message.log_collector_config.filename_prefix = collector.filename_prefix
        message.sampling_config.sampling_rate = self.sampling_config.sampling_rate
        message.sampling_config.attributes = self.sampling_config.attributes
        for entry in self.sampling_config.per_task_sampling_configs:
            message.sampling_config.per_task_sampling_configs.add(
                dc=entry.dc, task_index=entry.task_index, sampling_rate=entry.sampling_rate
            )
        return message


def _absolute(prefix: str, directory: Path | None) -> str:
    if prefix.startswith("/"):
        return prefix
    if directory is None:
        raise problem(f'expected an absolute path, got "{prefix}"')
    return str(directory.absolute() / prefix)
