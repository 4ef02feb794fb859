from __future__ import annotations

import pytest

from tfs_lite.core.servable import ModelRef
from tfs_lite.server.tensorflow.rest_routes import Action, parse_path
from tfs_lite.testing.errors import refusal

GOOD = [
    ("GET", "/v1/models", Action.LIST, ModelRef("")),
    ("GET", "/V1/Models", Action.LIST, ModelRef("")),
    ("GET", "/v1/models/m", Action.STATUS, ModelRef("m")),
    ("GET", "/v1/models/m?verbose=1", Action.STATUS, ModelRef("m?verbose=1")),
    ("GET", "/v1/models/m/labels/stable?x", Action.STATUS, ModelRef("m", None, "stable?x")),
    ("GET", "/v1/models/m/versions/7", Action.STATUS, ModelRef("m", 7)),
    ("GET", "/v1/models/m/versions/0007", Action.STATUS, ModelRef("m", 7)),
    ("GET", "/v1/models/m/versions/9223372036854775807", Action.STATUS, ModelRef("m", 2**63 - 1)),
    ("GET", "/v1/models/m/labels/stable", Action.STATUS, ModelRef("m", None, "stable")),
    ("GET", "/v1/models/m/metadata", Action.METADATA, ModelRef("m")),
    ("GET", "/v1/models/m/versions/7/metadata", Action.METADATA, ModelRef("m", 7)),
    ("GET", "/v1/models/metadata", Action.STATUS, ModelRef("metadata")),
    ("GET", "/V1/Models/m", Action.STATUS, ModelRef("m")),
    ("GET", "/v1/models/a%2Fb%3Ac+d", Action.STATUS, ModelRef("a/b:c+d")),
    ("POST", "/v1/models/m:predict", Action.PREDICT, ModelRef("m")),
    ("POST", "/V1/MODELS/m:predict", Action.PREDICT, ModelRef("m")),
    ("POST", "/v1/models/m%21:predict", Action.PREDICT, ModelRef("m!")),
    ("POST", "/v1/models/m/versions/7:classify", Action.CLASSIFY, ModelRef("m", 7)),
    ("POST", "/v1/models/m/labels/a%20b:regress", Action.REGRESS, ModelRef("m", None, "a b")),
]
MALFORMED = {
    "GET": [
        *("/v1/models/m/", "/v1/models/", "/v1/models?x", "/v1/models/m/metadata?x"),
        *("/v1/models/m/versions/7?x", "/v1/models/m/versions/7/", "/v1/models/m/label/x"),
        *("/v1/models/m/labels/", "/v1/models/m:predict", "/v1/models/m/version/5"),
        *("/v1/models/m/versions/five", "/v1/models/m/versions/-1", "/v1/models/m/versions/1/labels/a"),
        "/v1/nothing",
    ],
    "POST": [
        *("/v1/models", "/v1/models/m", "/v1/models/m:PREDICT", "/v1/models/m:predict?x=1"),
        *("/v1/models/m:predict/", "/v1/models/:predict", "/v1/models/m/versions/1/labels/a:predict"),
        *("/v1/models/m/metadata", "/v1/models/m:explain"),
    ],
    **{method: ["/v1/models/m"] for method in ("PUT", "PATCH", "DELETE", "HEAD")},
}


@pytest.mark.parametrize(("method", "path", "action", "ref"), GOOD)
def test_path_of_the_grammar_is_read(method: str, path: str, action: Action, ref: ModelRef) -> None:
    assert parse_path(method, path) == (action, ref)


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, paths in MALFORMED.items() for path in paths])
def test_everything_else_is_malformed(method: str, path: str) -> None:
    assert f"Malformed request: {method} {path}" in refusal(parse_path, method, path)


@pytest.mark.parametrize("digits", ["9223372036854775808", "9" * 5000])
def test_version_beyond_int64_is_refused(digits: str) -> None:
    assert "Failed to convert version" in refusal(parse_path, "GET", f"/v1/models/m/versions/{digits}")


def test_zeros_before_a_version_are_only_zeros() -> None:
    assert parse_path("GET", f"/v1/models/m/versions/{'0' * 5000}7") == (Action.STATUS, ModelRef("m", 7))
    assert parse_path("GET", "/v1/models/m/versions/00") == (Action.STATUS, ModelRef("m", 0))
