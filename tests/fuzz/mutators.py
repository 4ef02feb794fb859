"""Changes to inputs that keep most of what they mean: a fuzzer that only flips bytes seldom gets past the first parser.

    mutator(data, chance) -> data

Messages are changed field by field, JSON and msgpack node by node, everything else as bytes and words.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import ormsgpack
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from mutators_generation import INPUTS, REQUEST_FIELDS, change_fields, change_files
from onnx import ModelProto
from programs import change
from targets_v2 import CONTROL_METHODS, framed, frames
from words import FLOATS, NAMES, NUMBERS, TEXTS, WORDS

from tfs_lite.protocols import messages
from tfs_lite.protocols.messages import Message
from tfs_lite.protocols.v2 import messages as v2

Mutator = Callable[[bytes, random.Random], bytes]

MAX_DEPTH = 40


def of_bytes(data: bytes, chance: random.Random) -> bytes:
    """One to four small changes, anywhere."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(changed))
        end = min(len(changed), at + chance.choice((1, 2, 4, 8, 16, 64)))
        match chance.randrange(7):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.randrange(256)
            case 2:
                del changed[at:end]
            case 3:
                changed[at:at] = chance.choice(WORDS)
            case 4:
                changed[at:end] = chance.choice(WORDS)
            case 5:
                changed[at:at] = changed[at:end] * chance.choice((1, 1, 2, 9, 60))
            case _:
                other = chance.randint(0, len(changed))
                changed[at:at] = changed[other : other + end - at]
    return bytes(changed)


def of_message(message_class: Any) -> Mutator:
    """For bytes that are such a message."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        try:
            message = message_class.FromString(data)
        except DecodeError:
            return of_bytes(data, chance)
        for _ in range(chance.randint(1, 4)):
            try:
                _change_message(message, chance)
            except (ValueError, TypeError):
                continue
        return bytes(message.SerializeToString())

    return mutate


def of_tree(loads: Callable[[bytes], Any], dumps: Callable[[Any], bytes], head: int) -> Mutator:
    """For bytes that are a tree of dicts and lists after ``head`` bytes of another kind."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        try:
            root = [loads(data[head:])]
            for _ in range(chance.randint(1, 4)):
                _change_node(root, chance)
            return data[:head] + dumps(root[0])
        except (ValueError, TypeError, RecursionError):
            return of_bytes(data, chance)

    return mutate


def either(*mutators: Mutator) -> Mutator:
    return lambda data, chance: chance.choice(mutators)(data, chance)


def of_frames(inside: Mutator) -> Mutator:
    """For a byte and messages of a stream behind it."""

    def mutate(data: bytes, chance: random.Random) -> bytes:
        found = frames(data[1:])
        if not found:
            return of_bytes(data, chance)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(len(found))
            match chance.randrange(6):
                case 0 if len(found) > 1:
                    del found[at]
                case 1:
                    found[at:at] = [chance.choice(found)] * chance.choice((1, 2, 9))
                case 2:
                    chance.shuffle(found)
                case _:
                    found[at] = inside(found[at], chance)
        return data[:1] + framed(found)

    return mutate


def after(head: int, inside: Mutator) -> Mutator:
    """For ``head`` bytes and something else behind them."""
    return lambda data, chance: data[:head] + inside(data[head:], chance)


def _change_control(data: bytes, chance: random.Random) -> bytes:
    """The message of the method that the first byte names; sometimes one of another method."""
    if chance.random() < 0.05:
        return bytes([chance.choice(list(CONTROL_METHODS))]) + data[1:]
    method = CONTROL_METHODS.get(data[0] if data else 0, "ServerMetadata")
    return after(1, of_message(getattr(v2, f"{method}Request")))(data, chance)


def _change_binary(data: bytes, chance: random.Random) -> bytes:
    """The JSON before the bytes, or the bytes; the length goes along as a rule."""
    if data[:1] != b"b" or chance.random() < 0.1:
        return either(of_tree(json.loads, _print_json, 2), of_bytes)(data, chance)
    length = int.from_bytes(data[2:4], "little")
    text, rest = data[4 : 4 + length], data[4 + length :]
    if chance.random() < 0.6:
        text = of_tree(json.loads, _print_json, 0)(text, chance)
    else:
        rest = of_bytes(rest, chance)
    return data[:2] + (len(text) & 0xFFFF).to_bytes(2, "little") + text + rest


def _change_load(data: bytes, chance: random.Random) -> bytes:
    """The config inside, or the call around it."""
    try:
        message = v2.RepositoryModelLoadRequest.FromString(data)
    except DecodeError:
        return of_bytes(data, chance)
    config = message.parameters["config"].string_param if "config" in message.parameters else ""
    if not config or chance.random() < 0.5:
        return of_message(v2.RepositoryModelLoadRequest)(data, chance)
    changed = of_tree(json.loads, _print_json, 0)(config.encode(), chance)
    message.parameters["config"].string_param = changed.decode(errors="replace")
    return bytes(message.SerializeToString())


def _change_message(message: Message, chance: random.Random) -> None:
    """Changes one field of the message, or of one inside it."""
    present = [(field, value) for field, value in message.ListFields() if field.message_type is not None]
    if present and chance.random() < 0.7:
        field, value = chance.choice(present)
        inside = list(value.values() if _is_map(field) else value) if field.is_repeated else [value]
        inside = [item for item in inside if hasattr(item, "ListFields")]
        if inside:
            _change_message(chance.choice(inside), chance)
            return
    fields = message.DESCRIPTOR.fields
    if fields:
        _change_field(message, chance.choice(fields), chance)


