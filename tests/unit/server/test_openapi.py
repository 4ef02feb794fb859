from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from tests.support.servers.in_process import api_description

DOCUMENT = orjson.loads(api_description())


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method in ("get", "post"):
            if method in item:
                yield path, item[method]


def references(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        if "$ref" in tree:
            yield tree["$ref"]
        for value in tree.values():
            yield from references(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from references(value)


def test_every_reference_leads_somewhere() -> None:
    for reference in set(references(DOCUMENT)):
        place = DOCUMENT
        for key in reference.removeprefix("#/").split("/"):
            place = place[key]


def test_everything_described_is_used() -> None:
    used = {reference.removeprefix("#/components/") for reference in references(DOCUMENT)}
    assert used == {f"{kind}/{name}" for kind, items in DOCUMENT["components"].items() for name in items}


def test_every_operation_has_a_name_of_its_own() -> None:
    names = [operation["operationId"] for _, operation in operations()]
    assert len(names) == len(set(names))


def test_parameters_of_a_path_are_those_in_its_braces() -> None:
    for path, item in DOCUMENT["paths"].items():
        named = {reference.rsplit("/", 1)[1] for reference in references(item.get("parameters", []))}
        assert named == {part.split("}")[0] for part in path.split("{")[1:]}
