"""A fuzzer reads the API's description and tries every route: each answer must be as described, and none a crash."""

from __future__ import annotations

from typing import Any

import httpx
import orjson
import ormsgpack
import pytest
import schemathesis
from hypothesis import HealthCheck, seed, settings
from schemathesis.checks import load_all_checks
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance, unsupported_method

from tests.support.profiles import is_soak
from tests.support.servers.in_process import api_description

DESCRIPTION = api_description()
SEED = 20
EXAMPLES = 30 if is_soak() else 2
"""Random ones for each route, beside those that follow from the description."""


def narrowed() -> dict[str, Any]:
    """The description with one model's name and inputs among the things to try."""
    tree: dict[str, Any] = orjson.loads(DESCRIPTION)
    components = tree["components"]
    components["parameters"]["model"]["schema"] = {"anyOf": [{"const": "steady"}, {"type": "string", "minLength": 1}]}
    row = {"type": "array", "items": {"type": "number"}, "minItems": 3, "maxItems": 3}
    fitting = {"type": "array", "items": row, "minItems": 1}
    for choice, key in zip(components["schemas"]["PredictBody"]["oneOf"], ("instances", "inputs"), strict=True):
        known = choice["properties"][key]
        choice["properties"][key] = {"anyOf": [fitting, known]}
    return tree


load_all_checks()
schema = schemathesis.openapi.from_dict(narrowed())
schema.config.generation.update(modes=list(schemathesis.GenerationMode), max_examples=EXAMPLES)


@schemathesis.serializer("application/msgpack")
def packed(context: Any, value: Any) -> bytes:
    try:
        return ormsgpack.packb(value)
    except TypeError:  # msgpack ends at 64 bits
        return b"\xc1"


@schemathesis.deserializer("application/msgpack")
def unpacked(context: Any, response: Any) -> Any:
    return ormsgpack.unpackb(response.content)


@pytest.fixture(scope="session")
def url(repository) -> str:
    return f"http://127.0.0.1:{repository.server.http_port}"


def test_description_is_the_one_that_is_tried(url):
    assert httpx.get(f"{url}/openapi.json").content == DESCRIPTION


@schema.exclude(path="/dashboard/feed").parametrize()  # it has no end; its own tests read it
@settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)
@seed(SEED)
def test_every_answer_is_as_described(case, url):
    # Which values a model takes is not in the description; upstream has its own ways with methods.
    upstreams = (unsupported_method,) if case.operation.path.startswith(("/v1/", "/monitoring/")) else ()
    # Every name has an explanation, also one that no model can have.
    explained = (negative_data_rejection,) if case.operation.path.endswith((":explain", ":failures")) else ()
    case.call_and_validate(base_url=url, excluded_checks=[positive_data_acceptance, *upstreams, *explained])