def _change_field(message: Message, field: FieldDescriptor, chance: random.Random) -> None:
    if chance.random() < 0.2:
        message.ClearField(field.name)
    elif _is_map(field):
        _change_map(getattr(message, field.name), field, chance)
    elif field.is_repeated:
        _change_repeated(getattr(message, field.name), field, chance)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(field, chance))


def _change_map(entries: Any, field: FieldDescriptor, chance: random.Random) -> None:
    key = _scalar(_entry(field)["key"], chance)
    value = _entry(field)["value"]
    known = list(entries)
    if known and chance.random() < 0.3:
        del entries[chance.choice(known)]
    elif value.message_type is None:
        entries[key] = _scalar(value, chance)
    elif known:
        entries[key].CopyFrom(entries[chance.choice(known)])
    else:
        entries[key].SetInParent()


def _change_repeated(items: Any, field: FieldDescriptor, chance: random.Random) -> None:
    kind = chance.randrange(4)
    if kind == 0 and len(items):
        del items[chance.randrange(len(items)) :]
    elif kind == 1 and len(items):
        copies = [items[chance.randrange(len(items))]] * chance.choice((1, 2, 40))
        items.extend(copies)
    elif field.message_type is not None:
        items.add()
    else:
        items.append(_scalar(field, chance))


def _entry(field: FieldDescriptor) -> Any:
    """The fields of a map's entries, by name."""
    return field.message_type.fields_by_name if field.message_type else {}


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _scalar(field: FieldDescriptor, chance: random.Random) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return chance.choice(TEXTS) if field.type == FieldDescriptor.TYPE_BYTES else chance.choice(NAMES)
        case FieldDescriptor.CPPTYPE_FLOAT | FieldDescriptor.CPPTYPE_DOUBLE:
            return chance.choice(FLOATS)
        case FieldDescriptor.CPPTYPE_BOOL:
            return chance.random() < 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return chance.randrange(32)
        case _:
            return chance.choice(NUMBERS)  # one that does not fit raises ValueError, and nothing is changed


def _change_node(root: list[Any], chance: random.Random) -> None:
    """Changes a random place of the tree in ``root``."""
    container: Any = root
    for _ in range(chance.randrange(MAX_DEPTH)):
        inside = [item for item in _values(container) if isinstance(item, dict | list) and item]
        if not inside or chance.random() < 0.2:
            break
        container = chance.choice(inside)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    key = chance.choice(keys)
    match chance.randrange(7):
        case 0 if container is not root:
            del container[key]
        case 1:
            container[key] = [container[key]] * chance.choice((1, 1, 2, 70))
        case 2 if isinstance(container, dict):
            container[chance.choice(NAMES)] = container[key]
        case 3 if isinstance(container, list) and container is not root:
            container.extend([container[key]] * chance.choice((1, 2, 30)))
        case 4 if isinstance(container[key], list) and container[key]:
            container[key] = container[key][0]
        case _:
            container[key] = _leaf(chance)


def _values(container: Any) -> Sequence[Any]:
    return list(container.values()) if isinstance(container, dict) else container


def _leaf(chance: random.Random) -> Any:
    match chance.randrange(7):
        case 0:
            return chance.choice(NUMBERS)
        case 1:
            return chance.choice(FLOATS)
        case 2:
            return chance.choice((None, True, False, [], {}, [[]], {"b64": "/w=="}, {"b64": ""}, {"b64": "?"}))
        case 3:
            return {"b64": chance.choice(NAMES)}
        case 4:
            return chance.randint(-130, 300)
        case _:
            return chance.choice(NAMES)


def _print_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _print_msgpack(tree: Any) -> bytes:
    return ormsgpack.packb(tree)


_json = of_tree(json.loads, _print_json, 0)
_json_body = of_tree(json.loads, _print_json, 1)

MUTATORS: dict[str, Mutator] = {
    "predict": of_message(messages.PredictRequest),
    "examples": of_message(messages.ClassificationRequest),
    "multi_inference": of_message(messages.MultiInferenceRequest),
    "model_info": of_message(messages.GetModelMetadataRequest),
    "reload": of_message(messages.ReloadConfigRequest),
    "tensor": of_message(messages.TensorProto),
    "rest_json": _json_body,
    "rest_msgpack": of_tree(ormsgpack.unpackb, _print_msgpack, 1),
    "rest_gzip": of_bytes,
    "http": of_bytes,
    "json_body": either(_json, of_bytes),
    "msgpack_tree": either(of_tree(ormsgpack.unpackb, _print_msgpack, 0), of_bytes),
    "tfrecord": of_bytes,
    "warmup": either(of_message(messages.PredictionLog), _json),
    "version_file": either(_json_body, of_bytes),
    "config_pbtxt": of_bytes,
    "config_yaml": of_bytes,
    "v2_infer": of_message(v2.ModelInferRequest),
    "v2_stream": of_frames(of_message(v2.ModelInferRequest)),
    "v2_rest": _change_binary,
    "v2_generate": of_tree(json.loads, _print_json, 2),
    "v2_http": of_bytes,
    "v2_load": _change_load,
    "v2_control": _change_control,
    "v2_config": of_message(messages.TritonModelConfig),
    "openai_completion": change_fields(REQUEST_FIELDS, 0, either(_json, of_bytes)),
    "openai_chat": change_fields(REQUEST_FIELDS, 0, either(_json, of_bytes)),
    "generate_body": change_fields(INPUTS, 1, either(_json_body, of_bytes)),
    "generation_tensors": of_message(messages.PredictRequest),
    "lm_files": change_files(of_bytes),
    "program": change,
    "onnx": either(of_message(ModelProto), of_message(ModelProto), of_bytes),
}
