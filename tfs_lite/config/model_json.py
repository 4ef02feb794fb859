"""A model's config in JSON, as a request to load a model may bring it, to settings.

The form is that of protobuf's JSON as its C++ library reads it, which Triton uses: names as in the file or in camel
case, enums by name in any case or by number, 64-bit integers as numbers or texts, null for what is not said, and a
single element for a list of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from tfs_lite.config.model import ModelSettings
from tfs_lite.config.settings import Document, FieldPath, build, format_path, nearest
from tfs_lite.core.status import ServingError, invalid_argument
from tfs_lite.protocols import messages
from tfs_lite.protocols.json.text import Json, loads

MAX_JSON_BYTES = 4 * 1024 * 1024


def settings_of_json(text: str | bytes, name: str) -> ModelSettings:
    """The settings in a JSON text. ``name`` stands in messages: what the text is the config of, or where it came from.

    INVALID_ARGUMENT for what is no JSON object, unknown fields, and everything that a file would be refused for.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > MAX_JSON_BYTES:
        raise invalid_argument(f"{name}: larger than {MAX_JSON_BYTES} bytes")
    try:
        tree = loads(data)
    except ServingError as error:
        raise invalid_argument(f"{name}: {error.status.message}") from None
    plain = _JsonReader(name).message(messages.TritonModelConfig.DESCRIPTOR, tree, ())
    return build(ModelSettings, Document(plain, name))


class _JsonReader:
    """JSON to what the text format gives: names and enums as the settings have them. Values are checked later."""

    def __init__(self, name: str) -> None:
        self._name = name

    def message(self, descriptor: Descriptor, value: Json, path: FieldPath) -> dict[str, Any]:
        fields = {field.camelcase_name: field for field in descriptor.fields} | dict(descriptor.fields_by_name)
        found: dict[str, Any] = {}
        for key, item in self._object(value, path).items():
            field = fields.get(key)
            if field is None:
                raise self._error((*path, key), f"unknown field{nearest(key, descriptor.fields_by_name)}")
            if field.name in found:
                raise self._error((*path, key), "comes twice")
            if item is not None:
                found[field.name] = self._field(field, item, (*path, field.name))
        return found

    def _field(self, field: FieldDescriptor, value: Json, path: FieldPath) -> Any:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            entry = field.message_type.fields_by_name["value"]
            return {key: self._value(entry, item, (*path, key)) for key, item in self._object(value, path).items()}
        if not field.is_repeated:
            return self._value(field, value, path)
        found = value.tolist() if isinstance(value, np.ndarray) else value
        items = found if isinstance(found, list) else [found]
        return [self._value(field, item, (*path, index)) for index, item in enumerate(items)]

    def _value(self, field: FieldDescriptor, value: Json, path: FieldPath) -> Any:
        if field.message_type is not None:
            return self.message(field.message_type, value, path)
        if field.enum_type is not None:
            return _enum_name(field.enum_type, value)
        is_integer = field.cpp_type in _INTEGERS
        if is_integer and isinstance(value, str) and _is_number(value):
            return int(value)
        if is_integer and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            return int(value)
        return value

    def _object(self, value: Json, path: FieldPath) -> Mapping[str, Json]:
        if not isinstance(value, dict):
            raise self._error(path, f"expected an object, got {value!r:.80}")
        return value

    def _error(self, path: FieldPath, message: str) -> ServingError:
        return invalid_argument(f"{self._name}: {format_path(path)}{': ' if path else ''}{message}")


_INTEGERS = (
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
)


def _is_number(text: str) -> bool:
    return len(text) <= 20 and text.isascii() and text.removeprefix("-").isdigit()


def _enum_name(enum: EnumDescriptor, value: Json) -> Any:
    """The name as the enum has it, if there is one of that number or, in whatever case, of that name."""
    if isinstance(value, str):
        return value.upper() if value.upper() in enum.values_by_name else value
    known = enum.values_by_number.get(value) if isinstance(value, int) and not isinstance(value, bool) else None
    return known.name if known else value
