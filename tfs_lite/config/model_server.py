"""The models that are served: the settings of ``--model_config_file`` and of a reload.

The shape is that of the message ``tensorflow.serving.ModelServerConfig``, in text format and YAML alike. One file
is one wish: it replaces what was served before.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StrictInt, StrictStr, ValidationInfo, field_validator, model_validator

from tfs_lite.config.logging_config import LoggingSettings
from tfs_lite.config.settings import URI, Document, Settings, build, problem
from tfs_lite.config.syntax import to_plain
from tfs_lite.core.manifest import is_text
from tfs_lite.core.servable import MAX_VERSION
from tfs_lite.core.status import printable
from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message

FIND_OUT = ("", "tensorflow")
"""Values of ``model_platform`` that leave the choice to what lies in the version directory."""


def _addressable(name: str) -> str:
    """Names and labels stand in URLs between ``/`` and ``:``."""
    if not name:
        raise problem("must not be empty")
    if "/" in name or ":" in name:
        raise problem(f'"{name}" has "/" or ":", which a URL cannot hold')
    if not is_text(name):
        raise problem(f'"{printable(name)}" is no UTF-8 text')
    return name


Name = Annotated[StrictStr, AfterValidator(_addressable)]
Version = Annotated[StrictInt, Field(ge=0, le=MAX_VERSION)]


class Latest(Settings):
    """The highest ``num_versions`` numbers found. 0 counts as 1."""

    num_versions: Annotated[StrictInt, Field(ge=0), AfterValidator(lambda number: number or 1)] = 1


class All(Settings):
    """Every version found."""


class Specific(Settings):
    """Exactly these, where they exist."""

    versions: tuple[Version, ...] = ()


class VersionPolicy(Settings):
    """The versions of a model that are wanted; at most one field is set."""

    latest: Latest | None = None
    all: All | None = None
    specific: Specific | None = None

    @model_validator(mode="after")
    def _one_choice(self) -> VersionPolicy:
        chosen = [name for name in ("latest", "all", "specific") if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise problem(f"{' and '.join(chosen)} exclude each other", chosen[-1])
        return self

    @property
    def choice(self) -> Latest | All | Specific:
        return self.latest or self.all or self.specific or Latest()


class ModelConfig(Settings):
    """One model: its name for clients, and the directory that holds its versions."""

    name: Name
    base_path: StrictStr
    model_type: Literal["MODEL_TYPE_UNSPECIFIED", "TENSORFLOW", "OTHER"] | None = None
    model_platform: StrictStr = ""
    model_version_policy: VersionPolicy = VersionPolicy()
    version_labels: Mapping[Name, Version] = {}
    logging_config: LoggingSettings | None = None

    @field_validator("base_path")
    @classmethod
    def _absolute(cls, path: str, info: ValidationInfo) -> str:
        if not path:
            raise problem("must not be empty")
        if "\0" in path:
            raise problem("must not hold a NUL character")
        if path.startswith("/") or URI.match(path):
            return path
        directory: Path | None = (info.context or {}).get("working_directory")
        if directory is None:
            raise problem(f'Expected model {info.data.get("name", "")} to have an absolute path or URI; got "{path}"')
        return str(directory.absolute() / path)

    @field_validator("model_type")
    @classmethod
    def _no_other_type(cls, model_type: str | None) -> str | None:
        if model_type == "OTHER":
            raise problem("OTHER is not supported; name a model_platform, or leave both out")
        return model_type

    @field_validator("model_platform")
    @classmethod
    def _supported(cls, platform: str, info: ValidationInfo) -> str:
        platforms: Collection[str] | None = (info.context or {}).get("platforms")
        if platforms is not None and platform not in (*FIND_OUT, *platforms):
            raise problem(unsupported_platform(info.data.get("name", ""), platform, platforms))
        return platform

    @model_validator(mode="after")
    def _one_platform(self) -> ModelConfig:
        if self.model_type == "TENSORFLOW" and self.model_platform:
            raise problem("Illegal setting both model_type and model_platform; keep model_platform", "model_type")
        return self

    @property
    def platform(self) -> str | None:
        """The platform asked for; None leaves it to the artefact."""
        return None if self.model_platform in FIND_OUT else self.model_platform


class ModelConfigList(Settings):
    """All models. An empty list is a wish too: nothing is served."""

    config: tuple[ModelConfig, ...] = ()

    @model_validator(mode="after")
    def _distinct_names(self) -> ModelConfigList:
        seen = set[str]()
        for index, model in enumerate(self.config):
            if model.name in seen:
                raise problem(f"Illegal to list model {model.name} multiple times", "config", index, "name")
            seen.add(model.name)
        return self


class ModelServerConfig(Settings):
    """The whole file, or the body of a reload."""

    model_config_list: ModelConfigList

    @model_validator(mode="before")
    @classmethod
    def _list_only(cls, data: Any) -> Any:
        if data == {}:
            expected = "expected model_config_list { config { name: ... base_path: ... } }"
            raise problem(f"it is empty: {expected} (Only ModelConfigList is currently supported)")
        if isinstance(data, dict) and "custom_model_config" in data:
            raise problem("Only ModelConfigList is currently supported: expected model_config_list", *data)
        return data

    @property
    def models(self) -> tuple[ModelConfig, ...]:
        return self.model_config_list.config

    def only(self, model: ModelConfig) -> ModelServerConfig:
        """A config with this model alone."""
        return ModelServerConfig(model_config_list=ModelConfigList(config=(model,)))

    def to_proto(self) -> Message:
        """The message that a reload carries."""
        message = messages.ModelServerConfig()
        message.model_config_list.SetInParent()
        for model in self.models:
            _fill(message.model_config_list.config.add(), model)
        return message


def _quoted(text: str) -> str:
    return f'"{text}"'


def unsupported_platform(model: str, platform: str, platforms: Collection[str]) -> str:
    """The words for a platform that is not one of the server's ``platforms``."""
    kinds = sorted(each for each in platforms if platform and each.startswith(f"{platform}_"))
    close = kinds or difflib.get_close_matches(platform, platforms, n=1)
    hint = (
        f"did you mean {' or '.join(map(_quoted, close))}?"
        if close
        else f"this server has: {', '.join(sorted(platforms))}"
    )
    return f'model {model} requests unsupported platform "{platform}"; {hint}'


def one_model(name: str, base_path: str, working_directory: Path) -> ModelServerConfig:
    """The config of ``--model_name`` and ``--model_base_path``: one model, the latest version."""
    data = {"model_config_list": {"config": [{"name": name, "base_path": base_path}]}}
    return build(ModelServerConfig, Document(data), working_directory)


def from_proto(message: Message, working_directory: Path | None = None) -> ModelServerConfig:
    """The settings in a reload's message. INVALID_ARGUMENT names the field that is wrong."""
    return build(ModelServerConfig, Document(to_plain(message)), working_directory)


def _fill(message: Message, model: ModelConfig) -> None:
    message.name = model.name
    message.base_path = model.base_path
    message.model_platform = model.model_platform
    message.version_labels.update(model.version_labels)
    if model.logging_config is not None:
        message.logging_config.CopyFrom(model.logging_config.to_proto())
    policy = message.model_version_policy
    match model.model_version_policy.choice:
        case Latest(num_versions=number):
            policy.latest.num_versions = number
        case All():
            policy.all.SetInParent()
        case Specific(versions=versions):
            policy.specific.SetInParent()
            policy.specific.versions.extend(versions)
