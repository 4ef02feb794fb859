"""Protobuf's text format -> message, and message -> plain data, with the place of every field.

protobuf's own parser reads the text and reports syntax errors, wrong types and unknown fields with line and column.
What it leaves behind has no positions; ``proto_positions`` finds those in a second walk over the text.
"""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor import FieldDescriptor

from tfs_lite.config.proto_positions import locate
from tfs_lite.config.settings import Document, config_error, format_path, nearest
from tfs_lite.protocols.descriptors import POOL
from tfs_lite.protocols.messages import Message

_UNKNOWN_FIELD = re.compile(r'Message type "(?P<message>[\w.]+)" has no field named "(?P<field>\w+)"')
_TEXT_OR_COMMENT = re.compile(r"""#.*$|(["'])(?:(?!\1)[^\n\\]|\\.)*?(?:\1|\\?$)""", re.MULTILINE)
_ESCAPE = re.compile(r"""\\(?:(?P<bad>[4-7][0-7]{2}|[^abfnrtv\\'"xuU0-7])|.)""")
_PREFIX = re.compile(r"^\d+:\d+ : ('.*': )?", re.DOTALL)


def parse_proto_text(text: str, message_class: Any, name: str) -> Message:
    """The message that ``text`` spells. Any mistake raises INVALID_ARGUMENT with ``name``, line and column."""
    message = message_class()
    _check_escapes(text, name)
    try:
        text_format.Parse(text, message, descriptor_pool=POOL)
    except text_format.ParseError as error:
        raise config_error(name, error.GetLine() or 1, error.GetColumn() or 1, _explain(str(error))) from None
    except ValueError as error:
        raise config_error(name, 1, 1, f"a value cannot be read: {error}") from None
    return message


def read_proto_text(text: str, message_class: Any, name: str) -> Document:
    """``text`` as plain data with positions."""
    try:
        message = parse_proto_text(text, message_class, name)
        return Document(to_plain(message), name, locate(text, message_class.DESCRIPTOR))
    except RecursionError:
        raise config_error(name, 1, 1, "the text is nested too deeply") from None


def check_keys(document: Document) -> None:
    """INVALID_ARGUMENT if a map has two entries with one key. The parser keeps the last, which hides mistakes.

    Positions tell the entries of a map by number, and the last one of each key by key. No message read here has a field
    called ``key`` elsewhere.
    """
    positions = document.positions
    last = {(path[:-1], place) for path, place in positions.items() if path and isinstance(path[-1], str)}
    for path, place in positions.items():
        if path[-1:] == ("key",) and isinstance(path[-2], int) and (path[:-2], positions[path[:-1]]) not in last:
            raise config_error(document.name, *place, f"{format_path(path[:-2])}: a key comes twice")


def to_plain(message: Message) -> dict[str, Any]:
    """The fields that are set, by name; enums by name, maps as dicts. Values equal to the default are not set."""
    return {field.name: _plain_field(field, value) for field, value in message.ListFields()}


def _check_escapes(text: str, name: str) -> None:
    """The parser takes escapes that the format does not have, each in its own way."""
    if "\\" not in text:
        return
    for token in _TEXT_OR_COMMENT.finditer(text):
        for escape in _ESCAPE.finditer(token[0]) if token[1] else ():
            if escape["bad"]:
                at = token.start() + escape.start()
                line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
                raise config_error(name, line, column, f"{escape[0]} is no escape sequence")


def _explain(error: str) -> str:
    message = _PREFIX.sub("", error)
    unknown = _UNKNOWN_FIELD.search(message)
    if not unknown:
        return message
    fields = POOL.FindMessageTypeByName(unknown["message"]).fields_by_name
    return f'unknown field "{unknown["field"]}"{nearest(unknown["field"], fields)}'


def _plain_field(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name["value"]
        return {key: _plain_value(entry, value[key]) for key in value}
    if field.is_repeated:
        return [_plain_value(field, item) for item in value]
    return _plain_value(field, value)


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.message_type is not None:
        return to_plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known else value
    return value
