"""How a model is guarded against a bad version: the ``guard.*`` among the ``parameters`` of its config.

    parameters { key: "guard.max_changed" value { string_value: "0.02" } }

They stand among the parameters because every client and every file of Triton's form can carry those there. The settings
of a model have them as a field of their own, so that no platform takes them for parameters of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from tfs_lite.config.settings import Flag, Settings, nearest, problem

PREFIX = "guard."
MIN_BAKE_SECONDS, MAX_BAKE_SECONDS = 60, 86_400


def parameter_text(value: object) -> object:
    """A parameter is a text. Messages wrap it in ``string_value``; YAML may write numbers and booleans bare."""
    if isinstance(value, dict) and set(value) <= {"string_value"}:
        value = value.get("string_value", "")
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def check_bake_seconds(seconds: int) -> int:
    """A validator of the length of a trial in seconds."""
    if seconds and not MIN_BAKE_SECONDS <= seconds <= MAX_BAKE_SECONDS:
        raise problem(f"must be 0 (no trial) or from {MIN_BAKE_SECONDS} to {MAX_BAKE_SECONDS}; got {seconds}")
    return seconds


Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Tolerance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GuardSettings(Settings):
    """What is asked of a new version before it counts. None means what the flags of the server say."""

    bake_seconds: Annotated[int, AfterValidator(check_bake_seconds)] | None = None
    """Seconds for which a new version is on trial; 0: there is no trial."""
    bake_requests: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    """The answers of a new version that its trial waits for as well."""
    bake_verdict: Literal["revert", "tell"] | None = None
    """Whether a bad version is taken back, or only told of."""
    replay: Flag = True
    """Whether recorded answers (``replay.tfrecord``) are compared when a version is loaded."""
    max_changed: Share | None = None
    """The largest share of recorded answers that may have changed. None: changed answers are only told of."""
    rtol: Tolerance = 0.01
    """A number has changed if it differs by more than ``atol`` + ``rtol`` times the recorded one."""
    atol: Tolerance = 0.0001
    signature: Literal["same", "any"] = "same"
    """Whether a new version has to take and give what the one does that answers now."""


def with_guard_apart(data: Any) -> Any:
    """A validator: the fields of a model's config, with the parameters ``guard.*`` as the field ``guard``. Raises a
    :func:`~tfs_lite.config.settings.problem` at the parameter that is wrong."""
    parameters = data.get("parameters") if isinstance(data, Mapping) else None
    if not isinstance(parameters, Mapping):
        return data
    names = [key for key in parameters if isinstance(key, str) and key.startswith(PREFIX)]
    if not names:
        return data
    given = {key.removeprefix(PREFIX): parameter_text(parameters[key]) for key in names}
    rest = {key: value for key, value in parameters.items() if key not in names}
    return {**data, "parameters": rest, "guard": _guard_of(given)}


def guard_parameters(guard: Mapping[str, Any]) -> dict[str, str]:
    """The settings that were given, by their names as parameters."""
    return {PREFIX + name: str(parameter_text(value)) for name, value in guard.items()}


def _guard_of(given: Mapping[str, object]) -> GuardSettings:
    for name in given:
        if name not in GuardSettings.model_fields:
            known = (PREFIX + field for field in GuardSettings.model_fields)
            raise problem(f"unknown parameter{nearest(PREFIX + name, known)}", "parameters", PREFIX + name)
    try:
        return GuardSettings.model_validate(given)
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        name = str(detail["loc"][0])
        is_own = detail["type"] == "settings"
        message = detail["msg"] if is_own else f"{detail['msg']}, got {given[name]!r:.80}"
        raise problem(message, "parameters", PREFIX + name) from None
