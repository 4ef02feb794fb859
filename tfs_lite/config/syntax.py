"""Both syntaxes of config files, read to plain data with the line and column of every field.

Text format: protobuf's own parser reads the text and reports syntax errors, wrong types and unknown fields with line
and column. Its result has no positions, so a second walk over the text, which is known to be good, finds those.

YAML: the safe loader only, so that a config makes no objects. Two freedoms of YAML are taken away because they hide
mistakes: a key that comes twice, and a key without a value (write ``{}`` for an empty block). Aliases, deep nesting and
very long numbers are refused, so that a small file can neither unfold into a large one nor take long to read.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import yaml
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.text_format import Tokenizer

from tfs_lite.config.settings import Document, FieldPath, config_error, format_path, nearest
from tfs_lite.core.status import ServingError
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


_CLOSING = {"{": "}", "<": ">"}


def locate(text: str, descriptor: Descriptor) -> dict[FieldPath, tuple[int, int]]:
    """The place where every field starts. Items of repeated fields are found by index, entries of maps by key."""
    walk = _FieldWalk(text)
    walk.message(descriptor, (), "")
    return walk.positions


class _FieldWalk:
    def __init__(self, text: str) -> None:
        self.positions: dict[FieldPath, tuple[int, int]] = {(): (1, 1)}
        self._scalars: dict[FieldPath, str] = {}
        self._tokens = Tokenizer(text.split("\n"))

    def message(self, descriptor: Descriptor | None, path: FieldPath, closing: str) -> None:
        """All fields up to ``closing``. Without a descriptor (inside an Any) nothing is noted."""
        counts: Counter[FieldPath] = Counter()
        while not self._tokens.AtEnd() and not self._tokens.TryConsume(closing):
            place = self._place()
            name = self._field_name()
            field = descriptor.fields_by_name.get(name) if descriptor else None
            self.positions.setdefault((*path, name), place)
            self._tokens.TryConsume(":")
            self._field(field, (*path, name), counts, place)
            if not self._tokens.TryConsume(","):
                self._tokens.TryConsume(";")

    def _field(
        self, field: FieldDescriptor | None, path: FieldPath, counts: Counter[FieldPath], place: tuple[int, int]
    ) -> None:
        if not self._tokens.TryConsume("["):
            self._item(field, path, counts, place)
            return
        while not self._tokens.TryConsume("]"):
            self._item(field, path, counts, self._place())
            self._tokens.TryConsume(",")

    def _item(
        self, field: FieldDescriptor | None, path: FieldPath, counts: Counter[FieldPath], place: tuple[int, int]
    ) -> None:
        """One value, and for a repeated field or a map the place of this item."""
        if field is None or not field.is_repeated:
            self._value(field, path)
            return
        item = (*path, counts[path])
        counts[path] += 1
        self.positions[item] = place
        self._value(field, item)
        if (*item, "key") in self._scalars:
            self.positions[(*path, self._scalars[(*item, "key")])] = place

    def _value(self, field: FieldDescriptor | None, path: FieldPath) -> None:
        closing = _CLOSING.get(self._tokens.token)
        if closing:
            self._tokens.NextToken()
            self.message(field.message_type if field else None, path, closing)
        elif self._tokens.token[0] in "'\"":
            self._scalars[path] = self._tokens.ConsumeByteString().decode("utf-8", "replace")
        else:
            self._scalars[path] = self._tokens.token
            self._tokens.NextToken()

    def _field_name(self) -> str:
        """A field's name. The bracketed type of an expanded Any has none."""
        if not self._tokens.TryConsume("["):
            return self._tokens.ConsumeIdentifier()
        while not self._tokens.TryConsume("]"):
            self._tokens.NextToken()
        return ""

    def _place(self) -> tuple[int, int]:
        """The place of the current token. Its ``ParseError`` tells the same, but copies the whole line each time."""
        return self._tokens._line + 1, self._tokens._column + 1  # type: ignore[attr-defined]


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
