"""Line and column of every field in a text-format file, so that a mistake in a value can be pointed at.

The text is known to be good: protobuf has parsed it. So this walk follows the grammar and checks nothing.
"""

from __future__ import annotations

from collections import Counter

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.text_format import Tokenizer

from tfs_lite.config.settings import FieldPath

_CLOSING = {"{": "}", "<": ">"}


def locate(text: str, descriptor: Descriptor) -> dict[FieldPath, tuple[int, int]]:
    """Where every field starts. Items of repeated fields are found by index, entries of maps by key."""
    walk = _Walk(text)
    walk.message(descriptor, (), "")
    return walk.positions


class _Walk:
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
        """Of the current token. Its ``ParseError`` tells the same, but copies the whole line each time."""
        return self._tokens._line + 1, self._tokens._column + 1  # type: ignore[attr-defined]
