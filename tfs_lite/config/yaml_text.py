"""YAML -> plain data, with the place of every field.

The safe loader only: a config makes no objects. Two freedoms of YAML are taken away because they hide mistakes: a key
that comes twice, and a key without a value (write ``{}`` for an empty block). Aliases, deep nesting and very long
numbers are refused, so that a small file can neither unfold into a large one nor take long to read.
"""

from __future__ import annotations

from typing import Any

import yaml

from tfs_lite.config.settings import Document, FieldPath, config_error
from tfs_lite.core.status import ServingError

_NULL = "tag:yaml.org,2002:null"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
MAX_DEPTH = 100
MAX_NUMBER_LENGTH = 400


def read_yaml(text: str, name: str) -> Document:
    """``text`` as plain data with positions. Any mistake raises INVALID_ARGUMENT with ``name``, line and column."""
    positions: dict[FieldPath, tuple[int, int]] = {(): (1, 1)}
    try:
        loader = yaml.SafeLoader(text)
        _check_events(text, name)
        node = loader.get_single_node()
        if node is None:
            return Document({}, name, positions)
        _walk(node, (), name, positions)
        return Document(loader.construct_document(node), name, positions)
    except yaml.MarkedYAMLError as error:
        place = _place(error.problem_mark or error.context_mark)
        raise config_error(name, *place, error.problem or error.context or "invalid YAML") from None
    except yaml.reader.ReaderError as error:
        raise config_error(name, text.count("\n", 0, error.position) + 1, 1, error.reason) from None
    except ValueError as error:
        raise config_error(name, 1, 1, f"a value cannot be read: {error}") from None
    except (LookupError, AttributeError, TypeError):
        raise config_error(name, 1, 1, "a value cannot be read: it does not have the form of its tag") from None


def _check_events(text: str, name: str) -> None:
    """Whether the text is worth building anything from."""
    depth = 0
    for event in yaml.parse(text, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise config_error(name, *_place(event.start_mark), "aliases are not allowed")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise config_error(name, 1, 1, "the YAML is nested too deeply")


def _walk(node: yaml.Node, path: FieldPath, name: str, positions: dict[FieldPath, tuple[int, int]]) -> None:
    if node.tag in _NUMBERS and len(node.value) > MAX_NUMBER_LENGTH:
        raise _at(node, name, f"a value cannot be read: a number of more than {MAX_NUMBER_LENGTH} characters")
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _walk(key, (*path, "?"), name, {})
            below = (*path, key.value if isinstance(key, yaml.ScalarNode) else "?")
            if below in positions:
                raise _at(key, name, f'"{below[-1]}" comes twice')
            if value.tag == _NULL:
                raise _at(key, name, f'"{below[-1]}" has no value; write {{}} for an empty block')
            positions[below] = _place(key.start_mark)
            _walk(value, below, name, positions)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            positions[(*path, index)] = _place(item.start_mark)
            _walk(item, (*path, index), name, positions)


def _at(node: yaml.Node, name: str, message: str) -> ServingError:
    return config_error(name, *_place(node.start_mark), message)


def _place(mark: Any) -> tuple[int, int]:
    """Line and column of a mark of either parser of the library, counted from 1."""
    return (mark.line + 1, mark.column + 1) if mark else (1, 1)
