"""Our wire definitions, in a descriptor pool of their own.

protobuf's default pool accepts each full name once per process. Ours are TensorFlow's names, so registering them
there would break programs that import ``tensorflow``, ``tensorflow_serving`` or ``grpc_health`` as well, in either
order. With a private pool both work in one process, and exchange bytes.

Messages of two pools do not mix: ``CopyFrom`` across pools raises TypeError; use ``SerializeToString`` and
``FromString``. Messages of a private pool cannot be pickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tfs_lite.protocols.dtypes import Array

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")
"""The descriptors, compiled from ``protos/`` by ``tfs_lite.protocols.build``."""


def _load() -> DescriptorPool:
    pool = DescriptorPool()
    for module in (any_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for file in FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


POOL = _load()
"""Every file of ``protos/`` and the two of Google's that they import. Read-only; any thread may use it."""


def message_class(full_name: str) -> Any:
    """The class of one message, e.g. ``tensorflow.serving.PredictRequest``. KeyError if there is none."""
    return GetMessageClass(POOL.FindMessageTypeByName(full_name))


_NUMBERS: dict[int, type[np.generic]] = {
    FieldDescriptor.CPPTYPE_BOOL: np.bool_,
    FieldDescriptor.CPPTYPE_INT32: np.int32,
    FieldDescriptor.CPPTYPE_INT64: np.int64,
    FieldDescriptor.CPPTYPE_UINT32: np.uint32,
    FieldDescriptor.CPPTYPE_UINT64: np.uint64,
    FieldDescriptor.CPPTYPE_FLOAT: np.float32,
    FieldDescriptor.CPPTYPE_DOUBLE: np.float64,
}


def numbers_in(message: Any, field: str) -> Array:
    """The values of a repeated field of numbers, in the field's own type. numpy has to be told: the fields of
    protobuf 6 do not say their type to it."""
    return np.asarray(getattr(message, field), _NUMBERS[message.DESCRIPTOR.fields_by_name[field].cpp_type])
