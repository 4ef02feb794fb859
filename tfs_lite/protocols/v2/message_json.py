"""Messages of ``inference.GRPCInferenceService`` as V2 over HTTP prints them. Pure; any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from tfs_lite.protocols.messages import Message

OUR_FIRST_NUMBER = 1001
"""Fields from this number on are not Triton's; they are shown only where they say something."""

_Order = Callable[[Any], Any] | None


def message_json(message: Message, order: _Order = None) -> dict[str, Any]:
    """The message as JSON has it: names as in the file, enums by name, 64-bit integers as numbers. Every scalar, list
    and map is there, if only with its default; blocks are there if they are set. Maps are sorted, by ``order`` of their
    keys if there is one."""
    fields = (field for field in message.DESCRIPTOR.fields if _is_shown(field, message))
    return {field.name: _json_field(field, getattr(message, field.name), order) for field in fields}


def _is_shown(field: FieldDescriptor, message: Message) -> bool:
    if field.has_presence:
        return bool(message.HasField(field.name))
    return field.number < OUR_FIRST_NUMBER or bool(getattr(message, field.name))


def _json_field(field: FieldDescriptor, value: Any, order: _Order) -> Any:
    if not field.is_repeated:
        return _json_value(field, value, order)
    if field.message_type is None or not field.message_type.GetOptions().map_entry:
        return [_json_value(field, item, order) for item in value]
    entry = field.message_type.fields_by_name["value"]
    return {str(key): _json_value(entry, value[key], order) for key in sorted(value, key=order)}


def _json_value(field: FieldDescriptor, value: Any, order: _Order) -> Any:
    if field.message_type is not None:
        return message_json(value, order)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return float(str(np.float32(value)))
    return value
