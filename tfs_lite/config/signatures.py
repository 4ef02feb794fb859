"""The additional ways to call a model, and the requests that warm it up, as a model's config declares them.

Everything that can be checked without the model is checked here, so that a mistake is shown with its line: names that
come twice, outputs that a method has no use for, values that are no JSON. Whether the model has the tensors is found
out when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr, field_validator, model_validator

from tfs_lite.config.settings import Settings, nearest, problem
from tfs_lite.core.signature import CLASSIFY_METHOD, METHODS, PREDICT_METHOD, REGRESS_METHOD
from tfs_lite.core.status import ServingError
from tfs_lite.protocols.json.text import Json
from tfs_lite.protocols.runs import parse_default

CLASSES, SCORES = "classes", "scores"
"""The names of classify's outputs."""
REGRESSED = "outputs"
"""The name of regress's output."""
MAX_WARMUP_REQUESTS = 1000
Runs = Annotated[StrictInt, Field(ge=0, le=MAX_WARMUP_REQUESTS), AfterValidator(lambda number: number or 1)]
OUTPUTS_OF_METHOD = {CLASSIFY_METHOD: (CLASSES, SCORES), REGRESS_METHOD: (REGRESSED,)}
"""The names that each method gives its outputs; predict has no names of its own."""


def _method(name: str) -> str:
    """The long form of a method's name."""
    long = METHODS.get(name or "predict", name)
    if long not in METHODS.values():
        raise problem(f'"{name}" is no method{nearest(name, METHODS)}')
    return long


def _json_text(value: object) -> object:
    """A text is JSON already; what YAML read as something else becomes JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        raise problem(f"{type(value).__name__} values have no form in JSON; write JSON text in quotes") from None


def _parsed(text: str) -> Json:
    try:
        return parse_default(text)
    except ServingError as error:
        raise problem(f"{error}; a text needs quotes of its own, such as '\"text\"'") from None


def _any_json(text: str) -> str:
    _parsed(text)
    return text


def _json_object(text: str) -> str:
    if not isinstance(_parsed(text), dict):
        raise problem(f"expected a JSON object, as in the body of a predict request, got {text:.80}")
    return text


def file_below(name: str) -> str:
    """A validator: a relative path that does not climb."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise problem(f'"{name}" leads out of the model\'s directory; name a file in it')
    return name


Name = Annotated[StrictStr, Field(min_length=1)]
JsonText = Annotated[StrictStr, BeforeValidator(_json_text), AfterValidator(_any_json)]
JsonObjectText = Annotated[StrictStr, BeforeValidator(_json_text), AfterValidator(_json_object)]


class ModelSignature(Settings):
    """One way to call the model in addition to its own. Clients use the names on the left of ``inputs`` and
    ``outputs``, the model has those on the right."""

    method_name: Annotated[StrictStr, AfterValidator(_method)] = PREDICT_METHOD
    """Always the long form, ``tensorflow/serving/...``; ``predict``, ``classify`` and ``regress`` are short for it."""
    inputs: Mapping[Name, Name] = {}
    """Empty: the model's own inputs. Otherwise each of them stands here exactly once."""
    outputs: Mapping[Name, Name] = {}
    """Empty: all outputs (predict), ``classes`` and ``scores`` or the only one (classify), ``outputs`` or the only one
    (regress)."""
    defaults: Mapping[Name, JsonText] = {}
    """The defaults by the client's name of an input: the JSON of one row, used when a request leaves the input out.
    YAML may write the value itself; a text, also in YAML, is read as JSON."""
    label_filename: Annotated[StrictStr, AfterValidator(file_below)] = ""
    """A file of the version, or beside it, with one class label per line. Only for classify."""

    @field_validator("inputs")
    @classmethod
    def _each_once(cls, inputs: Mapping[str, str]) -> Mapping[str, str]:
        taken: dict[str, str] = {}
        for client, model in inputs.items():
            if model in taken:
                raise problem(f'"{taken[model]}" and "{client}" both feed the input "{model}" of the model', client)
            taken[model] = client
        return inputs

    @model_validator(mode="after")
    def _outputs_of_the_method(self) -> ModelSignature:
        known = OUTPUTS_OF_METHOD.get(self.method_name, ())
        for client in self.outputs:
            if known and client not in known:
                raise problem(
                    f'"{client}" is no output of {short_method(self.method_name)}; it has {" and ".join(known)}',
                    "outputs",
                    client,
                )
        return self

    @model_validator(mode="after")
    def _labels_belong_to_scores(self) -> ModelSignature:
        if not self.label_filename:
            return self
        if self.method_name != CLASSIFY_METHOD:
            raise problem(f"labels are for classify, not for {short_method(self.method_name)}", "label_filename")
        if CLASSES in self.outputs:
            raise problem(f"the output {CLASSES} has the labels already; keep one of both", "label_filename")
        return self

    @model_validator(mode="after")
    def _defaults_of_inputs(self) -> ModelSignature:
        for client in self.defaults if self.inputs else ():
            if client not in self.inputs:
                raise problem(f"there is no such input{nearest(client, self.inputs)}", "defaults", client)
        return self


class WarmupRequest(Settings):
    """A request that is answered, ``count`` times, before a version becomes available."""

    body: JsonObjectText
    """The JSON text of a ``:predict`` body. YAML may write the object itself."""
    count: Runs = 1
    """0 counts as 1."""


def short_method(method_name: str) -> str:
    """``classify`` for ``tensorflow/serving/classify``."""
    return method_name.removeprefix("tensorflow/serving/")


def bounded(what: str) -> AfterValidator:
    """Bounds the runs of all items together, which are those of one model."""

    def check(items: tuple[Any, ...]) -> tuple[Any, ...]:
        for index, total in enumerate(accumulate(item.count for item in items)):
            if total > MAX_WARMUP_REQUESTS:
                raise problem(f"more than {MAX_WARMUP_REQUESTS} {what} in all", index)
        return items

    return AfterValidator(check)
